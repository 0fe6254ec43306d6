"""Batch renormalization: against a loop over groups, and in everything that layers go through."""

import contextlib
import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bgn
from bgn import kernels
from bgn.kernels import cpu
from bgn.partition import slices
from bgn.renorm import Reference, Renorm
from tests.tolerance import assert_close

C, EPS = 6, 1e-5
OPEN = Renorm(math.inf, math.inf, warmup=0)
BOUNDS = [(1.5, 0.3), (math.inf, math.inf)]
GROUPS = [1, 2, 3, 4, 6, 12]  # 4 cuts through channels, 12 splits them


def expected(x: Tensor, G: int, weight: Tensor, bias: Tensor, reference: Reference) -> Tensor:
    """A loop over groups of one block, by the formula."""
    flat = x.reshape(len(x), -1)
    D, parts = flat.shape[1], []
    for g in range(G):
        begin, end = g * D // G, (g + 1) * D // G
        own = flat[:, begin:end]
        mean = own.mean()
        sigma = ((own - mean).square().mean() + EPS).sqrt()
        entry: Any = g
        if reference.entries != G:  # of each feature's channel
            entry = torch.arange(begin, end) // (D // C)
        running_sigma = (reference.var[entry] + EPS).sqrt()
        r = (sigma / running_sigma).detach()
        d = ((mean - reference.mean[entry]) / running_sigma).detach()
        r = r.clamp(1 / reference.r_max, reference.r_max)
        d = d.clamp(-reference.d_max, reference.d_max)
        parts.append((own - mean) / sigma * r + d)
    y = torch.cat(parts, 1).reshape(x.shape)
    shape = 1, C, *[1] * (x.dim() - 2)
    return y * weight.reshape(shape) + bias.reshape(shape)


