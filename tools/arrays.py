"""JPEGs of an .npz file as arrays of pixels, split within classes, for `bgn ... --data OUT`.

    python tools/arrays.py mini_imagenet84.npz mini20.npz --classes 20 --train 90

The first images of each class are for training (the laboratory holds some of these out for
validation), the rest for testing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

from bgn_lab.data import images, jpegs
from bgn_lab.system import files


def main(arguments: list[str] | None = None) -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="an .npz of JPEGs, as tools/class_folders.py reads"
    )
    parser.add_argument("out", type=Path, help="an .npz of arrays to make")
    parser.add_argument(
        "--split",
        default="train",
        help="the part of the file to take classes from (default: train)",
    )
    parser.add_argument(
        "--classes", type=int, help="take the first so many classes of that part (default: all)"
    )
    parser.add_argument(
        "--train", type=int, default=100, help="training images of each class (default: 100)"
    )
    parser.add_argument("--size", type=int, default=64, help="pixels of a side (default: 64)")
    options = parser.parse_args(arguments)
    source = jpegs.read(options.source)
    parts = source["split_names"].tolist()
    if options.split not in parts:
        parser.error(
            f"split={options.split!r} is not in {options.source}; "
            f"expected one of {', '.join(parts)}"
        )
    for name in ("classes", "train", "size"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"{name}={getattr(options, name)} is not positive")
    labels, inside = source["labels"], source["split"] == parts.index(options.split)
    chosen = np.unique(labels[inside])[: options.classes]
    if least := [k for k in chosen if (inside & (labels == k)).sum() <= options.train]:
        parser.error(f"train={options.train} leaves no test images of {source['wnids'][least[0]]}")
    found: dict[str, list[object]] = {"x_train": [], "y_train": [], "x_test": [], "y_test": []}
    for label, own in enumerate(chosen):
        for number, i in enumerate(np.flatnonzero(inside & (labels == own))):
            with images.open_image(io.BytesIO(jpegs.raw(source, int(i))), ["JPEG"]) as image:
                small = image.convert("RGB").resize(
                    (options.size, options.size), Image.Resampling.BOX, reducing_gap=3.0
                )
            part = "train" if number < options.train else "test"
            found[f"x_{part}"].append(np.asarray(small))
            found[f"y_{part}"].append(label)
    content = io.BytesIO()
    arrays = {
        name: np.stack(values) if name[0] == "x" else np.array(values)  # type: ignore[arg-type]
        for name, values in found.items()
    }
    names = source.get(jpegs.NAMES, source["wnids"])[chosen]
    np.savez_compressed(content, class_names=names, **arrays)  # type: ignore[arg-type]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    files.write(options.out, content.getvalue())
    print({name: values.shape for name, values in arrays.items()})


if __name__ == "__main__":
    main()
