"""Find the convolution or linear layer that feeds a normalizer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from bgn._fx import unchanged
from bgn.surgery.kinds import identify

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
LINEAR = (*CONVOLUTIONS, nn.Linear)

Test = Callable[[nn.Module], bool]
Pair = tuple[nn.Module, nn.Module]  # what follows, convolution


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a convolution or linear layer and does nothing else."""
    return isinstance(module, LINEAR) and any(type(module).forward is cls.forward for cls in LINEAR)


def same_width(linear: Any, norm: nn.Module) -> bool:
    """Whether a normalizer is for as many channels and dimensions as a layer gives."""
    kind = identify(norm)
    width, spatial = (
        (linear.out_features, 1)
        if isinstance(linear, nn.Linear)
        else (linear.out_channels, len(linear.kernel_size))
    )
    return kind is not None and kind.num_features == width and kind.spatial in (None, spatial)


class _Tracer(fx.Tracer):
    """Treats every normalizer as a leaf, of whatever library, and what else a test names."""

    def __init__(self, is_leaf: Test) -> None:
        super().__init__()
        self.is_leaf = is_leaf

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = identify(m) is not None or self.is_leaf(m)
        return known or super().is_leaf_module(m, module_qualified_name)


def find(
    module: nn.Module,
    accepts: Test = is_linear,
    is_leaf: Test = lambda _: False,
    *,
    shared: bool = False,
) -> tuple[bool, list[Pair]]:
    """Whether the module can be traced, and the candidates: what follows, and the convolution.

    Nothing else reads the output of the convolution, and it is called once. Found by tracing the
    module with optional arguments at their defaults, else its children, else by the order in a
    Sequential. What follows may be any module: the caller picks the normalizers.

    Args:
        module: is traced, and not changed.
        accepts: which layers are convolutions.
        is_leaf: modules that are not traced into, beside normalizers and torch's own layers.
        shared: also what follows several convolutions.
    """
    try:
        with unchanged(module):
            graph = _Tracer(is_leaf).trace(module, _defaults(module))
    except Exception:  # anything may stop the tracer: control flow, *args, unknown types
        found = [
            pair
            for child in module.children()
            if _may_hold_pairs(child, accepts)
            for pair in find(child, accepts, is_leaf, shared=shared)[1]
        ]
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            found += [(b, a) for a, b in itertools.pairwise(module) if accepts(a)]
        return False, found
    # weights that are read directly
    touched = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    found = []
    for node in graph.nodes:
        if (
            node.op != "call_module"
            or (calls[node.target] != 1 and not shared)
            or not isinstance(node.args[0] if node.args else None, fx.Node)
        ):
            continue
        before = node.args[0]
        if before.op == "call_module" and calls[before.target] == 1 and len(before.users) == 1:
            linear = module.get_submodule(before.target)
            if accepts(linear) and not any(
                name.startswith(f"{before.target}.") for name in touched
            ):
                found.append((module.get_submodule(node.target), linear))
    return True, found


def _may_hold_pairs(module: nn.Module, accepts: Test) -> bool:
    """Whether there is anything to find, because a trace takes milliseconds."""
    inside = list(module.modules())
    return any(map(accepts, inside)) and any(identify(m) is not None for m in inside)


def _defaults(module: nn.Module) -> dict[str, Any]:
    parameters = inspect.signature(module.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}
