"""What a training costs, by measured constants: bytes and milliseconds of a volume, traffic of a step, many GPUs.

    python bench/cost_model.py                 # the tables of docs/scaling.md

The constants are those of docs/performance.md: ACDC's left ventricle, crf+size, ENet, batch 8, one H200 and 16 cores.
Speeds of links and disks are assumptions, and say so. ``bench/many.py`` checks what it says of growth and of bytes.
"""

from dataclasses import dataclass

from discoseg.networks import build_network
from discoseg.presets import PRESETS

GIB = 2**30
VOLUMES, SLICES, SIDE = 160, 1498, 256  # of training, as measured
VOXELS = SLICES * SIDE * SIDE / VOLUMES  # of a volume
PHASES_MS = {"network": 643, "predict": 104, "size": 17, "score": 41, "crf": 9, "save": 22}  # an epoch of all volumes
BATCH = 8
CUT_CORE_MS = 22  # of one core for one volume, from nothing: bench/foresight.py
LABELS_CORE_MS = 420  # of one core for RV, MYO and LV of one volume: 15 threads for 4.5 s an epoch of 160 volumes
SUMMARY_BYTES = 250  # of a volume and epoch: its counts and its row of next.csv

GPU_GIB = 139.0  # of an H200
ACTIVATIONS_GIB = 1.8  # of a step of ENet; what the libraries take is not counted
NVLINK_GB_S, NETWORK_GB_S, DISK_GB_S = 300.0, 12.5, 1.0  # assumed: within a machine, 100 Gbit/s between, one disk


@dataclass(frozen=True)
class Task:
    """What bytes depend on: structures, priors and channels."""

    structures: int = 1
    priors: int = 2
    channels: int = 1

    @property
    def device_bytes(self) -> int:
        """Of a training voxel where the network trains, as `discoseg.material.require_room_on_device` counts."""
        return 4 * self.channels + 2 + 4 * self.structures + 11 * self.structures * self.priors

    @property
    def checkpoint_bytes(self) -> int:
        """Of a training voxel in a checkpoint, of which two are kept: a proposal and a multiplier of each prior."""
        return 5 * self.structures * self.priors

    @property
    def weights_bytes(self) -> int:
        """Of an open voxel in the host's memory, as far as it has room: contrast weights of 26 neighbours."""
        return 4 * 13 + 12


def gradient_bytes(name: str, width: int, depth: int) -> int:
    """Return the bytes of all gradients of a network, float32."""
    network = build_network(name, channels=1, classes=2, width=width, depth=depth)  # type: ignore[arg-type]
    return 4 * sum(parameter.numel() for parameter in network.parameters())


def ring_bytes(gradients: int, ranks: int) -> float:
    """Return what each rank sends in a step: a ring's all-reduce passes everything but one part on, twice."""
    return 2 * (ranks - 1) / ranks * gradients


def epoch_s(volumes: int, gpus: int, *, cores_per_gpu: int, gradients: int, machines: int = 1, core_ms: float) -> float:
    """Return the seconds of an epoch with a batch of `BATCH` on each GPU: the slowest of steps and cuts, and the rest.

    A step waits for its gradients; cuts run beside steps and predictions, on the cores that a GPU has.
    """
    own = volumes / gpus
    speed = (NVLINK_GB_S if machines == 1 else NETWORK_GB_S) * 1e9
    reduce_ms = 1000 * ring_bytes(gradients, gpus) / speed if gpus > 1 else 0.0
    steps = own * SLICES / VOLUMES / BATCH
    device_ms = own * (PHASES_MS["network"] + PHASES_MS["predict"]) / VOLUMES + steps * reduce_ms
    rest_ms = own * (PHASES_MS["size"] + PHASES_MS["score"]) / VOLUMES + PHASES_MS["save"] + PHASES_MS["crf"]
    return (max(device_ms, own * core_ms / max(1, cores_per_gpu - 1)) + rest_ms) / 1000


