"""Backward passes of the autograd node in C++, plain or not: as those of the node in Python."""

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, grad
from torch.autograd.graph import saved_tensors_hooks

import bgn
from bgn.kernels import cpu, node
from tests.test_node import C, Sub, assert_same, freed, is_cpp

_why_not = node.load()[1] if cpu.available() else f"the cpu backend is {cpu.why_not}"
pytestmark = pytest.mark.skipif(bool(_why_not), reason=f"no node in C++: {_why_not}")

Use = Callable[[torch.nn.Module, Tensor, Tensor], Any]
USES: dict[str, Use] = {}


def use(function: Use) -> Use:
    USES[function.__name__.replace("_", " ")] = function
    return function


def all_of(norm: torch.nn.Module, x: Tensor) -> list[Tensor]:
    return [x, *norm.parameters()]


@use
def plain(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), gy)


@use
def of_x_alone(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), x, gy)


@use
def of_weight_alone(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), norm.weight, gy)


@use
def of_parameters_alone(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x.detach()), list(norm.parameters()), gy)


@use
def of_x_with_frozen_parameters(norm: Any, x: Tensor, gy: Tensor) -> Any:
    norm.requires_grad_(False)
    y = norm(x)
    return [f is None for f, _ in y.grad_fn.next_functions], grad(y, x, gy)


@use
def expanded_gradient(norm: Any, x: Tensor, gy: Tensor) -> Any:
    del gy
    return grad(norm(x).sum(), all_of(norm, x))


@use
def gradient_of_another_layout(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), gy.contiguous(memory_format=torch.channels_last))


@use
def gradient_with_gaps(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), gy.repeat_interleave(2, -1)[..., ::2])


@use
def lazily_negated_gradient(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), torch._neg_view(gy))


@use
def gradient_of_a_subclass(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return [type(g) for g in grad(norm(x), all_of(norm, x), gy.as_subclass(Sub))]


@use
def freed_gradient(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), freed(*gy.shape))


@use
def batched_gradients(norm: Any, x: Tensor, gy: Tensor) -> Any:
    return grad(norm(x), all_of(norm, x), torch.stack([gy, 2 * gy]), is_grads_batched=True)