def inputs(dtype: torch.dtype = torch.float64, last: bool = False) -> list[Tensor]:
    x = (2 * torch.randn(4, C, 4, 3, dtype=torch.float64) + 1).to(dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    wide = torch.promote_types(dtype, torch.float32)
    return [x, *(torch.randn(2, C, dtype=torch.float64) + 1).to(wide)]


def reference_of(entries: int, bounds: tuple[float, float], dtype: torch.dtype) -> Reference:
    mean, var = torch.randn(entries, dtype=torch.float64), 0.5 + torch.rand(entries).double()
    return Reference(mean.to(dtype), var.to(dtype), *bounds, 1.0)


def derived(y: Tensor, of: list[Tensor], gy: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, of, gy)


CASES = [
    (G, entries, bounds, B)
    for G, entries, bounds, B in itertools.product(GROUPS, (None, C), BOUNDS, (1, 2))
    if entries is None or C % G == 0
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", [*kernels.BACKENDS, "cpp"])
def test_output_and_gradients_by_the_formula(backend: str, last: bool) -> None:
    node, backend = ("cpp", "cpu") if backend == "cpp" else ("python", backend)
    if node == "cpp" and cpu.node_choice.name != "C++":
        pytest.skip(f"the node in C++ is {cpu.node_choice.reason}")
    for G, entries, bounds, B in CASES:
        given = [t.requires_grad_() for t in inputs(last=last)]
        other = [t.detach().clone().requires_grad_() for t in given]
        reference = reference_of(entries or G, bounds, torch.float64)
        theirs = torch.cat([expected(part, G, *other[1:], reference) for part in other[0].chunk(B)])
        gy = torch.randn_like(theirs)
        with kernels.use(backend), _node(backend, node):
            plan = kernels.plan(slices, given[0], G, B)
            ours = kernels.normalize(given[0], plan, given[1], given[2], EPS, None, reference)
            gradients = derived(ours, given, gy)
        assert_close(ours, theirs)
        for a, b in zip(gradients, derived(theirs, other, gy), strict=True):
            assert_close(a, b)


def _node(backend: str, node: str) -> contextlib.AbstractContextManager[None]:
    return cpu.use_node(node) if backend == "cpu" else contextlib.nullcontext()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("G", [1, 4, 6])
def test_lower_precision(dtype: torch.dtype, last: bool, G: int) -> None:
    given = [t.requires_grad_() for t in inputs(dtype, last)]
    wide = [t.detach().double().requires_grad_() for t in given]
    reference = reference_of(G, (3.0, 5.0), torch.float32)
    exact = reference._replace(mean=reference.mean.double(), var=reference.var.double())
    plan = kernels.plan(slices, given[0], G)
    ours = kernels.normalize(given[0], plan, given[1], given[2], EPS, None, reference)
    theirs = expected(wide[0], G, wide[1], wide[2], exact)
    assert ours.dtype is dtype
    assert_close(ours, theirs, dtype, atol=4 * torch.finfo(dtype).eps * theirs.abs().max().item())
    gy = torch.randn_like(theirs)
    for a, b in zip(derived(ours, given, gy.to(dtype)), derived(theirs, wide, gy), strict=True):
        assert_close(a, b, dtype, atol=30 * torch.finfo(dtype).eps * b.abs().max().item())


@pytest.mark.parametrize("G", GROUPS)
def test_derivatives_of_two_orders_where_the_bounds_hold_r_and_d(G: int) -> None:
    """There r and d are constant, so that finite differences see what autograd sees."""
    reference = Reference(
        torch.full((G,), 99.0).double(), torch.full((G,), 1e-4).double(), 1.5, 0.3, 1.0
    )

    def call(*args: Tensor) -> Tensor:
        plan = kernels.plan(slices, args[0], G)
        return kernels.normalize(args[0], plan, args[1], args[2], EPS, None, reference)

    given = [t.requires_grad_() for t in inputs()]
    assert torch.autograd.gradcheck(call, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


@pytest.mark.parametrize("center", ["group", "channel"])
@pytest.mark.parametrize("G", [1, 2, C])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("BatchGroupNorm1d", (9, C)),
        ("BatchGroupNorm1d", (4, C, 7)),
        ("BatchGroupNorm2d", (4, C, 5, 3)),
        ("BatchGroupNorm3d", (2, C, 2, 3, 3)),
        ("GeneralBatchGroupNorm2d", (4, C, 5, 3)),
    ],
)
def test_without_bounds_training_is_eval(
    name: str, shape: tuple[int, ...], G: int, center: str
) -> None:
    if name.startswith("General"):
        if center == "channel":
            pytest.skip("GBGN has no means per channel")
        layer = bgn.GeneralBatchGroupNorm2d(C, G, renorm=OPEN, dtype=torch.float64)
    else:
        cls = getattr(bgn, name)
        layer = cls(C, G, renorm=OPEN, center=center, dtype=torch.float64)
    _distort(layer)
    x = 3 * torch.randn(shape, dtype=torch.float64) + 1
    judged = copy.deepcopy(layer).eval()(x)
    assert_close(layer(x), judged)


def _distort(layer: Any) -> None:
    for tensor in (layer.running_mean, layer.weight, layer.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)


def test_blocks_are_corrected_towards_the_same_statistics() -> None:
    """A ragged last block, and running statistics that move towards the batch as without."""
    plain = bgn.BatchGroupNorm2d(C, 2, batch_blocks=3, dtype=torch.float64)
    layer = bgn.BatchGroupNorm2d(C, 2, batch_blocks=3, renorm=OPEN, dtype=torch.float64)
    _distort(plain)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(7, C, 5, 3, dtype=torch.float64)
    assert_close(layer(x), copy.deepcopy(plain).eval()(x))
    plain(x)
    assert_close(layer.running_mean, plain.running_mean)
    assert_close(layer.running_var, plain.running_var)


def test_bounds_open_over_the_warmup_and_their_state_is_saved() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=Renorm(3.0, 5.0, warmup=4))
    plain = bgn.BatchGroupNorm2d(C, 2)
    x = 3 * torch.randn(4, C, 5, 3) + 1
    assert torch.equal(layer(x), plain(x))  # r = 1, d = 0
    apart = []
    for step in range(1, 5):
        assert layer.renorm_steps == step
        apart.append((layer(x) - plain(x)).abs().max().item())
    assert apart[0] > 0.1
    layer(x)
    assert layer.renorm_steps == 4  # the warmup is over
    again = bgn.BatchGroupNorm2d(C, 2, renorm=Renorm(3.0, 5.0, warmup=4))
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    layer.reset_running_stats()
    assert layer.renorm_steps == 0


