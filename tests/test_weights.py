"""Weight gradients by the Triton kernels against torch's own: on a GPU, or on the CPU by Triton's interpreter."""

import itertools
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from discoseg.kernels import kernels_on
from discoseg.networks import build_network
from discoseg.networks.convolution import Convolution, WeightGradients, _Convolve, parameter_gradients

pytest.importorskip("triton", reason="Triton exists for Linux alone")
fused_pointwise = pytest.importorskip("discoseg.networks.fused_pointwise")
fused_weights = pytest.importorskip("discoseg.networks.fused_weights")

pytestmark = pytest.mark.usefixtures("kernels")

TOLERANCE = 2e-3 if torch.cuda.is_available() else 1e-5  # the interpreter does not round to TF32


def gradients(
    kernel: tuple[int, int],
    inputs: int,
    outputs: int,
    *,
    image: tuple[int, int] = (11, 9),
    stride: int = 1,
    dilation: int = 1,
    same: bool = True,
    transposed: bool = False,
    bias: bool = False,
    channels_last: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a weight by our kernels, and by torch in float64."""
    padding = tuple(dilation * (k // 2) if same else 0 for k in kernel)
    shape = (stride, stride), padding, (dilation, dilation), transposed, (0, 0), 1
    weight = torch.randn(inputs if transposed else outputs, outputs if transposed else inputs, *kernel)
    if channels_last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    offset = torch.randn(outputs) if bias else None
    x = torch.randn(2, inputs, *image).to(dtype)
    dy = torch.randn_like(torch.ops.aten.convolution(x, weight.to(dtype), None, *shape))
    counters = fused_weights.new_counters(x.device)
    ours, db = parameter_gradients(dy, x, weight.to(dtype), weight, offset, shape, counters)
    assert not counters.any()
    assert ours.dtype == weight.dtype
    assert ours.stride() == weight.stride()
    assert bias == (db is not None)
    with kernels_on():
        theirs, db64 = parameter_gradients(
            *(dy.double(), x.double(), weight.double(), weight.double(), None if offset is None else offset.double()),
            *(shape, None),
        )
    if db is not None and db64 is not None:
        assert torch.allclose(db.double(), db64, atol=1e-3)
    return ours.double(), theirs


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < TOLERANCE, f"{error:.1e}"


CASES: list[tuple[tuple[int, int], int, int, dict[str, Any]]] = [
    ((1, 1), 32, 16, {}),
    ((1, 1), 13, 40, {"channels_last": False, "image": (17, 23)}),
    ((1, 1), 4, 16, {"dtype": torch.bfloat16}),
    ((3, 3), 4, 4, {"image": (19, 14)}),
    ((3, 3), 16, 16, {"dilation": 2, "channels_last": False}),
    ((3, 3), 32, 13, {"image": (7, 9), "dilation": 5, "dtype": torch.bfloat16}),
    ((3, 3), 40, 4, {"image": (9, 7), "same": False, "bias": True}),
    ((3, 3), 16, 4, {"same": False, "dilation": 2, "dtype": torch.float16}),
    ((5, 1), 32, 32, {"image": (7, 12)}),
    ((1, 5), 16, 32, {"channels_last": False, "image": (5, 1)}),
    ((1, 1), 8, 8, {"stride": 2}),
    ((2, 2), 16, 8, {"stride": 2, "same": False}),
    ((3, 3), 1, 15, {"stride": 2, "image": (16, 20)}),
    ((3, 3), 4, 4, {"stride": 2, "transposed": True}),
    ((2, 2), 16, 3, {"stride": 2, "transposed": True, "same": False, "bias": True}),
]


@pytest.mark.parametrize(("kernel", "inputs", "outputs", "options"), CASES)
def test_equals_torch_in_double_precision(
    kernel: tuple[int, int], inputs: int, outputs: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(inputs * outputs)
    assert_close(*gradients(kernel, inputs, outputs, **options))


def test_parts_add_up_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(fused_weights, "_ROWS", 16)  # as many parts, in as many groups, as of a large image
    cut = fused_weights.plan(2 * 13 * 11, 4, 9, 4)
    assert cut.parts > fused_weights._GROUP
    assert cut.parts % fused_weights._GROUP
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        ours, theirs = gradients((3, 3), 4, 4, image=(13, 11))
        assert_close(ours, theirs)
        found.append(ours)
    assert torch.equal(*found)
    monkeypatch.setattr(fused_weights, "_PROGRAMS", 0)  # one part: the product is the gradient
    torch.manual_seed(1)
    ours, theirs = gradients((3, 3), 4, 4, image=(13, 11))
    assert_close(ours, theirs)


def fits(x: Tensor, weight: Tensor, *, groups: int = 1) -> bool:
    dy = torch.empty(1, weight.shape[0], 1, 1, dtype=x.dtype).expand(-1, -1, *x.shape[2:])
    found: bool = fused_weights.weight_gradient_fits(dy, x, weight, groups)
    return found


def test_large_products_and_what_the_kernels_cannot_do_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.empty(1, 32, 64, 64), torch.empty(32, 32, 3, 3)
    assert fits(x, weight)
    assert fits(x.bfloat16(), weight)
    assert not fits(x[:, :, :1, :1].expand(-1, -1, 1024, 1024), weight)
    assert not fits(x, weight, groups=2)
    assert not fits(x.double(), weight)
    assert not fits(x, weight.transpose(0, 1))
    with kernels_on():
        assert not fits(x, weight)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not fits(x, weight)
    assert fits(x.bfloat16(), weight)


def test_plans_cover_every_row_and_weight_once() -> None:
    sizes = (1, 100, 8192, 131072), (2, 16, 40, 128), (1, 4, 5, 9, 25), (1, 4, 13, 32, 128)
    for rows, outputs, taps, inputs in itertools.product(*sizes):
        cut = fused_weights.plan(rows, outputs, taps, inputs)
        assert (cut.parts - 1) * cut.chunk < rows <= cut.parts * cut.chunk
        assert cut.chunk % cut.block_r == 0
        assert cut.tiles * cut.block_o * cut.block_t * cut.block_i >= outputs * taps * inputs
        assert cut.block_t * cut.block_i in (16, 32, 64)
        assert cut.parts * cut.tiles <= max(256, cut.tiles)
        assert cut.counters <= len(fused_weights.new_counters(torch.device("cpu")))


def test_weights_are_rounded_all_at_once() -> None:
    convolutions = Convolution(3, 4, 3, bias=False), Convolution(4, 2, 1, bias=False)
    network = nn.Sequential(*convolutions)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weight, other = (convolution.weight for convolution in convolutions)
    image, shape = torch.rand(1, 3, 6, 6), ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    beside = WeightGradients(torch.device("cpu"), network)
    for _ in range(2):
        with beside:
            y, _ = _Convolve.apply(image.bfloat16(), weight, None, shape, beside)
            first, last = beside._rounded.values()
            assert torch.equal(y, nn.functional.conv2d(image.bfloat16(), weight.bfloat16()))
            assert torch.equal(last, other.bfloat16())
            assert first.is_contiguous(memory_format=torch.channels_last)
            assert beside.round(other, torch.bfloat16) is last
            assert beside.round(other, torch.float32) is other
        with torch.no_grad():
            other += 1  # the optimiser's step


@pytest.mark.skipif(torch.cuda.is_available(), reason="test_cuda.py compares them on a GPU, to its precision")
@pytest.mark.parametrize("name", ["enet", "unet"])
def test_a_whole_network_has_torchs_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels together, as in a training step, with streams that do nothing."""
    torch.manual_seed(6)
    width = 8 if name == "enet" else 2  # so that the kernels of 1×1 convolutions fit some
    network = build_network(name, channels=1, classes=2, width=width)  # type: ignore[arg-type]
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in network.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0  # the kernels draw other numbers
    for stage in range(1, 5):
        setattr(network, f"stage{stage}", nn.Identity())  # ENet: interpreting takes its time
    image = torch.rand(2, 1, 16, 16)

    def run(beside: WeightGradients) -> list[Tensor]:
        network.zero_grad()
        with beside:
            logits = network(image)
            logits.sin().mean().backward()
        return [logits, *(p.grad for p in network.parameters() if p.grad is not None)]

    with kernels_on():
        theirs = run(WeightGradients(torch.device("cpu"), network))
    beside = WeightGradients(image.device, network)
    beside.stream = mock.MagicMock()
    monkeypatch.setattr(torch.cuda, "current_stream", mock.MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    with (
        mock.patch.object(fused_pointwise, "convolve", wraps=fused_pointwise.convolve) as convolve,
        mock.patch.object(fused_pointwise, "normalise_convolve", wraps=fused_pointwise.normalise_convolve) as both,
    ):
        ours = run(beside)
    if name == "enet":
        assert convolve.called
        assert both.called
    scale = max(gradient.abs().max().item() for gradient in theirs[1:])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * scale)
