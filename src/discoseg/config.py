"""What a training is: frozen dataclasses, which :mod:`discoseg.presets` has ready, and reads.

One method is one configuration; the loop in :mod:`discoseg.train` is the same for all of them. Every field's docstring
carries its unit, and is what ``discoseg train --help`` shows.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from discoseg.errors import UserError

Method = Literal["full", "partial", "penalty", "size", "crf", "crf+size"]
PriorName = Literal["crf", "size"]
Coupling = Literal["square", "entropy"]
Schedule = Literal["constant", "ramp", "balance"]
Axis = Literal["x", "y", "z"]


MOST_PIXELS = 16_384  # of a slice's side
MOST_FEATURES = 4096  # of a network's first level; both only keep files from asking for anything at all
MOST_WIDENED = 16  # pixels


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


@dataclass(frozen=True)
class GridConfig:
    """How volumes become slices for the network."""

    shape: tuple[int, int] = (256, 256)
    """Rows and columns that every slice is resized to, in pixels."""
    clip_percent: tuple[float, float] = (0.0, 100.0)
    """Percentiles of a volume's intensities that become 0 and 1; values beyond are clipped."""
    axis: Axis = "z"
    """Axis of the files (in the orientation most of them have) that slices lie across; z for anything with thick
    slices, any for isotropic volumes."""

    def __post_init__(self) -> None:
        _require(min(self.shape) >= 16, f"--grid.shape {self.shape} is too small: 16 pixels at least")
        _require(
            max(self.shape) <= MOST_PIXELS, f"--grid.shape {self.shape} is too large: {MOST_PIXELS} pixels at most"
        )
        low, high = self.clip_percent
        _require(0 <= low < high <= 100, f"--grid.clip-percent {self.clip_percent} is no range within 0 to 100")


@dataclass(frozen=True)
class NetworkConfig:
    """The segmentation network."""

    name: Literal["enet", "unet"] = "unet"
    """ENet (Paszke et al.), or a U-Net with batch normalisation."""
    width: int = 0
    """Features at the first level; 0 takes the network's own (ENet 16, U-Net 64)."""
    depth: int = 0
    """Poolings of a U-Net, each doubling the features and what it sees; 0 takes its own, 3. ENet's is fixed."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the network on a GPU; losses, weights and a CPU's work are always float32."""

    def __post_init__(self) -> None:
        least = 4 if self.name == "enet" else 1
        _require(self.width <= MOST_FEATURES, f"--network.width {self.width} is too large: {MOST_FEATURES} at most")
        _require(
            self.width == 0 or self.width >= least, f"--network.width {self.width}: {self.name} needs {least} or more"
        )
        _require(0 <= self.depth <= 6, f"--network.depth {self.depth} must be in 0 to 6")


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam and its schedule."""

    batch: int = 8
    """Slices in a batch, drawn at random across volumes."""
    lr: float = 5e-4
    """Initial learning rate."""
    lr_factor: float = 0.25
    """What the learning rate is multiplied by at each decay."""
    lr_every: int = 50
    """Epochs between two decays of the learning rate."""
    weight_decay: float = 0.0
    """L2 weight decay."""

    def __post_init__(self) -> None:
        _require(self.batch >= 1, f"--optimiser.batch {self.batch} must be at least 1")
        _require(0 < self.lr < math.inf, f"--optimiser.lr {self.lr} must be positive")
        _require(0 < self.lr_factor <= 1, f"--optimiser.lr-factor {self.lr_factor} must be in (0, 1]")
        _require(self.lr_every >= 1, f"--optimiser.lr-every {self.lr_every} must be at least 1")
        _require(
            0 <= self.weight_decay < math.inf, f"--optimiser.weight-decay {self.weight_decay} must not be negative"
        )


@dataclass(frozen=True)
class AugmentConfig:
    """Random transforms of a slice, the same for its image, seeds, proposals and multipliers."""

    rotate_deg: float = 0.0
    """Largest rotation either way, in degrees."""
    crop_min: float = 1.0
    """Smallest side of the random window that becomes the whole grid, as a fraction of the slice's."""
    crop_max: float = 1.0
    """Largest side of that window; beyond 1 it shows the slice smaller, with nothing known around it."""
    flip: bool = False
    """Mirror left-right and up-down, each with probability one half."""
    mirror: bool = False
    """Mirror the columns of a slice alone, left-right in an axial one, with probability one half: where both sides look
    alike, but above and below do not. Flip includes it."""
    gamma: float = 0.0
    """Intensities (of the image alone) are raised to a power within e^±gamma."""
    noise: float = 0.0
    """Largest standard deviation of the noise added to the image, on intensities scaled to [0, 1]."""

    def __post_init__(self) -> None:
        _require(0 <= self.rotate_deg <= 180, f"--augment.rotate-deg {self.rotate_deg} must be in [0, 180]")
        _require(0 < self.crop_min <= 1, f"--augment.crop-min {self.crop_min} must be in (0, 1]")
        _require(1 <= self.crop_max <= 4, f"--augment.crop-max {self.crop_max} must be in [1, 4]")
        _require(0 <= self.gamma < math.inf, f"--augment.gamma {self.gamma} must be 0 or more")
        _require(0 <= self.noise < math.inf, f"--augment.noise {self.noise} must be 0 or more")

    @property
    def flips(self) -> tuple[bool, bool]:
        """Whether slices are mirrored left-right and up-down."""
        return self.flip or self.mirror, self.flip


