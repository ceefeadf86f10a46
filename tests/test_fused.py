"""The Triton kernels against torch's own modules: on a GPU, or on the CPU by Triton's interpreter."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from discoseg import kernels
from discoseg.kernels import kernels_on
from discoseg.networks import build_network
from discoseg.networks.dropout import Dropout, draw_noise
from discoseg.networks.fused import join, normalise, normalise_twice
from discoseg.networks.windows import join_doubled, pool, pool_with_corners, unpool

pytest.importorskip("triton", reason="Triton exists for Linux alone")
fused_normalise = pytest.importorskip("discoseg.networks.fused_normalise")

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small tensors as a GPU's large ones: many parts, of several tiles each."""
    monkeypatch.setattr(fused_normalise, "_PART", 512)
    monkeypatch.setattr(fused_normalise, "_PARTIALS", 64)
    monkeypatch.setattr(fused_normalise, "_PER_THREAD", 2)


def modules(channels: int, activation: str | None) -> tuple[nn.BatchNorm2d, nn.PReLU | nn.ReLU | None]:
    norm = nn.BatchNorm2d(channels, momentum=0.3)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        assert tensor is not None
        nn.init.normal_(tensor)
    if activation == "prelu":
        prelu = nn.PReLU(channels)
        nn.init.normal_(prelu.weight)  # negative ones too
        return norm, prelu
    return norm, nn.ReLU() if activation else None


