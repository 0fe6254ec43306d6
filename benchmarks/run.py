"""Time this library's normalisers against torch's, on the shapes of the paper's networks.

    python -m benchmarks.run --quick                 # headline ratios, within a minute
    python -m benchmarks.run --out results/bench     # everything: table, JSON, picture

Ratios below 1 mean that this library is faster. All times of a row come from one interleaved run with the same threads; medians
of the rounds are compared: every rival meets the same noise, and a lucky round (memory was mapped already) does not count.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import bgn
from benchmarks import network, rivals, scaling
from benchmarks.shapes import NETWORKS, Shape
from benchmarks.timing import interleaved
from bgn_lab.files import write

Row = dict[str, Any]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGEST = 128 * 64 * 112 * 112  # elements; what is larger does not fit beside its gradients
LARGE = (
    32 * 64 * 112 * 112
)  # elements; larger ones are measured in float32, contiguous, on all cores only: they take long
SMALLEST = Shape(16, 8, 8, 1)


def measure(
    shape: Shape,
    N: int,
    mode: str,
    dtype: str,
    layout: str,
    threads: int,
    seconds: float,
    more: bool,
) -> Row:
    """One row: the times of all rivals on one shape; with the compiled composite and the reference if ``more``."""
    torch.set_num_threads(threads)
    G = bgn.paper_groups(N)
    generator = torch.Generator().manual_seed(0)
    x, gy = (
        torch.randn(N, shape.C, shape.H, shape.W, generator=generator)
        .to(DTYPES[dtype])
        .contiguous(memory_format=FORMATS[layout])
        for _ in range(2)
    )
    megabytes = x.numel() * x.element_size() / 1e6
    steps: dict[str, Any] = {}
    for name, layer in rivals.layers(
        shape.C, G, compiled=more, reference=more and megabytes < 30
    ).items():
        steps[name] = (
            rivals.training_step(layer, x, gy) if mode == "train" else rivals.eval_step(layer, x)
        )
    steps["floor"] = rivals.floor(x, gy if mode == "train" else None)
    return {
        "shape": str(shape), "count": shape.count, "N": N, "G": G, "mode": mode, "dtype": dtype, "layout": layout,
        "threads": threads, "megabytes": megabytes, "times": interleaved(steps, seconds),
    }  # fmt: skip


def ratio(row: Row, ours: str, theirs: str) -> float | None:
    """Median against median, or None where one of them did not run."""
    times = row["times"]
    return (
        times[ours]["median"] / times[theirs]["median"]
        if ours in times and theirs in times
        else None
    )


def geometric_mean(rows: Iterable[Row], ours: str, theirs: str) -> tuple[float, float, int] | None:
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
    ("bgn", "bgn reference"),
    ("bgn.GroupNorm(32)", "nn.GroupNorm(32)"),
    ("bgn IN", "nn.InstanceNorm2d"),
    ("bgn LN", "nn.GroupNorm(1)"),
)


def table(header: list[str], lines: Iterable[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines]
    )


def summary(rows: list[Row]) -> str:
    """Ratios, one line per pair and setting."""

    def setting(r: Row) -> tuple[Any, ...]:
        return r["network"], r["mode"], r["dtype"], r["layout"], r["threads"]

    lines = []
    for ours, theirs in PAIRS:
        for key in sorted({setting(r) for r in rows}):
            found = geometric_mean([r for r in rows if setting(r) == key], ours, theirs)
            if found is not None:
                mean, worst, number = found
                lines.append(
                    [
                        f"{ours} / {theirs}",
                        *map(str, key),
                        f"{mean:.2f}",
                        f"{worst:.2f}",
                        str(number),
                    ]
                )
    header = [
        "ours / theirs",
        "network",
        "mode",
        "dtype",
        "layout",
        "threads",
        "geometric mean",
        "worst",
        "shapes",
    ]
    return table(header, lines)


def _headlines(cores: int) -> list[tuple[str, str, str, Callable[[Row], bool]]]:
    """(what, ours, theirs, which rows)."""

    def resnet(
        mode: str = "train", dtype: str = "float32", layout: str = "contiguous"
    ) -> Callable[[Row], bool]:
        wanted = ("resnet50", mode, dtype, layout, cores)
        return lambda r: (r["network"], r["mode"], r["dtype"], r["layout"], r["threads"]) == wanted

    train, evaluation = resnet(), resnet("eval")
    return [
        ("training", "bgn", "nn.BatchNorm2d", train),
        ("training", "bgn", "nn.GroupNorm(32)", train),
        ("training, 10 MB and more", "bgn", "floor", lambda r: train(r) and r["megabytes"] >= 10),
        ("training", "bgn", "compiled composite", train),
        ("training", "bgn.GroupNorm(32)", "nn.GroupNorm(32)", train),
        ("training", "bgn IN", "nn.InstanceNorm2d", train),
        ("training", "bgn LN", "nn.GroupNorm(1)", train),
        ("training, bfloat16", "bgn", "nn.BatchNorm2d", resnet(dtype="bfloat16")),
        ("training, channels_last", "bgn", "nn.BatchNorm2d", resnet(layout="channels_last")),
        ("eval", "bgn", "nn.BatchNorm2d", evaluation),
        (
            "eval, above 1 MB",
            "bgn",
            "nn.BatchNorm2d",
            lambda r: evaluation(r) and r["megabytes"] >= 1,
        ),
        (
            "eval, below 1 MB",
            "bgn",
            "nn.BatchNorm2d",
            lambda r: evaluation(r) and r["megabytes"] < 1,
        ),
        ("training, 2x16x8x8", "bgn", "nn.BatchNorm2d", lambda r: r["network"] == "smallest"),
    ]


def headlines(rows: list[Row]) -> str:
    """The ratios that one asks for first: ResNet-50's shapes, all cores."""
    lines = []
    for what, ours, theirs, wanted in _headlines(max(r["threads"] for r in rows)):
        found = geometric_mean(filter(wanted, rows), ours, theirs)
        if found is not None:
            lines.append(
                [what, f"{ours} / {theirs}", f"{found[0]:.2f}", f"{found[1]:.2f}", str(found[2])]
            )
    return table(["what", "ours / theirs", "geometric mean", "worst", "shapes"], lines)


