"""Fine-tune a pretrained BN network at batch size 2: with BN, frozen BN, GN, and BGN by conversion.

    python examples/finetune_batch_2.py --data DIR --out results/finetune-batch-2

A residual network with BN is pretrained at batch size 64 on miniImageNet's 64 training classes
(32x32), then gets a new head and is fine-tuned at batch size 2 on 2,000 CIFAR-10 images. The
learning rate of each method is chosen on 2,000 further training images with seed 0. The table has
the accuracy over 6 seeds on 2,000 test images, which nothing was chosen on, with its standard
deviation, and the difference to BN, seed by seed, with its 95 % interval (Student's t). DIR holds
mini_imagenet84.npz and cifar10_12k.npz. On two cores it takes an hour. Finished runs are kept in
--out; run the same command to resume.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import stats
from torch import Tensor, nn

import bgn

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
SEEDS = (0, 1, 2, 3, 4, 5)
EPOCHS, BATCH = 2, 2
WIDTH, PRETRAINING = 16, 20


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = (
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.conv2, self.norm2 = (
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.skip: nn.Module = nn.Identity()
        if inside != outside:
            self.skip = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.skip(x))


def network(classes: int) -> nn.Sequential:
    """Three stages of two blocks, WIDTH to 4 * WIDTH channels, 0.2 million parameters."""
    W = WIDTH
    stem = [nn.Conv2d(3, W, 3, 1, 1, bias=False), nn.BatchNorm2d(W), nn.ReLU()]
    widths = [
        (W, W, 1),
        (W, W, 1),
        (W, 2 * W, 2),
        (2 * W, 2 * W, 1),
        (2 * W, 4 * W, 2),
        (4 * W, 4 * W, 1),
    ]
    blocks = [Block(*width) for width in widths]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * W, classes)
    )


METHODS: dict[str, Any] = {
    "BN": lambda net: net,
    "BN, frozen": bgn.freeze,
    "GN, G = 32": lambda net: bgn.convert(net, "gn", num_groups=32),
    "BGN, G = 1 (the paper's)": lambda net: bgn.convert(net, num_groups=1),
    "BGN, G = 8": lambda net: bgn.convert(net, num_groups=8),
    "BGN, N*S >= 512": lambda net: bgn.convert(net, num_groups=enough_instances(net, 512)),
    "BN, renorm": lambda net: bgn.convert(net, num_groups="channels", renorm=True),
    "BGN, G = 1, renorm": lambda net: bgn.convert(net, num_groups=1, renorm=True),
    "BGN, G = 8, renorm": lambda net: bgn.convert(net, num_groups=8, renorm=True),
}


def enough_instances(net: nn.Module, least: int) -> Any:
    """Per layer the largest G that divides C with at least so many instances per statistic."""
    positions = {row.layer: row.D // row.shape[0] for row in bgn.describe(net, (3, 32, 32), BATCH)}
    sizes = {layer: positions[name] for name, layer in net.named_modules() if name in positions}

    def groups(layer: Any) -> int:
        C = layer.num_features
        good = [G for G in range(1, C + 1) if C % G == 0 and BATCH * sizes[layer] * C // G >= least]
        return max(good, default=1)

    return groups


def load(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    mini = np.load(folder / "mini_imagenet84.npz")
    keep = np.flatnonzero(mini["split"] == list(mini["split_names"]).index("train"))
    jpeg, offsets = mini["jpeg"].tobytes(), mini["offsets"]
    images = [
        Image.open(io.BytesIO(jpeg[offsets[i] : offsets[i + 1]])).convert("RGB").resize((32, 32))
        for i in keep
    ]
    labels = torch.from_numpy(np.unique(mini["labels"][keep], return_inverse=True)[1])
    cifar = np.load(folder / "cifar10_12k.npz")
    order = np.random.default_rng(0).permutation(len(cifar["x_train"]))
    tune, validate = order[:2000], order[2000:4000]
    return {
        "pretrain": (pixels(np.stack([np.asarray(image) for image in images])), labels.long()),
        "train": (pixels(cifar["x_train"][tune]), torch.from_numpy(cifar["y_train"][tune]).long()),
        "validation": (
            pixels(cifar["x_train"][validate]),
            torch.from_numpy(cifar["y_train"][validate]).long(),
        ),
        "test": (pixels(cifar["x_test"]), torch.from_numpy(cifar["y_test"]).long()),
    }


def pixels(images: Any) -> Tensor:
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor([0.473, 0.449, 0.403]).view(3, 1, 1)) / 0.27


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to 4 pixels, mirror every other image."""
    padded = nn.functional.pad(x, (4, 4, 4, 4))
    shifts = torch.randint(9, (len(x), 2), generator=generator).tolist()
    flips = (torch.rand(len(x), generator=generator) < 0.5).tolist()
    crops = [image[:, i : i + 32, j : j + 32] for image, (i, j) in zip(padded, shifts, strict=True)]
    return torch.stack(
        [crop.flip(2) if flip else crop for crop, flip in zip(crops, flips, strict=True)]
    )


