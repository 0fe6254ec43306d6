"""The C core: equal to the definition for any shape, dtype, layout, threads, instruction set."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import bgn
from bgn import functional as F
from bgn import kernels
from bgn.kernels import cpu, definition, plans
from bgn.kernels.library import CAPABILITIES
from bgn.partition import Partition, channel_groups, slices
from bgn.running import Running
from tests import kernel_calls as fast
from tests.tolerance import TOLERANCES, assert_close

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """(N, C, ...), with lengths around those of vectors, blocks and cells."""
    N, C = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 36]))
    return (
        N,
        C,
        *draw(
            st.sampled_from(
                [
                    (),
                    (1,),
                    (3,),
                    (5000,),
                    (1, 1),
                    (2, 2),
                    (7, 7),
                    (5, 13),
                    (33, 40),
                    (2, 3, 4),
                    (9, 9, 9),
                ]
            )
        ),
    )


@st.composite
def partitions(draw: st.DrawFn, shape: tuple[int, ...]) -> Partition:
    """Any partition of a shape whose statistics have at least 4 elements."""
    N, C, P = shape[0], shape[1], math.prod(shape[2:])
    B = draw(st.sampled_from([b for b in range(1, N + 1) if N % b == 0]))
    make = draw(st.sampled_from([slices, channel_groups]))
    G = draw(st.one_of(st.sampled_from([1, C, C * P]), st.integers(1, min(C * P, 60))))
    part = make(N, C, P, G, B)
    assume(part.smallest_count >= 4)
    return part


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values contiguous, channels_last, with gaps, or at an odd address."""
    if layout == "last" and x.dim() in LAST:
        return x.to(memory_format=LAST[x.dim()])
    if layout == "gaps":
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "odd":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    return x


def run(
    function: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, gy: Tensor
) -> list[Tensor]:
    """Output and gradients."""
    leaves = [
        None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)
    ]  # no copy: it would lie in a tidy place
    y = function(*leaves)
    y.backward(gy)
    return [y.detach(), *(t.grad for t in leaves if t is not None)]


def assert_as_exact(found: list[Tensor], exact: list[Tensor], dtype: torch.dtype) -> None:
    """Within the tolerance of a dtype, relative to the largest value: gradients are long sums."""
    for a, b in zip(found, exact, strict=True):
        scale = max(1.0, b.abs().max().item())
        assert_close(a, b, dtype, atol=TOLERANCES[dtype]["atol"] * scale)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAYOUTS = ["contiguous", "last", "gaps", "odd"]


@settings(max_examples=400)
@given(
    shape=shapes(), data=st.data(), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS)
)
def test_the_same_as_the_definition_in_float64(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, layout: str
) -> None:
    what = data.draw(st.sampled_from(["train", "apply", "positional"]))
    part = data.draw(partitions(shape))
    x, gy = (
        laid_out(random(shape, dtype) * 2 + 3, layout),
        laid_out(random(shape, dtype, 1), data.draw(st.sampled_from(LAYOUTS))),
    )
    of_parameters = data.draw(st.sampled_from([dtype, torch.promote_types(dtype, torch.float32)]))
    weight = random((part.C,), of_parameters, 2) if data.draw(st.booleans()) else None
    bias = random((part.C,), of_parameters, 3) if data.draw(st.booleans()) else None
    if what == "apply":
        part = Partition(part.N, part.C, part.P, 1, part.G, part.whole_channels)
        mean, var = torch.linspace(-1, 1, part.G), torch.linspace(0.5, 2, part.G)
        if dtype is torch.float64:
            mean, var = mean.double(), var.double()

        def call(kernels: Any) -> Any:
            return lambda x, w, b: kernels.normalize_with(x, part, mean, var, w, b, 1e-5)

    elif what == "positional":
        assume(len(shape) == 4 and part.C >= 4)

        def call(kernels: Any) -> Any:
            return lambda x, w, b: kernels.positional(x, w, b, 1e-5)

    else:

        def call(kernels: Any) -> Any:
            return lambda x, w, b: kernels.normalize(x, part, w, b, 1e-5)

    assert fast.is_eligible(x, weight, bias)
    ours = run(call(fast), x, weight, bias, gy)
    exact = run(
        call(definition), *(t.double() if t is not None else None for t in (x, weight, bias, gy))
    )
    assert_as_exact(ours, exact, dtype)
    assert ours[0].dtype == ours[1].dtype == dtype
    if layout == "last" and x.dim() in LAST:
        assert ours[0].is_contiguous(memory_format=LAST[x.dim()])


