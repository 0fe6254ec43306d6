"""Statistics across processes: split over 2 or 4 of them, a batch gives what it gives in one."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch import multiprocessing as mp

import bgn
from bgn.surgery.kinds import identify

pytestmark = pytest.mark.skipif(
    not dist.is_available(), reason="torch was built without torch.distributed"
)

Case = tuple[
    str, dict[str, Any], tuple[int, ...], tuple[int, ...]
]  # constructor, options, shape of the batch, samples per process
CASES: list[Case] = [
    ("SyncBatchGroupNorm", {"num_features": 8, "num_groups": 2}, (6, 8, 5, 3), (3, 3)),
    ("SyncBatchGroupNorm", {"num_features": 8, "num_groups": 8}, (7, 8, 5, 3), (6, 1)),
    (
        "SyncBatchGroupNorm",
        {"num_features": 6, "num_groups": 4},
        (7, 6, 5, 3),
        (2, 5),
    ),  # groups cut through channels
    (
        "SyncBatchGroupNorm",
        {"num_features": 6, "num_groups": 12, "momentum": None},
        (8, 6, 4, 4),
        (1, 2, 0, 5),
    ),
    ("SyncBatchGroupNorm", {"num_features": 6, "num_groups": 1, "affine": False}, (5, 6), (5, 0)),
    (
        "SyncBatchGroupNorm",
        {"num_features": 4, "num_groups": 2, "track_running_stats": False},
        (4, 4, 2, 3, 2),
        (1, 1, 1, 1),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 8, "num_groups": 4, "without": "bias"},
        (6, 8, 5, 3),
        (4, 2),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 8, "num_groups": 4, "without": "weight"},
        (6, 8, 5, 3),
        (4, 2),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 6, "num_groups": 12, "without": "weight"},
        (6, 6, 4, 4),
        (4, 2),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 8, "num_groups": 2, "renorm": bgn.Renorm(2.0, 1.0, warmup=2)},
        (6, 8, 5, 3),
        (4, 2),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 6, "num_groups": 4, "renorm": bgn.Renorm(2.0, 1.0, warmup=0)},
        (7, 6, 5, 3),
        (7, 0),
    ),
    (
        "SyncBatchGroupNorm",
        {"num_features": 6, "num_groups": 2, "center": "channel", "renorm": True},
        (7, 6, 5, 3),
        (5, 2),
    ),
    (
        "SyncGeneralBatchGroupNorm2d",
        {"num_features": 10, "num_groups": 4, "renorm": bgn.Renorm(2.0, 1.0, warmup=0)},
        (6, 10, 3, 3),
        (2, 4),
    ),
    ("SyncGeneralBatchGroupNorm2d", {"num_features": 10, "num_groups": 4}, (6, 10, 3, 3), (2, 4)),
]


def spread(
    work: Callable[..., None], processes: int, tmp_path: Path, *args: Any
) -> list[dict[str, Any]]:
    """Do something in several processes; what each of them saved."""
    mp.start_processes(
        _process, (work, processes, str(tmp_path), *args), processes, start_method="spawn"
    )  # type: ignore[no-untyped-call]
    return [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(processes)]


def _process(
    rank: int, work: Callable[..., dict[str, Any]], processes: int, folder: str, *args: Any
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), processes)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=processes, timeout=timedelta(seconds=60)
    )
    try:
        torch.save(work(rank, *args), os.path.join(folder, f"{rank}.pt"))
    finally:
        dist.destroy_process_group()


def _layer(name: str, options: dict[str, Any]) -> nn.Module:
    own = {key: value for key, value in options.items() if key != "without"}
    layer: nn.Module = getattr(bgn, name)(**own, dtype=torch.float64)
    if "without" in options:
        layer.register_parameter(options["without"], None)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return layer


def _steps(layer: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Outputs, gradients and state after some steps."""
    found: dict[str, Any] = {"y": [], "gx": []}
    for x, gy in batches:
        x = x.clone().requires_grad_()
        y = layer(x)
        y.backward(gy)
        found["y"].append(y.detach())
        found["gx"].append(x.grad)
    found["gradients"] = [p.grad for p in layer.parameters()]
    found["state"] = layer.state_dict()
    return found


