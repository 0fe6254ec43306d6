"""Put activations and residuals into the normalizers before them: ``convert(fuse_act=True)``.

Every module is traced on its own, its children as single calls, in training and in eval mode. Where
the output of a BatchGroupNorm2d goes to an activation alone, or to a sum that goes to a piecewise
one alone, the normalizer becomes a BatchGroupNormAct2d. What then has to change around it:

- An activation that is a child called once becomes ``nn.Identity``: the forward stays as it is.
- Else (one ReLU called several times, a function, a sum) the module's class becomes a subclass with
  the traced forward, in which the calls are fused. Children, state_dict keys and hooks stay, and so
  does ``isinstance``. Such a module is traced again when it is copied or loaded.

A module whose forward differs between the two modes, has optional arguments or cannot be traced is
left alone, and so is a normalizer or an activation with hooks.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from bgn._fx import unchanged
from bgn.activated import BatchGroupNormAct2d
from bgn.activation import INPUT, OUTPUT, SLOPE, activation_of, is_invertible_module
from bgn.layers import BatchGroupNorm2d
from bgn.surgery.mixin import Mixed, mixed, parts
from bgn.surgery.modules import listed
from bgn.surgery.support import Activated

FUSE = (False, True, OUTPUT)  # what fuse_act may be
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, torch.relu_: nn.ReLU,
    F.leaky_relu: nn.LeakyReLU,
    F.silu: nn.SiLU,
    F.hardswish: nn.Hardswish,
}  # fmt: skip
_METHODS: dict[Any, type[nn.Module]] = {"relu": nn.ReLU, "relu_": nn.ReLU}
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


class Match(NamedTuple):
    """A normalizer's call, the sum that follows it or None, and the activation's call."""

    norm: fx.Node
    sum: fx.Node | None
    act: fx.Node
    module: nn.Module  # the activation


class _Shallow(fx.Tracer):
    """Traces one forward: every child is a single call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return True


def _graph(module: nn.Module) -> fx.Graph | None:
    """The graph of a module's own forward; None where it has none that holds in both modes."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
           for p in parameters):  # fmt: skip
        return None
    mode, graphs = module.training, []
    try:
        for training in (True, False):
            module.training = training
            with unchanged(module):
                graphs.append(_Shallow().trace(module))
    except Exception:  # anything may stop the tracer: control flow, unknown types
        return None
    finally:
        module.training = mode
    return graphs[0] if str(graphs[0]) == str(graphs[1]) else None


def fuse(model: nn.Module, norms: Iterable[nn.Module], save: str = INPUT) -> None:
    """Fuse what follows these normalizers of a model, in place; a warning names what is left."""
    wanted: set[nn.Module] = {n for n in norms if type(n) is BatchGroupNorm2d and not _is_hooked(n)}
    _adopt(norms, save)
    slots: dict[nn.Module, int] = {}
    for parent in model.modules():
        for child in parent._modules.values():
            if child is not None:
                slots[child] = slots.get(child, 0) + 1
    wanted = {n for n in wanted if slots.get(n) == 1}
    left = []
    for name, module in list(model.named_modules()):
        own = {n for n in module._modules.values() if n in wanted}
        if not own or isinstance(module, Fused):
            continue
        graph = _graph(module)
        if graph is None:
            left.append(name or type(module).__name__)
            continue
        _fuse_one(module, graph, wanted, save)
    if left:
        warnings.warn(
            "convert: fuse_act left the normalizers of these modules alone, whose forward cannot be"
            f" traced, has optional arguments or depends on the mode: {listed(left)}",
            stacklevel=3,
        )


def _adopt(norms: Iterable[nn.Module], save: str) -> None:
    """Layers that contain their activation, as timm's do, become fused ones."""
    for norm in norms:
        mixins, cls = parts(type(norm))
        if mixins == (Activated,) and cls is BatchGroupNorm2d and not _is_hooked(norm):
            own: Any = norm
            _become(norm, own.drop, own.act, save)


def _is_hooked(module: Any) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _become(norm: Any, drop: nn.Module, act: nn.Module, save: str) -> None:
    norm.__class__ = BatchGroupNormAct2d
    norm.add_module("drop", drop)
    norm.add_module("act", act)
    norm.__dict__["save"] = OUTPUT if save == OUTPUT and is_invertible_module(act) else INPUT


def _matches(module: nn.Module, graph: fx.Graph, own: set[nn.Module]) -> list[Match]:
    found = []
    called = [n.target for n in graph.nodes if n.op == "call_module"]
    for node in graph.nodes:
        if node.op != "call_module" or called.count(node.target) != 1 or node.kwargs:
            continue
        if len(node.args) != 1 or module.get_submodule(node.target) not in own:
            continue
        match = _follows(module, node)
        if match is not None:
            found.append(match)
    taken: set[fx.Node] = set()
    kept = []
    for match in found:  # of two normalizers that are added, the first one
        if match.act not in taken:
            kept.append(match)
            taken.add(match.act)
    return kept