@settings(max_examples=60)
@given(
    shape=shapes(),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    momentum=st.sampled_from([0.1, None, 1.0]),
)
def test_running_statistics_as_the_definition(
    shape: tuple[int, ...], data: st.DataObject, dtype: torch.dtype, momentum: float | None
) -> None:
    part = data.draw(partitions(shape))
    x = random(shape, dtype) * 2 + 3
    kept = data.draw(st.sampled_from([torch.promote_types(dtype, torch.float32), dtype]))
    ours, exact = (
        Running(
            torch.zeros(part.G, dtype=d), torch.ones(part.G, dtype=d), momentum, torch.tensor(3)
        )
        for d in (kept, torch.float64)
    )
    before = ours.mean._version
    fast.normalize(x, part, None, None, 1e-5, ours)
    definition.normalize(x.double(), part, None, None, 1e-5, exact)
    assert_close(ours.mean, exact.mean, kept)
    assert_close(ours.var, exact.var, kept)
    assert ours.counter is not None
    assert ours.counter.item() == 4
    assert ours.mean._version > before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_half_precision_number_is_read_and_written_as_torch_does(
    dtype: torch.dtype, capability: str
) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).view(1, 1, -1)
    part = slices(1, 1, x.numel(), 1)
    mean, var, weight = torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([1.7])
    factor = (1 / torch.tensor(1.0, dtype=torch.float64).sqrt()).float() * weight
    with cpu.use_capability(capability):
        same = fast.normalize_with(x, part, mean, var, None, None, 0.0)
        scaled = fast.normalize_with(x, part, mean, var, weight, None, 0.0)
    assert torch.equal(same.isnan(), x.isnan())
    assert torch.equal(same[~x.isnan()], x[~x.isnan()])
    expected = (x.float() * factor).to(dtype)
    assert torch.equal(scaled[~x.isnan()], expected[~x.isnan()])


# groups small and large, tiles enough and too few, cells short and long, strips, blocks;
# the last two in one sweep per sample
CASES = [
    ((6, 64, 7, 7), 64, 1),
    ((6, 64, 7, 7), 1, 1),
    ((6, 8, 90, 100), 8, 1),
    ((5, 8, 90, 100), 3, 1),
    ((3, 40, 60, 60), 200, 1),
]
CASES += [((6, 8, 90, 100), 4, 6), ((9, 16, 30, 30), 1, 9)]
NAMES = [f"{'x'.join(map(str, shape))} G={G} B={B}" for shape, G, B in CASES]