PEAK = "peak megabytes"


def whole_step(found: dict[str, Any]) -> str:
    """The training step of ResNet-50 as a table."""
    bn = found["bn"]
    return table(
        ["ResNet-50, 8 images of 224x224", "seconds", "/ BN", "peak MB", "- BN"],
        (
            [
                name,
                f"{t['median']:.2f}",
                f"{t['median'] / bn['median']:.3f}",
                f"{t[PEAK]:.0f}",
                f"{t[PEAK] - bn[PEAK]:+.0f}",
            ]
            for name, t in found.items()
        ),
    )


def per_element(found: dict[str, dict[str, float]]) -> str:
    """Time per element as a table."""
    lines = (
        [name, f"{t:.2f}", f"{t / min(ts.values()):.2f}"]
        for ts in found.values()
        for name, t in ts.items()
    )
    return table(["12.8 MB, forward and backward", "ns per element", "/ best"], lines)


def picture(rows: list[Row], path: Path) -> None:
    """BGN against BN, GN and the floor, shape by shape."""
    from matplotlib.figure import Figure

    threads = max(r["threads"] for r in rows)
    wanted = ("resnet50", "train", "float32", "contiguous", threads)
    chosen = [
        r
        for r in rows
        if (r["network"], r["mode"], r["dtype"], r["layout"], r["threads"]) == wanted
    ]
    figure = Figure(figsize=(max(6.0, 0.28 * len(chosen)), 4.2), layout="constrained")
    axes = figure.subplots()
    for theirs, colour in (
        ("nn.BatchNorm2d", "#3f77c4"),
        ("nn.GroupNorm(32)", "#c4773f"),
        ("floor", "#77776f"),
    ):
        values = [ratio(r, "bgn", theirs) for r in chosen]
        axes.plot(
            range(len(values)),
            [math.nan if v is None else v for v in values],
            "o-",
            ms=3,
            lw=1,
            color=colour,
            label=theirs,
        )
    axes.axhline(1, color="black", lw=0.7)
    axes.set_yscale("log")
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(
        range(len(chosen)), [f"{r['N']}x{r['shape']}" for r in chosen], rotation=90, fontsize=7
    )
    axes.set_ylabel("time of BGN / time of ...")
    axes.set_title(
        f"Training forward + backward, float32, ResNet-50's shapes, {threads} threads: below 1, BGN is faster"
    )
    axes.legend()
    figure.savefig(path, dpi=130)