def test_checkpoints_with_and_without() -> None:
    plain, layer = bgn.BatchGroupNorm2d(C, 2), bgn.BatchGroupNorm2d(C, 2, renorm=True)
    layer.load_state_dict(plain.state_dict())
    assert layer.renorm_steps == 0  # new statistics are no reference yet
    plain(torch.randn(4, C, 5, 3))
    layer.load_state_dict(plain.state_dict())
    assert layer.renorm_steps == 0  # nor are those of a trial run
    for _ in range(9):
        plain(torch.randn(4, C, 5, 3))
    layer.load_state_dict(plain.state_dict())
    assert layer.renorm_steps == 1000  # trained ones are
    plain.load_state_dict(layer.state_dict())
    assert "renorm_steps" not in plain.state_dict()
    batch_norm = nn.BatchNorm2d(C)
    bgn.BatchGroupNorm2d(C, C, renorm=True).load_state_dict(batch_norm.state_dict())


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("center", ["group", "channel"])
def test_checkpointed_segments_are_corrected_as_the_first_time(
    reentrant: bool, times: int, center: str
) -> None:
    """The running statistics have moved when the forward runs again."""
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=Renorm(warmup=0), center=center).double()
    layer.running_var.fill_(0.7)
    twin = copy.deepcopy(layer)
    xs = [torch.randn(4, C, 5, 3).double().requires_grad_() for _ in range(times)]
    gys = [torch.randn(4, C, 5, 3).double() for _ in range(times)]
    total = sum((twin(x) * gy).sum() for x, gy in zip(xs, gys, strict=True))
    assert isinstance(total, Tensor)
    wanted = torch.autograd.grad(total, xs)
    ys = [checkpoint(layer, x, use_reentrant=reentrant) for x in xs]
    sum((y * gy).sum() for y, gy in zip(ys, gys, strict=True)).backward()  # type: ignore[union-attr]
    for x, gradient in zip(xs, wanted, strict=True):
        assert x.grad is not None
        assert_close(x.grad, gradient)
    assert torch.equal(layer.running_mean, twin.running_mean)
    assert layer.num_batches_tracked == times


# of torch, after a broken graph
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("center", ["group", "channel"])
@pytest.mark.parametrize("renorm", [Renorm(3.0, 5.0, 10), Renorm(2.0, 2.0, 0), OPEN])
def test_compiled(renorm: Renorm, center: str) -> None:
    torch._dynamo.reset()
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=renorm, center=center)
    layer.running_var.fill_(0.7)
    twin = copy.deepcopy(layer)
    # a mean per channel breaks the graph
    compiled = torch.compile(layer, fullgraph=center == "group", backend="aot_eager")
    for _ in range(3):
        x = torch.randn(4, C, 5, 3, requires_grad=True)
        ours, theirs = compiled(x), twin(x)
        gy = torch.randn_like(ours)
        assert_close(ours, theirs)
        assert_close(derived(ours, [x], gy)[0], derived(theirs, [x], gy)[0])
    assert_close(layer.running_var, twin.running_var)
    assert min(int(layer.renorm_steps), renorm.warmup) == int(twin.renorm_steps)


def test_compiled_layers_in_checkpointed_segments_count_once() -> None:
    torch._dynamo.reset()
    layer, x = bgn.BatchGroupNorm2d(C, 2), torch.randn(4, C, 5, 3, requires_grad=True)
    compiled, twin = torch.compile(layer, backend="aot_eager"), copy.deepcopy(layer)
    checkpoint(compiled, x, use_reentrant=False).pow(3).sum().backward()
    twin(x)
    assert layer.num_batches_tracked == 1
    assert_close(layer.running_var, twin.running_var)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("center", ["group", "channel"])