def everything(
    shape: tuple[int, ...], G: int, B: int, layout: str, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Outputs and gradients of a partition in training and eval, and of PN."""
    N, C, P = shape[0], shape[1], math.prod(shape[2:])
    x, gy = laid_out(random(shape, dtype) + 1, layout), laid_out(random(shape, dtype, 1), layout)
    weight, bias = random((C,), dtype, 2), random((C,), dtype, 3)
    part, whole = slices(N, C, P, G, B), slices(N, C, P, G)
    mean, var = random((G,), dtype, 4), random((G,), dtype, 5).square() + 1
    return [
        *run(lambda x, w, b: fast.normalize(x, part, w, b, 1e-5), x, weight, bias, gy),
        *run(
            lambda x, w, b: fast.normalize_with(x, whole, mean, var, w, b, 1e-5),
            x,
            weight,
            bias,
            gy,
        ),
        *run(lambda x, w, b: fast.positional(x, w, b, 1e-5), x, weight, bias, gy),
    ]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_bits_do_not_depend_on_the_threads(case: Any, layout: str) -> None:
    results = []
    for threads in (2, 1, 3, 2):
        torch.set_num_threads(threads)
        results.append(everything(*case, layout))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_every_instruction_set(case: Any, layout: str, dtype: torch.dtype) -> None:
    with cpu.use_capability("default") as used:
        assert used == "default"
        narrow = everything(*case, layout, dtype)
    for capability in CAPABILITIES[1:]:
        with cpu.use_capability(capability):
            wide = everything(*case, layout, dtype)
        assert_as_exact(narrow, [t.double() for t in wide], dtype)


# (350, 351): cells of many lines; (7, 9): every other line has parts of several cells; 130 samples:
# with 100 groups, tiles whose rows have few lines, and most of those that begin or end in parts
@pytest.mark.parametrize("shape", [(5, 16, 350, 351), (13, 3001, 7, 9), (130, 300, 7, 9)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "last"])
@pytest.mark.parametrize("G", [1, 16, 100])
def test_outputs_that_go_past_the_caches(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype, G: int
) -> None:
    N, C, H, W = shape
    x, gy = (laid_out(random(shape, dtype, seed), layout) for seed in (0, 1))
    assert x.numel() * x.element_size() >= 4 << 20
    part = slices(N, C, H * W, G)
    weight, bias = random((C,), torch.float32, 2), random((C,), torch.float32, 3)
    ours = run(lambda x, w, b: fast.normalize(x, part, w, b, 1e-5), x, weight, bias, gy)
    exact = run(
        lambda x, w, b: definition.normalize(x, part, w, b, 1e-5),
        x.double(),
        weight.double(),
        bias.double(),
        gy.double(),
    )
    assert_as_exact(ours, exact, dtype)


def test_it_is_used_where_it_serves_and_only_there() -> None:
    norm = bgn.BatchGroupNorm2d(4, 2)
    x = torch.randn(2, 4, 3, 3)

    def served(t: Tensor) -> bool:
        return fast.is_eligible(t, norm.weight, norm.bias)

    for dtype, layout in itertools.product([torch.float32, torch.bfloat16, torch.float16], LAYOUTS):
        given = laid_out(x.to(dtype), layout)
        assert served(given)
        assert type(norm(given).grad_fn).__name__ == "_NormalizeBackward"
        assert (
            type(norm(given).grad_fn).__name__ == "_NormalizeBackward"
        )  # now that the shape is known
    assert not served(x.double())
    assert not served(x.to("meta"))
    assert not torch.vmap(lambda t: torch.tensor(served(t)))(x[None])


@pytest.mark.parametrize(
    "make", [bgn.BatchGroupNorm2d, bgn.GeneralBatchGroupNorm2d, lambda C, G: bgn.GroupNorm(G, C)]
)
def test_what_is_remembered_of_a_shape_is_only_what_depends_on_it(make: Any) -> None:
    norm = make(8, 4)
    x = torch.randn(2, 8, 3, 3)
    first = norm(x)
    assert torch.equal(norm(x), first)
    norm.weight = torch.nn.Parameter(torch.ones(7))
    with pytest.raises(
        (ValueError, RuntimeError), match=r"weight has shape \(7,\)|got weight of shape \[7\]"
    ):
        norm(x)
    norm.weight = torch.nn.Parameter(torch.full((8,), 2.0))
    assert torch.allclose(norm(x), 2 * first)
    if isinstance(norm, bgn.GroupNorm):
        norm.num_groups = 2
        assert torch.allclose(norm(x), 2 * F.group_norm(x, 2), atol=1e-5)
        return
    norm.num_groups = 2
    for mode in (True, False):
        with pytest.raises(ValueError, match=r"running_mean has shape \(4,\); expected \(2,\)"):
            norm.train(mode)(x)


def test_views_and_lazy_zeros_whose_memory_is_not_their_value() -> None:
    x, gy = torch.randn(2, 4, 3, 3, requires_grad=True), torch.randn(2, 4, 3, 3)
    norm = bgn.BatchGroupNorm2d(4, 2, track_running_stats=False)
    assert_close(norm(torch._neg_view(x)), norm(-x))
    assert torch.equal(norm(torch._efficientzerotensor((2, 4, 3, 3))), torch.zeros(2, 4, 3, 3))
    (negative,) = torch.autograd.grad(norm(x), x, torch._neg_view(gy))
    assert_close(negative, torch.autograd.grad(norm(x), x, -gy)[0])
    (zero,) = torch.autograd.grad(norm(x), x, torch._efficientzerotensor((2, 4, 3, 3)))
    assert torch.equal(zero, torch.zeros_like(x))


def test_sums_are_on_the_cpu_whatever_the_default_device() -> None:
    gy, x = torch.randn(2, 2, 4, 3, 3)
    plan, weight = kernels.plan(slices, x, 2), torch.ones(4)
    stats = torch.zeros(1, 2), torch.ones(1, 2)
    expected = kernels.products(gy, x, plan, weight, *stats)
    with torch.device("meta"):
        found = kernels.products(gy, x, plan, weight, *stats)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_statistics_that_c_cannot_read_are_refused_by_torch() -> None:
    x, weight, mean, var = torch.randn(2, 4, 3, 3), torch.ones(4), torch.zeros(2), torch.ones(2)
    with pytest.raises((RuntimeError, NotImplementedError)):
        F.batch_group_norm(x, 2, mean.to("meta"), var.to("meta"), weight).sum().item()
    assert_close(
        F.batch_group_norm(x, 2, torch._neg_view(mean + 1), var),
        F.batch_group_norm(x, 2, -(mean + 1), var),
    )


def test_second_derivatives_through_a_first_native_one() -> None:
    for norm in (
        bgn.BatchGroupNorm2d(4, 3).double(),
        bgn.BatchGroupNorm2d(4, 3).double().eval(),
        bgn.PositionalNorm2d(4).double(),
    ):
        x = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
        assert type(norm(x).grad_fn).__name__ == "_NormalizeBackward"
        (gradient,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        assert second.abs().max() > 0
        assert torch.autograd.gradgradcheck(norm, (x,))


def test_nothing_but_x_is_kept_for_the_backward_pass() -> None:
    for norm in (
        bgn.BatchGroupNorm2d(8, 2),
        bgn.GroupNorm(2, 8),
        bgn.PositionalNorm2d(8),
        bgn.BatchGroupNorm2d(8, 2).bfloat16().eval(),
    ):
        x = torch.randn(2, 8, 30, 30, dtype=next(norm.parameters()).dtype, requires_grad=True)
        kept: list[Tensor] = []

        def keep(t: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            norm(x)
        assert [t.data_ptr() for t in kept if t.numel() > 8] == [x.data_ptr()]


def test_many_shapes_do_not_pile_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(plans, "_MOST", 5)
    norm = bgn.BatchGroupNorm2d(2, 1)
    for size in range(1, 20):
        norm(torch.randn(2, 2, size, 1))
    assert len(plans._plans) <= 5


def test_nan_and_infinity_stay_in_their_group() -> None:
    for layout, bad in itertools.product(["contiguous", "last"], [math.nan, math.inf]):
        x = laid_out(torch.randn(2, 8, 5, 5), layout)
        x[1, 5, 2, 2] = bad
        y = bgn.BatchGroupNorm2d(8, 4)(x)
        assert y[:, 4:6].isnan().all()
        assert y[:, :4].isfinite().all()
        assert y[:, 6:].isfinite().all()
