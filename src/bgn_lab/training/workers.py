"""Workers: each normalizes batches of its own, and their gradients are averaged.

A worker is what the paper calls a GPU. W workers are spread over P processes, W / P each: W
processes are the paper's way, one process simulates it, and the weights are the same but for
rounding. The workers of a process run in one pass where that is possible: their batches of n images
are one batch with statistics in blocks of n, which takes less time than a pass for each. Running
statistics are those of the first worker, as in DistributedDataParallel, where its buffers overwrite
all others.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bgn_lab.recipe import Recipe, WorkerOptions

T = TypeVar("T")
LOST_AFTER = 30.0  # minutes, as torch has it: reading images may take long on one machine
# DistributedDataParallel's argument for sending buffers at every forward: training reads none but
# those that FirstWorker sends. Older versions of torch know the second name only.
_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


@dataclass
class Workers:
    """W workers on P processes, as one of the processes sees them."""

    count: int = 1  # W
    processes: int = 1  # P
    rank: int = 0  # of this process
    control: Any = None  # a process group on the CPU, for Python objects
    _pending: Any = field(default=None, repr=False)

    @property
    def per_process(self) -> int:
        """Number of workers of one process, W / P."""
        return self.count // self.processes

    @property
    def is_first(self) -> bool:
        """Whether this process has the first worker; it writes the files."""
        return self.rank == 0

    @property
    def local(self) -> range:
        """The workers of this process."""
        return range(self.rank * self.per_process, (self.rank + 1) * self.per_process)

    def batches(self, first: int, last: int) -> list[int]:
        """The batches of an epoch, from ``first`` to ``last - 1``, of the workers of this process.

        Batch b is worker b mod W's.

        >>> Workers(count=4, processes=2, rank=1).batches(0, 8)
        [2, 3, 6, 7]
        """
        return [b for b in range(first, last) if b % self.count in self.local]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, with gradients averaged over processes if there are several."""
        if self.processes == 1:
            return model
        return DistributedDataParallel(model, **{_BUFFERS: False})  # type: ignore[arg-type]

    @contextlib.contextmanager
    def no_sync(self, network: nn.Module, enabled: bool) -> Iterator[None]:
        """Within the context, if enabled, gradients are summed up and not averaged yet."""
        with (
            network.no_sync()
            if enabled and isinstance(network, DistributedDataParallel)
            else contextlib.nullcontext()
        ):
            yield

    def broadcast(self, value: T) -> T:
        """The value of the first process, in all of them."""
        if self.processes == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Sums over the processes."""
        if self.processes == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums, group=self.control)
        return tuple(sums.tolist())

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first one."""
        if self.processes > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def broadcast_running(self, buffers: list[Tensor]) -> None:
        """The same for some buffers at every step: those of floats, in one message.

        Counters are the same in all processes.
        """
        floats = [buffer for buffer in buffers if buffer.is_floating_point()]
        if self.processes == 1 or not floats:
            return
        sent = torch.cat(floats)
        dist.broadcast(sent, src=0)
        for buffer, value in zip(floats, torch.split(sent, [len(b) for b in floats]), strict=True):
            buffer.copy_(value)

    def delayed_max(self, *values: int) -> list[int]:
        """The greatest of all processes' values at the previous call, zeros at the first one.

        So no process waits, and all get the same answer. One process gets its values at once.
        """
        if self.processes == 1:
            return list(values)
        greatest = [0] * len(values)
        if self._pending is not None:
            work, reduced = self._pending
            work.wait()
            greatest = reduced.tolist()
        reduced = torch.tensor(values, dtype=torch.int32)
        work = dist.all_reduce(reduced, dist.ReduceOp.MAX, group=self.control, async_op=True)
        self._pending = work, reduced
        return greatest

    def check_same(self, what: str, value: object) -> None:
        """Refuse to go on if this process has another value than the first."""
        first = self.broadcast(value)
        if first != value:
            raise ValueError(
                f"process {self.rank} has other {what} than the first one: {value} instead of"
                f" {first}"
            )


def resolve_workers(recipe: Recipe, num_processes: int = 1) -> Recipe:
    """The recipe with its number of workers: by default, as many as there are processes."""
    P = world_size() if is_launched() else num_processes
    if is_launched() and num_processes not in (1, P):
        raise ValueError(
            f"processes={num_processes}, but torchrun started {P}; expected no --processes there"
        )
    if P > 1 and recipe.simulate_workers == 1 and isinstance(recipe, WorkerOptions):
        recipe = replace(recipe, simulate_workers=P)
    if recipe.simulate_workers % P:
        raise ValueError(
            f"simulate_workers={recipe.simulate_workers} cannot be spread evenly over {P}"
            f" processes; expected a multiple of {P}"
        )
    if P > 1 and recipe.device not in ("cpu", "cuda"):
        raise ValueError(
            f"device={recipe.device!r} with {P} processes; expected cpu, or cuda for a device each"
        )
    return recipe


