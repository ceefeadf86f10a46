"""The loss by the Triton kernels against torch's formulas: on a GPU, or on the CPU by Triton's interpreter."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from discoseg import losses
from discoseg.admm import Prior, stack_targets
from discoseg.config import Coupling
from discoseg.kernels import kernels_on

pytest.importorskip("triton", reason="Triton exists for Linux alone")
fused_loss = pytest.importorskip("discoseg.kernels.fused_loss")

pytestmark = pytest.mark.usefixtures("kernels")

WEIGHTS = (1.0, 0.3, -2.0)  # a gradient of each term of its own


def batch(priors: int, *, masked: bool = False, side: tuple[int, int] = (37, 29)) -> tuple[Tensor, ...]:
    """Return logits of three images, certain ones too, their seeds, targets, μ and, if asked for, what is valid."""
    torch.manual_seed(priors)
    logits = (4 * torch.randn(3, 2, *side)).contiguous(memory_format=torch.channels_last)
    logits[0, :, 0, :4] = torch.tensor([[0.0, 80.0, -90.0, 1e4], [0.0, -80.0, 90.0, -1e4]])
    seeds = torch.randint(-1, 2, (3, *side), dtype=torch.int8)
    targets, mus = 1.5 * torch.rand(3, priors, *side) - 0.25, torch.rand(priors) + 0.5
    return logits, seeds, targets, mus, (torch.rand(3, *side) < 0.7 if masked else torch.empty(0))


def run(
    logits: Tensor,
    seeds: Tensor,
    targets: Tensor,
    mus: Tensor,
    valid: Tensor,
    *,
    foreground_weight: float = 1.0,
    coupling: Coupling = "square",
) -> tuple[Tensor, Tensor]:
    """Return the terms and the gradient of the logits."""
    leaf = logits.detach().clone().requires_grad_()
    mask = valid if valid.numel() else None
    terms = losses.stack_terms(leaf, seeds, targets, list(mus.unbind()), mask, foreground_weight, coupling)
    terms.backward(terms.new_tensor(WEIGHTS[: len(terms)]))
    assert leaf.grad is not None
    return terms.detach(), leaf.grad


def exact(
    logits: Tensor,
    seeds: Tensor,
    targets: Tensor,
    mus: Tensor,
    valid: Tensor,
    *,
    foreground_weight: float = 1.0,
    coupling: Coupling = "square",
) -> tuple[Tensor, Tensor]:
    """Return the same by torch in float64."""
    leaf = logits.detach().double().requires_grad_()
    weight = leaf.new_tensor([1.0, foreground_weight])
    entropy = functional.cross_entropy(leaf, seeds.long(), weight, ignore_index=-1, reduction="sum") / seeds.numel()
    probability, mask = leaf.softmax(dim=1)[:, 1], valid if valid.numel() else None
    terms = [entropy]
    for target, mu in zip(targets.double().unbind(dim=1), mus.double(), strict=True):
        if coupling == "square":
            terms.append(losses.augmented_term(probability, target, mu, mask))
            continue
        pixels = functional.binary_cross_entropy_with_logits(leaf[:, 1] - leaf[:, 0], target.clamp(0, 1), mask)
        terms.append(mu / 2 * pixels)
    stacked = torch.stack(terms)
    stacked.backward(stacked.new_tensor(WEIGHTS[: len(terms)]))
    assert leaf.grad is not None
    return stacked.detach(), leaf.grad


@pytest.mark.parametrize("priors", [0, 1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("foreground_weight", [1.0, 20.0])
@pytest.mark.parametrize("coupling", ["square", "entropy"])
def test_equals_torch_in_double_precision(
    priors: int, masked: bool, foreground_weight: float, coupling: Coupling
) -> None:
    inputs = batch(priors, masked=masked)
    terms, gradient = run(*inputs, foreground_weight=foreground_weight, coupling=coupling)
    terms64, gradient64 = exact(*inputs, foreground_weight=foreground_weight, coupling=coupling)
    torch.testing.assert_close(terms.double(), terms64, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), gradient64, rtol=1e-5, atol=1e-10)
    with kernels_on():
        plain, plain_gradient = run(*inputs, foreground_weight=foreground_weight, coupling=coupling)
    torch.testing.assert_close(terms, plain, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-4, atol=1e-9)
    assert gradient.stride() == inputs[0].stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_gradient_alone(dtype: torch.dtype) -> None:
    logits, *rest = batch(2, masked=True)
    logits = logits.to(dtype)
    terms, gradient = run(logits, *rest, foreground_weight=3.0)
    terms64, gradient64 = exact(logits, *rest, foreground_weight=3.0)
    assert terms.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(terms.double(), terms64, rtol=1e-6, atol=0)
    finest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.double(), gradient64, rtol=torch.finfo(dtype).eps, atol=finest)


def test_any_layout_will_do() -> None:
    """Logits of a network that padded its image, targets that are channels of a larger tensor."""
    logits, seeds, targets, mus, valid = batch(2, masked=True)
    expected = run(logits, seeds, targets, mus, valid)
    padded = functional.pad(logits, (0, 3, 0, 5))[..., :37, :29]
    beside = torch.cat([torch.rand(3, 1, 37, 29), targets], dim=1)[:, 1:]
    apart = targets.contiguous(memory_format=torch.channels_last)
    for odd in ((padded, seeds, beside, mus, valid), (logits.contiguous(), seeds, apart, mus, valid)):
        for found, value in zip(run(*odd), expected, strict=True):
            assert torch.equal(found, value)


def test_same_numbers_same_bits_whatever_pads_the_last_program(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = batch(1)
    first, second = run(*inputs), run(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    monkeypatch.setattr(fused_loss, "_BLOCK", 8192)
    terms, gradient = run(*inputs)
    torch.testing.assert_close(terms, first[0])
    assert torch.equal(gradient, first[1])


def test_more_classes_are_left_to_torch() -> None:
    logits, seeds = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randint(-1, 3, (2, 4, 4), dtype=torch.int8)
    terms = losses.stack_terms(logits, seeds, torch.empty(2, 0, 4, 4), [], None, 7.0)
    assert torch.equal(terms, losses.partial_cross_entropy(logits, seeds, 7.0)[None])


@pytest.mark.parametrize("priors", [1, 2])
def test_targets_are_the_very_ones_of_torch(priors: int) -> None:
    torch.manual_seed(0)
    index = torch.tensor([4, 0, 6])
    stack = [Prior("crf", (1, 7, 61, 47), 1.0, index.device) for _ in range(priors)]
    for prior in stack:
        prior.doubled.random_(0, 3)
        prior.multiplier.normal_()
    with mock.patch.object(fused_loss, "gather_targets", wraps=fused_loss.gather_targets) as gather:
        ours = stack_targets(stack, index)
    assert gather.called
    with kernels_on():
        assert torch.equal(ours, stack_targets(stack, index))
