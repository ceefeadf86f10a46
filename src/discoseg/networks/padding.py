"""Image sizes that the strides of a network divide."""

from torch import Tensor
from torch.nn import functional


def pad_to_multiple(image: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column of (B, C, H, W) until ``multiple`` divides both sides."""
    rows, columns = -image.shape[-2] % multiple, -image.shape[-1] % multiple
    if rows or columns:
        image = functional.pad(image, (0, columns, 0, rows), mode="replicate")
    return image
