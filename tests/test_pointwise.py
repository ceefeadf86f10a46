"""1×1 convolutions by the Triton kernel against torch's own: on a GPU, or on the CPU by Triton's interpreter."""

import copy
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from discoseg.kernels import kernels_on
from discoseg.networks.convolution import Convolution, WeightGradients
from discoseg.networks.fused import normalise

pytest.importorskip("triton", reason="Triton exists for Linux alone")
fused_pointwise = pytest.importorskip("discoseg.networks.fused_pointwise")
fused_normalise = pytest.importorskip("discoseg.networks.fused_normalise")

pytestmark = pytest.mark.usefixtures("kernels")

TOLERANCE = 2e-3 if torch.cuda.is_available() else 1e-5  # the interpreter does not round to TF32
PLAIN = (1, 1), (0, 0), (1, 1), False, (0, 0), 1


@torch.no_grad()
def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize(
    ("inputs", "outputs", "image", "dtype"),
    [
        (32, 16, (11, 9), torch.float32),
        (13, 40, (9, 11), torch.float32),
        (72, 32, (8, 7), torch.bfloat16),
        (4, 16, (13, 11), torch.float16),
    ],
)
def test_equals_torch_in_double_precision(
    inputs: int, outputs: int, image: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_normalise, "_PART", 512)  # several parts, of several tiles each
    monkeypatch.setattr(fused_pointwise, "_PER_THREAD", 2)
    torch.manual_seed(inputs)
    x, weight = torch.randn(3, inputs, *image).to(dtype), torch.randn(outputs, inputs, 1, 1).to(dtype)
    assert fused_pointwise.convolution_fits(x, weight, None, PLAIN)
    y, partials = fused_pointwise.convolve(x, weight)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert relative(y, functional.conv2d(x.double(), weight.double())) < max(TOLERANCE, torch.finfo(dtype).eps)

    parts = _parts(y)
    assert len(parts) > 1
    mean = torch.stack([part.mean(dim=0) for part in parts])
    m2 = torch.stack([(part - part.mean(dim=0)).square().sum(dim=0) for part in parts])
    assert relative(partials[0], mean) < 1e-5
    assert relative(partials[1], m2) < 1e-5


def test_statistics_that_came_along_are_those_the_normalisation_finds() -> None:
    torch.manual_seed(0)
    y, partials = fused_pointwise.convolve(torch.randn(2, 8, 13, 9), torch.randn(24, 8, 1, 1))
    found = []
    for statistics in (partials, None):
        x, norm = y.clone().requires_grad_(), nn.BatchNorm2d(24)
        result = normalise(x, norm, nn.ReLU(), statistics=statistics)
        result.square().sum().backward()
        assert x.grad is not None
        assert norm.running_var is not None
        found.append([result, x.grad, norm.running_var])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> WeightGradients:
    """What computes the gradients of weights, without a GPU on a stream that does nothing."""
    found = WeightGradients(torch.ones(0).device, nn.Sequential(Convolution(1, 1, 1)))
    if found.stream is None:
        found.stream = mock.MagicMock()
        monkeypatch.setattr(torch.cuda, "current_stream", mock.MagicMock())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return found


@pytest.mark.parametrize(
    ("inputs", "outputs", "image", "activation", "dtype"),
    [
        (16, 64, (9, 7), nn.PReLU(16), torch.float32),
        (20, 27, (11, 9), nn.ReLU(), torch.float32),
        (32, 16, (8, 9), nn.PReLU(32), torch.bfloat16),
    ],
)
def test_normalised_and_convolved_as_torch_does_in_double_precision(
    inputs: int,
    outputs: int,
    image: tuple[int, int],
    activation: nn.PReLU | nn.ReLU,
    dtype: torch.dtype,
    beside: WeightGradients,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused_normalise, "_PART", 512)  # several parts, of several tiles each
    monkeypatch.setattr(fused_pointwise, "_PER_THREAD", 4)
    torch.manual_seed(outputs)
    norm, kernel = nn.BatchNorm2d(inputs, momentum=0.3), Convolution(inputs, outputs, 1, bias=False)
    for tensor in (norm.weight, norm.bias):
        nn.init.normal_(tensor)
    activation = copy.deepcopy(activation).to(norm.weight.device)
    modules = nn.Sequential(norm, activation, kernel)
    exact = copy.deepcopy(modules).double()
    exact[2].weight.data = kernel.weight.detach().to(dtype).double()
    x, dy = (1 + torch.randn(3, inputs, *image)).to(dtype), torch.randn(3, outputs, *image).to(dtype)

    with beside:
        leaf = x.clone().requires_grad_()
        assert fused_pointwise.both_fit(leaf, kernel.weight, None, PLAIN)
        y, partials = fused_pointwise.normalise_convolve(
            leaf, norm, activation, kernel.weight, kernel.weight.detach().to(dtype), beside
        )
        y.backward(dy)
    leaf64 = x.double().requires_grad_()
    y64 = exact(leaf64)
    y64.backward(dy.double())

    tolerance = max(TOLERANCE, 4 * torch.finfo(dtype).eps)
    assert relative(y, y64) < tolerance
    assert leaf.grad is not None
    assert leaf64.grad is not None
    assert relative(leaf.grad, leaf64.grad) < tolerance
    for ours, theirs in zip(modules.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert relative(ours.grad, theirs.grad) < tolerance
    for buffer, exact_buffer in zip(modules.buffers(), exact.buffers(), strict=True):
        if buffer.is_floating_point():  # running statistics; batches are not counted
            assert relative(buffer, exact_buffer) < 1e-5
    means = torch.stack([part.mean(dim=0) for part in _parts(y)])
    assert relative(partials[0], means) < 1e-5


def _parts(y: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of y (B, C, H, W) as the normalisation behind it cuts them."""
    rows = y.detach().double().permute(0, 2, 3, 1).flatten(end_dim=2)
    return rows.split(fused_normalise.plan(len(rows), y.shape[1], y.element_size()).chunk)


def test_the_same_bits_twice() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(2, 16, 9, 9), torch.randn(16, 16, 1, 1)
    first, second = (fused_pointwise.convolve(x, weight) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_the_kernel_cannot_do_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.empty(1, 32, 8, 8), torch.empty(16, 32, 1, 1)

    def fits(x: Tensor = x, weight: Tensor = weight, bias: Tensor | None = None, shape: Any = PLAIN) -> bool:
        found: bool = fused_pointwise.convolution_fits(x, weight, bias, shape)
        return found

    assert fits()
    assert not fits(bias=torch.empty(16))
    assert not fits(weight=torch.empty(16, 32, 3, 3))
    assert not fits(weight=torch.empty(8, 32, 1, 1))
    assert not fits(shape=((2, 2), *PLAIN[1:]))
    assert not fits(x=x[:, :, :1, :1].expand(-1, -1, 1024, 1024))
    assert not fits(x=x.double())
    with kernels_on():
        assert not fits()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not fits()
    assert fits(x=x.bfloat16())