def is_launched() -> bool:
    """Whether this process was started by torchrun, or as torchrun does."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def world_size() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def rank() -> int:
    """The number of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", 0))


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone."""
    return world_size() > 1 and (isinstance(error, dist.DistError) or "/gloo/" in str(error))


@contextlib.contextmanager
def connected(recipe: Recipe, lost_after: float = LOST_AFTER) -> Iterator[Workers]:
    """The workers, while their processes are connected.

    A process that is silent for ``lost_after`` minutes while others wait for it is lost: they fail.
    """
    P = world_size()
    if P == 1:
        yield Workers(recipe.simulate_workers)
        return
    cuda = recipe.device == "cuda"
    if cuda:
        here = int(os.environ["LOCAL_RANK"])
        if here >= torch.cuda.device_count():
            raise ValueError(
                f"process {here} of this machine has no device of its own: there are"
                f" {torch.cuda.device_count()}; start fewer, with --simulate-workers for the rest"
            )
        torch.cuda.set_device(here)
    limit = timedelta(minutes=lost_after)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, timeout=limit, store=_store(), rank=rank(), world_size=P)
    try:
        control = dist.new_group(backend="gloo", timeout=limit) if cuda else dist.group.WORLD
        yield Workers(recipe.simulate_workers, P, rank(), control)
    finally:
        dist.destroy_process_group()


def _store() -> Any:
    """Where the processes find each other; None for torch's choice.

    torchrun's store outlives a restart, with the addresses of dead processes in it
    (pytorch/pytorch#135712), so every attempt has its own names there. With several machines
    attempts are not counted alike, and torchrun has to be told to make a store for each:
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    environment = os.environ
    if (
        environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        or environment.get("GROUP_WORLD_SIZE") != "1"
    ):
        return None
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    attempt = f"attempt {environment['TORCHELASTIC_RESTART_COUNT']}"
    return dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]


# An image_size x image_size map counts its pixels. 20 images of 224 x 224 keep a GPU busy and fit
# where a worker's own batch does. Larger passes than 256 images of 32 x 32 leave a CPU's caches.
PIXELS_PER_PASS = 2**20
PIXELS_PER_PASS_CPU = 2**18


def workers_per_pass(recipe: Recipe, shape: tuple[int, ...], per_process: int) -> int:
    """How many of a process' workers run as one batch: as many as fit, in passes of equal size.

    ``shape`` is (C, H, W) of an image, or (C, D, H, W) of a volume.

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe
    >>> recipe = ClassificationRecipe(batch_size=2, images_per_pass=9)
    >>> workers_per_pass(recipe, (3, 32, 32), 6)
    3
    """
    pixels = PIXELS_PER_PASS_CPU if recipe.device == "cpu" else PIXELS_PER_PASS
    most = recipe.images_per_pass or pixels // math.prod(shape[1:])
    divisors = [w for w in range(1, per_process + 1) if per_process % w == 0]
    return max([w for w in divisors if w * recipe.batch_size <= most], default=1)


@contextlib.contextmanager
def statistics_in_blocks(model: nn.Module, blocks: int) -> Iterator[None]:
    """Within the context, a training batch is that of ``blocks`` workers, one after the other.

    Each worker's images have statistics of their own, and the running ones are the first worker's.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "batch_blocks")]
    if blocks > 1:
        for layer in layers:
            if layer.batch_blocks != 1:
                raise ValueError(f"batch_blocks={layer.batch_blocks} of {layer}; expected 1")
            layer.batch_blocks, layer.first_block = blocks, True
    try:
        yield
    finally:
        if blocks > 1:
            for layer in layers:
                layer.batch_blocks, layer.first_block = 1, False


class FirstWorker:
    """Keeps the running statistics those of the first of several passes for one step.

    Batch renormalization reads them in training: every pass is corrected towards those from before
    the step, on all processes.
    """

    def __init__(self, model: nn.Module, passes: int, workers: Workers | None = None) -> None:
        self.buffers, self.passes = list(model.buffers()) if passes > 1 else [], passes
        self.workers = workers or Workers()
        self.read = [
            buffer
            for layer in model.modules()
            if getattr(layer, "renorm", None) is not None
            for buffer in layer.buffers()
        ]
        self.kept: list[Tensor] = []
        self.begun: list[Tensor] = []

    def before(self, number: int) -> None:
        """Called before each pass."""
        if not self.read:
            return
        if number % self.passes == 0:
            self.workers.broadcast_running(self.read)
            if self.passes > 1:
                self.begun = [buffer.clone() for buffer in self.read]
        else:
            _copy(self.begun, self.read)

    def after(self, number: int) -> None:
        """Called after each pass."""
        if number % self.passes == 0:
            self.kept = [buffer.clone() for buffer in self.buffers]
        elif (number + 1) % self.passes == 0:
            _copy(self.kept, self.buffers)


def _copy(values: list[Tensor], buffers: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)
