"""The subcommands of ``discoseg``: one dataclass each, whose fields are its options and whose ``run`` calls the API.

Heavy imports stand inside the commands that need them, so that ``discoseg --help`` answers at once.
"""

from discoseg.commands.annotation import Annotate
from discoseg.commands.data import Check, Phantom, Seeds
from discoseg.commands.experiments import Demo, Reproduce
from discoseg.commands.results import Evaluate, Export, Info, Next, Predict, Report
from discoseg.commands.training import Sweep, Train

Command = (
    Check
    | Seeds
    | Annotate
    | Train
    | Sweep
    | Predict
    | Export
    | Evaluate
    | Report
    | Info
    | Next
    | Phantom
    | Demo
    | Reproduce
)

__all__ = [
    "Annotate",
    "Check",
    "Command",
    "Demo",
    "Evaluate",
    "Export",
    "Info",
    "Next",
    "Phantom",
    "Predict",
    "Report",
    "Reproduce",
    "Seeds",
    "Sweep",
    "Train",
]
