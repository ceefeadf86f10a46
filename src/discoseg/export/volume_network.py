"""A network for whole volumes in TorchScript: intensities in, class probabilities out, discoseg's steps in between.

It does what ``data/prepare.py`` does in numpy, in torch alone, so that a file of it needs nothing but torch. The code
keeps to the Python that TorchScript knows.
"""

import torch
from torch import Tensor, nn

from discoseg.data.prepare import Grid
from discoseg.export.deployed import Probabilities


class VolumeNetwork(nn.Module):
    """Scale a volume to [0, 1], resize its slices to the grid, segment them, and resize the probabilities back.

    Volumes are (B, channels, X, Y, Z) in the grid's orientation; X and Y lie in the slices.
    """

    def __init__(self, network: nn.Module, grid: Grid) -> None:
        super().__init__()
        self.network = network
        self.rows, self.columns = grid.shape
        self.low_percent, self.high_percent = grid.clip_percent

    def forward(self, image: Tensor) -> Tensor:
        """Map intensities (B, channels, X, Y, Z) to probabilities (B, classes, X, Y, Z), float32."""
        return torch.stack([self._segment(volume) for volume in image.unbind(0)])

    def _segment(self, volume: Tensor) -> Tensor:
        slices = volume.permute(3, 0, 2, 1)  # (Z, C, Y, X)
        channels = [self._scale(channel) for channel in slices.unbind(1)]
        on_grid = self._resize(torch.stack(channels, dim=1), self.rows, self.columns).clamp(0.0, 1.0)
        probability = torch.cat([self.network(part) for part in on_grid.split(32)])  # (Z, classes, rows, columns)
        return self._resize(probability, slices.size(2), slices.size(3)).permute(1, 3, 2, 0)

    def _scale(self, channel: Tensor) -> Tensor:
        """Put the percentiles of one channel of the whole volume at 0 and 1."""
        channel = channel.to(torch.float64)
        values = channel.flatten().sort().values
        low, high = self._percentile(values, self.low_percent), self._percentile(values, self.high_percent)
        if high <= low:  # a few bright voxels on a constant ground: keep them
            low, high = values[0], values[-1]
        if not bool(torch.isfinite(channel).all()) or bool(low == high):
            raise ValueError("the image is constant, or has NaN or infinite voxels")
        return ((channel - low) / (high - low)).clamp(0.0, 1.0).to(torch.float32)

    def _percentile(self, values: Tensor, percent: float) -> Tensor:
        """Interpolate between the two nearest of the sorted values, as numpy does."""
        place = percent / 100.0 * (values.numel() - 1)
        below = int(place)
        above = min(below + 1, values.numel() - 1)
        return values[below] + (values[above] - values[below]) * (place - below)

    def _resize(self, stack: Tensor, rows: int, columns: int) -> Tensor:
        """Resize the last two axes by a triangle filter, as ``resize_linear`` does."""
        return self._weights(stack.size(-2), rows, stack) @ stack @ self._weights(stack.size(-1), columns, stack).T

    def _weights(self, size: int, new: int, like: Tensor) -> Tensor:
        scale = size / new
        centres = (torch.arange(new, device=like.device, dtype=torch.float64) + 0.5) * scale - 0.5
        places = torch.arange(size, device=like.device, dtype=torch.float64)
        distance = (centres.clamp(0.0, size - 1.0).unsqueeze(1) - places.unsqueeze(0)).abs() / max(scale, 1.0)
        weights = (1.0 - distance).clamp(min=0.0)
        return (weights / weights.sum(dim=1, keepdim=True)).to(torch.float32)


def script_volume_network(network: nn.Module, grid: Grid, channels: int) -> torch.jit.ScriptModule:
    """Return a network, on the CPU and in evaluation mode, as TorchScript for volumes of ``channels`` channels."""
    example = torch.zeros(2, channels, *grid.shape)
    traced = torch.jit.trace(Probabilities(network).eval(), example, check_trace=False)
    scripted: torch.jit.ScriptModule = torch.jit.script(VolumeNetwork(traced, grid).eval())
    return scripted
