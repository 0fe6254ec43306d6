"""Saved-tensor hooks: what autograd keeps may come back in another place, dtype or layout."""

# ruff: noqa: ARG001 (torch calls hooks with more than they need)
from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils import checkpoint as ckpt

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, use

BOTH = [variant for variant in CORE if variant[1] == "float32"]


class Tagged(Tensor):
    """A subclass that does nothing."""


def _strided(t: Tensor) -> Tensor:
    return torch.stack([t, t * 0 - 3], -1)[..., 0]


def _last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(2, 3).contiguous().transpose(2, 3) if t.dim() == 4 else t


def _unaligned(t: Tensor) -> Tensor:
    room = torch.zeros(t.numel() + 1, dtype=t.dtype)
    return room[1:].view(t.shape).copy_(t)


def _floats(dtype: torch.dtype) -> Any:
    return lambda t: t.to(dtype) if t.is_floating_point() else t


UNPACK = {
    "same": lambda t: t,
    "detached": lambda t: t.detach(),
    "clone": lambda t: t.clone(),
    "contiguous": lambda t: t.contiguous().clone(memory_format=torch.contiguous_format),
    "channels_last": _last,
    "transposed": _transposed,
    "strided": _strided,
    "unaligned": _unaligned,
    "neg": lambda t: torch._neg_view(-t) if t.is_floating_point() else t,
    "requires_grad": lambda t: t.detach().clone().requires_grad_(t.is_floating_point()),
    "subclass": lambda t: t.detach().as_subclass(Tagged),
    "parameter": lambda t: torch.nn.Parameter(t.detach(), requires_grad=False),
    "expanded": lambda t: t[:1].expand_as(t) if t.dim() == 4 else t,  # samples are equal
}
DTYPES = {name: _floats(getattr(torch, name)) for name in ("float16", "bfloat16", "float64")}
WRONG = {
    "meta": lambda t: t.to("meta"),
    "another shape": lambda t: t.flatten() if t.dim() == 4 else t,
    "fewer samples": lambda t: t[:2] if t.dim() == 4 else t,
    "sparse": lambda t: t.to_sparse() if t.dim() == 4 else t,
    "integers": lambda t: t.to(torch.int32) if t.dim() == 4 else t,
    "complex": lambda t: t.to(torch.complex64) if t.dim() == 4 else t,
    "no tensor": lambda t: 3 if t.dim() == 4 else t,
}


def _x(make: Make, kind: str) -> Tensor:
    x = make.x()
    return x if kind != "expanded" else x.detach()[:1].repeat(4, 1, 1, 1).requires_grad_()


@use(BOTH, cases={"kind": UNPACK}, strides=False, relu=False)  # would meet a mask, too
def unpacked_as(make: Make, kind: str) -> Any:
    with saved_tensors_hooks(lambda t: t, UNPACK[kind]):
        return step(make, make(), _x(make, kind))


@use(CORE, strides=False)
def unpacked_in_another_layout(make: Make) -> Any:
    kind = "contiguous" if make.last else "channels_last"
    with saved_tensors_hooks(lambda t: t, UNPACK[kind]):
        return step(make, make(), make.x())


@use(cases={"kind": [kind for kind in UNPACK if kind != "expanded"]}, strides=False, relu=False)
def unpacked_in_double_backward(make: Make, kind: str) -> Any:
    layer, x = make(), make.x()
    with saved_tensors_hooks(lambda t: t, UNPACK[kind]):
        y = layer(x)
        gx, gw = torch.autograd.grad(y, (x, layer.weight), make.gy(y), create_graph=True)
    second = torch.autograd.grad(gx.pow(2).sum(), (x, layer.weight), allow_unused=True)
    return gx.detach(), gw.detach(), second


@use(cases={"kind": DTYPES}, tolerance=500, may_work=True)
def unpacked_in_another_dtype(make: Make, kind: str) -> Any:
    with saved_tensors_hooks(lambda t: t, DTYPES[kind]):
        return step(make, make(), make.x())


@use(cases={"kind": WRONG}, groups=(), may_work=True)
def unpacked_as_nonsense(make: Make, kind: str) -> Any:
    with saved_tensors_hooks(lambda t: t, WRONG[kind]):
        return step(make, make(), make.x())


@use(groups=(), differs="nn.BatchNorm2d reads beyond the end of the weight")
def unpacked_weight_is_too_short(make: Make) -> Any:
    with saved_tensors_hooks(lambda t: t, lambda t: t[:3] if t.dim() == 1 else t):
        return step(make, make(), make.x())


@use(cases={"kind": ["float16", "float64"]}, tolerance=500)
def packed_in_another_dtype(make: Make, kind: str) -> Any:
    def pack(t: Tensor) -> tuple[torch.dtype, Tensor]:
        return t.dtype, DTYPES[kind](t)

    with saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0])):
        return step(make, make(), make.x())


