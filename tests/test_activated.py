"""Norm, residual and activation in one: the C core against torch's composition in float64."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import bgn
from bgn import functional as F
from bgn import kernels
from bgn.activation import NAMES, Activation, After, activation_of
from bgn.kernels import activated, cpu
from tests.tolerance import TOLERANCES, assert_close

needs_core = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")
C = 6
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MODULES: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "silu": nn.SiLU(),
    "hardswish": nn.Hardswish(),
    "identity": nn.Identity(),
}
# by what the node keeps; silu and hardswish have no residual of their own
WAYS = [
    *((name, "input", residual) for name in NAMES for residual in (False, True)),
    ("leaky_relu", "output", False),
    ("leaky_relu", "output", True),
    ("identity", "output", False),
]


def is_fused(y: Tensor) -> bool:
    return type(y.grad_fn).__name__ == "_NormalizeBackward"


def composed(x: Tensor, residual: Tensor | None, name: str, norm: Any) -> Tensor:
    """Torch's own: nn.BatchNorm2d or the definition of BGN, then add, then the module."""
    z = norm(x)
    y: Tensor = MODULES[name](z if residual is None else z + residual)
    return y


def grads(y: Tensor, inputs: list[Tensor], gy: Tensor) -> list[Tensor]:
    return [y, *torch.autograd.grad(y, inputs, gy)]


@pytest.mark.parametrize(("name", "save", "with_residual"), WAYS)
@pytest.mark.parametrize("training", [True, False])
def test_equals_batch_norm_and_the_activation(
    name: str, save: str, with_residual: bool, training: bool
) -> None:
    own = bgn.BatchGroupNormAct2d(C, C, act=name, negative_slope=0.2, save=save).double()
    other = nn.BatchNorm2d(C).double()
    with torch.no_grad():
        other.weight.uniform_(0.5, 2)
        other.bias.normal_()
        other.running_mean.normal_()  # type: ignore[union-attr]
    own.load_state_dict(other.state_dict())
    own.train(training), other.train(training)
    x, gy = torch.randn(2, 4, C, 5, 7, dtype=torch.float64)
    residual = torch.randn_like(x) if with_residual else None
    found = []
    for norm in own, other:
        inputs = [t.clone().requires_grad_() for t in (x, residual) if t is not None]
        r = inputs[1] if with_residual else None
        y = norm(inputs[0], r) if norm is own else composed(inputs[0], r, name, norm)
        found.append(grads(y, [*inputs, *norm.parameters()], gy))
    for a, b in zip(*found, strict=True):
        assert_close(a, b)
    for a, b in zip(own.buffers(), other.buffers(), strict=True):
        assert_close(a, b, torch.float64)


