"""Draw what grows with the number of processes: collectives, stragglers, decoding.

    python -m docs.figures.scale

reads results/sync/ and writes docs/assets/scale.png; prints the figures of docs/scale.md.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from benchmarks.collectives import messages
from docs.figures import style

WORKERS = (8, 64, 512)
LAYERS, GROUPS, PARAMETERS = 53, 512, 25_557_032  # ResNet-50, one G in all layers
STEP = 0.040  # seconds of a worker's step without any network: assumed
RATE, BYTES = 1000, 110e3  # images/s of a device, and bytes of a JPEG of ImageNet: assumed
LINKS = {  # alpha in seconds, beta in bytes a second
    "fast": (5e-6, 25e9),
    "Ethernet": (30e-6, 1.25e9),
    "Internet": (20e-3, 12.5e6),
}
JITTER, SEED, STEPS = 0.1, 0, 200  # of a layer's time: its deviation, assumed; steps simulated


def collective(P: int, name: str, size: float, link: tuple[float, float], tree: bool) -> float:
    """Seconds of a collective: a ring's, or a tree's with log2 P rounds."""
    alpha, beta = link
    count, sent = messages(P, name, int(size))
    if tree:
        count = (2 if name == "all_reduce" else 1) * math.ceil(math.log2(P))
    return alpha * count + sent / beta


def sync(P: int, link: tuple[float, float], tree: bool = False) -> float:
    """Seconds a step of statistics across P processes: an all-gather and an all-reduce a layer."""
    gather = collective(P, "all_gather", 4 * 3 * GROUPS, link, tree)
    return LAYERS * (gather + collective(P, "all_reduce", 4 * 2 * GROUPS, link, tree))


def gradients(P: int, link: tuple[float, float], tree: bool = False) -> float:
    """Seconds a step of the gradients, not hidden behind anything."""
    return collective(P, "all_reduce", 4 * PARAMETERS, link, tree)


def stragglers(P: int, every_layer: bool) -> float:
    """A step's time among P processes, relative to one's, by simulation.

    Each layer takes 1 in the mean, forward and backward, with deviation JITTER. All wait for the
    slowest process after every layer, or once a step.
    """
    draws = np.random.default_rng(SEED)
    times = 1 + JITTER * draws.standard_normal((STEPS, P, 2 * LAYERS))
    waited = times.max(1).sum(1) if every_layer else times.sum(2).max(1)
    return float(waited.mean() / (2 * LAYERS))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((style.RESULTS / "sync" / name).read_text())
    return found


def main() -> None:
    """Print the tables and draw the picture."""
    known = read("collectives.json")
    here = known["alpha_us"] * 1e-6, known["beta_gb"] * 1e9
    links = {"gloo, loopback": here, **LINKS}
    for tree in (False, True):
        print("tree" if tree else "ring", "| sync at 8, 64, 512, ms | gradients at 8, 64, 512, ms")
        for name, link in links.items():
            rows = [
                " | ".join(f"{1e3 * cost(P, link, tree):,.1f}" for P in WORKERS)
                for cost in (sync, gradients)
            ]
            print(f"| {name} | {' | '.join(rows)} |")
    for every in (True, False):
        shown = ", ".join(f"{P}: {stragglers(P, every):.3f}" for P in (*WORKERS,))
        print("stragglers,", "every layer" if every else "once a step", shown)
    decode = read("decoding.json")["images_per_second"]
    for P in WORKERS:
        cores, traffic = P * RATE / decode, P * RATE * BYTES
        print(f"decoding at {P} devices: {cores:,.0f} cores, {traffic / 1e9:,.1f} GB/s")

    figure = style.figure(9, 5.2)
    axes = figure.subplots()
    processes = [2**k for k in range(1, 11)]
    colors = (style.BLUE, style.ORANGE, style.GRAY)
    for color, (name, link) in zip(colors, list(links.items())[:3], strict=True):
        for tree, line in ((False, "-"), (True, "--")):
            times = [1e3 * sync(P, link, tree) for P in processes]
            label = f"{name}, {'tree' if tree else 'ring'}"
            axes.loglog(processes, times, line, color=color, label=label)
    axes.axhline(1e3 * STEP, color="black", lw=1, ls=":")
    axes.text(1024, 0.9e3 * STEP, "a step of 40 ms", ha="right", va="top")
    axes.set_xscale("log", base=2)
    axes.set_xticks([2, *WORKERS], ["2", *map(str, WORKERS)])
    axes.minorticks_off()
    axes.set_xlabel("processes")
    axes.set_ylabel("sync, ms a step")
    axes.legend(frameon=False, fontsize=12, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    style.save(figure, "scale")


if __name__ == "__main__":
    main()
