"""Time this library's normalisers against torch's, on the shapes of the paper's networks.

    python -m benchmarks.run --quick                 # headline ratios, within a minute
    python -m benchmarks.run --out results/bench     # everything: table, JSON, picture

Ratios below 1 mean that this library is faster. All times of a row come from one interleaved run with the same threads; the
minimum of the rounds is compared, because noise only ever adds.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import bgn
from benchmarks import rivals
from benchmarks.shapes import NETWORKS, Shape
from benchmarks.timing import interleaved

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGEST = 128 * 64 * 112 * 112  # elements; what is larger does not fit beside its gradients


def measure(shape: Shape, N: int, mode: str, dtype: str, layout: str, seconds: float, compiled: bool) -> dict[str, Any]:
    """One row: the times of all rivals on one shape."""
    G = bgn.paper_groups(N)
    generator = torch.Generator().manual_seed(0)
    x, gy = (
        torch.randn(N, shape.C, shape.H, shape.W, generator=generator).to(DTYPES[dtype]).contiguous(memory_format=FORMATS[layout])
        for _ in range(2)
    )
    steps: dict[str, Any] = {}
    for name, layer in rivals.layers(shape.C, G, compiled and mode == "train").items():
        steps[name] = rivals.training_step(layer, x, gy) if mode == "train" else rivals.eval_step(layer, x)
    steps["floor"] = rivals.floor(x, gy if mode == "train" else None)
    times = interleaved(steps, seconds)
    return {
        "shape": str(shape), "count": shape.count, "N": N, "G": G, "mode": mode, "dtype": dtype, "layout": layout,
        "megabytes": x.numel() * x.element_size() / 1e6, "times": times,
    }  # fmt: skip


def ratio(row: dict[str, Any], ours: str, theirs: str) -> float | None:
    """Minimum against minimum, or None where one of them did not run."""
    times = row["times"]
    return times[ours]["min"] / times[theirs]["min"] if ours in times and theirs in times else None


def geometric_mean(rows: Iterable[dict[str, Any]], ours: str, theirs: str) -> tuple[float, float, int] | None:
    """Mean weighted by how often a shape occurs, the worst, and the number of shapes."""
    pairs = [(r, row["count"]) for row in rows if (r := ratio(row, ours, theirs)) is not None]
    if not pairs:
        return None
    mean = math.exp(sum(n * math.log(r) for r, n in pairs) / sum(n for _, n in pairs))
    return mean, max(r for r, _ in pairs), len(pairs)


PAIRS = (
    ("bgn", "nn.BatchNorm2d"),
    ("bgn", "nn.GroupNorm(32)"),
    ("bgn", "floor"),
    ("bgn", "compiled composite"),
    ("bgn.GroupNorm(32)", "nn.GroupNorm(32)"),
    ("bgn IN", "nn.InstanceNorm2d"),
    ("bgn LN", "nn.GroupNorm(1)"),
)


def summary(rows: list[dict[str, Any]]) -> str:
    """A table of ratios, one line per pair and setting."""
    lines = ["| ours / theirs | network | mode | dtype | layout | threads | geometric mean | worst | shapes |", "|" + "---|" * 9]
    keys = sorted({(r["network"], r["mode"], r["dtype"], r["layout"], r["threads"]) for r in rows})
    for ours, theirs in PAIRS:
        for key in keys:
            chosen = [r for r in rows if (r["network"], r["mode"], r["dtype"], r["layout"], r["threads"]) == key]
            found = geometric_mean(chosen, ours, theirs)
            if found is not None:
                settings = " | ".join(str(k) for k in key)
                lines.append(f"| {ours} / {theirs} | {settings} | {found[0]:.2f} | {found[1]:.2f} | {found[2]} |")
    return "\n".join(lines)


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """BGN against BN, GN and the floor, shape by shape."""
    from matplotlib.figure import Figure

    chosen = [r for r in rows if (r["mode"], r["dtype"], r["layout"]) == ("train", "float32", "contiguous")]
    threads = max((r["threads"] for r in chosen), default=0)
    chosen = [r for r in chosen if r["threads"] == threads and r["network"] == "resnet50"]
    figure = Figure(figsize=(max(6.0, 0.28 * len(chosen)), 4.2), layout="constrained")
    axes = figure.subplots()
    for theirs, colour in (("nn.BatchNorm2d", "#3f77c4"), ("nn.GroupNorm(32)", "#c4773f"), ("floor", "#77776f")):
        values = [ratio(r, "bgn", theirs) for r in chosen]
        axes.plot(
            range(len(values)), [v if v is not None else math.nan for v in values], "o-", ms=3, lw=1, color=colour, label=theirs
        )
    axes.axhline(1, color="black", lw=0.7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(chosen)), [f"{r['N']}x{r['shape']}" for r in chosen], rotation=90, fontsize=7)
    axes.set_ylabel("time of BGN / time of ...")
    axes.set_title(f"Training forward + backward, float32, ResNet-50's shapes, {threads} threads")
    axes.legend()
    figure.savefig(path, dpi=130)


def settings(quick: bool) -> list[tuple[str, str, str, str, int]]:
    """(network, mode, dtype, layout, threads) to run."""
    cores = torch.get_num_threads()
    if quick:
        return [("resnet50", "train", "float32", "contiguous", cores)]
    train = [(n, "train", d, f, t) for n in NETWORKS for d in DTYPES for f in FORMATS for t in sorted({1, cores})]
    return train + [(n, "eval", "float32", f, t) for n in NETWORKS for f in FORMATS for t in sorted({1, cores})]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="headline ratios within a minute")
    parser.add_argument("--out", type=Path, help="folder for table.md, results.json and ratios.png")
    parser.add_argument("--seconds", type=float, help="about how long to measure one shape")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="images per process")
    options = parser.parse_args()
    sizes = options.batch_sizes or ([2, 8] if options.quick else [2, 8, 32, 128])
    seconds = options.seconds or (0.8 if options.quick else 1.0)
    print(bgn.info())
    rows: list[dict[str, Any]] = []
    jobs = [(s, shape, N) for s in settings(options.quick) for N in sizes for shape in NETWORKS[s[0]]]
    jobs = [job for job in jobs if job[2] * job[1].C * job[1].H * job[1].W <= LARGEST]
    begin = time.monotonic()
    for done, ((network, mode, dtype, layout, threads), shape, N) in enumerate(jobs, 1):
        torch.set_num_threads(threads)
        row = measure(shape, N, mode, dtype, layout, seconds, compiled=not options.quick and layout == "contiguous")
        rows.append({**row, "network": network, "threads": threads})
        left = (time.monotonic() - begin) / done * (len(jobs) - done)
        print(f"\r{done}/{len(jobs)}, {left:.0f} s left: {network} {N}x{shape} {mode} {dtype} {layout}      ", end="", flush=True)
    print("\n" + summary(rows))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(summary(rows) + "\n")
        about = {"info": str(bgn.info()), "processor": platform.processor(), "command": f"--seconds {seconds}"}
        (options.out / "results.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        picture(rows, options.out / "ratios.png")


if __name__ == "__main__":
    main()