def test_compiled_and_checkpointed_is_right_or_refused(center: str) -> None:
    torch._dynamo.reset()
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=OPEN, center=center)
    layer.running_var.fill_(0.7)
    twin, x, gy = copy.deepcopy(layer), torch.randn(4, C, 5, 3), torch.randn(4, C, 5, 3)
    wanted = derived(twin(x.requires_grad_()), [x], gy)[0]
    y = checkpoint(torch.compile(layer, backend="aot_eager"), x, use_reentrant=False)
    if center == "channel":
        assert_close(derived(y, [x], gy)[0], wanted)
    else:
        with pytest.raises(RuntimeError, match="compile without checkpointing"):
            derived(y, [x], gy)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_same_batch_twice_in_checkpointed_segments(reentrant: bool) -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=OPEN).double()
    layer.running_var.fill_(0.7)
    twin, x = copy.deepcopy(layer), torch.randn(4, C, 5, 3).double().requires_grad_()
    gys = [torch.randn(4, C, 5, 3).double() for _ in range(2)]
    wanted = torch.autograd.grad([twin(x), twin(x)], x, gys)[0]
    ys = [checkpoint(layer, x, use_reentrant=reentrant) for _ in range(2)]
    sum((y * gy).sum() for y, gy in zip(ys, gys, strict=True)).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    assert_close(x.grad, wanted)


def test_more_forwards_than_are_remembered_are_no_secret() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=OPEN)
    xs = [torch.randn(2, C, 2, 2, requires_grad=True) for _ in range(130)]
    ys = [checkpoint(layer, x, use_reentrant=False) for x in xs]
    with pytest.warns(UserWarning, match="none of the last 128"):
        ys[0].sum().backward()


def test_unusual_tensors() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=True)
    x = torch.randn(4, C, 5, 3)
    with torch.no_grad():
        assert_close(copy.deepcopy(layer)(x.to_mkldnn()).to_dense(), copy.deepcopy(layer)(x))
    meta = bgn.BatchGroupNorm2d(C, C, renorm=True, device="meta")
    meta.load_state_dict(nn.BatchNorm2d(C).state_dict(), assign=True)
    assert meta(x).shape == x.shape
    assert bgn.BatchGroupNorm2d(C, 2, renorm=True, device="meta")(x.to("meta")).is_meta
    old = copy.deepcopy(bgn.BatchGroupNorm2d(C, 2))
    for name in ("center", "renorm", "cut"):  # as pickled before there were any
        old.__dict__.pop(name, None)
    assert_close(old(x), bgn.BatchGroupNorm2d(C, 2)(x))


def test_other_groups_begin_anew() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=Renorm(warmup=10))
    layer(torch.randn(4, C, 5, 3))
    layer.resolve_groups(3)
    assert layer.renorm_steps == 0
    centered = bgn.BatchGroupNorm2d(C, 2, center="channel")
    with pytest.raises(ValueError, match="num_groups=4 with center='channel' must divide"):
        centered.resolve_groups(4)
    auto = bgn.BatchGroupNorm2d(C, "auto", center="channel")
    centered(torch.randn(4, C, 5, 3))
    auto.load_state_dict(centered.state_dict())
    x = torch.randn(4, C, 5, 3)
    assert_close(auto.eval()(x), centered.eval()(x))


def test_renorm_needs_running_statistics() -> None:
    plain = nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False))
    with pytest.raises(ValueError, match="renorm=True needs running statistics"):
        bgn.convert(plain, num_groups=4, renorm=True)
    with pytest.raises(ValueError, match="needs running statistics"):
        bgn.BatchGroupNorm2d(C, 2, track_running_stats=False).set_renorm(True)


def test_saved_tensors_that_hooks_change_and_second_derivatives() -> None:
    layer = bgn.BatchGroupNorm2d(C, 4, renorm=Renorm(warmup=0)).double()
    layer.running_var.fill_(0.7)
    x = torch.randn(4, C, 4, 3).double().requires_grad_()
    wanted = torch.autograd.grad(copy.deepcopy(layer)(x).pow(3).sum(), x)[0]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.as_subclass(Sub) if t.dim() == 3 else t
    ):
        y = copy.deepcopy(layer)(x)
    assert_close(torch.autograd.grad(y.pow(3).sum(), x)[0].as_subclass(Tensor), wanted)
    y = copy.deepcopy(layer)(x)
    once = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)[0]
    assert_close(once, wanted)
    with kernels.use("definition"):
        y = copy.deepcopy(layer)(x)
        twin = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)[0]
        theirs = torch.autograd.grad(twin.square().sum(), x)[0]
    assert_close(torch.autograd.grad(once.square().sum(), x)[0], theirs)


class Sub(Tensor):
    """A subclass without dispatch keys of its own."""