def _batches(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        tuple(3 + torch.randn(2, *shape, generator=generator, dtype=torch.float64))
        for _ in range(2)
    ]  # type: ignore[misc]


def _several(rank: int) -> dict[str, Any]:
    """All cases with two processes, or all with four."""
    found = {}
    for i, (name, options, shape, sizes) in enumerate(CASES):
        if len(sizes) == dist.get_world_size():
            layer = _layer(name, options)
            calls: list[str] = []
            _count(calls)
            own = [(x.split(sizes)[rank], gy.split(sizes)[rank]) for x, gy in _batches(shape)]
            found[str(i)] = {**_steps(layer, own), "collectives": len(calls)}
            layer.eval()
            with torch.no_grad():
                found[str(i)]["eval"] = layer(own[0][0]) if len(own[0][0]) else own[0][0]
    return found


def _count(calls: list[str]) -> None:
    """Write down every collective from here on."""
    for name in ("all_gather", "all_reduce"):
        original = getattr(dist, name)
        original = getattr(original, "counted", original)

        def counting(*args: Any, original: Any = original, name: str = name, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        counting.counted = original  # type: ignore[attr-defined]
        setattr(dist, name, counting)


def _half(rank: int) -> dict[str, Any]:
    """Gradients of bfloat16 inputs, where what statistics add is as large as the rest."""
    x = torch.randn(2, 4, 8, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[
        rank
    ]
    gradients = {}
    for dtype in (torch.float64, torch.bfloat16):
        own = x.bfloat16().to(dtype).requires_grad_()
        bgn.SyncBatchGroupNorm(8, 2, dtype=torch.promote_types(dtype, torch.float32))(own).backward(
            own.detach()
        )
        assert own.grad is not None
        gradients[str(dtype)] = own.grad.double()
    return gradients


def test_half_precision_is_rounded_once(tmp_path: Path) -> None:
    for own in spread(_half, 2, tmp_path):
        exact, rounded = own["torch.float64"], own["torch.bfloat16"]
        assert (rounded - exact).norm() < 0.01 * exact.norm()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    return {n: spread(_several, n, tmp_path_factory.mktemp(f"sync{n}")) for n in (2, 4)}


@pytest.mark.parametrize(
    "i", range(len(CASES)), ids=[f"{name}-{options}-{sizes}" for name, options, _, sizes in CASES]
)
def test_as_one_process_with_the_whole_batch(
    found: dict[int, list[dict[str, Any]]], i: int
) -> None:
    name, options, shape, sizes = CASES[i]
    layer = _layer(name, options)
    whole = _steps(layer, _batches(shape))
    parts = [part[str(i)] for part in found[len(sizes)]]
    close = {"rtol": 1e-10, "atol": 1e-10}
    for kind in ("y", "gx"):
        for step in range(2):
            torch.testing.assert_close(
                torch.cat([part[kind][step] for part in parts]), whole[kind][step], **close
            )
    for k, gradient in enumerate(
        whole["gradients"]
    ):  # DistributedDataParallel would average these; the sum is the whole's
        torch.testing.assert_close(sum(part["gradients"][k] for part in parts), gradient, **close)
    for part in parts:
        for key, value in whole["state"].items():
            torch.testing.assert_close(part["state"][key], value, **close)
            assert torch.equal(part["state"][key], parts[0]["state"][key]), (
                "the same bits everywhere"
            )
        assert part["collectives"] == 2 * 2, "one forward and one backward, two steps"
    if options.get("track_running_stats", True):
        layer.eval()
        expected = layer(_batches(shape)[0][0])
        torch.testing.assert_close(torch.cat([part["eval"] for part in parts]), expected, **close)


def _trained(rank: int) -> dict[str, Any]:
    """A network with every batch-wide normalizer, converted, in DistributedDataParallel."""
    model = bgn.convert_sync(_network())
    wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in _examples():
        n = len(x) // 2
        own = slice(rank * n, rank * n + n)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x[own]), y[own]).backward()
        optimizer.step()
    empty = bgn.SyncBatchGroupNorm(4, 2)
    empty(torch.empty(0, 4, 3, 3, requires_grad=True)).sum().backward()
    with pytest.raises(ValueError, match="leave 1 value per statistic over all processes"):
        bgn.SyncBatchGroupNorm(4, 4)(torch.randn(1 - rank, 4))
    layer, x = (
        bgn.SyncBatchGroupNorm(3, 1),
        torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(rank)),
    )
    compiled: Any = torch.compile(layer, backend="eager")
    return {
        "state": model.state_dict(),
        "empty": [empty.running_mean, empty.weight.grad],
        "eager": layer(x).detach(),
        "compiled": compiled(x).detach(),
    }


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), bgn.BatchGroupNorm2d(8, 2), nn.ReLU(),
        nn.Conv2d(8, 8, 3), bgn.GeneralBatchGroupNorm2d(8, 4), bgn.GroupNorm(2, 8),
        nn.Flatten(), nn.Linear(8 * 16, 3),
    ).double()  # fmt: skip


