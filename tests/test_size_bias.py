"""One bias for all volumes: the best of those tried, by brute force; none where bounds say nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from discoseg.material import Material
from discoseg.scores import label_map
from discoseg.size_bias import find_biases
from discoseg.weak.bounds import Bounds
from discoseg.weak.examples import Example

CPU = torch.device("cpu")


def _outside(probability: torch.Tensor, biases: list[float], examples: list[Example], number: int) -> float:
    """How far volumes are outside their bounds with these biases, by the definition."""
    logits = torch.cat([1 - probability.sum(dim=0, keepdim=True), probability]).double().clamp(1e-6, 1).log()
    logits[1:] += torch.tensor(biases, dtype=torch.float64)[:, None, None, None]
    labels, stop, total = label_map(logits.softmax(dim=0)[1:]), 0, 0.0
    for example in examples:
        start, stop = stop, stop + len(example.seeds)
        assert example.bounds is not None
        size = np.log(max(1, int((labels[start:stop] == number + 1).sum())))
        low, high = (np.log(max(1, vox)) for vox in (example.bounds[number].low_vox, example.bounds[number].high_vox))
        total += min(0.7, max(0.0, low - size) + max(0.0, size - high))
    return total


def _blurred(examples: list[Example], *, off: float, seed: int = 0) -> torch.Tensor:
    """Probabilities (K, N, H, W) that know the truth but for noise, all structures' logits ``off`` by as much."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.cat([torch.from_numpy(e.truth) for e in examples if e.truth is not None])
    classes = torch.arange(1 + len(examples[0].structures))[:, None, None, None]
    logits = 2.0 * (truth[None] == classes) + torch.randn(len(classes), *truth.shape, generator=generator)
    logits[1:] += off
    return logits.softmax(dim=0)[1:]


@pytest.mark.parametrize("off", [-2.0, 0.0, 1.5])
def test_no_bias_that_was_tried_is_better(off: float, examples: list[Example]) -> None:
    probability = _blurred(examples, off=off)
    with Material(examples, [], CPU) as material:
        (bias,) = find_biases(probability, material).tolist()
    tried = {round(0.05 * k, 2): _outside(probability, [0.05 * k], examples, 0) for k in range(-120, 121)}
    assert tried[round(bias, 2)] == pytest.approx(min(tried.values()), abs=1e-6)


def test_biases_of_several_structures_bring_them_into_their_bounds(hearts: list[Example]) -> None:
    probability = _blurred(hearts, off=-2.0)
    with Material(hearts, [], CPU) as material:
        biases = find_biases(probability, material).tolist()
    for number in range(3):
        before, after = (_outside(probability, b, hearts, number) for b in ([0.0] * 3, biases))
        assert after < 0.1 * before


def test_bounds_that_say_nothing_leave_the_network_alone(examples: list[Example]) -> None:
    probability = _blurred(examples, off=1.0)
    anything = [replace(e, bounds=(Bounds(0, e.seeds.size),)) for e in examples]
    with Material(anything, [], CPU) as material:
        assert find_biases(probability, material).tolist() == [0.0]


def test_an_upper_bound_alone_takes_no_more_than_it_must(examples: list[Example]) -> None:
    """Every bias below some number would do; the one next to 0 is taken."""
    probability = _blurred(examples, off=1.0)
    at_most = [replace(e, bounds=(Bounds(0, e.bounds[0].high_vox),)) for e in examples if e.bounds is not None]
    with Material(at_most, [], CPU) as material:
        (bias,) = find_biases(probability, material).tolist()
    assert bias < 0
    assert _outside(probability, [bias], at_most, 0) == 0 < _outside(probability, [bias + 0.05], at_most, 0)


@pytest.mark.parametrize("odd", ["nothing there", "missed"])
def test_one_odd_volume_moves_no_other(odd: str, examples: list[Example]) -> None:
    """One without the structure, or one that the network does not find."""
    probability = _blurred(examples, off=0.0)
    with Material(examples, [], CPU) as material:
        (expected,) = find_biases(probability, material).tolist()
    stranger = replace(
        examples[0], name="odd", bounds=(Bounds(0, 0),) if odd == "nothing there" else examples[0].bounds
    )
    own = probability[:, : len(examples[0].seeds)]
    many = [*examples, *(replace(e, name=f"again {e.name}") for e in examples), stranger]
    strange = own if odd == "nothing there" else own * 0.05
    with Material(many, [], CPU) as material:
        (bias,) = find_biases(torch.cat([probability, probability, strange], dim=1), material).tolist()
    assert bias == pytest.approx(expected, abs=0.1)