def run_both(
    shape: tuple[int, int, int, int],
    *,
    activation: str | None,
    residual_channels: int = 0,
    dropout: float = 0.0,
    mean: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the output, gradients and running statistics of the kernels, and of torch's modules in float64."""
    batch, channels, *image = shape
    norm, act = modules(channels, activation)
    exact_norm, exact_act = (copy.deepcopy(m).double() if m else None for m in (norm, act))
    x, dy = (mean + torch.randn(shape)).to(dtype), torch.randn(shape).to(dtype)
    residual = torch.randn(batch, residual_channels, *image).to(dtype)

    inputs = [t.clone().requires_grad_() for t in (x, residual)]
    torch.manual_seed(0)
    y = normalise(
        inputs[0],
        norm,
        act,
        dropout=Dropout(dropout, channels) if dropout else None,
        residual=inputs[1] if residual_channels else None,
    )
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert y.dtype == dtype
    y.backward(dy)
    ours = _results(y, norm, act, inputs)

    inputs = [t.double().requires_grad_() for t in (x, residual)]
    torch.manual_seed(0)
    scale = (torch.rand(batch, channels) >= dropout).double() / (1 - dropout)
    assert exact_norm is not None
    z = exact_norm(inputs[0]) * scale[..., None, None]
    z = z + functional.pad(inputs[1], (0, 0, 0, 0, 0, channels - residual_channels))
    y = exact_act(z) if exact_act else z
    y.backward(dy.double())
    return ours, _results(y, exact_norm, exact_act, inputs)


def _results(y: Tensor, norm: nn.Module, activation: nn.Module | None, inputs: list[Tensor]) -> dict[str, Tensor]:
    found = {"y": y} | {name: buffer for name, buffer in norm.named_buffers() if name.startswith("running")}
    gradients = {f"d{name}": parameter.grad for name, parameter in norm.named_parameters()}
    if isinstance(activation, nn.PReLU):
        gradients["dslope"] = activation.weight.grad
    gradients |= {f"d{name}": t.grad for name, t in zip(("x", "residual"), inputs, strict=True) if t.numel()}
    return {name: t.detach().double() for name, t in (found | gradients).items() if t is not None}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        error = (ours[name] - value).abs().max() / value.abs().max().clamp_min(1.0)  # sums cancel
        assert error < tolerance, f"{name}: {error:.1e}, {value}"


CASES: list[tuple[tuple[int, int, int, int], dict[str, Any]]] = [
    ((2, 16, 5, 9), {"activation": "prelu"}),
    ((3, 13, 7, 5), {"activation": "prelu", "residual_channels": 13, "dropout": 0.4}),
    ((2, 12, 9, 11), {"activation": "prelu", "residual_channels": 4, "dropout": 0.1}),
    ((1, 40, 6, 6), {"activation": "relu"}),
    ((5, 2, 16, 9), {"activation": None}),
    ((1, 64, 2, 5), {"activation": None, "residual_channels": 64}),
    ((2, 1, 1, 1), {"activation": "relu"}),
    ((1, 4, 27, 21), {"activation": "prelu", "dropout": 0.5}),
]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_equals_torch_in_double_precision(shape: tuple[int, int, int, int], options: dict[str, Any]) -> None:
    torch.manual_seed(sum(shape))
    assert_close(*run_both(shape, **options), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_what_goes_in_and_out_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = run_both((2, 16, 8, 8), activation="relu", residual_channels=16, dropout=0.2, dtype=dtype)
    step = torch.finfo(dtype).eps
    assert_close(ours, theirs, step)
    statistics = {"running_mean", "running_var", "dweight", "dbias"}
    assert_close({n: ours[n] for n in statistics}, {n: theirs[n] for n in statistics}, 1e-5)


@pytest.mark.usefixtures("small_parts")
def test_a_large_mean_costs_no_accuracy() -> None:
    torch.manual_seed(1)
    ours, theirs = run_both((4, 8, 12, 16), activation="prelu", mean=1000.0)
    assert_close(ours, theirs, 1e-4)  # float32 has steps of 6e-5 there


def test_same_numbers_same_bits() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(2)
        ours, _ = run_both((2, 8, 11, 7), activation="prelu", residual_channels=8, dropout=0.3)
        results.append(ours)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("residual_channels", [0, 5, 12])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_of_two_uses_are_added(residual_channels: int, used: tuple[int, ...]) -> None:
    torch.manual_seed(7)
    x, residual = torch.randn(2, 12, 9, 7), torch.randn(2, residual_channels, 9, 7)
    uses = torch.randn(2, 2, 12, 9, 7)
    found = []
    for separate in (True, False):
        torch.manual_seed(8)
        norm, activation = modules(12, "prelu")
        inputs = [t.clone().requires_grad_() for t in (x, residual)]
        results = normalise_twice(inputs[0], norm, activation, residual=inputs[1] if residual_channels else None)
        assert torch.equal(*results)
        assert results[0].data_ptr() == results[1].data_ptr()
        loss = sum((results[use if separate else 0] * uses[use]).sum() for use in used)
        assert isinstance(loss, Tensor)
        loss.backward()
        found.append(_results(results[0], norm, activation, inputs))
    assert_close(found[0], found[1], 1e-6)


def test_evaluation_uses_the_running_statistics() -> None:
    torch.manual_seed(3)
    norm, activation = modules(6, "prelu")
    nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
    x, residual = torch.randn(2, 2, 6, 5, 9).unbind()
    norm.eval()
    with torch.no_grad():
        ours = normalise(x, norm, activation, dropout=Dropout(0.5, 6).eval(), residual=residual)
        assert activation is not None
        assert torch.allclose(ours, activation(norm(x) + residual), atol=1e-6)


def test_one_value_a_channel_is_refused_as_torch_does() -> None:
    with pytest.raises(ValueError, match="more than 1 value"):
        normalise(torch.rand(1, 3, 1, 1), nn.BatchNorm2d(3), None)


def test_double_precision_and_other_devices_are_left_to_torch() -> None:
    assert kernels.kernels_fit(torch.rand(1, 1, 2, 2))
    assert not kernels.kernels_fit(torch.rand(1, 1, 2, 2, dtype=torch.float64))
    with kernels_on("cuda"):
        assert not kernels.kernels_fit(torch.rand(1, 1, 2, 2, device="cpu"))


@pytest.mark.parametrize("channels", [1, 5, 16, 32, 64, 128, 512])
@pytest.mark.parametrize("rows", [2, 100, 8192, 131072, 64 * 512 * 512])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_plans_cover_every_row_and_channel_once(rows: int, channels: int, itemsize: int) -> None:
    cut = fused_normalise.plan(rows, channels, itemsize)
    assert (cut.parts - 1) * cut.chunk < rows <= cut.parts * cut.chunk
    assert (cut.groups - 1) * cut.columns < channels <= cut.groups * cut.columns
    assert cut.parts * cut.groups <= 256
    assert cut.parts * cut.columns <= 2048


@pytest.mark.parametrize("channels", [3, 16])
def test_windows_equal_torch(channels: int) -> None:
    torch.manual_seed(4)
    large, small = torch.randn(2, channels, 8, 12), torch.randn(2, channels, 4, 6)
    large[:, 0, :4] = 1.0  # ties
    skip, _ = torch.randn(2, 2, 5, 8, 12).unbind()

    def run() -> list[Tensor]:
        x, y, z = (t.clone().requires_grad_() for t in (large, small, skip))
        pooled, corners = pool_with_corners(x)
        pieces = [pooled, pool(x * 2), unpool(y, corners), join_doubled(y, z)]
        sum((piece.sin() * (i + 1)).sum() for i, piece in enumerate(pieces)).backward()  # type: ignore[union-attr]
        gradients = [t.grad for t in (x, y, z) if t.grad is not None]
        return [*pieces, corners, *gradients]

    ours = run()
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in ours[:5])
    with kernels_on():
        theirs = run()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["enet", "unet"])