@dataclass(frozen=True)
class CrfConfig:
    """The boundary prior: a contrast-weighted Potts model on the 3D volume."""

    strength: float = 1.0
    """λ, the weight of boundary length against the label loss; the cut uses λ/μ."""
    sigma: float = 0.05
    """σ of the contrast weight exp(−d²/2σ²), on intensities scaled to [0, 1]."""
    widen: int = 0
    """Pixels of the network's grid by which whatever is bright is widened in its slices, in the image whose contrast
    counts; whatever is dark, if negative. For structures whose masks go a pixel beyond the steepest edge, so that the
    cheapest border is inside of the true one: blood in ACDC, whose masks include the pixels it shares with muscle.
    Masks of a second round see the same."""
    calibrate: bool = False
    """With size bounds: shift the log odds of each volume before its cut, by one number for each structure, such that
    about as many voxels have it as its bounds say. Otherwise a network that is below ½ there gets an empty proposal.
    Meant for rho 0."""
    pairs: str | None = None
    """Of several structures: factors of the strength between two of them, of which the background may be one, such as
    RV-MYO 0.5,MYO-LV 1.5; 1 where nothing is said. They must be a metric: no detour by a third one is cheaper."""
    neighbours: Literal[6, 8, 18, 26] = 26
    """Neighbours of a voxel, 8 being those in its slice; each weight is divided by the neighbour's distance in mm."""

    def __post_init__(self) -> None:
        _require(0 <= self.strength < math.inf, f"--crf.strength {self.strength} must be 0 or more, and finite")
        _require(0 < self.sigma < math.inf, f"--crf.sigma {self.sigma} must be positive, and finite")
        _require(abs(self.widen) <= MOST_WIDENED, f"--crf.widen {self.widen} must be -{MOST_WIDENED} to {MOST_WIDENED}")


