"""What makes the proposals of each prior, by what there is to propose: one structure or several."""

from discoseg.config import Config, PriorName
from discoseg.labelling import LabelProposer, assignment, expansion, open_limits
from discoseg.material import Material
from discoseg.proposals import CrfProposer, SizeProposer, sizes_to_choose
from discoseg.weak.pairs import read_pairs

Proposer = CrfProposer | SizeProposer | LabelProposer
"""Makes a prior's proposals for all volumes of an epoch."""


def make_proposers(material: Material, config: Config) -> dict[PriorName, Proposer]:
    """Return what makes the proposals of each prior."""
    proposers: dict[PriorName, Proposer] = {}
    honour, structures = config.admm.honour_seeds, len(material.slices.structures)
    if structures > 1:
        regions = material.regions(config.crf, honour_seeds=honour)
        pairs = read_pairs(config.crf.pairs, material.slices.structures)
        limits = [open_limits(example, config.admm) for example in material.training] if config.uses_size else []
        known = limits if config.calibrates else None
        solvers = {"crf": expansion(config.crf.strength, pairs, known), "size": assignment(limits)}
        where = material.pool, material.device
        return {
            name: LabelProposer(
                regions, structures, solvers[name], *where, turns=material.turns, memory=material.memory
            )
            for name in config.priors
        }
    if config.uses_crf:
        regions = material.regions(config.crf, honour_seeds=honour)
        proposers["crf"] = CrfProposer(
            regions,
            config.crf.strength,
            material.pool,
            material.device,
            turns=material.turns,
            foresee=material.idle_cores and not config.deterministic,  # a guess rounds, if it comes in time
            sizes=sizes_to_choose(material.training, config.admm) if config.calibrates else None,
            memory=material.memory,
        )
    if config.uses_size:
        proposers["size"] = SizeProposer(
            material.training, config.admm, material.pool, material.device, material.memory
        )
    return proposers
