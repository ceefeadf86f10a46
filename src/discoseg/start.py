"""The state that a training begins with: a network, its optimiser, and priors that have proposed nothing yet."""

import threading

import torch

from discoseg import admm
from discoseg.config import Config
from discoseg.data.memory import BOUNDLESS, Memory
from discoseg.errors import UserError
from discoseg.networks import build_network
from discoseg.prediction_pass import predict_slices
from discoseg.ranks import ALONE, Ranks
from discoseg.slices import Slices
from discoseg.state import Running, State
from discoseg.training_pass import is_one_pixel, loss_terms, plan_batches

drawing = threading.Lock()  # of weights: torch's generator is one for all threads


def start_state(slices: Slices, config: Config, memory: Memory = BOUNDLESS, ranks: Ranks = ALONE) -> State:
    """Return the state before the first epoch, its weights drawn from torch's global generator.

    All ranks draw the same weights; what they draw later differs.
    """
    device = slices.image.device
    _require_normalisable(slices, config, ranks)
    network = draw_network(slices, config)
    network.to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a U-Net is a quarter to a third faster so
    on_cuda = device.type == "cuda"  # there a recorded step reads the learning rate from the device
    optimiser = torch.optim.Adam(
        network.parameters(),
        lr=torch.tensor(config.optimiser.lr, device=device) if on_cuda else config.optimiser.lr,
        weight_decay=config.optimiser.weight_decay,
        fused=True,
        capturable=on_cuda,
    )
    count, rows, columns = slices.seeds.shape
    slice_sums = torch.zeros(len(slices.structures), count, device=device)
    if config.method == "penalty":
        parts = slices.image.split(64)  # scratch memory must not grow with the dataset
        slice_sums = torch.cat([predict_slices(network, part).sum(dim=(2, 3)) for part in parts], dim=1)
    shape = (len(slices.structures), count, rows, columns)
    own_seed = ranks.own_seed(config.seed)
    if ranks.rank > 0:
        torch.manual_seed(own_seed)
    return State(
        network=network,
        optimiser=optimiser,
        priors=[
            admm.Prior(name, shape, admm.scheduled_mu(config.admm, name, 0), device, memory) for name in config.priors
        ],
        order=torch.Generator().manual_seed(own_seed),
        slice_sums=slice_sums,
        running=Running(
            losses=torch.zeros(plan_batches(slices, config, ranks).count, len(loss_terms(config)), device=device),
            drawn=torch.empty(0, dtype=torch.uint8),
        ),
    )


def draw_network(slices: Slices, config: Config) -> torch.nn.Module:
    """Return a network for these slices, on the CPU, its weights drawn from torch's global generator."""
    return build_network(
        config.network.name,
        channels=slices.image.shape[1],
        classes=1 + len(slices.structures),
        width=config.network.width,
        depth=config.network.depth,
    )


def _require_normalisable(slices: Slices, config: Config, ranks: Ranks) -> None:
    """Refuse a step of one slice that the network shrinks to one pixel: a batch of one value has no variance."""
    _, rows, columns = slices.seeds.shape
    if plan_batches(slices, config, ranks).own == 1 and is_one_pixel(rows, columns, config):
        raise UserError(
            f"--network.depth {config.network.depth or 3} leaves one pixel of a slice of {rows}×{columns}, and a batch "
            "has one slice: lower it, or change --optimiser.batch"
        )