def test_values_whose_statistics_float_cannot_hold() -> None:
    """Groups that are written in double, with r and d."""
    layer = bgn.BatchGroupNorm2d(C, 3, renorm=OPEN)
    x = 1e18 * torch.randn(4, C, 5, 3)
    layer.running_mean.fill_(1e17)
    layer.running_var.fill_(1e36)
    judged = copy.deepcopy(layer).eval()(x)
    y = layer(x.requires_grad_())
    assert_close(y, judged, rtol=1e-4, atol=1e-4)
    y.backward(torch.randn_like(y))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.usefixtures("two_threads")
def test_bits_do_not_depend_on_threads() -> None:
    layer = bgn.BatchGroupNorm2d(64, 4, renorm=Renorm(warmup=0))
    layer.running_var.fill_(0.7)
    x = torch.randn(4, 64, 28, 28)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        own, twin = x.clone().requires_grad_(), copy.deepcopy(layer)
        y = twin(own)
        y.backward(x)
        results.append([y, own.grad, twin.weight.grad, twin.running_mean])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_autocast_and_transforms() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=Renorm(warmup=0))
    layer.running_var.fill_(0.7)
    x = torch.randn(4, C, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        half = copy.deepcopy(layer)(x.bfloat16())
    assert half.dtype is torch.bfloat16
    assert_close(half, copy.deepcopy(layer)(x.bfloat16().float()), torch.bfloat16)
    still = copy.deepcopy(layer)
    still.track_running_stats = False  # transforms cannot move buffers; and nothing is corrected
    plain = bgn.BatchGroupNorm2d(C, 2, track_running_stats=False)
    gradient = torch.func.grad(lambda t: still(t).pow(3).sum())(x)
    assert_close(gradient, torch.func.grad(lambda t: plain(t).pow(3).sum())(x))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"renorm": 3}, TypeError, "renorm=3 is a int; expected a bgn.Renorm, True or False"),
        ({"renorm": True, "track_running_stats": False}, ValueError, "needs track_running_stats"),
        ({"center": "batch"}, ValueError, "center='batch' is not known; accepted: group, channel"),
        ({"center": "channel", "num_groups": 4}, ValueError, "must divide num_features=6"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bgn.BatchGroupNorm2d(C, **{"num_groups": 2, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"r_max": 0.5}, "r_max=0.5; expected a number of at least 1"),
        ({"d_max": -1}, "d_max=-1; expected a number of at least 0"),
        ({"r_max": math.nan}, "r_max=nan"),
        ({"warmup": -1}, "warmup=-1 is not positive"),
        ({"warmup": 0.5}, "warmup=0.5 is a float"),
    ],
)
def test_bad_bounds(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Renorm(**options)


def network() -> nn.Sequential:
    """A trained network with BatchNorm."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12)
    )
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            _distort(layer)
    return model.double().eval()


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("center", ["group", "channel"])
def test_a_converted_network_trains_from_its_own_function(G: int, center: str) -> None:
    model, x = network(), torch.randn(2, 3, 12, 12).double()
    before = model(x)
    bgn.convert(model, num_groups=G, renorm=True, center=center)
    assert_close(model(x), before)
    assert_close(copy.deepcopy(model).train()(x), before)
    assert_close(bgn.fold(model)(x), before)
    assert model[1].renorm == OPEN
    for back in (
        bgn.regroup(copy.deepcopy(model), 4 if G != 4 else 2),
        bgn.convert_sync(copy.deepcopy(model)),
    ):
        assert_close(back(x), before)
        assert_close(back.train()(x), before)  # still renormalized, still per channel
    description = str(bgn.describe(model, (3, 12, 12), 2))
    assert ("renorm, centered" if center == "channel" else "renorm") in description


def test_what_convert_does_with_renorm() -> None:
    model = bgn.convert(network(), num_groups=1, renorm=Renorm(2.0, 2.0, 100))
    assert model[1].renorm_steps == 100  # trained: no warmup
    new = bgn.convert(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), num_groups=1, renorm=True
    )
    assert (new[1].renorm, int(new[1].renorm_steps)) == (Renorm(), 0)
    same = new[1]
    assert bgn.convert(new, num_groups=1, renorm=True)[1] is same
    assert bgn.convert(new, num_groups=2)[1].renorm == Renorm()  # kept
    assert bgn.convert(new, num_groups=2, renorm=False)[1].renorm is None
    for norm in ("bn", "gn"):
        with pytest.raises(ValueError, match=f"renorm=True has no meaning for norm='{norm}'"):
            bgn.convert(network(), norm, renorm=True)
    with pytest.warns(UserWarning, match="no longer corrected"):
        assert isinstance(bgn.convert(model, "bn")[1], nn.BatchNorm2d)


def test_recalibration_does_not_correct() -> None:
    model = bgn.convert(network(), num_groups=2, renorm=True)
    plain = bgn.convert(copy.deepcopy(model), num_groups=2, renorm=False)
    batches = [torch.randn(4, 3, 12, 12).double() for _ in range(3)]
    for own in (model, plain):
        bgn.recalibrate(own, batches)
    assert_close(model[4].running_var, plain[4].running_var)


@pytest.mark.parametrize(
    ("momentum", "options", "expected"),
    [
        (0.1, {"renorm": True}, 0.01),
        (0.1, {"renorm": Renorm(2.0, 2.0, 100)}, 0.01),
        (0.003, {"renorm": True}, 0.003),
        (None, {"renorm": True}, None),
        (0.1, {"renorm": True, "momentum": 0.2}, 0.2),
        (0.1, {}, 0.1),
    ],
)
def test_a_trained_reference_moves_slowly_unless_told_otherwise(
    momentum: float | None, options: dict[str, Any], expected: float | None
) -> None:
    trained, new = network(), nn.Sequential(nn.BatchNorm2d(8, momentum=momentum))
    trained[1].momentum = momentum
    assert bgn.convert(trained, num_groups=2, **options)[1].momentum == expected
    own = options.get("momentum", momentum)
    assert bgn.convert(new, num_groups=2, **options)[0].momentum == own, "nothing was trained"


def test_a_layer_that_renormalizes_keeps_its_momentum() -> None:
    model = bgn.convert(network(), num_groups=2, renorm=True, momentum=0.3)
    assert bgn.regroup(model, 4, renorm=True)[1].momentum == 0.3


@pytest.mark.parametrize("center", ["group", "channel"])
def test_r_and_d_are_constants_in_forward_mode_too(center: str) -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, renorm=OPEN, center=center).double()
    x = torch.randn(2, C, 2, 2).double()

    def loss(x: torch.Tensor) -> torch.Tensor:
        buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        return (torch.func.functional_call(layer, buffers, (x,)) ** 3).sum()  # type: ignore[no-any-return]

    assert_close(torch.func.jacfwd(loss)(x), torch.func.jacrev(loss)(x))


def test_a_trial_run_does_not_make_a_reference() -> None:
    """After one batch the running variance is 0.9 and more, whatever the batch's is."""
    for batches, trained in (1, False), (9, False), (10, True):
        model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        nn.init.normal_(model[0].weight, std=5.0)
        for _ in range(batches):
            model(torch.randn(4, 3, 8, 8))
        bgn.convert(model, num_groups="channels", renorm=True)
        assert (model[1].renorm == OPEN) is trained, batches
        assert model[1].renorm_steps == 0, batches


def test_settings_and_steps_stay_when_something_else_changes() -> None:
    own = Renorm(1.5, 0.5, 1000)
    layer = bgn.BatchGroupNorm2d(8, 8, renorm=own)
    for _ in range(12):
        layer(torch.randn(4, 8, 8, 8))
    changes: list[dict[str, Any]] = [
        {"num_groups": 4, "renorm": True},
        {"num_groups": 4, "renorm": own},
        {"num_groups": 8, "renorm": True, "center": "channel"},
        {"num_groups": 4},
    ]
    for change in changes:
        new: Any = bgn.convert(nn.Sequential(copy.deepcopy(layer)), **change)[0]  # type: ignore[index]
        assert (new.renorm, int(new.renorm_steps), new.momentum) == (own, 12, 0.1), change
    other: Any = bgn.convert(nn.Sequential(layer), num_groups=4, renorm=Renorm(2.0, 1.0, 50))[0]  # type: ignore[index]
    assert (other.renorm.r_max, int(other.renorm_steps)) == (2.0, 50)


def test_a_layer_without_statistics_is_named() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="renorm=True needs running statistics, and 0 has none"):
        bgn.convert(model, num_groups=2, renorm=True)
