"""U-Net (Ronneberger et al. 2015), by default in the paper's variant: 15 convolutions, batch normalisation, ReLU."""

from itertools import pairwise

from torch import Tensor, nn

from discoseg.networks.convolution import Convolution
from discoseg.networks.fused import normalise
from discoseg.networks.padding import pad_to_multiple
from discoseg.networks.windows import join_doubled, pool


class UNet(nn.Module):
    """``depth`` poolings, twice as many double convolutions and one more, and a 1×1 convolution.

    Upsampling repeats pixels, faster than bilinear interpolation, and leaves the smoothing to the convolution
    behind it. ``width`` features at the first level, twice as many at each level below.
    """

    def __init__(self, channels: int, classes: int, *, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.stride = 2**depth
        levels = [width * 2**level for level in range(depth + 1)]
        steps = list(pairwise(levels))  # (shallow, deep)
        self.encoder = nn.ModuleList(DoubleConvolution(i, o) for i, o in [(channels, width), *steps])
        self.decoder = nn.ModuleList(DoubleConvolution(i + o, o) for o, i in reversed(steps))
        self.output = Convolution(width, classes, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image (B, channels, H, W) to logits (B, classes, H, W)."""
        rows, columns = image.shape[-2:]
        x = pad_to_multiple(image, self.stride)
        skips = []
        for level, block in enumerate(self.encoder):
            x = block(pool(x) if level else x)
            skips.append(x)
        skips.pop()  # the deepest level is x itself
        for block in self.decoder:
            x = block(join_doubled(x, skips.pop()))
        return self.output(x)[..., :rows, :columns]


class DoubleConvolution(nn.Sequential):
    """Twice a 3×3 convolution, batch normalisation and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for features in (inputs, outputs):
            layers += [
                Convolution(features, outputs, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        convolution1, norm1, activation1, convolution2, norm2, activation2 = self
        x = normalise(convolution1(x), norm1, activation1)
        return normalise(convolution2(x), norm2, activation2)
