"""Time this library's normalizers on a GPU beside torch's and others'.

    make bench DEVICE=cuda                           # writes results/gpu/new, and resumes
    python -m benchmarks.gpu.run --quick             # batch 2 alone, eager alone

Every time is the median of calls between two CUDA events, with the L2 cache flushed before each;
the rivals of a row take turns. A step is forward and backward. It runs eager, compiled by
torch.compile, and as a CUDA graph. Ratios are ours by theirs: below 1, this library is faster. The
floor is one ``x + 1`` and one ``x + gy``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bgn
from benchmarks.arguments import folder
from benchmarks.gpu.clock import Clock, clock_of
from benchmarks.gpu.rivals import LAYERS, Rival, fits
from benchmarks.rivals import floor
from benchmarks.shapes import NETWORKS, Shape
from bgn_lab.system.files import write

MODES = ("eager", "compiled", "graph")
SIZES = (2, 8, 32)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
ROUNDS = 30
SAME = ("device", "torch", "cuda", "hip", "info")  # of runs whose rows make one table
PAIRS = (
    ("bgn", "nn.BatchNorm2d, cuDNN"),
    ("bgn", "nn.BatchNorm2d, native"),
    ("bgn", "bgn, aten"),
    ("bgn", "floor"),
    ("bgn, ReLU", "nn.BatchNorm2d, nn.ReLU"),
    ("bgn GN(32)", "nn.GroupNorm(32)"),
    ("bgn GN(32)", "apex GN(32)"),
    ("bgn GN(32)", "Liger GN(32)"),
    ("bgn IN", "nn.InstanceNorm2d"),
)


@dataclass(frozen=True)
class Row:
    """Median microseconds of each rival on one feature map, in one mode."""

    shape: str
    N: int
    G: int
    dtype: str
    layout: str
    mode: str
    times: dict[str, float]
    missing: dict[str, str]
    """Why a rival has no time."""


Step = Callable[[], Any]


def step_of(rival: Rival, layer: nn.Module, x: torch.Tensor, gy: torch.Tensor, mode: str) -> Step:
    """Forward and backward of a layer."""
    leaf = x.detach().requires_grad_()
    leaves = [leaf, *layer.parameters()]
    called: Any = layer
    if mode == "compiled":
        called = torch.compile(layer, dynamic=False)

    def step() -> Any:
        with rival.context():
            return torch.autograd.grad(called(leaf), leaves, gy)

    return _as_graph(step) if mode == "graph" else step


def _as_graph(step: Step) -> Step:
    """The step as one CUDA graph."""
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> Any:
        graph.replay()
        return kept  # its memory belongs to the graph

    return replay


def measure(
    shape: Shape, N: int, dtype: str, layout: str, mode: str, device: str, clock: Clock, rounds: int
) -> Row:
    """All rivals on one feature map."""
    draws = torch.Generator().manual_seed(0)
    x, gy = (
        torch.randn(N, shape.C, shape.H, shape.W, generator=draws)
        .to(device, DTYPES[dtype])
        .contiguous(memory_format=FORMATS[layout])
        for _ in range(2)
    )
    G = bgn.paper_groups(N)
    steps: dict[str, Step] = {}
    missing: dict[str, str] = {}
    torch.compiler.reset()  # what one row compiles is less than torch's limit
    for rival in LAYERS:
        reason = fits(rival, shape.C, layout, device)
        if reason:
            missing[rival.name] = reason
            continue
        try:
            layer = rival.layer(shape.C, G).to(device)
            step = step_of(rival, layer, x, gy, mode)
            step()
            steps[rival.name] = step
        except Exception as error:  # somebody else's kernel: the others are measured all the same
            missing[rival.name] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    if mode == "eager":
        steps["floor"] = floor(x, gy)
    times = clock.times(steps, rounds)
    found = {name: round(1e6 * statistics.median(own), 3) for name, own in times.items()}
    return Row(str(shape), N, G, dtype, layout, mode, found, missing)


def table(rows: Sequence[Row]) -> str:
    """Geometric mean and worst of every pair, by mode, dtype and layout, as Markdown."""
    lines = [
        "| mode | dtype | layout | ours / theirs | mean | worst | at | maps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    settings = list(dict.fromkeys((row.mode, row.dtype, row.layout) for row in rows))
    for setting in settings:
        own = [row for row in rows if (row.mode, row.dtype, row.layout) == setting]
        for ours, theirs in PAIRS:
            both = [
                (row.times[ours] / row.times[theirs], f"{row.N}x{row.shape}")
                for row in own
                if ours in row.times and theirs in row.times
            ]
            if both:
                mean = statistics.geometric_mean([ratio for ratio, _ in both])
                worst, at = max(both)
                cells = *setting, f"{ours} / {theirs}", f"{mean:.2f}", f"{worst:.2f}", at, len(both)
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def about(device: str) -> dict[str, Any]:
    """What a reader of the figures must know."""
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "info": str(bgn.info()),
        "clocks": clocks(),
    }
    if device == "cuda":
        cudnn: Any = torch.backends.cudnn
        own = torch.cuda.get_device_properties(0)
        found |= {
            "device": own.name,
            "multiprocessors": own.multi_processor_count,
            "cudnn": cudnn.version(),
        }
    return found


def clocks() -> str:
    """Clocks, power and temperature now, as the driver tells; empty where no tool is found."""
    fields = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,driver_version"
    for command in (
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"],
        ["rocm-smi", "--showclocks"],
    ):
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        return said.stdout.strip()
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the command out")
    add("--out", type=folder, metavar="FOLDER", help="folder for table.md and results.json")
    add("--quick", action="store_true", help="batch 2, eager, float32, contiguous")
    add("--rounds", type=int, default=ROUNDS, help=f"calls of each rival (default: {ROUNDS})")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: 'cuda', but this torch sees no GPU; accepted: cpu, to try")
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}; accepted: at least 1")
    few = options.quick or options.device == "cpu"
    settings = [
        (N, dtype, layout, mode)
        for mode in (MODES[:1] if few else MODES)
        for layout in (list(FORMATS)[:1] if few else FORMATS)
        for dtype in (list(DTYPES)[:1] if few else DTYPES)
        for N in (SIZES[:1] if few else SIZES)
    ]
    shapes = NETWORKS["resnet50"]
    if options.device == "cpu":
        shapes = [Shape(32, 4, 4, 1)]
    facts, clock = about(options.device), clock_of(options.device)
    rows = [] if options.out is None else earlier(options.out, facts)
    done = {(row.shape, row.N, row.dtype, row.layout, row.mode) for row in rows}
    for N, dtype, layout, mode in settings:
        for shape in shapes:
            if (str(shape), N, dtype, layout, mode) in done:
                continue
            row = measure(shape, N, dtype, layout, mode, options.device, clock, options.rounds)
            rows.append(row)
            print(f"{N}x{shape} {dtype} {layout} {mode}: {row.times}", flush=True)
            if options.out is not None:
                save(facts, rows, options.out)
    print(table(rows))
    return 0


def earlier(out: Path, facts: dict[str, Any]) -> list[Row]:
    """Rows of an earlier run into the same folder, of this device and these versions."""
    try:
        kept = json.loads((out / "results.json").read_text())
        same = all(kept["about"].get(name) == facts.get(name) for name in SAME)
        rows = [Row(**row) for row in kept["rows"]] if same else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if rows:
        print(f"{len(rows)} rows are in {out}: it goes on with the others", flush=True)
    return rows


def save(facts: dict[str, Any], rows: Sequence[Row], out: Path) -> None:
    """Write results.json and table.md."""
    out.mkdir(parents=True, exist_ok=True)
    facts = {**facts, "clocks at the end": clocks()}
    found = {"about": facts, "rows": [asdict(row) for row in rows]}
    write(out / "results.json", json.dumps(found, indent=1) + "\n")
    told = "\n".join(f"- {name}: {value}" for name, value in facts.items() if name != "info")
    text = f"# Benchmark on a GPU\n\n{told}\n\n```text\n{facts['info']}\n```\n\n{table(rows)}\n"
    write(out / "table.md", text)


if __name__ == "__main__":
    sys.exit(main())
