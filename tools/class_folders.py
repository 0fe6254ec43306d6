"""Unpack JPEGs from an .npz file into class folders for `bgn ... --data imagenet --root OUT`.

    python tools/class_folders.py images.npz out --classes 10

Image i of the file is the JPEG jpeg[offsets[i]:offsets[i + 1]], of the class wnids[labels[i]], in
the part split_names[split[i]]. The last images of each class go to out/val, the others to
out/train; the bytes stay as they are. OUT is there as a whole or not at all.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bgn_lab.data import jpegs


def chosen(arrays: dict[str, Any], part: str, classes: int | None) -> dict[str, list[int]]:
    """The places of the images of a part, by class; of the first classes only."""
    names = arrays["split_names"].tolist()
    if part not in names:
        raise ValueError(f"--split {part} is not known; accepted: {', '.join(names)}")
    inside = arrays["split"] == names.index(part)
    labels = np.unique(arrays["labels"][inside]).tolist()
    wanted = len(labels) if classes is None else classes
    if not 2 <= wanted <= len(labels):
        raise ValueError(
            f"--classes {wanted} is out of range; "
            f"expected 2 to {len(labels)}, the classes of {part}"
        )
    return {
        arrays["wnids"][k].item(): np.flatnonzero(inside & (arrays["labels"] == k)).tolist()
        for k in labels[:wanted]
    }


def held_out(count: int, share: float) -> int:
    """How many of a class are for testing: a share, but at least one, and not all."""
    if not 0 < share < 1 or count < 2:
        raise ValueError(
            f"--test-share {share} of a class of {count} images; "
            "expected a share between 0 and 1, of two images or more"
        )
    return min(max(round(share * count), 1), count - 1)


def write(
    arrays: dict[str, Any], classes: dict[str, list[int]], share: float, out: Path
) -> dict[str, int]:
    """Fill a draft beside ``out`` and rename it; how many images each part has."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"{out} is there and not empty; expected a folder that does not exist yet, or is empty"
        )
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    counts = {"train": 0, "val": 0}
    try:
        for wnid, own in classes.items():
            held = held_out(len(own), share)
            for part, images in (("train", own[:-held]), ("val", own[-held:])):
                folder = draft / part / wnid
                folder.mkdir(parents=True)
                for i in images:
                    (folder / f"{wnid}_{i}.JPEG").write_bytes(jpegs.raw(arrays, i))
                counts[part] += len(images)
        if out.exists():
            out.rmdir()  # it is empty; not every system renames to a folder that is there
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return counts


def main(arguments: list[str] | None = None) -> None:
    """Read, choose, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="an .npz file of JPEGs")
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument(
        "--split",
        default="train",
        help="the part of the file to take classes from (default: train)",
    )
    parser.add_argument(
        "--classes", type=int, help="take the first so many classes of that part (default: all)"
    )
    parser.add_argument(
        "--test-share",
        type=float,
        default=0.2,
        help="share of each class that goes to val (default: 0.2)",
    )
    given = parser.parse_args(arguments)
    try:
        arrays = jpegs.read(given.file)
        classes = chosen(arrays, given.split, given.classes)
        counts = write(arrays, classes, given.test_share, given.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(
        f"{given.out}: {len(classes)} classes, "
        f"{counts['train']:,} images in train, {counts['val']:,} in val"
    )


if __name__ == "__main__":
    main()