def _follows(module: nn.Module, norm: fx.Node) -> Match | None:
    user = _only_user(norm)
    if user is None:
        return None
    act = _activation(module, user)
    if act is not None:
        return Match(norm, None, user, act)
    if user.op not in ("call_function", "call_method") or user.target not in _SUMS:
        return None
    last = _only_user(user)
    if last is None or user.kwargs or len(user.args) != 2 or user.args[0] is user.args[1]:
        return None
    if not all(isinstance(a, fx.Node) for a in user.args):
        return None
    in_place = user.target in (operator.iadd, "add_")
    if (in_place and user.args[0] is not norm) or _only_user(norm.all_input_nodes[0]) is None:
        return None  # the normalizer is called later: its input must be the same then
    act = _activation(module, last)
    known = None if act is None else activation_of(act)
    if act is None or known is None or not known.is_piecewise:
        return None
    return Match(norm, user, last, act)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(module: nn.Module, node: fx.Node) -> nn.Module | None:
    """The activation that a node calls, as a module; None for anything else."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        child = module.get_submodule(str(node.target))
        known = activation_of(child)
        return None if known is None or known.name == "identity" else child
    table = _FUNCTIONS if node.op == "call_function" else _METHODS
    if node.op not in ("call_function", "call_method") or node.target not in table:
        return None
    options = {k: v for k, v in node.kwargs.items() if k != "inplace"}
    cls: Any = table[node.target]
    if cls is not nn.LeakyReLU:
        return cls() if len(node.args) == 1 and not options else None
    slopes = [*node.args[1:2], *options.values()] or [SLOPE]
    if len(node.args) > 2 or len(slopes) > 1 or not isinstance(slopes[0], (int, float)):
        return None
    return nn.LeakyReLU(slopes[0])


def _fuse_one(module: nn.Module, graph: fx.Graph, wanted: set[nn.Module], save: str) -> None:
    matches = _matches(module, graph, wanted)
    if not matches:
        return
    simple = all(m.sum is None and _is_own_child(module, graph, m.act) for m in matches)
    for match in matches:
        norm = module.get_submodule(str(match.norm.target))
        _become(norm, nn.Identity(), _fresh(match.module), save)
        if norm.save == OUTPUT and match.sum is not None:
            _keep_residual(module, match, wanted)
    if simple:
        for match in matches:
            module._modules[str(match.act.target)] = nn.Identity()
        return
    kept = [(m.norm.name, m.sum.name if m.sum else "", m.act.name) for m in matches]
    module.__class__ = mixed(Fused, type(module))
    module.__dict__["_fused_calls"] = kept
    _rewrite(module, graph, kept)


def _keep_residual(module: nn.Module, match: Match, wanted: set[nn.Module]) -> None:
    """A residual that is kept and comes from a normalizer: that one keeps its output as well."""
    assert match.sum is not None
    (residual,) = (a for a in match.sum.args if a is not match.norm)
    if not isinstance(residual, fx.Node) or residual.op != "call_module":
        return
    last: nn.Module = module.get_submodule(str(residual.target))
    if type(last) is nn.Sequential and len(last) and not _is_hooked(last):
        last = last[-1]
    if type(last) is BatchGroupNorm2d and last in wanted:
        _become(last, nn.Identity(), nn.Identity(), OUTPUT)


def _is_own_child(module: nn.Module, graph: fx.Graph, act: fx.Node) -> bool:
    """Whether an activation is a child of the module that is called once."""
    calls = [n for n in graph.nodes if n.op == "call_module" and n.target == act.target]
    return act.op == "call_module" and str(act.target) in module._modules and len(calls) == 1


def _fresh(act: Any) -> nn.Module:
    """The same activation, for this normalizer alone."""
    made: nn.Module
    if isinstance(act, nn.LeakyReLU):
        made = nn.LeakyReLU(act.negative_slope, act.inplace)
    else:
        made = type(act)(act.inplace)
    return made.train(act.training)


class Fused(Mixed):
    """Mixin for a module's class: its traced forward, with activations in the normalizers."""

    prefix = "Fused"

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_fused_forward"](self, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        new, args, state = super().__reduce_ex__(protocol)
        return new, args, {k: v for k, v in state.items() if k != "_fused_forward"}

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        original = _original(type(self))
        module: nn.Module = object.__new__(original)
        module.__dict__.update(self.__dict__)  # the same children, with the forward of the class
        graph = _graph(module)
        if graph is None:
            raise RuntimeError(f"the forward of {original.__name__} can no longer be traced")
        _rewrite(self, graph, self._fused_calls)


def _original(cls: type[Any]) -> type[Any]:
    """The class beneath the Fused mixin, with the mixins that are beneath it too."""
    while not (issubclass(cls, Mixed) and cls.__bases__[0] is Fused):
        cls = cls.__bases__[1]
    below: type[Any] = cls.__bases__[1]
    return below


def _rewrite(module: nn.Module, graph: fx.Graph, kept: list[tuple[str, str, str]]) -> None:
    """Give a module the forward of its graph, with the calls that are kept by name fused."""
    nodes = {node.name: node for node in graph.nodes}
    for norm_name, sum_name, act_name in kept:
        norm, act = nodes[norm_name], nodes[act_name]
        if sum_name:
            total = nodes[sum_name]
            (residual,) = (a for a in total.args if a is not norm)
            total.prepend(norm)  # after the residual
            norm.kwargs = {"residual": residual}
            total.replace_all_uses_with(norm, lambda user, norm=norm: user is not norm)
            graph.erase_node(total)
        act.replace_all_uses_with(norm)
        graph.erase_node(act)
    graph.lint()
    code: Any = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)
    exec(compile(code.src, f"<fused {type(module).__name__}>", "exec"), names)
    forward: Callable[..., Any] = names["forward"]
    module.__dict__["_fused_forward"] = forward
