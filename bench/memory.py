"""Peak memory of one cut, ours and PyMaxflow's, each in a fresh process that holds nothing else (Linux only)."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from instances import NEIGHBOURS, Instance
from states import Volume

# What the process had before is taken off: the interpreter, numpy, compiled code, the image and the costs.
_CHILD = """
import sys
import numpy as np
which, file, neighbours, strength = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def peak():
    with open("/proc/self/status") as status:  # of this program; getrusage's includes the one that started it
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
stored = np.load(file)
image, unary, spacing_mm = stored["image"], stored["unary"], tuple(stored["spacing_mm"].tolist())
if which == "ours":
    from discoseg.discrete import PottsGrid
    def cut(part):
        grid = PottsGrid(image[part], spacing_mm=spacing_mm, sigma=0.05, neighbours=neighbours)
        grid.cut(unary[part], strength=strength)
else:
    from discoseg.discrete.contrast import forward_offsets
    import maxflow
    def cut(part):
        cost = unary[part]
        offsets = forward_offsets(3, neighbours)
        graph = maxflow.Graph[float](cost.size, cost.size * len(offsets))
        nodes = graph.add_grid_nodes(cost.shape)
        for offset in offsets:  # one array of weights at a time
            difference = image[part] - np.roll(image[part], tuple(-offset), axis=(0, 1, 2))
            weights = strength * np.exp(-200.0 * difference * difference)
            structure = np.zeros((3, 3, 3))
            structure[tuple(offset + 1)] = 1
            graph.add_grid_edges(nodes, weights=weights, structure=structure, symmetric=True)
        graph.add_grid_tedges(nodes, np.maximum(cost, 0), np.maximum(-cost, 0))
        graph.maxflow()
        graph.get_grid_segments(nodes)
cut((slice(0, 2), slice(0, 16), slice(0, 16)))  # imports and compiled code
before = peak()
cut((slice(None),) * 3)
print(peak() - before)
"""


def compare_memory(volumes: Sequence[Volume]) -> None:
    """Print the peak of a cut of a full volume, weights included on both sides."""
    print("\n| neighbours | state | voxels | ours MiB | PyMaxflow MiB | ours / PyMaxflow's (bar 0.25) |")
    print("|---|---|---|---|---|---|")
    full = [volume for volume in volumes if volume.seeds is None][-1]
    for neighbours in NEIGHBOURS:
        for stage in ("middle", "late"):
            instance = Instance(full, stage, neighbours, 0.05, 1.0)
            ours, theirs = (_peak_mib(instance, which) for which in ("ours", "theirs"))
            print(
                f"| {neighbours} | {stage} | {instance.unary.size} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |",
                flush=True,
            )


def _peak_mib(instance: Instance, which: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "instance.npz"
        np.savez(file, image=instance.volume.image, unary=instance.unary, spacing_mm=instance.volume.spacing_mm)
        command = [sys.executable, "-c", _CHILD, which, str(file), str(instance.neighbours), str(instance.strength)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
