"""The autograd node in C++: the same bits, gradients and errors as the one in Python."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import bgn
from bgn import kernels
from bgn.kernels import cpu, node, plans
from bgn.kernels.library import LEAKY, SILU
from bgn.partition import slices
from bgn.renorm import Reference
from bgn.running import Running

_why_not = node.load()[1] if cpu.available() else f"the cpu backend is {cpu.why_not}"
pytestmark = pytest.mark.skipif(bool(_why_not), reason=f"no node in C++: {_why_not}")

C = 6


class Summed(bgn.BatchGroupNormAct2d):
    """Adds its own input before the activation."""

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input, residual=input)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **{f"bgn, G = {G}": (lambda G=G: bgn.BatchGroupNorm2d(C, G)) for G in (1, 3, 4, 6)},
    "bgn, auto": lambda: bgn.BatchGroupNorm2d(C, "auto"),
    "bgn, cumulative": lambda: bgn.BatchGroupNorm2d(C, 2, momentum=None),
    "bgn, no weight": lambda: bgn.BatchGroupNorm2d(C, 2, affine=False),
    "bgn, no bias": lambda: bgn.BatchGroupNorm2d(C, 2, bias=False),
    "bgn, own statistics": lambda: bgn.BatchGroupNorm2d(C, 2, track_running_stats=False),
    **{
        name: (lambda name=name: bgn.BatchGroupNormAct2d(C, 2, act=name))
        for name in ("relu", "leaky_relu", "silu", "hardswish")
    },
    **{f"sum, {name}": (lambda name=name: Summed(C, 2, act=name)) for name in ("relu", "identity")},
    "gbgn": lambda: bgn.GeneralBatchGroupNorm2d(C, 3, batch_blocks=2),
    "gn": lambda: bgn.GroupNorm(2, C),
    "gn, merged view": lambda: bgn.GroupNorm(4, C),
    "pn": lambda: bgn.PositionalNorm2d(C),
}
# dtypes of x and of the layer
DTYPES = {
    "float32": (torch.float32, torch.float32),
    "float64": (torch.float64, torch.float64),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "bfloat16, float32": (torch.bfloat16, torch.float32),
    "float16, float32": (torch.float16, torch.float32),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.clone,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "offset": lambda x: torch.cat([x[:1], x])[1:],
}


def is_cpp(y: Tensor) -> bool:
    assert type(y.grad_fn).__name__ == "_NormalizeBackward"
    return not isinstance(y.grad_fn, BackwardCFunction)


def trained(layer: nn.Module, x: Tensor, gy: Tensor) -> list[Any]:
    """Output, gradients and state after steps of training, and the same in eval mode."""
    found: list[Any] = []
    for training in (True, True, False):
        layer.train(training)
        leaf = x.detach().requires_grad_()
        y = layer(leaf)
        found += [y, *torch.autograd.grad(y, [leaf, *layer.parameters()], gy)]
        found += [tensor.clone() for tensor in layer.buffers()]
        with torch.no_grad():
            found.append(layer(x))
    return found


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal to the bit, with the same strides; or the same words."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        assert ours.dtype is theirs.dtype
        assert ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad
        assert torch.equal(ours, theirs)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_bits(name: str, dtypes: str, layout: str) -> None:
    of_x, of_layer = DTYPES[dtypes]
    x = LAYOUTS[layout](torch.randn(4, C, 5, 6).to(of_x))
    gy = LAYOUTS[layout](torch.randn(4, C, 5, 6).to(of_x))
    found = []
    for which in ("python", "cpp"):
        layer = LAYERS[name]().to(of_layer)
        for i, parameter in enumerate(layer.parameters()):
            nn.init.uniform_(parameter, 0.5, 1.5, generator=torch.Generator().manual_seed(i))
        with cpu.use_node(which):
            found.append(trained(layer, x, gy))
    # running statistics of a low precision are moved by Python, and so is the call that moves them
    low = of_layer is torch.bfloat16 and getattr(layer, "running_mean", None) is not None
    assert not is_cpp(found[0][0])
    assert is_cpp(found[1][0]) != low
    assert_same(found[1], found[0])


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: bgn.BatchGroupNorm1d(C, 3), (4, C)),
        (lambda: bgn.BatchGroupNorm1d(C, 4), (4, C, 7)),
        (lambda: bgn.BatchGroupNorm3d(C, 4), (2, C, 3, 4, 5)),
        (lambda: bgn.BatchGroupNorm2d(C, 4), (8, C, 60, 60)),  # enough for several threads
    ],
    ids=["(N, C)", "1d", "3d", "large"],
)
@pytest.mark.usefixtures("two_threads")
def test_the_same_bits_of_other_shapes(make: Any, shape: tuple[int, ...]) -> None:
    x, gy = torch.randn(shape), torch.randn(shape)
    with cpu.use_node("python"):
        theirs = trained(make(), x, gy)
    with cpu.use_node("cpp"):
        ours = trained(make(), x, gy)
    assert is_cpp(ours[0])
    assert_same(ours, theirs)


class Sub(Tensor):
    """A subclass without dispatch keys of its own."""


def arguments(**others: Any) -> list[Any]:
    """What `run` is given in training, with running statistics."""
    plain = {
        "x": torch.randn(4, C, 3, 3),
        "weight": torch.ones(C),
        "bias": torch.zeros(C),
        "eps": 1e-5,
        "mean": torch.zeros(2),
        "var": torch.ones(2),
        "momentum": 0.1,
        "counter": torch.tensor(0),
        "given": None,
        "reference": None,
        "act": None,
    }
    plain.update(others)
    running = Running(*(plain.pop(name) for name in ("mean", "var", "momentum", "counter")))
    given, reference, act = (plain.pop(name) for name in ("given", "reference", "act"))
    return [*plain.values(), running if given is None else None, given, reference, act]


def freed(*shape: int) -> Tensor:
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def inference(*shape: int) -> Tensor:
    with torch.inference_mode():
        return torch.ones(shape)


UNUSUAL: dict[str, Callable[[], dict[str, Any]]] = {
    "subclass": lambda: {"x": torch.randn(4, C, 3, 3).as_subclass(Sub)},
    "subclass as weight": lambda: {"weight": torch.ones(C).as_subclass(Sub)},
    "no tensor": lambda: {"x": [1.0]},
    "another shape": lambda: {"x": torch.randn(4, C, 3, 4)},
    "another dtype": lambda: {"x": torch.randn(4, C, 3, 3).double()},
    "meta": lambda: {"x": torch.randn(4, C, 3, 3, device="meta")},
    "sparse": lambda: {"x": torch.randn(4, C, 3, 3).to_sparse()},
    "negated lazily": lambda: {"x": torch._neg_view(torch.randn(4, C, 3, 3))},
    "freed": lambda: {"x": freed(4, C, 3, 3)},
    "freed weight": lambda: {"weight": freed(C)},
    "wrong weight": lambda: {"weight": torch.ones(C + 1)},
    "weight with gaps": lambda: {"weight": torch.ones(2 * C)[::2]},
    "weight and bias of two dtypes": lambda: {"bias": torch.zeros(C).double()},
    "eps as a tensor": lambda: {"eps": torch.tensor(1e-5)},
    "running mean of another size": lambda: {"mean": torch.zeros(3)},
    "running mean of another dtype": lambda: {"mean": torch.zeros(2).double()},
    "running mean with a gradient": lambda: {"mean": torch.zeros(2, requires_grad=True)},
    "running mean of inference mode": lambda: {"mean": inference(2)},
    "running variance of another size": lambda: {"var": torch.ones(C)},
    "freed running variance": lambda: {"var": freed(2)},
    "momentum as a tensor": lambda: {"momentum": torch.tensor(0.1)},
    "momentum of 2": lambda: {"momentum": 2.0},
    "counter of two": lambda: {"counter": torch.zeros(2, dtype=torch.int64)},
    "counter of another dtype": lambda: {"counter": torch.tensor(0.0)},
    "given mean with a gradient": lambda: {
        "given": (torch.zeros(2, requires_grad=True), torch.ones(2))
    },
    "given statistics of another size": lambda: {"given": (torch.zeros(3), torch.ones(3))},
    "reference of another size": lambda: {
        "reference": Reference(torch.zeros(3), torch.ones(3), 3.0, 5.0, 1.0)
    },
    "reference of another dtype": lambda: {
        "reference": Reference(torch.zeros(2).double(), torch.ones(2).double(), 3.0, 5.0, 1.0)
    },
    "freed reference": lambda: {"reference": Reference(torch.zeros(2), freed(2), 3.0, 5.0, 1.0)},
    "share as a tensor": lambda: {
        "reference": Reference(torch.zeros(2), torch.ones(2), 3.0, 5.0, torch.tensor(1.0))
    },
    "residual of another shape": lambda: {"act": (LEAKY, 0.0, torch.zeros(C, 1, 1))},
    "residual of another dtype": lambda: {"act": (LEAKY, 0.0, torch.zeros(4, C, 3, 3).double())},
    "residual before a smooth function": lambda: {"act": (SILU, 0.0, torch.zeros(4, C, 3, 3))},
    "freed residual": lambda: {"act": (LEAKY, 0.0, freed(4, C, 3, 3))},
    "bias of inference mode": lambda: {
        "x": torch.randn(4, C, 3, 3, requires_grad=True),
        "bias": inference(C),
        "act": (LEAKY, 0.0, None),
    },
    "weight of inference mode": lambda: {
        "x": torch.randn(4, C, 3, 3, requires_grad=True),
        "weight": inference(C),
    },
}


def call_node(args: list[Any], plan: kernels.Plan | None = None) -> Tensor | None:
    """The function in C++ itself, with the plan of a plain (4, C, 3, 3) input and two groups."""
    plan = plan or kernels.plan(slices, torch.ones(4, C, 3, 3), 2)
    with cpu.use_node("cpp"):
        assert cpu._run_in_cpp is not None
        found: Tensor | None = cpu._run_in_cpp(plan.node or cpu._node_of(plan), *args)
        return found


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_python(name: str) -> None:
    args = arguments(**UNUSUAL[name]())
    running = args[4]
    assert call_node(args) is None
    if running is not None:  # nothing was changed
        moved = running.mean, running.var, running.counter
        assert all(tensor._version == 0 for tensor in moved if not tensor.is_inference())


def test_what_is_usual_is_not_left_to_python() -> None:
    args = arguments()
    assert call_node(args) is not None
    assert (args[4].mean._version, args[4].var._version, args[4].counter._version) == (1, 1, 1)
    assert call_node(arguments(momentum=1, eps=1, counter=None)) is not None
    assert call_node(arguments(given=(torch.zeros(2), torch.ones(2)))) is not None
    assert call_node(arguments(x=inference(4, C, 3, 3))) is not None
    residual = torch.zeros(4, C, 3, 3)
    assert call_node(arguments(act=(LEAKY, 0.1, residual))) is not None
    assert call_node(arguments(act=(SILU, 0.0, None))) is not None


def test_transforms_are_left_to_python() -> None:
    args, plan = arguments(), kernels.plan(slices, torch.ones(4, C, 3, 3), 2)
    assert call_node(args, plan) is not None
    found = {}

    def look(t: Tensor, name: str) -> Tensor:
        found.setdefault(name, call_node(args, plan))  # trace calls again to check
        return t + 1

    with forward_ad.dual_level():
        look(torch.ones(1), "dual level")
    with FlopCounterMode(display=False):
        look(torch.ones(1), "dispatch mode")
    torch.vmap(lambda t: look(t, "vmap"))(torch.ones(1))
    torch.func.grad(lambda t: look(t, "grad"))(torch.tensor(1.0))
    torch.jit.trace(lambda t: look(t, "trace"), torch.ones(1))
    assert found == dict.fromkeys(["dual level", "dispatch mode", "vmap", "grad", "trace"])
    assert call_node(args, plan) is not None


def test_nodes_free_their_plans() -> None:
    plans._plans.clear()  # other tests have layers for such inputs, too
    with cpu.use_node("cpp"):
        norm = bgn.BatchGroupNorm2d(C, 2)
        y = norm(torch.randn(3, C, 2, 2, requires_grad=True))
        (plan,) = [p for p in plans._plans.values() if tuple(p.shape) == (3, C, 2, 2)]
        core = weakref.ref(plan.core)
        plans._plans.clear()
        del plan
        gc.collect()
        assert core() is not None  # needed by the backward pass
        y.sum().backward()
        del y
        gc.collect()
        assert core() is None


def test_from_several_threads() -> None:
    inputs = [torch.randn(3, C, 20, 20 + i, requires_grad=True) for i in range(6)]
    norm = bgn.BatchGroupNorm2d(C, 4, track_running_stats=False)

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(norm(x).pow(3).sum(), x)[0]

    with cpu.use_node("cpp"):
        expected = [gradient(x) for x in inputs]
        wrong = []

        def work(i: int) -> None:
            wrong.extend(i for _ in range(20) if not torch.equal(gradient(inputs[i]), expected[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_checkpoint_moves_running_statistics_once() -> None:
    found = []
    for which in ("python", "cpp"):
        norm, x = bgn.BatchGroupNorm2d(C, 2), torch.linspace(0, 1, 4 * C * 9).view(4, C, 3, 3)
        with cpu.use_node(which):
            y = checkpoint(norm, x.requires_grad_(), use_reentrant=False)
            assert norm.num_batches_tracked == 1
            y.pow(2).sum().backward()
        found.append([x.grad, *norm.buffers()])
    assert_same(found[1], found[0])