@dataclass(frozen=True)
class AdmmConfig:
    """How proposals and multipliers act on the network."""

    mu_crf: float = 1.0
    """μ̂, the ADMM penalty parameter of the CRF proposal."""
    mu_size: float = 1.0
    """μ̃, the ADMM penalty parameter of the size proposal."""
    coupling: Coupling = "square"
    """What draws the network to a target y − u: the paper's square, or the cross-entropy, which does not fade where the
    network is sure and wrong."""
    rho: float = 1.0
    """Step of the multiplier update u += ρ(s − y); less than the paper's 1 damps oscillation."""
    margin: float = 0.0
    """How far inside its bounds a size proposal stays, as a fraction of each bound, because the network follows it only
    roughly: 0.05 makes 95 to 104 voxels of 90 to 110."""
    soft_bounds: float | None = None
    """What each voxel outside the size bounds costs a size proposal, instead of being forbidden: its voxels beyond the
    upper bound must exceed ½ by soft_bounds/μ̃. One structure only; seeds must still fit the bounds."""
    honour_seeds: bool = True
    """Whether proposals obey the annotated voxels exactly."""
    schedule: Schedule = "constant"
    """μ over time: constant, a linear ramp, or residual balancing (Boyd et al. 2011, §3.4.1) within 1/16 to 16 μ."""
    ramp_epochs: int = 20
    """Epochs that the ramp takes to reach μ."""
    warm_up: int = 0
    """Epochs on annotated voxels alone before the first proposals, for annotations that leave most of a volume open;
    methods without proposals have none."""

    def __post_init__(self) -> None:
        _require(0 < self.mu_crf < math.inf, f"--admm.mu-crf {self.mu_crf} must be positive")
        _require(0 < self.mu_size < math.inf, f"--admm.mu-size {self.mu_size} must be positive")
        _require(0 <= self.rho <= 2, f"--admm.rho {self.rho} must be in [0, 2]")
        _require(0 <= self.margin < 1, f"--admm.margin {self.margin} must be in [0, 1)")
        _require(
            self.soft_bounds is None or 0 < self.soft_bounds < math.inf,
            f"--admm.soft-bounds {self.soft_bounds} must be positive; leave it out to forbid sizes outside the bounds",
        )
        _require(self.ramp_epochs >= 1, f"--admm.ramp-epochs {self.ramp_epochs} must be at least 1")
        _require(self.warm_up >= 0, f"--admm.warm-up {self.warm_up} must be 0 or more")

    @property
    def first_proposals(self) -> int:
        """After how many epochs the first proposals are made."""
        return max(1, self.warm_up)


@dataclass(frozen=True)
class RoundsConfig:
    """A second network, which learns what the first one proposes; for the method crf+size."""

    first: int = 0
    """Epochs of the first round; 0 makes one round of all. Then a new network starts, and the learning rate, too; it
    learns, by cross-entropy, one mask of each training volume, which stays: a cut of the first one's mean probabilities
    at the known size. Where fewer epochs are left than half of the first round's there is one round."""
    strength: float = 0.3
    """λ of these cuts."""
    sigma: float = 0.0
    """σ of their contrast weights; 0 takes that of --crf.sigma."""
    neighbours: Literal[0, 6, 8, 18, 26] = 0
    """Neighbours of a voxel in these cuts; 0 takes those of --crf.neighbours."""
    margin: float = 0.08
    """How far inside its bounds the size of such a mask stays, as a fraction of each bound."""
    slices: bool = False
    """Whether such a mask is empty, but for foreground seeds that are honoured, beyond the first and the last slice
    that slices.csv in the folder of seeds has for its case; what the file leaves out may reach anywhere. One structure,
    and slices across z, only."""

    def __post_init__(self) -> None:
        _require(self.first >= 0, f"--rounds.first {self.first} must be 0 or more")
        _require(0 <= self.strength < math.inf, f"--rounds.strength {self.strength} must be 0 or more, and finite")
        _require(0 <= self.sigma < math.inf, f"--rounds.sigma {self.sigma} must be 0 or more, and finite")
        _require(not self.slices or self.first > 0, "--rounds.slices is about a second round, and --rounds.first is 0")
        _require(0 <= self.margin < 1, f"--rounds.margin {self.margin} must be in [0, 1)")


