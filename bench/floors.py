"""What a training step must at least cost on a GPU: arithmetic, bytes and launches, beside what it does cost."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from discoseg.config import Config
from discoseg.material import Material
from discoseg.prediction_pass import PredictionPass
from discoseg.start import start_state
from discoseg.training_pass import TrainingPass

_SHOWN = 12  # kernels of a step, those that take most
_ROUNDS = 60  # of steps at once


def print_floors(material: Material, config: Config) -> None:
    """Print for a training step and for the prediction of a batch: milliseconds, kernels, and the floors.

    The byte floor counts each activation that the backward pass needs as written once and read once, and nothing
    else; the arithmetic floor counts the multiplications and additions of convolutions. Both are divided by the rates
    that a large copy and a large matrix product reach on this device in this process.
    """
    bytes_a_s, flops_a_s = _measure_copy(), _measure_product()
    print(f"this device: copy {bytes_a_s / 1e12:.2f} TB/s, matrix product (TF32) {flops_a_s / 1e12:.0f} TFLOP/s")
    with torch.cuda.stream(torch.cuda.Stream()):
        state = start_state(material.slices, config)
        learn = TrainingPass(state, material.slices, config)
        predict = PredictionPass(state.network, material.slices, config)
        learn.run(lambda part: None)
        predict.all()
        batch, step = learn._batch, learn._step
        image = material.slices.image[:batch]
        flops, saved = _count_work(state.network, image)
        _print_row("training step", _forever(learn, step), batch)
        floors = [3 * flops / flops_a_s, 2 * saved / bytes_a_s]
        print(
            f"  floor: {3 * flops / 1e9:.1f} GFLOP in {1e3 * floors[0]:.2f} ms, "
            f"{2 * saved / 1e9:.2f} GB in {1e3 * floors[1]:.2f} ms"
        )
        once = _forever(predict, predict._step)
        slices = len(predict._places)
        _print_row("prediction", once, slices)
        print(f"  floor: {flops / batch * slices / 1e9:.1f} GFLOP in {1e3 * flops / batch * slices / flops_a_s:.2f} ms")


def print_steps_at_once(material: Material, config: Config, most: int) -> None:
    """Print what a training step takes when several trainings take theirs at once, and nothing else happens.

    One thread starts the recorded steps of all in turn, each on a stream of its own; so neither Python's lock nor
    predictions, proposals and files play a part, and what is left is the device's limit. Beside it stands what
    starting a step takes the host when nothing is under way.
    """
    streams = [torch.cuda.Stream() for _ in range(most)]
    trainings = []
    for stream in streams:
        with torch.cuda.stream(stream):
            learn = TrainingPass(start_state(material.slices, config), material.slices, config)
            learn.run(lambda part: None)
            trainings.append(_forever(learn, learn._step))
    torch.cuda.synchronize()
    host_s = []
    for _ in range(20):
        start = time.perf_counter()
        with torch.cuda.stream(streams[0]):
            trainings[0]()
        host_s.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    print(f"to start a step takes the host {1e3 * statistics.median(host_s):.2f} ms")
    alone_s = float("nan")
    for count in [2**k for k in range(most.bit_length()) if 2**k <= most]:
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            for stream, step in zip(streams[:count], trainings, strict=False):
                with torch.cuda.stream(stream):
                    step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / _ROUNDS / count
        alone_s = seconds if count == 1 else alone_s
        print(
            f"steps of {count} at once: one every {1e3 * seconds:.2f} ms, {alone_s / seconds:.2f} × one alone",
            flush=True,
        )


def _forever(work: TrainingPass | PredictionPass, step: Callable[[], None]) -> Callable[[], None]:
    """Return a step that always takes the first batch."""

    def again() -> None:
        work._next.zero_()
        step()

    return again


def _count_work(network: torch.nn.Module, image: torch.Tensor) -> tuple[float, float]:
    """Return the operations of a forward pass and the bytes that it keeps for the backward pass."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    network.train()
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        network(image).sum()
    return float(counter.get_total_flops()), float(sum(kept.values()))


def _time(call: Callable[[], None], repeats: int = 100) -> float:
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _kernels(call: Callable[[], None]) -> list[tuple[str, int, float]]:
    """Return name, number and milliseconds of the kernels of a call, those that take most first."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    kernels = [(event.key, event.count, event.self_device_time_total / 1e3) for event in profiler.key_averages()]
    return sorted((kernel for kernel in kernels if kernel[2] > 0), key=lambda kernel: -kernel[2])


def _measure_copy() -> float:
    source = torch.rand(2**28, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    return 2 * source.nbytes / _time(copy, 20)


def _measure_product() -> float:
    factor = torch.rand(8192, 8192, device="cuda")
    result = torch.empty_like(factor)

    def multiply() -> None:
        torch.mm(factor, factor, out=result)

    torch.backends.cuda.matmul.allow_tf32 = True
    seconds = _time(multiply, 10)
    torch.backends.cuda.matmul.allow_tf32 = False
    return 2 * 8192**3 / seconds


def _print_row(name: str, call: Callable[[], None], batch: int) -> None:
    kernels = _kernels(call)
    count, busy_ms = sum(number for _, number, _ in kernels), sum(ms for _, _, ms in kernels)
    print(f"{name}, {batch} slices: {1e3 * _time(call):.2f} ms, {count} kernels that take {busy_ms:.2f} ms one by one")
    for kernel, number, ms in kernels[:_SHOWN]:
        print(f"    {ms:7.3f} ms  {number:4d} × {kernel[:90]}")