@use
def vmapped_gradients(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y = norm(x)
    return torch.vmap(lambda v: grad(y, all_of(norm, x), v, retain_graph=True))(gy[None])


@use
def dual_gradient(norm: Any, x: Tensor, gy: Tensor) -> Any:
    with forward_ad.dual_level():
        y = norm(x)
        return forward_ad.unpack_dual(grad(y, x, forward_ad.make_dual(gy, gy))[0])


@use
def double_backward(norm: Any, x: Tensor, gy: Tensor) -> Any:
    first = grad(norm(x), all_of(norm, x), gy.requires_grad_(), create_graph=True)
    scalar = sum(g.pow(2).sum() for g in first)
    return first, grad(scalar, [gy, *all_of(norm, x)], allow_unused=True)


@use
def twice(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y = norm(x)
    grad(y, x, gy)
    return grad(y, x, gy)


@use
def twice_with_a_retained_graph(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y = norm(x)
    return grad(y, x, gy, retain_graph=True), grad(y, x, 2 * gy)


@use
def input_changed_in_place(norm: Any, x: Tensor, gy: Tensor) -> Any:
    x = x.clone()
    y = norm(x)
    x.mul_(2)
    return grad(y, norm.weight, gy)


@use
def statistics_changed_in_place(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y = norm(x)
    norm.running_mean.add_(1)
    return grad(y, x, gy)


def hooked(unpack: Callable[[Tensor], Tensor]) -> Use:
    def call(norm: Any, x: Tensor, gy: Tensor) -> Any:
        with saved_tensors_hooks(lambda t: t.detach(), unpack):
            y = norm(x)
        return grad(y, all_of(norm, x), gy)

    return call


def images(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda t: change(t) if t.dim() == 4 else t


USES |= {
    "hook that copies": hooked(torch.clone),
    "hook that changes the layout": hooked(
        images(lambda t: t.contiguous(memory_format=torch.channels_last))
    ),
    "hook that changes the dtype": hooked(images(torch.Tensor.double)),
    "hook that changes the shape": hooked(images(lambda t: t[:1])),
    "hook that changes weights' dtype": hooked(lambda t: t if t.dim() == 4 else t.double()),
    "hook that makes subclasses": hooked(lambda t: t.as_subclass(Sub)),
    "hook that moves": hooked(lambda t: t.to("meta")),
    "hook that fails": hooked(lambda t: t[9, 9, 9, 9]),
}


@use
def hook_that_fails_to_pack(norm: Any, x: Tensor, gy: Tensor) -> Any:
    del gy
    with saved_tensors_hooks(lambda t: t[9, 9, 9, 9], lambda t: t):
        return norm(x)


@use
def hooks_of_the_node(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y, seen = norm(x), []
    y.grad_fn.register_prehook(lambda before: (seen.append(before), (2 * before[0],))[1])
    y.grad_fn.register_hook(lambda after, before: seen.append((after, before)))
    y.retain_grad()
    y.backward(gy)
    return seen, y.grad, x.grad


@use
def what_the_node_says_of_itself(norm: Any, x: Tensor, gy: Tensor) -> Any:
    del gy
    y = norm(x)
    fn = y.grad_fn
    return fn.name(), type(fn).__name__, fn.saved_tensors, len(fn.next_functions)


@use
def what_a_used_node_has_saved(norm: Any, x: Tensor, gy: Tensor) -> Any:
    y = norm(x)
    grad(y, x, gy)
    return y.grad_fn.saved_tensors


@use
def anomaly_mode(norm: Any, x: Tensor, gy: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            y = norm(x)
            try:
                grad(y, x, gy * float("nan"))
            except RuntimeError as error:
                where = ["norm(x)" in str(warning.message) for warning in caught]
                return str(error), where
    return None


@use
def unused_output(norm: Any, x: Tensor, gy: Tensor) -> Any:
    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(*_: Any) -> None:
            return None

    return grad(Undefined.apply(norm(x)), all_of(norm, x), gy, allow_unused=True)


@use
def default_device(norm: Any, x: Tensor, gy: Tensor) -> Any:
    with torch.device("meta"):
        return grad(norm(x), all_of(norm, x), gy)


@use
def copied_layer_in_inference_mode(norm: Any, x: Tensor, gy: Tensor) -> Any:
    del gy
    with torch.inference_mode():
        y = copy.deepcopy(norm)(x)
    return y.is_inference(), y.clone()


def outcome(function: Use, which: str, training: bool) -> Any:
    draw = torch.Generator().manual_seed(2)
    norm = bgn.BatchGroupNorm2d(C, 4).train(training)
    x, gy = (torch.randn(4, C, 3, 5, generator=draw) for _ in range(2))
    with cpu.use_node(which):
        assert is_cpp(norm(x)) == (which == "cpp")
        try:
            return function(norm, x.requires_grad_(), gy), None
        except Exception as error:
            return None, (type(error), str(error))


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("name", USES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:There is a performance drop")
def test_as_the_node_in_python(name: str, training: bool) -> None:
    theirs, ours = (outcome(USES[name], which, training) for which in ("python", "cpp"))
    assert_same(ours, theirs)


RAISE = {
    "freed gradient": "gradient of shape .* has no memory",
    "twice": "backward through the graph a second time",
    "input changed in place": "modified by an inplace operation",
    "hook that changes the dtype": "a saved-tensor hook returned a torch.float64 tensor",
    "hook that fails": "index 9 is out of bounds",
    "hook that fails to pack": "index 9 is out of bounds",
    "what a used node has saved": "backward through the graph a second time",
}


@pytest.mark.parametrize("name", RAISE)
def test_errors(name: str) -> None:
    """So that the comparison above is one of errors, not of whatever both happen to do."""
    _, error = outcome(USES[name], "cpp", True)
    assert error is not None
    assert re.search(RAISE[name], error[1])


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_compiled_autograd(training: bool) -> None:
    from torch._dynamo import compiled_autograd

    norm = bgn.BatchGroupNorm2d(C, 4).train(training)
    shape = 4, C, 3, 5
    found = []
    with cpu.use_node("cpp"):
        for scale in (1, 2, 3):  # the later ones with what was compiled for the first
            x = (scale * torch.linspace(-1, 1, 4 * C * 15)).sin().view(shape).requires_grad_()
            gy = torch.linspace(0, scale, 4 * C * 15).cos().view(shape)
            y = norm(x)
            assert is_cpp(y)
            expected = grad(y, x, gy, retain_graph=True)[0]
            with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
                y.backward(gy)
            assert x.grad is not None
            torch.testing.assert_close(x.grad, expected)
            found.append(x.grad)
    assert not torch.equal(found[0], found[1])