def settings(quick: bool, cores: int) -> list[tuple[str, str, str, str, int]]:
    """(network, mode, dtype, layout, threads) to run."""
    if quick:
        return [("resnet50", "train", "float32", "contiguous", cores)]
    train = [
        (n, "train", d, f, t)
        for n in NETWORKS
        for d in DTYPES
        for f in FORMATS
        for t in sorted({1, cores}, reverse=True)
    ]
    return train + [
        (n, "eval", "float32", f, t)
        for n in NETWORKS
        for f in FORMATS
        for t in sorted({1, cores}, reverse=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="headline ratios within a minute")
    parser.add_argument("--out", type=Path, help="folder for table.md, results.json and ratios.png")
    parser.add_argument("--seconds", type=float, help="about how long to measure one shape")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="images per process")
    options = parser.parse_args()
    sizes = options.batch_sizes or ([2, 8] if options.quick else [2, 8, 32, 128])
    seconds = options.seconds or (0.8 if options.quick else 0.4)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    print(bgn.info())
    cores = torch.get_num_threads()
    jobs = [("smallest", "train", "float32", "contiguous", cores, SMALLEST, 2)]
    jobs += [
        (*s, shape, N)
        for s in settings(options.quick, cores)
        for N in sizes
        for shape in NETWORKS[s[0]]
    ]
    headline = ("train", "float32", "contiguous", cores)
    jobs = [
        job
        for job in jobs
        if job[6] * job[5].C * job[5].H * job[5].W
        <= (LARGEST if job[1:5] == headline else LARGE * job[4] // cores)
    ]
    rows: list[Row] = []
    results: dict[str, Any] = {"rows": rows}
    begin = time.monotonic()
    try:
        for done, (name, mode, dtype, layout, threads, shape, N) in enumerate(jobs, 1):
            more = not options.quick and (name, mode, dtype, layout, threads) == (
                "resnet50",
                *headline,
            )
            rows.append(
                {**measure(shape, N, mode, dtype, layout, threads, seconds, more), "network": name}
            )
            left = (time.monotonic() - begin) / done * (len(jobs) - done)
            print(
                f"\r{done}/{len(jobs)}, {left:.0f} s left: {name} {N}x{shape} {mode} {dtype} {layout}      ",
                end="",
                flush=True,
            )
            if not options.quick and len(rows) == 1:  # what matters most is not left to the end
                torch.set_num_threads(cores)
                results |= {
                    "resnet50 step": network.compare(40 * seconds),
                    "per element": scaling.compare(20 * seconds),
                }
    except KeyboardInterrupt:
        print("\ninterrupted: this is what was measured so far")
    if not rows:
        return
    parts = ["", headlines(rows)]
    if "per element" in results:
        parts += ["", whole_step(results["resnet50 step"]), "", per_element(results["per element"])]
    if not options.quick:
        parts += ["", summary(rows)]
    print("\n".join(parts))
    if options.out is not None:
        results["about"] = {
            "info": str(bgn.info()),
            "processor": platform.processor(),
            "seconds": seconds,
            "batch sizes": sizes,
        }
        write(options.out / "table.md", "\n".join(parts[1:]) + "\n")
        write(options.out / "results.json", json.dumps(results) + "\n")
        picture(rows, options.out / "ratios.png")


if __name__ == "__main__":
    main()