@dataclass(frozen=True)
class Config:
    """One training, complete: the same configuration, data and seed give the same network on a CPU."""

    method: Method = "crf+size"
    """What guides the network beside the annotated voxels: all voxels of the masks (full), nothing (partial), a
    penalty on the summed probabilities (penalty), or discrete proposals of size, boundary, or both."""
    label: str | None = None
    """The structure to segment, by name or value; several are joined by commas (RV,MYO,LV), or all. May be left out
    where the dataset has only one."""
    epochs: int = 250
    """Passes over all training slices."""
    seed: int = 0
    """Seed of everything random."""
    deterministic: bool = False
    """On a GPU: compute in such a way that the same command on the same machine gives the same numbers again, which is
    slower. A CPU does so anyway."""
    size_eps: float | None = None
    """Size bounds of ±eps (a fraction, 0.1 is 10 %) around the true size, for experiments with masks."""
    size_ml: str | None = None
    """Size bounds in millilitres for every case, LOW:HIGH; either side may be left empty. LOW:HIGHmm are diameters of
    a ball of that size, LOW:HIGHvox voxels of the image's own file; adult-ed and others are published sizes (see
    docs/data.md). Of several structures, each by its name: LV=60:180,RV=70:200; of a group of cases: LV@ED=60:180."""
    size_csv: Path | None = None
    """Size bounds per case: a CSV file with the columns case, low_ml, high_ml (or low_vox, high_vox; low_mm, high_mm;
    size_ml, eps); of several structures, with the column label too."""
    penalty: float = 0.01
    """μ of the size penalty (method penalty only), on violation relative to the upper bound."""
    foreground_weight: float = 1.0
    """How many times an annotated foreground voxel counts in the cross-entropy; background voxels count once."""
    grid: GridConfig = field(default_factory=GridConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    crf: CrfConfig = field(default_factory=CrfConfig)
    admm: AdmmConfig = field(default_factory=AdmmConfig)
    rounds: RoundsConfig = field(default_factory=RoundsConfig)

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"--epochs {self.epochs} must be at least 1")
        bounds = [value for value in (self.size_eps, self.size_ml, self.size_csv) if value is not None]
        _require(len(bounds) <= 1, "give one of --size-eps, --size-ml and --size-csv, not several")
        _require(
            self.size_eps is None or 0 <= self.size_eps < math.inf, f"--size-eps {self.size_eps} must be 0 or more"
        )
        _require(
            self.admm.soft_bounds is None or self.uses_size,
            f"--admm.soft-bounds is about size proposals, which --method {self.method} does not make: leave it out",
        )
        _require(
            not self.rounds.slices or self.grid.axis == "z",
            f"--rounds.slices works across z, not with --grid.axis {self.grid.axis}: leave it out",
        )
        within = f"--rounds.first {self.rounds.first}" if self.has_second_round else f"--epochs {self.epochs}"
        _require(
            not self.priors or self.admm.warm_up < self.end_of_round(0),
            f"--admm.warm-up {self.admm.warm_up} leaves none of {within} for proposals; lower it",
        )
        _require(0 <= self.seed < 2**63, f"--seed {self.seed} must be 0 or more")
        _require(0 <= self.penalty < math.inf, f"--penalty {self.penalty} must not be negative")
        _require(
            0 < self.foreground_weight < math.inf, f"--foreground-weight {self.foreground_weight} must be positive"
        )

    @property
    def uses_crf(self) -> bool:
        """Whether training makes CRF proposals."""
        return self.method in ("crf", "crf+size")

    @property
    def uses_size(self) -> bool:
        """Whether training makes size proposals."""
        return self.method in ("size", "crf+size")

    @property
    def calibrates(self) -> bool:
        """Whether CRF proposals are made from probabilities shifted to the known size."""
        return self.crf.calibrate and self.uses_crf and self.uses_size

    @property
    def needs_bounds(self) -> bool:
        """Whether the method cannot run without size bounds."""
        return self.uses_size or self.method == "penalty"

    @property
    def priors(self) -> list[PriorName]:
        """The priors that training makes proposals for."""
        used: dict[PriorName, bool] = {"crf": self.uses_crf, "size": self.uses_size}
        return [name for name in used if used[name]]

    @property
    def has_second_round(self) -> bool:
        """Whether a second network learns what the first one proposes."""
        first = self.rounds.first
        return first > 0 and 3 * first <= 2 * self.epochs and self.method == "crf+size"

    @property
    def uses_slices(self) -> bool:
        """Whether masks of a second round, if there is one, keep to known slices."""
        return self.rounds.slices and self.method == "crf+size"

    def round_of(self, epoch: int) -> int:
        """Return the round, 0 or 1, that an epoch (from 0) belongs to."""
        return int(self.has_second_round and epoch >= self.rounds.first)

    def end_of_round(self, number: int) -> int:
        """Return the number of epochs that are done after a round."""
        return self.rounds.first if self.has_second_round and number == 0 else self.epochs
