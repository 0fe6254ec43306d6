"""What a collective between processes of this machine costs: gloo's, by processes and bytes.

    python -m benchmarks.collectives --out results/sync/collectives.json

Times an all-reduce and an all-gather of float32 in 2, 3 and 4 processes, the shortest of many and
their median; the slowest process counts. To the shortest ones, up to 1 MB, it
fits

    ring all-reduce  2 (P - 1) alpha + 2 (P - 1) / P bytes / beta
    ring all-gather    (P - 1) alpha +   (P - 1)     bytes / beta
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.sync import free_port

PROCESSES = (2, 3, 4)
BYTES = tuple(4 * 8**k for k in range(1, 9))  # 32 B to 64 MB
SECONDS = 1.0  # for each of them
FITTED = 1 << 20  # bytes, at most, of what the model is fitted to: larger ones wait for memory


def messages(P: int, name: str, size: int) -> tuple[float, float]:
    """How often a ring pays alpha, and how many bytes a process sends.

    >>> messages(4, "all_reduce", 1000), messages(4, "all_gather", 1000)
    ((6, 1500.0), (3, 3000.0))
    """
    if name == "all_reduce":
        return 2 * (P - 1), 2 * (P - 1) / P * size
    return P - 1, float((P - 1) * size)


def _work(rank: int, P: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://localhost:{port}", rank=rank, world_size=P)
    rows = []
    for size in BYTES:
        x = torch.ones(size // 4)
        parts = [torch.empty_like(x) for _ in range(P)]
        calls = {
            "all_reduce": partial(dist.all_reduce, x),
            "all_gather": partial(dist.all_gather, parts, x),
        }
        for name, call in calls.items():
            times: list[float] = []
            end = torch.tensor(0.0)
            while not end:
                dist.barrier()
                begin = time.perf_counter()
                call()
                mine = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(mine, dist.ReduceOp.MAX)
                times.append(float(mine))
                x.fill_(1.0)
                end = torch.tensor(float(sum(times) > SECONDS and len(times) > 5))
                dist.broadcast(end, 0)
            rows.append([P, name, size, min(times), statistics.median(times), len(times)])
    if rank == 0:
        Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()


def fit(rows: list[list[Any]]) -> tuple[float, float]:
    """Alpha in seconds and beta in bytes a second, by least squares of relative errors."""
    rows = [row for row in rows if row[2] <= FITTED]
    terms = np.array([messages(P, name, size) for P, name, size, *_ in rows])
    times = np.array([shortest for _, _, _, shortest, *_ in rows])
    (alpha, slope), *_ = np.linalg.lstsq(terms / times[:, None], np.ones(len(times)), rcond=None)
    return float(alpha), float(1 / slope)


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/sync/collectives.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[list[Any]] = []
    for P in PROCESSES:
        draft = given.out.with_suffix(f".{P}")
        spawn(_work, (P, free_port(), str(draft)), P)  # type: ignore[no-untyped-call]
        rows += json.loads(draft.read_text())
        draft.unlink()
    alpha, beta = fit(rows)
    print("| processes | collective | bytes | shortest, µs | median, µs | ring model, µs |")
    print("|---|---|---|---|---|---|")
    for P, name, size, shortest, median, _ in rows:
        count, sent = messages(P, name, size)
        modeled = 1e6 * (alpha * count + sent / beta)
        values = (1e6 * shortest, 1e6 * median, modeled)
        print(f"| {P} | {name} | {size:,} | {' | '.join(f'{v:,.0f}' for v in values)} |")
    print(f"alpha {1e6 * alpha:.0f} µs, beta {beta / 1e9:.2f} GB/s")
    record = {
        "command": "python -m benchmarks.collectives", "torch": torch.__version__,
        "cores": os.cpu_count(), "load": os.getloadavg(), "alpha_us": 1e6 * alpha,
        "beta_gb": beta / 1e9,
        "columns": ["processes", "collective", "bytes", "shortest", "median", "times"],
        "rows": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
