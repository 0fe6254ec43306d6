"""What is measured: each case is one feature map (or one network), a setting and the rivals on it.

The full run has every case that a target or a table needs and no other; it takes about a quarter of
an hour on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.shapes import NETWORKS, Shape

BATCH_SIZES = (2, 8, 32, 128)
HEADLINE = ("bgn", "nn.BatchNorm2d", "nn.GroupNorm(32)")
RELATIVES = (
    "bgn.GroupNorm(32)", "bgn IN", "nn.InstanceNorm2d", "bgn LN", "nn.GroupNorm(1)",
)  # fmt: skip
AGAINST_BN = ("bgn", "nn.BatchNorm2d")
FUSED = ("bgn, ReLU fused", "nn.BatchNorm2d, ReLU")
FUSED_SUM = ("bgn, sum, ReLU fused", "nn.BatchNorm2d, sum, ReLU")
POSITIONAL = ("bgn PN", "layer_norm")
SMALLEST = ("bgn", "nn.BatchNorm2d", "nn.GroupNorm(1)", "floor")
STEP = ("bgn", "nn.BatchNorm2d", "no normalizer")
STEP50 = (*STEP, "bgn, fused")
MEMORY = (*AGAINST_BN, "bgn, fused", "bgn, fused, output kept")
SLOW = ("compiled composite", "bgn definition")  # with --all only: minutes of compilation

LARGE = 104  # megabytes in float32: larger maps are measured in training, contiguous, only
DEFINITION = 30  # megabytes; the definition is not timed beyond
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Case:
    """One row of the results.

    ``mode`` is train (forward and backward of a layer), eval (forward), step (a training step of a
    whole network) or memory (the peak of such a step). ``one_thread``: else torch's own number.
    """

    network: str
    shape: Shape
    N: int
    mode: str
    dtype: str
    layout: str
    one_thread: bool
    layers: tuple[str, ...]

    @property
    def megabytes(self) -> float:
        """Size of the input."""
        shape = self.shape
        return self.N * shape.C * shape.H * shape.W * BYTES[self.dtype] / 1e6

    def __str__(self) -> str:
        threads = ", one thread" if self.one_thread else ""
        return (
            f"{self.network} {self.N}x{self.shape} {self.mode} {self.dtype} {self.layout}{threads}"
        )


def _layers(
    network: str,
    sizes: tuple[int, ...],
    layers: tuple[str, ...],
    mode: str = "train",
    dtype: str = "float32",
    layout: str = "contiguous",
    one_thread: bool = False,
) -> Iterator[Case]:
    for N in sizes:
        for shape in NETWORKS[network]:
            case = Case(network, shape, N, mode, dtype, layout, one_thread, layers)
            if layers[:3] == HEADLINE or replace(case, dtype="float32").megabytes < LARGE:
                yield case


def full(threads: int, slow: bool = False) -> list[Case]:
    """Every case of ``make bench``; with ``slow``, also the rivals that take long."""
    small, medium, every = BATCH_SIZES[:2], BATCH_SIZES[:3], BATCH_SIZES
    train = [
        Case("smallest", Shape(16, 8, 8, 1), 2, "train", "float32", "contiguous", False, SMALLEST),
        *_layers("resnet50", every, (*HEADLINE, "floor", *RELATIVES, *FUSED, *FUSED_SUM)),
    ]
    if slow:
        train = [_with_slow(case) for case in train]
    found = [
        *train,
        *_layers("resnet50", every, AGAINST_BN, dtype="bfloat16"),
        *_layers("resnet50", medium, (*AGAINST_BN, *POSITIONAL), layout="channels_last"),
        *_layers("resnet50", every, (*AGAINST_BN, *FUSED), mode="eval"),
        *(case for name in ("wrn10-2", "darts") for case in _layers(name, small, HEADLINE)),
        *_layers("narrow", every, AGAINST_BN),
        *_layers("narrow", every, AGAINST_BN, layout="channels_last"),
    ]
    if threads > 1:
        found += _layers("resnet50", small, HEADLINE, one_thread=True)
    resnet50, resnet20 = Shape(3, 224, 224, 1), Shape(3, 32, 32, 1)
    return [
        *found,
        Case("resnet50", resnet50, 8, "step", "float32", "contiguous", False, STEP50),
        Case("resnet20", resnet20, 2, "step", "float32", "contiguous", True, STEP),
        Case("resnet50", resnet50, 8, "memory", "float32", "contiguous", False, MEMORY),
    ]


def _with_slow(case: Case) -> Case:
    more = SLOW if case.megabytes < DEFINITION else SLOW[:1]
    return replace(case, layers=case.layers + more)


def quick(threads: int) -> list[Case]:
    """The layers of ResNet-50 at batch 2 and 8, in the settings that have a target."""
    return [
        case
        for case in full(threads)
        if case.network in ("smallest", "resnet50")
        and case.mode in ("train", "eval")
        and case.N in BATCH_SIZES[:2]
        and not case.one_thread
    ]
