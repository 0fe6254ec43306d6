"""The images of the study: part of miniImageNet at 64x64 as arrays, split within classes.

    python -m studies.which_g_data mini_imagenet84.npz runs/which-g/mini20.npz

Of 20 classes 90 images each are for training (of which the laboratory holds some out for validation) and 30 for testing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

from bgn_lab import files
from bgn_lab.data import jpegs

CLASSES, TRAIN, SIZE = 20, 90, 64


def main() -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="an .npz of JPEGs, as tools/class_folders.py reads")
    parser.add_argument("out", type=Path, help="an .npz of arrays, for bgn --data")
    options = parser.parse_args()
    source = jpegs.read(options.source)
    labels, split = source["labels"], source["split"]
    names = source.get(jpegs.NAMES, source["wnids"])
    training = list(source["split_names"]).index("train")
    found: dict[str, list[object]] = {"x_train": [], "y_train": [], "x_test": [], "y_test": []}
    for label, own in enumerate(np.unique(labels[split == training])[:CLASSES]):
        for number, i in enumerate(np.flatnonzero((labels == own) & (split == training))):
            with Image.open(io.BytesIO(jpegs.raw(source, int(i)))) as image:
                pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX, reducing_gap=3.0))
            part = "train" if number < TRAIN else "test"
            found[f"x_{part}"].append(pixels)
            found[f"y_{part}"].append(label)
    content = io.BytesIO()
    arrays = {name: np.stack(values) if name[0] == "x" else np.array(values) for name, values in found.items()}  # type: ignore[arg-type]
    np.savez_compressed(content, class_names=names[:CLASSES], **arrays)  # type: ignore[arg-type]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    files.write(options.out, content.getvalue())
    print({name: values.shape for name, values in arrays.items()})


if __name__ == "__main__":
    main()