@needs_core
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_c_core_against_the_definition(data: st.DataObject) -> None:
    """Any shape, layout, dtype, partition and way: within the dtype's tolerance of float64."""
    name, save, with_residual = data.draw(st.sampled_from(WAYS), "way")
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    N, c, H, W = (data.draw(st.integers(1, most)) for most in (4, 40, 9, 9))
    G, training = data.draw(st.integers(1, c), "G"), data.draw(st.booleans(), "training")
    if training and N * (c * H * W // G) < 2:
        return
    torch.manual_seed(data.draw(st.integers(0, 1000), "seed"))
    wide = torch.promote_types(dtype, torch.float32)
    x, r, gy = torch.randn(3, N, c, H, W).to(dtype)
    if data.draw(st.booleans(), "channels_last"):
        x, gy = (t.contiguous(memory_format=torch.channels_last) for t in (x, gy))
    w, b = (torch.rand(c) + 0.5).to(wide), torch.randn(c).to(wide)
    mean, var = torch.randn(G).to(wide), (torch.rand(G) + 0.5).to(wide)
    found = []
    for double in (False, True):
        inputs = [t.double() if double else t for t in (x, w, b, r)]
        x_, w_, b_, r_ = (t.clone().requires_grad_() for t in inputs)
        stats = [t.to(w_.dtype).clone() for t in (mean, var)]
        residual = r_ if with_residual else None
        with kernels.use("definition" if double else "cpu"):
            y = F.batch_group_norm_act(
                x_, G, *stats, w_, b_, training, act=name, negative_slope=0.2, save=save,
                residual=residual,
            )  # fmt: skip
        assert is_fused(y) == (not double and (not with_residual or Activation(name).is_piecewise))
        kept = [x_, w_, b_, *([r_] if with_residual else [])]
        found.append([*grads(y, kept, gy.to(y.dtype)), *stats])
    for a, b in zip(*found, strict=True):
        scale = b.abs().max().item() or 1.0
        factor = 8 if name == "hardswish" or save == "output" else 3
        assert (a.double() - b).abs().max().item() <= factor * TOLERANCES[dtype]["rtol"] * scale


@needs_core
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """In eval mode with statistics 0 and 1 the layer is the activation alone."""
    inf, nan = math.inf, math.nan
    values = [-inf, -1e4, -89.0, -88.0, -3.0, -1.0, -1e-3, -0.0, 0.0, 1e-3, 1.0, 3.0, 88.0, 1e4]
    x = torch.tensor([*values, inf, nan]).to(dtype).view(1, 1, 4, 4)
    norm = bgn.BatchGroupNormAct2d(1, 1, eps=0, act=name, negative_slope=0.2, affine=False).eval()
    a, b = (x.clone().requires_grad_() for _ in range(2))
    y, expected = norm.to(x.dtype)(a, torch.zeros_like(x)), MODULES[name](b)
    torch.testing.assert_close(y, expected, equal_nan=True)
    y.backward(torch.ones_like(y))
    expected.backward(torch.ones_like(y))
    # torch's half-precision kernels round on the way
    torch.testing.assert_close(a.grad, b.grad, equal_nan=True, **TOLERANCES[dtype])


@pytest.mark.parametrize(("name", "save", "with_residual"), WAYS)
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck(name: str, save: str, with_residual: bool, training: bool) -> None:
    x, r = torch.randn(2, 2, 3, 3, 2, dtype=torch.float64)
    w, b = torch.rand(2, 3, dtype=torch.float64) + 0.5
    mean, var = torch.zeros(3).double(), torch.ones(3).double()
    inputs = [t.requires_grad_() for t in ((x, w, b, r) if with_residual else (x, w, b))]

    def run(x: Tensor, w: Tensor, b: Tensor, r: Tensor | None = None) -> Tensor:
        stats = mean.clone(), var.clone()
        return F.batch_group_norm_act(
            x, 3, *stats, w, b, training, act=name, negative_slope=0.2, residual=r, save=save
        )

    assert gradcheck(run, inputs)
    if save == "output" and training and cpu.available():
        with pytest.raises(RuntimeError, match="save='output' keeps no input"):
            gradgradcheck(run, inputs)
    else:
        assert gradgradcheck(run, inputs)


@needs_core
@pytest.mark.parametrize(("name", "save", "with_residual"), WAYS)
def test_hooks_that_change_what_was_saved(name: str, save: str, with_residual: bool) -> None:
    """Tensors with gaps come back, and are copied or left to the definition: the same gradients."""
    x, r, gy = torch.randn(3, 4, C, 5, 5, dtype=torch.float64)
    norm = bgn.BatchGroupNormAct2d(C, 2, act=name, negative_slope=0.2, save=save).double()

    def spread(t: Tensor) -> Tensor:
        return t if t.dim() < 2 else torch.stack([t, t], -1)[..., 0]

    class Own(torch.Tensor):
        pass

    found = []
    for unpack in (lambda t: t), spread, lambda t: t.detach().as_subclass(Own):
        inputs = [t.clone().requires_grad_() for t in (x, r)[: 1 + with_residual]]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = norm(*inputs)
        assert is_fused(y) or (with_residual and not activation_of(norm.act).is_piecewise)  # type: ignore[union-attr]
        found.append([g.as_subclass(Tensor) for g in grads(y, [*inputs, *norm.parameters()], gy)])
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_and_forward_derivatives(name: str) -> None:
    x, t = torch.randn(2, 3, 2, C, 4, 4, dtype=torch.float64)
    norm = bgn.BatchGroupNormAct2d(C, 2, act=name, track_running_stats=False).double()
    each = torch.stack([norm(one, one) for one in x])
    assert_close(torch.vmap(lambda one: norm(one, one))(x), each)
    _, forward = torch.func.jvp(lambda one: norm(one, one).sum(), (x[0],), (t[0],))
    leaf = x[0].clone().requires_grad_()
    (backward,) = torch.autograd.grad(norm(leaf, leaf).sum(), leaf)
    assert_close(forward, (backward * t[0]).sum())


@needs_core
def test_memory_between_forward_and_backward() -> None:
    """relu keeps x, and with a residual also y; save="output" keeps y instead of x."""
    kept: dict[tuple[str, str, bool], list[int]] = {}
    for name, save, with_residual in WAYS:
        norm = bgn.BatchGroupNormAct2d(C, 2, act=name, save=save)
        x, r = (torch.randn(4, C, 8, 8, requires_grad=True) for _ in range(2))
        seen: list[int] = []

        def pack(t: Tensor, seen: list[int] = seen) -> Tensor:
            seen.append(t.data_ptr())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = norm(x, r if with_residual else None)
        maps = {x.data_ptr(): "x", r.data_ptr(): "r", y.data_ptr(): "y"}
        kept[name, save, with_residual] = sorted(maps[p] for p in seen if p in maps)  # type: ignore[misc]
    assert kept["relu", "input", False] == kept["silu", "input", False] == ["x"]
    assert kept["relu", "input", True] == ["x", "y"]
    assert kept["leaky_relu", "output", False] == ["y"]
    assert kept["leaky_relu", "output", True] == ["r", "y"]


@needs_core
@pytest.mark.parametrize(
    ("weight", "dtype", "with_residual", "inverted"),
    [
        (1e-3, torch.float32, False, True),
        (0.9e-3, torch.float32, False, False),
        (1.0, torch.float32, True, True),
        (0.2, torch.bfloat16, False, True),
        (0.05, torch.bfloat16, False, False),
        (1.0, torch.bfloat16, True, False),
    ],
)
def test_input_is_kept_where_it_could_not_be_computed(
    weight: float, dtype: torch.dtype, with_residual: bool, inverted: bool
) -> None:
    x, w = torch.randn(2, C, 3, 3).to(dtype), torch.ones(C)
    w[3] = -weight
    after = After(Activation("leaky_relu", 0.1, "output"), x if with_residual else None)
    assert activated.is_invertible(x, w, torch.zeros(C), after, None) == inverted
    assert not activated.is_invertible(x, w, torch.full((C,), 1e4), after, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"act": "gelu"}, "act='gelu' is not known"),
        ({"save": "both"}, "save='both' is not known"),
        ({"act": "relu", "save": "output"}, "needs act='leaky_relu' .*, got act='relu'"),
        ({"act": "leaky_relu", "negative_slope": 0, "save": "output"}, "negative_slope > 0, got 0"),
        ({"act": "relu", "act_layer": nn.ReLU}, "expected one of them"),
        ({"act_layer": "sine"}, "act_layer='sine' is not known"),
        ({"act_kwargs": {"x": 1}}, "are for act_layer"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        bgn.BatchGroupNormAct2d(C, 2, **options)


def test_layer_around_other_modules() -> None:
    """Modules that are not fused are called: other activations, dropout, hooks."""
    x, r = torch.randn(2, 2, C, 4, 4)
    plain = bgn.BatchGroupNorm2d(C, 2)
    gelu = bgn.BatchGroupNormAct2d(C, 2, act_layer=nn.GELU)
    assert_close(gelu(x, r), nn.functional.gelu(plain(x) + r))
    dropped = bgn.BatchGroupNormAct2d(C, 2, drop_layer=lambda: nn.Dropout(1.0))
    assert_close(dropped(x, r), r.relu())
    hooked, calls = bgn.BatchGroupNormAct2d(C, 2), []
    hooked.act.register_forward_hook(lambda *_: calls.append(1))
    assert_close(hooked(x), plain(x).relu())
    assert calls
    none = bgn.BatchGroupNormAct2d(C, 2, apply_act=False)
    assert_close(none(x), plain(x))
    assert_close(none(x, r), plain(x) + r)
    kwargs = {"act_layer": "leaky_relu", "act_kwargs": {"negative_slope": 0.3}}
    assert_close(bgn.BatchGroupNormAct2d(C, 2, **kwargs)(x), nn.LeakyReLU(0.3)(plain(x)))  # type: ignore[arg-type]
    assert list(gelu.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("options", [{"center": "channel"}, {"renorm": True}, {"batch_blocks": 2}])
def test_partners(options: dict[str, Any]) -> None:
    x, r = torch.randn(2, 5, C, 4, 4)  # 5 samples in 2 blocks: 3 and 2
    norm, plain = bgn.BatchGroupNormAct2d(C, 2, **options), bgn.BatchGroupNorm2d(C, 2, **options)
    leaf = x.requires_grad_()
    for _ in range(2):
        found, expected = norm(leaf, r), (plain(leaf) + r).relu()
        assert_close(found, expected)
        (a,) = torch.autograd.grad(found.square().sum(), leaf)
        (b,) = torch.autograd.grad(expected.square().sum(), leaf)
        assert_close(a, b)


def test_autocast_checkpoint_and_copies() -> None:
    model = nn.Sequential(nn.Conv2d(3, C, 3), bgn.BatchGroupNormAct2d(C, 2, act="silu"))
    again = copy.deepcopy(model)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = model(x), checkpoint(again, x, use_reentrant=False)
    assert a.dtype is b.dtype is torch.bfloat16
    for y in a, b:
        y.float().square().sum().backward()
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]
    for p, q in zip(model.buffers(), again.buffers(), strict=True):
        assert torch.equal(p, q)  # counted once


def test_empty_batch_counts() -> None:
    norm = bgn.BatchGroupNormAct2d(C, 2)
    assert norm(torch.empty(0, C, 4, 4)).shape == (0, C, 4, 4)
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("residual_shape", [(1, C, 1, 1), (2, C, 4, 4)])
def test_residual_of_another_shape_or_dtype(residual_shape: tuple[int, ...]) -> None:
    """What C does not read goes through torch's operators, broadcasting included."""
    x = torch.randn(2, C, 4, 4)
    r = torch.randn(residual_shape, dtype=torch.float64)
    norm, plain = bgn.BatchGroupNormAct2d(C, 2), bgn.BatchGroupNorm2d(C, 2)
    found = norm(x, r)
    assert found.dtype is torch.float64
    assert_close(found, (plain(x) + r).relu())


def test_surgery_knows_the_class() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(C, C, 3, padding=1)
            self.norm = bgn.BatchGroupNormAct2d(C, 2, act="leaky_relu", save="output")

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.conv(x), residual=x)
            return y

    x = torch.randn(4, C, 5, 5)
    model = nn.Sequential(Block(), Block())
    for _ in range(3):
        model(x)
    y = model.eval()(x)
    assert_close(bgn.fold(model, example=x)(x), y)
    for norm, groups in (("bn", C), ("bgn", 3)):
        changed = bgn.convert(
            copy.deepcopy(model), norm, num_groups=None if norm == "bn" else groups
        )
        assert_close(changed(x), y)
    kept = changed[1].norm  # type: ignore[union-attr]
    assert type(kept) is bgn.BatchGroupNormAct2d
    assert kept.save == "output"
    assert bgn.describe(model, (C, 5, 5), 4).rows[0].layer == "0.norm"
    frozen = bgn.freeze(copy.deepcopy(model)).train()
    assert_close(frozen(x), y)
    assert_close(bgn.unfreeze(frozen).eval()(x), y)
    synchronized = bgn.convert_sync(copy.deepcopy(model))
    assert_close(synchronized.eval()(x), y)
    assert isinstance(synchronized[0].norm, bgn.SyncBatchGroupNorm)  # type: ignore[union-attr]
    bgn.recalibrate(model, [x])
    traced = torch.fx.symbolic_trace(model)
    assert_close(traced(x), model(x))


