import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from discoseg.losses import augmented_term, entropy_term, partial_cross_entropy, remember_sums, size_penalty

B, K, H, W = 3, 2, 5, 7
N_PIXELS = B * H * W


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_seeds(classes: int = K) -> Tensor:
    return torch.randint(-1, classes, (B, H, W), generator=torch.Generator().manual_seed(1)).to(torch.int8)


@pytest.mark.parametrize("classes", [2, 4])
def test_cross_entropy_runs_over_seeds_and_divides_by_all_pixels(classes: int) -> None:
    logits, seeds = 6 * random(B, classes, H, W).float() - 3, random_seeds(classes)
    expected = functional.cross_entropy(logits, seeds.long(), ignore_index=-1, reduction="sum") / N_PIXELS
    torch.testing.assert_close(partial_cross_entropy(logits, seeds), expected)
    weight = torch.tensor([1.0] + [7.0] * (classes - 1))
    weighted = functional.cross_entropy(logits, seeds.long(), weight, ignore_index=-1, reduction="sum") / N_PIXELS
    torch.testing.assert_close(partial_cross_entropy(logits, seeds, 7.0), weighted)


def test_cross_entropy_gradient_is_probability_minus_label() -> None:
    logits, seeds = (6 * random(B, K, H, W).float() - 3).requires_grad_(), random_seeds()
    partial_cross_entropy(logits, seeds).backward()
    assert logits.grad is not None
    s = logits.detach().softmax(dim=1)[:, 1]
    expected = torch.where(seeds >= 0, s - seeds, 0.0) / N_PIXELS
    torch.testing.assert_close(logits.grad[:, 1], expected)
    torch.testing.assert_close(logits.grad[:, 0], -expected)


def test_cross_entropy_survives_certainty_and_silence() -> None:
    logits = torch.zeros(1, 2, 2, 2)
    logits[:, 1] = 1e4
    logits.requires_grad_()
    wrong = torch.zeros(1, 2, 2, dtype=torch.int8)
    loss = partial_cross_entropy(logits, wrong)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert partial_cross_entropy(logits, wrong - 1).item() == 0.0


def test_loss_has_the_gradient_of_the_paper() -> None:
    """Eq. (params_gradient) with the common 1/n, for s itself."""
    s = random(B, H, W).requires_grad_()
    proposals = [(random(B, H, W, seed=seed) < 0.5).double() for seed in (1, 2)]
    multipliers = [random(B, H, W, seed=seed) - 0.5 for seed in (3, 4)]
    mus = (0.7, 2.5)
    targets = [y - u for y, u in zip(proposals, multipliers, strict=True)]
    terms = [augmented_term(s, t, mu) for t, mu in zip(targets, mus, strict=True)]
    (terms[0] + terms[1]).backward()
    pulls = [mu * (s - y + u) for y, u, mu in zip(proposals, multipliers, mus, strict=True)]
    torch.testing.assert_close(s.grad, (pulls[0] + pulls[1]).detach() / N_PIXELS)


def test_augmented_term_leaves_invalid_pixels_alone() -> None:
    s, target, valid = (
        random(B, H, W).requires_grad_(),
        random(B, H, W, seed=1),
        random(B, H, W, seed=2) < 0.6,
    )
    loss = augmented_term(s, target, 3.0, valid)
    loss.backward()
    squares = (s - target).detach().square()
    assert loss.item() == pytest.approx(1.5 * squares[valid].sum().item() / N_PIXELS)
    assert s.grad is not None
    assert (s.grad[~valid] == 0).all()
    assert (s.grad[valid] != 0).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_the_entropy_pulls_even_where_the_network_is_sure_and_wrong(classes: int) -> None:
    """By the foreground's logit alone its gradient is μ/2 (s − t), the target cut to [0, 1]."""
    logits = (20 * random(B, classes, H, W) - 10).requires_grad_()
    target, valid = 3 * random(B, H, W, seed=1) - 1, random(B, H, W, seed=2) < 0.6
    entropy_term(logits, target, 3.0, valid).backward()
    pull = 1.5 * (logits.softmax(dim=1)[:, 1] - target.clamp(0, 1)) / N_PIXELS
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad[:, 1], (pull * valid).detach().float().to(logits.grad))


# Three volumes of four slices, each slice summing to 10 when last seen.
VOLUME_OF_SLICE = torch.arange(12) // 4
REMEMBERED = torch.full((12,), 10.0)


def penalty(sums: Tensor, slices: list[int], low: list[int], high: list[int], mu: float = 1.0) -> Tensor:
    return size_penalty(
        sums,
        slice_index=torch.tensor(slices),
        volume_of_slice=VOLUME_OF_SLICE,
        remembered_sums=REMEMBERED,
        low=torch.tensor(low),
        high=torch.tensor(high),
        mu=mu,
        pixels=N_PIXELS,
    )


def test_size_penalty_has_the_gradient_of_the_paper() -> None:
    """Eq. (penalty_grad): F = μ max{0, Σs − S_max} pushes every pixel of a volume (here over S_max n)."""
    s = random(3, H, W).float().requires_grad_()  # slices 0 and 2 of volume 0, slice 5 of volume 1
    sums = s.sum(dim=(1, 2))
    mu, low, high = 1.7, [0, 80, 0], [30, 100, 5]
    penalty(sums, [0, 2, 5], low, high, mu).backward()
    totals = [20 + (sums[0] + sums[1]).item(), 30 + sums[2].item()]
    assert totals[0] > 30
    assert totals[1] < 80
    above, below = mu * (totals[0] - 30) / 30 / N_PIXELS, -mu * (80 - totals[1]) / 100 / N_PIXELS
    assert s.grad is not None
    expected = torch.tensor([above, above, below])[:, None, None].expand(3, H, W)
    torch.testing.assert_close(s.grad, expected)


def test_size_penalty_counts_a_volume_once_and_only_when_in_the_batch() -> None:
    low, high = [0, 0, 0], [30, 30, 30]  # all three volumes hold 40
    assert penalty(torch.tensor([10.0]), [0], low, high).item() == pytest.approx(100 / 60 / N_PIXELS)
    assert penalty(torch.full((2,), 10.0), [0, 3], low, high).item() == pytest.approx(100 / 60 / N_PIXELS)
    assert penalty(torch.full((2,), 10.0), [0, 4], low, high).item() == pytest.approx(200 / 60 / N_PIXELS)


def test_size_penalty_is_silent_between_the_bounds() -> None:
    sums = torch.tensor([8.0, 14.0], requires_grad=True)
    loss = penalty(sums, [1, 6], [38, 40, 0], [40, 44, 0])
    loss.backward()
    assert loss.item() == 0.0
    assert sums.grad is not None
    assert (sums.grad == 0).all()


def test_size_penalty_of_a_structure_that_must_be_absent_is_finite() -> None:
    assert math.isfinite(penalty(torch.tensor([2.0]), [8], [0, 0, 0], [9, 9, 0]).item())


def test_remembered_sums_are_the_latest() -> None:
    table = REMEMBERED.clone()
    remember_sums(table, torch.tensor([7, 2]), torch.tensor([1.0, 5.0], requires_grad=True))
    assert table.tolist() == [10, 10, 5, 10, 10, 10, 10, 1, 10, 10, 10, 10]
    assert not table.requires_grad