def main() -> None:
    """Print the tables."""
    task, preset = Task(), PRESETS["default"].network
    nets = {
        "ENet": gradient_bytes("enet", 0, 0),
        "U-Net of the default preset": gradient_bytes("unet", preset.width, preset.depth),
    }
    print("| of a volume (613,580 voxels) | one structure, two priors | three structures, two priors |\n|---|---|---|")
    several = Task(structures=3)
    for title, values in {
        "on the device, MB": [t.device_bytes * VOXELS / 1e6 for t in (task, several)],
        "in a checkpoint, MB": [t.checkpoint_bytes * VOXELS / 1e6 for t in (task, several)],
        "contrast weights on the host, MB at most": [t.weights_bytes * VOXELS / 1e6 for t in (task, several)],
        "volumes that one H200 holds": [
            (GPU_GIB - ACTIVATIONS_GIB) * GIB / (t.device_bytes * VOXELS) for t in (task, several)
        ],
    }.items():
        print(
            f"| {title} | " + " | ".join(f"{value:,.0f}" if value > 100 else f"{value:.1f}" for value in values) + " |"
        )
    print("\n| phase, ms of a volume | " + " | ".join(PHASES_MS) + " | a cut, on one core |")
    print("|---|" + "---|" * (len(PHASES_MS) + 1))
    print("| | " + " | ".join(f"{ms / VOLUMES:.2f}" for ms in PHASES_MS.values()) + f" | {CUT_CORE_MS} |")
    print(
        "\n| gradients | MB | sent a step by each of 2 | of 8 | of 800 | ms at 300 GB/s (8) | ms at 12.5 GB/s (800) |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, size in nets.items():
        sent = [ring_bytes(size, ranks) / 1e6 for ranks in (2, 8, 800)]
        times = [1e3 * sent[1] * 1e6 / (NVLINK_GB_S * 1e9), 1e3 * sent[2] * 1e6 / (NETWORK_GB_S * 1e9)]
        cells = [f"{value:.1f}" for value in sent] + [f"{value:.2f}" for value in times]
        print(f"| {name} | {size / 1e6:.1f} | " + " | ".join(cells) + " |")
    print("\n| s an epoch, 16 cores a GPU | 160 volumes | 7,000 | 50,000 | 1,000,000 |\n|---|---|---|---|---|")
    for title, gpus, machines in (("1 GPU", 1, 1), ("8 GPUs, one machine", 8, 1), ("800 GPUs, 100 machines", 800, 100)):
        cells = []
        for volumes in (160, 7_000, 50_000, 1_000_000):
            fits = volumes / gpus * task.device_bytes * VOXELS <= (GPU_GIB - ACTIVATIONS_GIB) * GIB
            seconds = epoch_s(
                volumes, gpus, cores_per_gpu=16, gradients=nets["ENet"], machines=machines, core_ms=CUT_CORE_MS
            )
            enough = volumes * SLICES / VOLUMES >= gpus * BATCH
            cells.append("no room" if not fits else "too few slices" if not enough else f"{seconds:.3g}")
        print(f"| {title} | " + " | ".join(cells) + " |")
    print("\n| cores a GPU, 7,000 volumes, 8 GPUs | 2 | 4 | 8 | 16 | 64 | 128 |\n|---|---|---|---|---|---|---|")
    for title, core_ms in (("one structure", CUT_CORE_MS), ("three structures", LABELS_CORE_MS)):
        cells = [
            f"{epoch_s(7_000, 8, cores_per_gpu=cores, gradients=nets['ENet'], core_ms=core_ms):.3g} s"
            for cores in (2, 4, 8, 16, 64, 128)
        ]
        print(f"| {title} | " + " | ".join(cells) + " |")
    checkpoint = task.checkpoint_bytes * VOXELS * 7_000
    print(
        f"\nA checkpoint of 7,000 volumes: {checkpoint / 1e9:.0f} GB, {checkpoint / 1e9 / DISK_GB_S:.0f} s at "
        f"{DISK_GB_S:g} GB/s; summaries of an epoch: {SUMMARY_BYTES * 7_000 / 1e6:.1f} MB."
    )


if __name__ == "__main__":
    main()