def train(
    net: nn.Module, data: tuple[Tensor, Tensor], batch: int, epochs: int, rate: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = data
    optimizer = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], rate, momentum=0.9, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(x) // batch))
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // batch * batch].split(
            batch
        ):
            loss = nn.functional.cross_entropy(net(augment(x[rows], generator)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(net: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    net.eval()
    x, y = data
    right = sum(
        (net(a).argmax(1) == b).sum().item()
        for a, b in zip(x.split(500), y.split(500), strict=True)
    )
    return 100 * right / len(y)


def fine_tune(job: tuple[str, float, int, str, Path]) -> tuple[str, float, int, str, float]:
    """One run; its result is a file, so that an interrupted study goes on where it was."""
    method, rate, seed, split, out = job
    path = (
        out
        / "runs"
        / f"{method}_{rate}_{seed}_{split}.json".replace(" ", "")
        .replace("/", "over")
        .replace("*", "")
    )
    if not path.exists():
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        data = torch.load(out / "data.pt", weights_only=True)
        net = network(64)
        net.load_state_dict(torch.load(out / "pretrained.pt", weights_only=True))
        torch.manual_seed(seed)
        net[-1] = nn.Linear(4 * WIDTH, 10)
        net = METHODS[method](net)
        train(net, data["train"], BATCH, EPOCHS, rate, seed)
        path.parent.mkdir(exist_ok=True)
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps({"accuracy": accuracy(net, data[split])}))
        scratch.rename(path)
    return method, rate, seed, split, json.loads(path.read_text())["accuracy"]


def run(jobs: list[Any], label: str) -> list[tuple[str, float, int, str, float]]:
    begin, results = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for result in pool.imap_unordered(fine_tune, jobs):
            results.append(result)
            left = (time.monotonic() - begin) / len(results) * (len(jobs) - len(results))
            print(
                f"{label} {len(results)}/{len(jobs)}, {left / 60:.0f} min left: {result}",
                flush=True,
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with mini_imagenet84.npz and cifar10_12k.npz",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and tables")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "pretrained.pt").exists():
        data = load(options.data)
        torch.save(data, out / "data.pt")
        torch.manual_seed(0)
        net = network(64)
        begin = time.monotonic()
        train(net, data["pretrain"], 64, PRETRAINING, 0.1, seed=0)
        print(
            f"pretrained in {time.monotonic() - begin:.0f} s, "
            f"training accuracy {accuracy(net, data['pretrain']):.1f} %"
        )
        torch.save(net.state_dict(), out / "pretrained.pt")

    chosen = run([(m, r, 0, "validation", out) for m in METHODS for r in RATES], "learning rate")
    best = {m: max((a, r) for method, r, _, _, a in chosen if method == m)[1] for m in METHODS}
    results = run([(m, best[m], s, "test", out) for m in METHODS for s in SEEDS], "test")

    baseline = {s: a for m, _, s, _, a in results if m == "BN"}
    lines = [
        "| method | learning rate | test accuracy | difference to BN, paired |",
        "|---|---|---|---|",
    ]
    for m in METHODS:
        scores = {s: a for method, _, s, _, a in results if method == m}
        gains = [scores[s] - baseline[s] for s in SEEDS]
        half = stats.t.ppf(0.975, len(SEEDS) - 1) * statistics.stdev(gains) / len(SEEDS) ** 0.5
        gain = "" if m == "BN" else f"{statistics.mean(gains):+.1f} ± {half:.1f}"
        mean, spread = statistics.mean(scores.values()), statistics.stdev(scores.values())
        lines.append(f"| {m} | {best[m]} | {mean:.1f} ± {spread:.1f} | {gain} |")
    (out / "table.md").write_text("\n".join(lines) + "\n")
    rows = [
        {"method": m, "rate": r, "seed": s, "split": split, "accuracy": a}
        for m, r, s, split, a in chosen + results
    ]
    (out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