def _examples() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(4, 3, 10, 10, generator=generator, dtype=torch.float64),
            torch.randint(3, (4,), generator=generator),
        )
        for _ in range(5)
    ]


def test_training_with_two_workers_is_training_with_one(tmp_path: Path) -> None:
    parts = spread(_trained, 2, tmp_path)
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in _examples():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for part in parts:
        torch.testing.assert_close(part["compiled"], part["eager"])
        assert all(torch.equal(t, torch.zeros_like(t)) for t in part["empty"]), (
            "nobody had samples: nothing moves"
        )
        assert part["state"].keys() == model.state_dict().keys()
        for key, value in model.state_dict().items():
            torch.testing.assert_close(part["state"][key], value, rtol=1e-9, atol=1e-9)


def test_conversion_keeps_everything() -> None:
    model = _network()
    before = dict(model.state_dict())
    parameters = list(model.parameters())
    model[1].register_forward_hook(lambda *_: None)
    model[4].eval()
    hooks = model[1]._forward_hooks
    assert bgn.convert_sync(model) is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.state_dict().keys() == before.keys()
    assert model[1]._forward_hooks is hooks
    assert not model[4].training
    assert [type(model[i]) for i in (1, 4, 7)] == [bgn.SyncBatchGroupNorm] * 2 + [
        bgn.SyncGeneralBatchGroupNorm2d
    ]
    kinds = [identify(model[i]) for i in (1, 4, 7)]
    assert [(k.name, k.num_groups) for k in kinds if k] == [("bgn", 8), ("bgn", 2), ("gbgn", 4)]
    assert bgn.convert_sync(model)[1] is model[1], "nothing left to convert"


def test_alone_it_is_the_layer_without() -> None:
    x = torch.randn(4, 8, 5, 5)
    one, two = bgn.SyncBatchGroupNorm(8, 2), bgn.BatchGroupNorm2d(8, 2)
    torch.testing.assert_close(one(x), two(x))
    torch.testing.assert_close(one.running_var, two.running_var)
    torch.testing.assert_close(one.eval()(x), two.eval()(x))


def test_refusals() -> None:
    with pytest.raises(
        ValueError, match="batch_blocks=2 .* blocks across processes are not supported; expected 1"
    ):
        bgn.convert_sync(nn.Sequential(bgn.GeneralBatchGroupNorm2d(8, 4, batch_blocks=2)))
    with pytest.raises(ValueError, match="num_groups=0 is not positive"):
        bgn.SyncBatchGroupNorm(8, 0)
