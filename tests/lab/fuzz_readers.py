"""Every reader of the laboratory, given files that are damaged at random.

    python -m tests.lab.fuzz_readers --seconds 600 --seed 7   # random cases; the seed is printed
    python -m tests.lab.fuzz_readers --case 7:123             # one of them again

A reader takes what it is given, or raises a ValueError or OSError that names the file. It executes
nothing, changes nothing outside of its folder, and neither hangs nor takes all memory.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.lab.fuzz_seeds import READERS, Reader
from tests.lab.mutations import mutated
from tests.lab.watching import Offense, watched


class Seeds:
    """Whole files of every reader, made once and copied for each case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Path] = {}

    def __getitem__(self, reader: Reader) -> Path:
        if reader.name not in self.made:
            place = self.folder / f"whole-{reader.name}"
            place.mkdir()
            reader.make(place)
            self.made[reader.name] = place
        return self.made[reader.name]


def run_case(seeds: Seeds, seed: int, number: int, readers: tuple[Reader, ...] = READERS) -> str:
    """Damage files and read them; the error, or "" where they were read in spite of it."""
    draw = random.Random(f"{seed}:{number}")
    reader = draw.choice(readers)
    # a name of its own, for what is cached by path
    place = seeds.folder / f"case-{seed}-{number}"
    shutil.copytree(seeds[reader], place)
    try:
        warnings.simplefilter("ignore")  # zipfile's, of members of the same name
        names = sorted(p.relative_to(place) for p in place.rglob("*") if p.is_file())
        for name in draw.sample(names, draw.choice([1, 1, 1, min(2, len(names))])):
            path = place / name
            path.write_bytes(mutated(draw, path.read_bytes(), path.name))
        return read(reader, place)
    except Offense as error:
        raise Offense(f"case {seed}:{number}, {reader.name}: {error}") from error
    finally:
        shutil.rmtree(place)


def read(reader: Reader, place: Path, target: str = "") -> str:
    """Read a folder under watch; the refusal, if there is one.

    It names a file of the folder, or the target of a link in it.
    """
    before = None if reader.writes else contents(place)
    refusal = ""
    with watched(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader.read(place)
        except (ValueError, OSError) as error:
            refusal = str(error) or repr(error)
            shown = f"{refusal} {getattr(error, 'filename', '')}"
            if place.name not in shown and not (target and target in shown):
                raise Offense(f"no file is named: {type(error).__name__}: {refusal}") from error
            if isinstance(error, UnicodeError):
                raise Offense(f"an error of the codec: {refusal}") from error
            if len(refusal) > 3000:
                raise Offense(f"{len(refusal)} characters: {refusal[:300]}") from error
        except (MemoryError, AssertionError):
            raise
        except Exception as error:
            raise Offense(f"{type(error).__name__}: {error}") from error
    if before is not None and contents(place) != before:
        raise Offense("files were changed")
    return refusal


def contents(place: Path) -> dict[str, bytes]:
    """All files of a size that a test makes, by name."""
    files = (p for p in sorted(place.rglob("*")) if p.is_file() and p.stat().st_size < 1 << 30)
    return {str(p): p.read_bytes() for p in files}


def fuzz(
    folder: Path, seed: int, until: Callable[[int], bool], readers: tuple[Reader, ...] = READERS
) -> tuple[Counter[str], list[Offense]]:
    """Cases until told to stop: how many were read and refused, and what went wrong."""
    seeds, counts, found = Seeds(folder), Counter[str](), list[Offense]()
    number = 0
    while not until(number):
        try:
            counts["refused" if run_case(seeds, seed, number, readers) else "read"] += 1
        except Offense as error:
            found.append(error)
        number += 1
    return counts, found


def main(words: list[str] | None = None) -> int:
    """Print what went wrong; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long, about")
    parser.add_argument("--seed", type=int, help="of the cases; by default a new one")
    parser.add_argument("--case", help="one case, as SEED:NUMBER, with its traceback")
    parser.add_argument("--reader", help="one reader alone; a case is another one then")
    given = parser.parse_args(words)
    readers = tuple(r for r in READERS if given.reader in (None, r.name))
    if not readers:
        parser.error(f"--reader {given.reader}: expected one of {', '.join(map(str, READERS))}")
    with tempfile.TemporaryDirectory() as name:
        if given.case:
            seed, number = map(int, given.case.split(":"))
            print(run_case(Seeds(Path(name)), seed, number, readers) or "read")
            return 0
        seed = int.from_bytes(os.urandom(3), "big") if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        end = time.monotonic() + given.seconds
        counts, found = fuzz(Path(name), seed, lambda _: time.monotonic() > end, readers)
    for error in found:
        print(error)
    shown = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"{counts.total() + len(found):,} cases: {shown}, {len(found):,} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
