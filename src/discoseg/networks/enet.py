"""ENet (Paszke et al. 2016): light, and its decoder undoes max pooling at the encoder's positions."""

from torch import Tensor, nn
from torch.nn import functional

from discoseg.networks.convolution import Convolution, TransposedConvolution, normalise_convolve
from discoseg.networks.dropout import Dropout, draw_noise
from discoseg.networks.fused import Twice, join, normalise, normalise_twice
from discoseg.networks.padding import pad_to_multiple
from discoseg.networks.windows import pool_with_corners, unpool


class ENet(nn.Module):
    """The published network: an initial block, five stages of bottlenecks, a final transposed convolution.

    ``width`` features leave the initial block (16 in the publication), four times as many stage 1, eight
    times as many stages 2 and 3. The input is part of those features, so many channels widen the network.
    Every block uses its input twice, so blocks pass it on twice.
    """

    stride = 8

    def __init__(self, channels: int, classes: int, *, width: int = 16) -> None:
        super().__init__()
        width = max(width, 2 * channels)
        self.initial = Initial(channels, width)
        self.down1 = Downsampling(width, 4 * width, dropout=0.01)
        self.stage1 = nn.Sequential(*(Bottleneck(4 * width, dropout=0.01) for _ in range(4)))
        self.down2 = Downsampling(4 * width, 8 * width, dropout=0.1)
        self.stage2 = _context_stage(8 * width)
        self.stage3 = _context_stage(8 * width)
        self.up4 = Upsampling(8 * width, 4 * width, dropout=0.1)
        self.stage4 = nn.Sequential(*(Bottleneck(4 * width, dropout=0.1) for _ in range(2)))
        self.up5 = Upsampling(4 * width, width, dropout=0.1)
        self.stage5 = Bottleneck(width, dropout=0.1)
        self.output = TransposedConvolution(width, classes, kernel_size=2, stride=2)

    def forward(self, image: Tensor) -> Tensor:
        """Map an image (B, channels, H, W) to logits (B, classes, H, W)."""
        rows, columns = image.shape[-2:]
        draw_noise(self, image)
        x = self.initial(pad_to_multiple(image, self.stride))  # (B, width, H/2, W/2)
        x, corners1 = self.down1(x)  # (B, 4 width, H/4, W/4)
        x = self.stage1(x)
        x, corners2 = self.down2(x)  # (B, 8 width, H/8, W/8)
        x = self.stage3(self.stage2(x))
        x = self.stage4(self.up4(x, corners2))
        x = self.stage5(self.up5(x, corners1))
        return self.output(x[0])[..., :rows, :columns]


class Initial(nn.Module):
    """Halve the resolution: a strided convolution beside the pooled input."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.convolution = Convolution(channels, width - channels, 3, stride=2, padding=1, bias=False)
        self.activation = nn.Sequential(nn.BatchNorm2d(width), nn.PReLU(width))

    def forward(self, image: Tensor) -> Twice:
        x = self.convolution(image)
        pooled = functional.max_pool2d(image, 2).to(x.dtype)  # under autocast a convolution returns half precision
        norm, activation = self.activation
        return normalise_twice(join(x, pooled), norm, activation)


class Bottleneck(nn.Module):
    """Residual block: project to a quarter of the features, convolve (3×3, dilated or 5×1, 1×5), expand."""

    def __init__(self, features: int, *, dropout: float, dilation: int = 1, asymmetric: bool = False) -> None:
        super().__init__()
        inner = features // 4
        convolution: nn.Module
        if asymmetric:
            convolution = nn.Sequential(
                Convolution(inner, inner, (5, 1), padding=(2, 0), bias=False),
                Convolution(inner, inner, (1, 5), padding=(0, 2), bias=False),
            )
        else:
            convolution = Convolution(inner, inner, 3, padding=dilation, dilation=dilation, bias=False)
        projection = Convolution(features, inner, 1, bias=False)
        self.extension = _extension(projection, convolution, inner, features, dropout)
        self.activation = nn.PReLU(features)

    def forward(self, x: Twice) -> Twice:
        return _add_extension(x[0], self.extension, x[1], self.activation)


class Downsampling(nn.Module):
    """Halve the resolution: max pooling (padded with zero features) beside a strided extension."""

    def __init__(self, inputs: int, outputs: int, *, dropout: float) -> None:
        super().__init__()
        inner = outputs // 4
        projection = Convolution(inputs, inner, 2, stride=2, bias=False)
        convolution = Convolution(inner, inner, 3, padding=1, bias=False)
        self.extension = _extension(projection, convolution, inner, outputs, dropout)
        self.activation = nn.PReLU(outputs)

    def forward(self, x: Twice) -> tuple[Twice, Tensor]:
        pooled, corners = pool_with_corners(x[0])
        return _add_extension(pooled, self.extension, x[1], self.activation), corners


class Upsampling(nn.Module):
    """Double the resolution: unpooling at the encoder's positions beside a transposed convolution."""

    def __init__(self, inputs: int, outputs: int, *, dropout: float) -> None:
        super().__init__()
        inner = outputs // 4
        self.main = nn.Sequential(Convolution(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        projection = Convolution(inputs, inner, 1, bias=False)
        convolution = TransposedConvolution(inner, inner, 3, stride=2, padding=1, output_padding=1, bias=False)
        self.extension = _extension(projection, convolution, inner, outputs, dropout)
        self.activation = nn.PReLU(outputs)

    def forward(self, x: Twice, corners: Tensor) -> Twice:
        convolution, norm = self.main
        assert isinstance(convolution, Convolution)
        main, statistics = convolution.with_statistics(x[0])
        main = normalise(main, norm, None, statistics=statistics)
        return _add_extension(unpool(main, corners), self.extension, x[1], self.activation)


def _context_stage(features: int) -> nn.Sequential:
    """Build stage 2 or 3: regular, dilated and asymmetric bottlenecks in turn, dilation doubling to 16."""
    layers = []
    for small, large in ((2, 4), (8, 16)):
        layers += [
            Bottleneck(features, dropout=0.1),
            Bottleneck(features, dropout=0.1, dilation=small),
            Bottleneck(features, dropout=0.1, asymmetric=True),
            Bottleneck(features, dropout=0.1, dilation=large),
        ]
    return nn.Sequential(*layers)


def _extension(
    projection: nn.Module, convolution: nn.Module, inner: int, outputs: int, dropout: float
) -> nn.Sequential:
    return nn.Sequential(
        *(projection, nn.BatchNorm2d(inner), nn.PReLU(inner)),
        *(convolution, nn.BatchNorm2d(inner), nn.PReLU(inner)),
        *(Convolution(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        Dropout(dropout, outputs),
    )


def _add_extension(main: Tensor, extension: nn.Sequential, x: Tensor, activation: nn.Module) -> Twice:
    """Return activation(main + extension(x)); ``main`` may lack the last features."""
    projection, norm1, activation1, convolution, norm2, activation2, expansion, norm3, dropout = extension
    assert isinstance(projection, Convolution)
    assert isinstance(expansion, Convolution)
    x, statistics = projection.with_statistics(x)
    x = normalise(x, norm1, activation1, statistics=statistics)
    x, statistics = normalise_convolve(convolution(x), norm2, activation2, expansion)
    return normalise_twice(x, norm3, activation, dropout=dropout, residual=main, statistics=statistics)
