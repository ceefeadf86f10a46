"""What trainings work on, once for all that share it: examples, their slices on the device, contrast weights, cores."""

import copy
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from types import TracebackType

import torch

from discoseg.config import Config, CrfConfig
from discoseg.data.files import usable_cores
from discoseg.data.memory import BOUNDLESS, GIB, Memory
from discoseg.errors import UserError
from discoseg.ranks import ALONE, Ranks
from discoseg.regions import Region, open_regions
from discoseg.shard_files import Cases
from discoseg.slices import fingerprint, stack_bounds, stack_slices
from discoseg.weak.examples import Example


class Material:
    """Training and validation examples on a device, for one training or several at a time.

    ``slices`` and ``held_out`` (None without validation) hold them as stacks; ``data`` are their checksums, ``files``
    where they come from; ``turns`` are the training volumes in the order in which they are predicted, ``order`` (N,)
    their slices; ``pool`` the threads that cut; ``memory`` the host's memory for all that grows with the dataset. Leave
    it as a context, which ends the threads.

    Of several ``ranks`` each has its own examples; ``numbers`` of "training" and "validation" are theirs among all,
    ``data`` and ``files`` are those of all, and ``cases`` has the slices of all training cases.
    """

    def __init__(
        self,
        training: Sequence[Example],
        validation: Sequence[Example],
        device: torch.device,
        *,
        idle_cores: bool | None = None,
        memory: Memory = BOUNDLESS,
        ranks: Ranks = ALONE,
        places: Mapping[str, Sequence[int]] | None = None,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        """``idle_cores``: whether the cores have nothing else to do while a network trains.

        By default they do so beside a GPU; trainings that share it keep them busy with each other's cuts. ``places``:
        any numbers of this rank's training and validation examples that put those of all ranks in order. ``others``
        says whether other trainings share the device just now.
        """
        self.others = others
        self.training, self.validation, self.device, self.memory = training, validation, device, memory
        self.idle_cores = device.type == "cuda" if idle_cores is None else idle_cores
        self.ranks = ranks
        places = places or {"training": range(len(training)), "validation": range(len(validation))}
        own = {"training": fingerprint(training), "validation": fingerprint(validation)}
        self.data = {part: dict(ranks.collect(list(own[part].items()), places[part])) for part in own}
        of_all = {part: {name: number for number, name in enumerate(names)} for part, names in self.data.items()}
        self.numbers = {part: [of_all[part][name] for name in names] for part, names in own.items()}
        counts = [(example.name, len(example.seeds)) for example in training]
        self.cases = Cases(list(own["training"]), dict(ranks.collect(counts, places["training"])))
        files = {example.name: dict(example.files) for example in (*training, *validation)}
        self.files = dict(ChainMap(*ranks.gather(files)))
        self.slices = stack_slices(training, device, memory)
        self.held_out = stack_slices(validation, device, memory) if validation else None
        cores = usable_cores()
        driver = int(device.type == "cuda" and cores > 2)  # a core that is left to the thread which drives a GPU
        self.pool = ThreadPoolExecutor(max(1, cores // ranks.local_size - driver))
        # Volumes with most to cut are predicted first: what is cut last should not take long.
        self.turns = sorted(range(len(training)), key=lambda index: -int((training[index].seeds < 0).sum()))
        starts = [0, *accumulate(len(example.seeds) for example in training)]
        slices = [torch.arange(starts[index], starts[index + 1]) for index in self.turns]
        self.order = torch.cat(slices).to(device)
        self._regions: dict[tuple[float, int, int, bool], list[Region]] = {}
        self._lock = threading.Lock()
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # a step's shapes never change: its algorithms are chosen by trial
            # Each training reads the slices on a stream of its own. To wait for the whole device would spoil what
            # another training is recording.
            torch.cuda.current_stream().synchronize()

    def with_constraints(self, training: Sequence[Example]) -> "Material":
        """Return material of the same volumes with the size bounds and the known slices of ``training``.

        It shares everything else, the threads too: they end with the material that it is made from.
        """
        other = copy.copy(self)
        assert not self.ranks.several
        other.training, other.data = training, {**self.data, "training": fingerprint(training)}
        low, high = stack_bounds(training, self.device)
        other.slices = replace(self.slices, low=low, high=high)
        return other

    def regions(self, crf: CrfConfig, *, honour_seeds: bool) -> list[Region]:
        """Return where each training volume must be cut, with contrast weights that trainings of this prior share."""
        key = (crf.sigma, crf.widen, crf.neighbours, honour_seeds)
        with self._lock:
            if key not in self._regions:
                self._regions[key] = open_regions(self.training, crf, honour_seeds=honour_seeds, memory=self.memory)
            return self._regions[key]

    def __enter__(self) -> "Material":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)  # after an error nobody wants the cuts that are still waiting


def require_room_on_device(
    training: Sequence[Example], validation: Sequence[Example], config: Config, device: torch.device
) -> None:
    """Refuse what cannot fit on a GPU, where all slices of a training lie at a time, before anything is put there."""
    if device.type != "cuda":
        return
    structures, priors = len(training[0].structures), len(config.priors)
    # Of a slice's voxel: the image, seeds, truth and probabilities; of each prior the multiplier and its copy for a
    # checkpoint, 4 each, and the proposal, 1, with a copy for the checkpoint and a new one.
    scored = 4 * training[0].image.shape[1] + 2 + 4 * structures
    needed = (scored + 11 * structures * priors) * sum(e.seeds.size for e in training)
    needed += scored * sum(e.seeds.size for e in validation)
    if config.has_second_round:  # its masks: where each voxel lies, 8, its label, 1, and a mask of each structure
        needed += (9 + structures) * sum(e.seeds.size for e in training)
    there = torch.cuda.get_device_properties(device).total_memory
    if needed > there:
        raise UserError(
            f"{len(training)} training and {len(validation)} validation cases need at least {needed / GIB:.1f} GiB on "
            f"the GPU, which has {there / GIB:.1f}: use --device cpu, a smaller --grid.shape, or fewer cases"
        )
