"""Types of options that several commands have."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

DatasetArgument = Positional[Annotated[Path, arg(metavar="DATASET")]]
Device = Literal["auto", "cpu", "cuda"]
