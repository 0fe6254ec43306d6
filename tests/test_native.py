"""The native backend: equal to the reference, whatever the shape, the threads and the instruction set."""

import importlib.machinery
import importlib.util
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bgn
from bgn.backends import native, reference
from bgn.partition import Partition, channel_groups, slices
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(native.library is None, reason=f"the native backend is {native.why_not}")


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    n, B = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    C, P = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 3, 7, 31, 49, 64, 100, 5000]))
    make = draw(st.sampled_from([slices, channel_groups]))
    G = draw(st.one_of(st.sampled_from([1, C]), st.integers(1, min(C * P, 40))))
    return make(n * B, C, P, G, B)


def run(backend: Any, part: Partition, x: Tensor, weight: Tensor | None, bias: Tensor | None, gy: Tensor) -> list[Tensor]:
    """Output, moments and gradients."""
    leaves = [t.clone().requires_grad_() if t is not None else None for t in (x, weight, bias)]
    y, stats = backend.train(leaves[0], part, leaves[1], leaves[2], 1e-5)
    y.backward(gy)
    grads = [t.grad for t in leaves if t is not None]
    return [y.detach(), stats.mean.detach(), stats.M2.detach(), stats.count.expand(part.G), *grads]


@settings(max_examples=200)
@given(part=partitions(), seed=st.integers(0, 99), affine=st.booleans(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_the_same_as_the_reference(part: Partition, seed: int, affine: bool, dtype: torch.dtype) -> None:
    if part.smallest_count == 1:
        return
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    x, gy = random(part.N, part.C, part.P) * 2 + 3, random(part.N, part.C, part.P)
    weight, bias = (random(part.C), random(part.C)) if affine else (None, None)
    exact = [t.double() if t is not None else None for t in (x, weight, bias, gy)]
    ours, theirs = run(native, part, x, weight, bias, gy), run(reference, part, *exact)  # type: ignore[arg-type]
    variance = (theirs[2] / theirs[3]).min().item()
    scale = max(1.0, variance**-0.5) ** 3  # where a group hardly varies, its gradient is large, and so is its rounding
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, dtype, atol=(1e-9 if dtype == torch.float64 else 1e-4) * scale * max(1.0, b.abs().max().item()))
    y = native.apply(x, part, ours[1][:1], ours[2][:1] + 1, weight, bias, 1e-5) if part.B == 1 else None
    if y is not None:
        assert_close(
            y, reference.apply(exact[0], part, ours[1][:1].double(), ours[2][:1].double() + 1, exact[1], exact[2], 1e-5), dtype
        )  # type: ignore[arg-type]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_tensors(part: Partition) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and gy."""
    torch.manual_seed(0)
    x, gy = torch.randn(2, part.N, part.C, part.P)
    weight, bias = torch.randn(2, part.C)
    return x, weight, bias, gy


SHAPES = [slices(6, 64, 49, 64), slices(6, 64, 49, 1), slices(6, 8, 9000, 8), slices(5, 8, 9000, 3), slices(6, 8, 9000, 4, B=6)]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("part", SHAPES, ids=str)
def test_bits_do_not_depend_on_the_threads(part: Partition) -> None:
    tensors = random_tensors(part)
    results = []
    for threads in (2, 1, 2):
        torch.set_num_threads(threads)
        results.append(run(native, part, *tensors))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("part", SHAPES, ids=str)
def test_the_baseline_instruction_set(part: Partition) -> None:
    assert native.library is not None
    tensors = random_tensors(part)
    wide = run(native, part, *tensors)
    try:
        assert native.library.handle.bgn_use_avx2(0) == 0
        narrow = run(native, part, *tensors)
    finally:
        native.library.handle.bgn_use_avx2(1)
    for a, b in zip(wide, narrow, strict=True):
        assert_close(a, b, atol=2e-5 * max(1.0, b.abs().max().item()))


def test_it_is_used_where_it_serves_and_only_there() -> None:
    norm = bgn.BatchGroupNorm2d(4, 2)
    x = torch.randn(2, 4, 3, 3)
    served = lambda t: native._serves(t, norm.weight, norm.bias)  # noqa: E731
    assert served(x)
    assert type(norm(x).grad_fn).__name__ == "_NormaliseBackward"
    assert not served(x.to(memory_format=torch.channels_last))
    assert not served(x.bfloat16())
    assert not served(x.to("meta"))
    assert not torch.vmap(lambda t: torch.tensor(served(t)))(x[None])
    offset = torch.randn(2 * 4 * 9 + 1)[1:].view(2, 4, 3, 3)
    assert served(offset)
    assert_close(norm(offset), norm(offset.clone()))


def test_second_derivatives_through_a_first_native_one() -> None:
    norm = bgn.BatchGroupNorm2d(4, 3).double()
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert type(norm(x).grad_fn).__name__ == "_NormaliseBackward"
    (gradient,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert second.abs().max() > 0
    assert torch.autograd.gradgradcheck(norm, (x,))


def test_from_several_python_threads() -> None:
    torch.manual_seed(0)
    norm = bgn.BatchGroupNorm2d(8, 3, track_running_stats=False)
    inputs = [torch.randn(3, 8, 20, 20 + i) for i in range(8)]
    expected = [norm(x) for x in inputs]
    found: list[Any] = [None] * 8

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = norm(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _in_a_child(queue: Any) -> None:
    torch.set_num_threads(1)  # as a DataLoader's worker does
    queue.put(bgn.BatchGroupNorm2d(8, 3)(torch.ones(2, 8, 100, 100)).abs().max().item())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork() -> None:
    bgn.BatchGroupNorm2d(8, 3)(torch.randn(2, 8, 100, 100))  # the parent's threads are running
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 0
    child.join(timeout=60)


def test_many_shapes_do_not_pile_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "_PLANS", 5)
    norm = bgn.BatchGroupNorm2d(2, 1)
    for size in range(1, 20):
        norm(torch.randn(2, 2, size, 1))
    assert len(native._plans) <= 5


@pytest.mark.parametrize(("content", "words"), [(None, "not built"), (b"no library", "damaged or for another machine")])
def test_without_a_library_it_says_why(monkeypatch: Any, tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "_native.so"
    if content is not None:
        path.write_bytes(content)
    spec = importlib.machinery.ModuleSpec("bgn._native", None, origin=str(path)) if content is not None else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    library, why = native._load()
    assert library is None
    assert words in why
    monkeypatch.setattr(native, "library", None)
    monkeypatch.setattr(native, "why_not", why)
    monkeypatch.setattr(bgn.backends, "AVAILABLE", {"reference": reference})
    assert bgn.backends.choose("auto").name == "reference"
    assert words in bgn.backends.choose("auto").reason
    with pytest.raises(ValueError, match=f"BGN_BACKEND='native', but native is {words}"):
        bgn.backends.choose("native")
