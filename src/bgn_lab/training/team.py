"""Workers: each normalises batches of its own, and their gradients are averaged.

A worker is what the paper calls a GPU. W workers are spread over P processes, W / P each, which a process runs one after the
other: W processes are the paper's way, one process is the simulation of it, and the weights are the same but for rounding.
Running statistics are those of the first worker, as in DistributedDataParallel, where its buffers overwrite all others.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bgn_lab.recipe import Recipe, WorkerOptions

T = TypeVar("T")
# DistributedDataParallel's argument for buffers that are sent at every forward: training does not read them
_BUFFERS = next(
    name
    for name in (
        "forward_sync_buffers",
        "broadcast_buffers",
    )  # the latter in older versions of torch
    if name in inspect.signature(DistributedDataParallel).parameters
)


@dataclass
class Team:
    """W workers on P processes, as one of the processes sees them."""

    workers: int = 1  # W
    processes: int = 1  # P
    rank: int = 0  # of this process
    control: Any = None  # a process group for words, on the CPU
    _vote: Any = field(default=None, repr=False)

    @property
    def share(self) -> int:
        """Workers of one process, W / P."""
        return self.workers // self.processes

    @property
    def first(self) -> bool:
        """Whether the first worker is here; its process writes the files."""
        return self.rank == 0

    @property
    def own(self) -> range:
        """The workers of this process."""
        return range(self.rank * self.share, (self.rank + 1) * self.share)

    def batches(self, first: int, last: int) -> list[int]:
        """Those of an epoch's batches ``first`` to ``last - 1`` that are for workers here: batch b is worker b mod W's.

        >>> Team(workers=4, processes=2, rank=1).batches(0, 8)
        [2, 3, 6, 7]
        """
        return [b for b in range(first, last) if b % self.workers in self.own]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, with gradients averaged over processes where there are several."""
        return model if self.processes == 1 else DistributedDataParallel(model, **{_BUFFERS: False})  # type: ignore[arg-type]

    @contextlib.contextmanager
    def apart(self, network: nn.Module, wanted: bool) -> Iterator[None]:
        """Without averaging gradients, where wanted: more of them come before the step."""
        with (
            network.no_sync()
            if wanted and isinstance(network, DistributedDataParallel)
            else contextlib.nullcontext()
        ):
            yield

    def tell(self, value: T) -> T:
        """What the first process has, to all."""
        if self.processes == 1:
            return value
        said = [value]
        dist.broadcast_object_list(said, src=0, group=self.control)
        return said[0]

    def total(self, *numbers: float) -> tuple[float, ...]:
        """Sums over the processes."""
        if self.processes == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums, group=self.control)
        return tuple(sums.tolist())

    def share_buffers(self, model: nn.Module) -> None:
        """The first process' running statistics, to all."""
        if self.processes > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def most(self, *wishes: int) -> list[int]:
        """The greatest of everybody's wishes at the call before this one; so nobody waits, and all hear the same."""
        if self.processes == 1:
            return list(wishes)
        heard = [0] * len(wishes)
        if self._vote is not None:
            work, votes = self._vote
            work.wait()
            heard = votes.tolist()
        votes = torch.tensor(wishes, dtype=torch.int32)
        self._vote = (
            dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.control, async_op=True),
            votes,
        )
        return heard

    def same(self, what: str, value: object) -> None:
        """Refuse to go on where a process has something else than the first."""
        first = self.tell(value)
        if first != value:
            raise ValueError(
                f"process {self.rank} has other {what} than the first one: {value} instead of {first}"
            )


def settle(recipe: Recipe, wanted: int = 1) -> Recipe:
    """The recipe for the processes at hand, or wanted: without another wish, as many workers as processes."""
    P = processes() if started() else wanted
    if started() and wanted not in (1, P):
        raise ValueError(
            f"processes={wanted}, but torchrun started {P}; expected no --processes there"
        )
    if P > 1 and recipe.simulate_workers == 1 and isinstance(recipe, WorkerOptions):
        recipe = replace(recipe, simulate_workers=P)
    if recipe.simulate_workers % P:
        raise ValueError(
            f"simulate_workers={recipe.simulate_workers} cannot be spread evenly over {P} processes; expected a multiple of {P}"
        )
    if P > 1 and recipe.device not in ("cpu", "cuda"):
        raise ValueError(
            f"device={recipe.device!r} with {P} processes; expected cpu, or cuda for a device each"
        )
    return recipe


def started() -> bool:
    """Whether this process was started by torchrun, or as torchrun does."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def processes() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if started() else 1


def rank() -> int:
    """The number of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", 0))


def lost(error: RuntimeError) -> bool:
    """Whether it says that another process is gone."""
    return processes() > 1 and (isinstance(error, dist.DistError) or "/gloo/" in str(error))


@contextlib.contextmanager
def joined(recipe: Recipe) -> Iterator[Team]:
    """The team, while its processes are connected."""
    P = processes()
    if P == 1:
        yield Team(recipe.simulate_workers)
        return
    cuda = recipe.device == "cuda"
    if cuda:
        here = int(os.environ["LOCAL_RANK"])
        if here >= torch.cuda.device_count():
            raise ValueError(
                f"process {here} of this machine has no device of its own: there are {torch.cuda.device_count()}; "
                "start fewer, with --simulate-workers for the rest"
            )
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if cuda else "gloo", store=_store(), rank=rank(), world_size=P)
    try:
        control = dist.new_group(backend="gloo") if cuda else dist.group.WORLD
        yield Team(recipe.simulate_workers, P, rank(), control)
    finally:
        dist.destroy_process_group()


def _store() -> Any:
    """Where the processes find each other; None for torch's choice.

    torchrun's own store outlives a restart, with the addresses of the dead in it (pytorch/pytorch#135712), so every attempt has
    its own names there. With several machines attempts are not counted alike, and torchrun has to be told to make a store for
    each: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    """
    environment = os.environ
    if (
        environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        or environment.get("GROUP_WORLD_SIZE") != "1"
    ):
        return None
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    return dist.PrefixStore(f"attempt {environment['TORCHELASTIC_RESTART_COUNT']}", store)  # type: ignore[attr-defined]


class FirstWorker:
    """Keeps the running statistics those of the first of the workers that a process runs in turn."""

    def __init__(self, model: nn.Module, share: int) -> None:
        self.buffers, self.share = list(model.buffers()) if share > 1 else [], share
        self.kept: list[Tensor] = []

    def after(self, number: int) -> None:
        """To be called after each batch."""
        if number % self.share == 0:
            self.kept = [buffer.clone() for buffer in self.buffers]
        elif (number + 1) % self.share == 0:
            for buffer, kept in zip(self.buffers, self.kept, strict=True):
                buffer.copy_(kept)
