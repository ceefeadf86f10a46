"""The exact discrete solvers: numpy in, numpy out, no torch."""

from discoseg.discrete.potts import Cut, Foresight, PottsGrid
from discoseg.discrete.ranking import check_bounds, select_by_size

__all__ = ["Cut", "Foresight", "PottsGrid", "check_bounds", "select_by_size"]