def test_networks_equal_torch_and_stay_channels_last(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # a GPU would round what either gives to ten bits
    torch.manual_seed(5)
    network = build_network(name, channels=1, classes=2, width=4)  # type: ignore[arg-type]
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in network.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0  # the kernels draw other numbers
    for stage in range(1, 5):
        setattr(network, f"stage{stage}", nn.Identity())  # ENet: each kind of block once, interpreting takes its time
    image = torch.rand(2, 1, 16, 16)

    def run() -> list[Tensor]:
        network.zero_grad()
        for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.reset_running_stats()
        logits = network.train()(image)
        logits.sin().mean().backward()
        with torch.no_grad():
            return [logits, network.eval()(image), *(p.grad for p in network.parameters() if p.grad is not None)]

    with kernels_on():
        theirs = run()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_pre_hook(_require_channels_last)
    ours = run()
    scale = max(gradient.abs().max().item() for gradient in theirs[2:])
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


def _require_channels_last(module: nn.Module, inputs: tuple[Tensor]) -> None:
    assert inputs[0].is_contiguous(memory_format=torch.channels_last)


def test_noise_is_drawn_for_all_layers_at_once_and_used_once() -> None:
    layers = Dropout(0.5, 3), Dropout(0.0, 5), Dropout(0.1, 4), Dropout(0.2, 6).eval()
    network, image = nn.Sequential(*layers), torch.rand(2, 1, 4, 4)
    inputs = [torch.rand(2, layer.features, 4, 4) for layer in layers]
    torch.manual_seed(0)
    draw_noise(network, image)
    first, none, second, unused = (layer.take_noise(x) for layer, x in zip(layers, inputs, strict=True))
    assert none is None
    assert unused is None
    assert first is not None
    assert second is not None
    assert first.shape == (2, 3)
    assert second.shape == (2, 4)
    torch.manual_seed(0)
    assert torch.equal(torch.cat([first.flatten(), second.flatten()]), torch.rand(2 * 3 + 2 * 4))
    again = layers[0].take_noise(inputs[0])
    assert again is not None
    assert not torch.equal(again, first)
    with kernels_on():
        draw_noise(network, image)
    assert layers[0]._noise is None


def test_joining_one_channel_stays_channels_last() -> None:
    x = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    joined = join(x, torch.rand(2, 1, 4, 4))
    assert joined.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(joined[:, :3], x)


def test_without_a_compiler_torch_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU machine may have no compiler, which Triton needs: training is slower then, but it trains."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(kernels, "which", lambda name: None)
    kernels._has_triton.cache_clear()
    try:
        with pytest.warns(UserWarning, match="no C compiler"):
            assert not kernels.kernels_fit(torch.zeros(1, 1, 1, 1))
    finally:
        kernels._has_triton.cache_clear()
