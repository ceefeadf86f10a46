"""Image sizes that the strides of a network divide."""

import torch
from torch import Tensor
from torch.nn import functional


def pad_to_multiple(image: Tensor, multiple: int) -> Tensor:
    """Repeat the last row and column of (B, C, H, W) until ``multiple`` divides both sides."""
    rows, columns = ((side + multiple - 1) // multiple * multiple - side for side in image.shape[-2:])
    # What is exported for any size must not decide by the size of its example.
    if torch.compiler.is_compiling() or rows or columns:
        image = functional.pad(image, (0, columns, 0, rows), mode="replicate")
    return image
