"""The exact discrete solvers: numpy in, numpy out, no torch."""

from discoseg.discrete.assignment import Assignment, assign_by_size, assign_with_prices, check_class_bounds
from discoseg.discrete.expansion import Expansion, energy_of_labels, label_by_expansion
from discoseg.discrete.potts import Cut, Foresight, PottsGrid
from discoseg.discrete.ranking import check_bounds, select_by_size
from discoseg.discrete.sized_cut import cut_at_size

__all__ = [
    "Assignment",
    "Cut",
    "Expansion",
    "Foresight",
    "PottsGrid",
    "assign_by_size",
    "assign_with_prices",
    "check_bounds",
    "check_class_bounds",
    "cut_at_size",
    "energy_of_labels",
    "label_by_expansion",
    "select_by_size",
]
