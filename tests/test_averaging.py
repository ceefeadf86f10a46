"""The running mean of weights against its formula."""

import copy

import torch

from discoseg.networks import build_network
from discoseg.networks.averaging import WeightAverage


def test_mean_follows_its_formula() -> None:
    torch.manual_seed(0)
    network = build_network("unet", channels=1, classes=2, width=2)
    start = copy.deepcopy(network.state_dict())
    average = WeightAverage(network, 0.6)
    expected = {name: value.double() for name, value in start.items() if value.is_floating_point()}
    for step in range(20):
        for parameter in network.parameters():
            parameter.data.normal_()
        network(torch.rand(2, 1, 16, 16))  # moves the statistics of batch normalisation
        average.update()
        decay = min(0.6, step / (step + 9))
        for name, value in network.state_dict().items():
            if name in expected:
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    means = average.network.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(means[name].double(), value, rtol=1e-4, atol=1e-5)
    assert any("running_mean" in name for name in expected)
    assert float(average.steps) == 20
    assert not any(parameter.requires_grad for parameter in average.network.parameters())


def test_the_first_mean_is_the_network() -> None:
    network = build_network("enet", channels=1, classes=2, width=4)
    average = WeightAverage(network, 0.99)
    for parameter in network.parameters():
        parameter.data.add_(1.0)
    average.update()
    image = torch.rand(1, 1, 16, 16)
    assert torch.equal(average.network.eval()(image), network.eval()(image))
