from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from discoseg.networks import ENet, UNet, build_network
from discoseg.networks.enet import Bottleneck, Downsampling, Initial, Upsampling
from discoseg.networks.unet import DoubleConvolution
from discoseg.networks.windows import pool_with_corners, unpool


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small layers run many times faster so when other programs keep the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_enet_has_the_published_size() -> None:
    assert 0.355e6 < count_parameters(ENet(1, 2)) < 0.37e6


def test_unet_has_fifteen_convolutions_and_three_poolings() -> None:
    network = UNet(1, 2, width=4)
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [4, 4, 8, 8, 16, 16, 32, 32, 16, 16, 8, 8, 4, 4, 2]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 14


def test_a_deeper_unet_sees_further() -> None:
    torch.manual_seed(0)
    reach = []
    for depth in (2, 3, 4):
        network = UNet(1, 2, width=4, depth=depth).eval()
        image = torch.rand(1, 1, 8, 256, requires_grad=True)
        network(image)[0, 1, 4, 128].backward()
        assert image.grad is not None
        reach.append(int(image.grad.abs().sum(dim=2).count_nonzero()))
    assert reach[0] < reach[1] / 1.5 < reach[2] / 2


@pytest.mark.parametrize("network", [ENet(1, 2, width=8), UNet(1, 2, width=4), UNet(1, 2, width=2, depth=5)])
@pytest.mark.parametrize("shape", [(32, 32), (33, 47), (5, 64), (1, 1)])
def test_any_image_size_fits(network: nn.Module, shape: tuple[int, int]) -> None:
    assert network.eval()(torch.rand(2, 1, *shape)).shape == (2, 2, *shape)


@pytest.mark.parametrize("network", [ENet(1, 2, width=8), UNet(1, 2, width=4)])
def test_padding_repeats_the_border_and_is_cut_off(network: nn.Module) -> None:
    image = torch.rand(1, 1, 30, 21)
    by_hand = functional.pad(image, (0, 3, 0, 2), mode="replicate")
    network.eval()
    assert torch.equal(network(image), network(by_hand)[..., :30, :21])


@pytest.mark.parametrize("name", ["enet", "unet"])
@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (4, 5), (20, 3)])
def test_any_number_of_channels_and_classes(name: str, channels: int, classes: int) -> None:
    network = build_network(name, channels=channels, classes=classes, width=4)  # type: ignore[arg-type]
    assert network(torch.rand(2, channels, 16, 24)).shape == (2, classes, 16, 24)


@pytest.mark.parametrize("name", ["enet", "unet"])
def test_width_none_is_the_networks_own(name: str) -> None:
    default = {"enet": 16, "unet": 64}[name]
    sizes = {
        count_parameters(build_network(name, channels=1, classes=2, width=width))  # type: ignore[arg-type]
        for width in (None, default)
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("name", ["enet", "unet"])
def test_same_seed_same_training_step(name: str) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(3)
        network = build_network(name, channels=1, classes=2, width=8)  # type: ignore[arg-type]
        network(torch.rand(2, 1, 32, 32)).square().mean().backward()
        return [p.grad for p in network.parameters() if p.grad is not None]

    torch.use_deterministic_algorithms(True)
    try:
        first, second = train(), train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(first) == len(list(build_network(name, channels=1, classes=2).parameters()))  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _composed(block: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """The blocks as their modules read, in torch's operations."""
    x = inputs[0]
    match block:
        case Initial():
            return block.activation(torch.cat([block.convolution(x), functional.max_pool2d(x, 2)], dim=1))
        case Bottleneck():
            return block.activation(x + block.extension(x))
        case Downsampling():
            pooled = functional.pad(functional.max_pool2d(x, 2), (0, 0, 0, 0, 0, 12))
            return block.activation(pooled + block.extension(x))
        case Upsampling():
            return block.activation(unpool(block.main(x), inputs[1]) + block.extension(x))
        case _:
            return nn.Sequential.forward(block, x)  # type: ignore[arg-type]


def _own(block: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """The blocks themselves, most of which take and return a tensor twice."""
    x, *corners = inputs
    y = block(x if isinstance(block, Initial | DoubleConvolution) else (x, x), *corners)
    while isinstance(y, tuple):
        y = y[0]
    return y


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "block",
    [
        Initial(4, 16),
        Bottleneck(4, dropout=0.3),
        Downsampling(4, 16, dropout=0.3),
        Upsampling(4, 8, dropout=0.3),
        DoubleConvolution(4, 8),
    ],
)
def test_blocks_equal_their_modules_to_the_bit(block: nn.Module, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    block.to(memory_format=layout)  # type: ignore[call-overload]
    image, corners = torch.rand(2, 4, 8, 12).to(memory_format=layout), torch.randint(4, (2, 8, 8, 12)).byte()
    found = []
    for compute in (partial(_own, block), partial(_composed, block)):
        torch.manual_seed(0)
        block.zero_grad()
        x = image.clone().requires_grad_()
        y = compute(*((x, corners) if isinstance(block, Upsampling) else (x,)))
        y.square().sum().backward()
        found.append([y, x.grad, *(p.grad.clone() for p in block.parameters() if p.grad is not None), torch.rand(1)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_unpooling_inverts_pooling_as_torch_does() -> None:
    x = torch.randn(2, 3, 6, 10)
    x[:, 0] = 1.0  # ties
    pooled, indices = functional.max_pool2d(x, 2, return_indices=True)
    ours, corners = pool_with_corners(x)
    assert torch.equal(ours, pooled)
    assert torch.equal(unpool(pooled, corners), functional.max_unpool2d(pooled, indices, [2, 2]))


@pytest.mark.parametrize("name", ["enet", "unet"])
def test_learns_a_small_picture(name: str) -> None:
    torch.manual_seed(0)
    network = build_network(name, channels=1, classes=2, width=8)  # type: ignore[arg-type]
    truth = torch.zeros(4, 32, 32, dtype=torch.int64)
    for case, corner in enumerate((4, 8, 12, 16)):
        truth[case, corner : corner + 12, corner : corner + 9] = 1
    image = truth[:, None] + 0.3 * torch.randn(4, 1, 32, 32)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        functional.cross_entropy(network(image), truth).backward()
        optimiser.step()
    wrong = (network(image).argmax(dim=1) != truth).float().mean()
    assert wrong < 0.05  # nothing but background: 0.105