@needs_core
def test_extreme_statistics_are_taken_in_double() -> None:
    """Variances that float32 coefficients cannot hold: every way through the sweeps in double."""
    for scale, (name, save, with_residual) in itertools.product((1e-17, 1e17), WAYS):
        if with_residual and not Activation(name).is_piecewise:
            continue
        for layout in torch.contiguous_format, torch.channels_last:
            x, r, gy = torch.randn(3, 4, C, 3, 3)
            found = []
            for dtype in torch.float32, torch.float64:
                x_ = (x * scale).to(dtype).contiguous(memory_format=layout).requires_grad_()
                y = F.batch_group_norm_act(
                    x_, 2, training=True, eps=1e-38, act=name, negative_slope=0.2, save=save,
                    residual=r.to(dtype) if with_residual else None,
                )  # fmt: skip
                (gx,) = torch.autograd.grad(y, x_, gy.to(dtype))
                found.append((y, gx.double() * scale))
            for a, b in zip(*found, strict=True):
                torch.testing.assert_close(a.double(), b.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("save", "which"),
    [
        *(("input", which) for which in ("x", "weight", "bias", "gy")),
        *(("output", which) for which in ("y", "weight", "bias", "residual", "gy")),
    ],
)
def test_memory_freed_before_the_backward_pass_is_refused(save: str, which: str) -> None:
    """As sharded training frees it; read, it would end the process."""
    norm = bgn.BatchGroupNormAct2d(C, 2, act="leaky_relu", save=save)
    x, residual = torch.randn(2, 4, C, 16, 16, requires_grad=True).unbind()
    y = norm(x, residual)
    gy = torch.ones_like(y)
    tensors = {"x": x, "residual": residual, "y": y, "gy": gy, **dict(norm.named_parameters())}
    tensors[which].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        y.backward(gy)


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "silu"])
def test_the_output_may_be_changed_in_training_mode(act: str) -> None:
    norm = bgn.BatchGroupNormAct2d(C, 2, act=act)
    x = torch.randn(4, C, 5, 5, requires_grad=True)
    found = []
    for change in (lambda y: y.mul_(2).add_(x), lambda y: y * 2 + x):
        y = change(norm(x))
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *norm.parameters()])])
    for a, b in zip(*found, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize(
    "options", [{}, {"act": "silu"}, {"act_layer": nn.Tanh}, {"batch_blocks": 3}], ids=str
)
@pytest.mark.parametrize("wrong", ["freed", "shape"])
def test_a_wrong_residual_is_refused_before_anything_moves(
    options: dict[str, Any], wrong: str
) -> None:
    norm = bgn.BatchGroupNormAct2d(C, 2, **options)
    x, residual = torch.randn(4, C, 64, 64), torch.randn(4, C, 64, 64)
    if wrong == "freed":
        residual.untyped_storage().resize_(0)
    else:
        residual = residual[:, :, 1:]
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    with pytest.raises((RuntimeError, ValueError), match="residual .*shape"):
        norm(x, residual)
    assert torch.equal(norm.running_mean, before)
    assert norm.num_batches_tracked == 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
def test_leaky_relu_may_have_a_negative_slope(training: bool, with_residual: bool) -> None:
    """Then the output does not tell the argument's sign."""
    norm = bgn.BatchGroupNormAct2d(C, 2, act="leaky_relu", negative_slope=-0.5).double()
    plain = bgn.BatchGroupNorm2d(C, 2).double()
    norm.train(training), plain.train(training)
    x, r, gy = torch.randn(3, 4, C, 5, 5, dtype=torch.float64)
    inputs = [x.requires_grad_(), r.requires_grad_()][: 1 + with_residual]
    y = norm(*inputs)
    z = plain(x) + r if with_residual else plain(x)
    expected = nn.functional.leaky_relu(z, -0.5)
    for a, b in zip(
        grads(y, [*inputs, *norm.parameters()], gy),
        grads(expected, [*inputs, *plain.parameters()], gy),
        strict=True,
    ):
        assert_close(a, b)


def test_a_bias_changed_before_the_backward_pass_is_refused() -> None:
    """The derivative of a ReLU is computed again from the bias."""
    norm = bgn.BatchGroupNormAct2d(C, 2, act="relu")
    y = norm(torch.randn(4, C, 5, 5))
    with torch.no_grad():
        norm.bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