@use()
def packed_to_a_file(make: Make) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        written: list[Path] = []

        def pack(t: Tensor) -> Path:
            written.append(Path(folder, f"{len(written)}.pt"))
            torch.save(t, written[-1])
            return written[-1]

        with saved_tensors_hooks(pack, torch.load):
            found = step(make, make(), make.x())
        assert written
        return found


@use(CORE)
def offloaded(make: Make) -> Any:
    with save_on_cpu(pin_memory=False):
        return step(make, make(), make.x())


@use()
def offloaded_to_pinned_memory(make: Make) -> Any:
    with save_on_cpu(pin_memory=True):
        return step(make, make(), make.x())


@use()
def hooks_disabled(make: Make) -> Any:
    with disable_saved_tensors_hooks("not now"):
        return step(make, make(), make.x())


@use(groups=())  # torch loses track of views, which the definition saves
def mutation_allowed(make: Make) -> Any:
    layer, x = make(), make.x()
    with allow_mutation_on_saved_tensors():
        h = x * 1
        y = layer(h)
        h.mul_(3)
        with torch.no_grad():
            layer.weight.mul_(2)
        y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def unpack_raises(make: Make) -> Any:
    def unpack(t: Tensor) -> Tensor:
        raise RuntimeError("lost")

    with saved_tensors_hooks(lambda t: t, unpack):
        return step(make, make(), make.x())


@use()
def pack_raises(make: Make) -> Any:
    def pack(t: Tensor) -> Tensor:
        raise RuntimeError("full")

    with saved_tensors_hooks(pack, lambda t: t):
        return step(make, make(), make.x())


@use(relu=False)
def nested_hooks(make: Make) -> Any:
    with save_on_cpu(), saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return step(make, make(), make.x())


@use(groups=())
def saved_data_counts_no_less(make: Make) -> Any:
    """The input and the weight are among what is saved, so that hooks can move them."""
    seen: list[Any] = []
    x, layer = make.x(), make()
    with saved_tensors_hooks(lambda t: (seen.append(tuple(t.shape)), t)[1], lambda t: t):
        layer(x)
    return tuple(x.shape) in seen, tuple(layer.weight.shape) in seen


def _twice(layer: torch.nn.Module) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Sigmoid(), layer, torch.nn.Tanh())


def _gradients(make: Make, layer: torch.nn.Module, run: Any) -> Any:
    """Without the running statistics: those that recompute count a batch twice, ours do not."""
    x = make.x()
    y = run(_twice(layer), x)
    y.backward(make.gy(y))
    return y, x.grad, [parameter.grad for parameter in layer.parameters()]


@use(CORE, cases={"reentrant": [True, False]})
def checkpointed(make: Make, reentrant: bool) -> Any:
    return _gradients(make, make(), lambda net, x: ckpt.checkpoint(net, x, use_reentrant=reentrant))


@use([(True, "float32", "contiguous")], differs="recomputation is not one more batch", groups=())
def statistics_after_a_checkpoint(make: Make) -> Any:
    layer = make()
    ckpt.checkpoint(_twice(layer), make.x(), use_reentrant=False).sum().backward()
    return dict(layer.named_buffers())


@use()
def nested_checkpoints(make: Make) -> Any:
    def inner(net: Any, x: Tensor) -> Tensor:
        return ckpt.checkpoint(net, x, use_reentrant=False)

    return _gradients(
        make, make(), lambda net, x: ckpt.checkpoint(inner, net, x, use_reentrant=False)
    )


@use(cases={"segments": [1, 2, 3]})
def checkpoint_sequential(make: Make, segments: int) -> Any:
    def run(net: torch.nn.Sequential, x: Tensor) -> Tensor:
        return ckpt.checkpoint_sequential(net, segments, x, use_reentrant=False)

    return _gradients(make, make(), run)


@use()
def selective_checkpoint(make: Make) -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return ckpt.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return ckpt.create_selective_checkpoint_contexts(policy)

    def run(net: Any, x: Tensor) -> Tensor:
        return ckpt.checkpoint(net, x, use_reentrant=False, context_fn=contexts)

    return _gradients(make, make(), run)


@use()
def checkpoint_within_offloading(make: Make) -> Any:
    def run(net: Any, x: Tensor) -> Tensor:
        with save_on_cpu():
            return ckpt.checkpoint(net, x, use_reentrant=False)

    return _gradients(make, make(), run)


@use()
def checkpoint_with_early_stop_off(make: Make) -> Any:
    def run(net: Any, x: Tensor) -> Tensor:
        with ckpt.set_checkpoint_early_stop(False):
            return ckpt.checkpoint(net, x, use_reentrant=False)

    return _gradients(make, make(), run)
