"""Readers of files that are damaged, forged, or no files at all; and what a fuzzer found.

Each reader takes its files or names what is wrong. See :mod:`tests.lab.fuzz_readers`.
"""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.ledger import Ledger
from torch import nn

from bgn_lab.experiments.nas import genotype
from bgn_lab.models import pretrained
from bgn_lab.system import files, reading
from bgn_lab.training import checkpoint, record
from tests.lab import fuzz_readers, fuzz_seeds
from tests.lab.fuzz_seeds import READERS, Reader
from tests.lab.mutations import with_header
from tests.lab.watching import Offense, watched

BY_NAME = {reader.name: reader for reader in READERS}


def test_damaged_files(tmp_path: Path) -> None:
    """The same cases every time, a second or two of them."""
    counts, found = fuzz_readers.fuzz(tmp_path, 31, lambda number: number >= 80)
    assert not found
    assert counts["refused"] > 30
    assert counts["read"] > 5, "some damage is none"


@pytest.mark.slow
def test_many_damaged_files(tmp_path: Path) -> None:
    counts, found = fuzz_readers.fuzz(tmp_path, 32, lambda number: number >= 4000)
    assert not found
    assert counts["refused"] > 1000


def test_the_watch_sees_what_no_reader_may_do(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("mine")

    def pipe() -> None:
        os.mkfifo(inside / "pipe")
        (inside / "pipe").read_bytes()

    offenses: dict[str, Callable[[], Any]] = {
        "open": lambda: outside.open("a").close(),
        "os.remove": lambda: outside.with_name("none").unlink(missing_ok=True),
        "os.system": lambda: os.system("true"),
        "it took more than 0.5 s": pipe,
        "it took more than 2048 MB": lambda: bytearray(3 << 30),
    }
    for what, call in offenses.items():
        with pytest.raises(Offense, match=what), watched(inside, seconds=0.5):
            call()
    with watched(inside):
        (inside / "own").write_text("fine")


def whole(reader: Reader, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    reader.make(folder)
    return folder


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


SPECIAL: dict[str, Callable[[Path, Path], Any]] = {
    "pipe": pipe,
    "folder": lambda path, _: path.mkdir(),
    "endless": lambda path, _: path.symlink_to("/dev/zero"),
    "dangling": lambda path, _: path.symlink_to("nowhere"),
    "link": lambda path, outside: path.symlink_to(outside),
    "huge": lambda path, _: (path.touch(), os.truncate(path, 1 << 36)),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    """A pipe, a device, a link to a file elsewhere, ... in the place of every file in turn."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    refused, offenses = 0, []
    for reader in READERS:
        names = sorted(
            path.relative_to(tmp_path / reader.name)
            for path in whole(reader, tmp_path / reader.name).rglob("*")
            if path.is_file()
        )
        for number, name in enumerate(names[:: max(1, len(names) // 6)]):
            place = whole(reader, tmp_path / f"{reader.name}-{number}")
            (place / name).unlink()
            SPECIAL[kind](place / name, outside)
            target = "/dev/zero" if kind == "endless" else outside.name
            try:
                refused += bool(fuzz_readers.read(reader, place, target))
            except Offense as error:
                offenses.append(f"{reader.name}, {name}: {error}")
    assert not offenses
    assert outside.read_text() == "mine"
    assert refused > 20


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "metrics.jsonl").symlink_to(outside)
    with pytest.raises(OSError, match=r"metrics\.jsonl cannot be written"):
        files.append(tmp_path / "metrics.jsonl", "{}\n")
    draft = tmp_path / f".result.json.{os.getpid()}{files.DRAFT}"
    for name in (draft, tmp_path / "result.json"):
        name.symlink_to(outside)
    files.write_json(tmp_path / "result.json", {})
    assert (tmp_path / "result.json").read_text() == "{}\n"
    assert outside.read_text() == "mine"


def zipped(path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """An archive with another member in the place of one."""
    with zipfile.ZipFile(path) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for one, content in members.items():
            archive.writestr(one, change(content) if one.endswith(name) else content)


def test_weights_that_unpack_to_more_than_memory(tmp_path: Path) -> None:
    place = whole(BY_NAME["pth"], tmp_path / "pth")
    zipped(place / "net.pth", "data/0", lambda _: bytes(5 << 27))
    assert (place / "net.pth").stat().st_size < 1 << 24
    with watched(place), pytest.raises(ValueError, match=r"net\.pth needs 671 MB of memory"):
        BY_NAME["pth"].read(place)


@pytest.mark.parametrize(
    "odd",
    [
        torch.zeros(4).to_sparse(),
        torch.zeros(4, device="meta"),
        torch.zeros(4, dtype=torch.complex64),
    ],
    ids=["sparse", "meta", "complex"],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_of_other_kinds(tmp_path: Path, odd: torch.Tensor) -> None:
    state = fuzz_seeds._network(nn.BatchNorm2d).state_dict()
    torch.save({**state, "bn1.weight": odd}, tmp_path / "net.pth")
    message = r"net\.pth (has bn1\.weight; expected dense|cannot be read: damaged, or more)"
    with watched(tmp_path), pytest.raises(ValueError, match=message):
        BY_NAME["pth"].read(tmp_path)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("old", [False, True])
def test_weights_are_not_executed(tmp_path: Path, old: bool) -> None:
    torch.save(
        {"a": torch.zeros(1), "b": Trap(tmp_path / "executed")},
        tmp_path / "net.pth",
        _use_new_zipfile_serialization=not old,
    )
    with watched(tmp_path), pytest.raises(ValueError, match="damaged, or more than tensors"):
        BY_NAME["pth"].read(tmp_path)
    assert not (tmp_path / "executed").exists()


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A checkpoint with other content beside the tensors, and the right hash."""
    about, tensors = checkpoint._read(path.read_bytes(), path)
    change(about)
    path.write_bytes(checkpoint.encode(tensors, about))


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(about: Any) -> None:
        for part in path[:-1]:
            about = about[part]
        about[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.pop("recipe"), "is damaged .it has no 'recipe'."),
        (lambda about: about.pop("tensors"), "is damaged .it has no 'tensors'."),
        (put("recipe", value=[1]), "is damaged"),
        (put("progress", "epoch", value="3"), "is damaged .epoch='3'; expected int."),
        (put("progress", "score", value={}), "is damaged .it has no 'total'."),
        (put("progress", "new", value=1), "is damaged .new is unknown."),
        (put("version", value=99), "has version 99, this program reads version"),
        (put("version", value="x" * 9999), "has version 'xxxxx.{0,60}…, this program reads"),
        (lambda about: about["optimizer"]["groups"][0].pop("lr"), "optimizer: lr is missing"),
        (put("optimizer", "groups", 0, "lr", value=[]), r"is damaged .lr=\[\]; expected float."),
        (put("optimizer", "groups", 0, "lr", value="nan"), "is damaged .lr='nan'; expected float."),
        (put("optimizer", "groups", 0, "dampening", value=2**63), "optimizer has dampening=92"),
        (put("optimizer", "groups", 0, "nesterov", value=1), "optimizer has nesterov=1"),
        (put("optimizer", "scalars", value={"99": {"step": 1}}), "values for parameter 99"),
        (put("optimizer", "scalars", value={"0": {"step": "x"}}), "is damaged .optimizer: 0="),
    ],
)
def test_forged_checkpoints(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    """Whose hash is right."""
    fuzz_seeds._checkpoint(tmp_path)
    fuzz_seeds._restore(tmp_path)
    rewritten(tmp_path / checkpoint.NAME, change)
    with pytest.raises(ValueError, match=message) as caught:
        fuzz_seeds._restore(tmp_path)
    assert str(tmp_path / checkpoint.NAME) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "change",
    [
        put("__metadata__", checkpoint._MARK, value=5),
        put("model.0.weight", "shape", value=[-4, 3]),
        put("model.0.weight", "data_offsets", value=[0, -1]),
        put("model.0.weight", "dtype", value=None),
    ],
)
def test_forged_headers(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    fuzz_seeds._checkpoint(tmp_path)
    path = tmp_path / checkpoint.NAME
    content = path.read_bytes()
    end = checkpoint._header_end(content)
    header = json.loads(content[8:end])
    path.write_bytes(with_header(header, content[end:]))
    fuzz_seeds._restore(tmp_path)
    change(header)
    path.write_bytes(with_header(header, content[end:]))
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        fuzz_seeds._restore(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (record.RECIPE, '{"experiment": "classification", "flavor": 1}'),
        (record.RECIPE, '{"limit": "many"}'),
        (record.RECIPE, "[" * 50_000),
        (record.RECIPE, '{"device": ""}'),
        (record.ABOUT, '{"sessions": 3}'),
        (record.ABOUT, "\udcff"),
        (record.METRICS, "[]\n"),
        (record.METRICS, '{"epoch"\n'),
        (record.DATA, "NaN"),
    ],
)
def test_a_run_that_goes_on_names_what_is_damaged(name: str, content: str, tmp_path: Path) -> None:
    fuzz_seeds._resumable(tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=f"{folder / name} is damaged"):
        fuzz_seeds._resume(tmp_path)
    if name in (record.RECIPE, record.ABOUT, record.DATA):
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("stem", ["../../secret", "/etc/hosts", "a/b", "x" * 300])
def test_lists_of_voc_name_no_files_elsewhere(stem: str, tmp_path: Path) -> None:
    place = whole(BY_NAME["voc"], tmp_path / "voc")
    (place / "ImageSets/Segmentation/train.txt").write_text(f"0\n{stem}\n")
    with pytest.raises(ValueError, match=r"train\.txt has the line .*; expected names of images"):
        BY_NAME["voc"].read(place)


def test_letters_beyond_unicode(tmp_path: Path) -> None:
    place = whole(BY_NAME["arrays"], tmp_path / "arrays")
    zipped(place / "own.npz", "class_names.npy", lambda raw: raw[:-4] + b"\xff" * 4)
    with pytest.raises(ValueError, match=r"own\.npz: class_names has letters beyond Unicode"):
        BY_NAME["arrays"].read(place)


def test_more_names_than_a_mask_has_values(tmp_path: Path) -> None:
    x, y = np.zeros((2, 8, 8), np.uint8), np.zeros((2, 8, 8), np.uint8)
    names = np.array([f"class {k}" for k in range(300)])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, class_names=names)
    with pytest.raises(ValueError, match=r"own\.npz has 300 class_names; expected at most 255"):
        BY_NAME["labeled-arrays"].read(tmp_path)


def test_texts_of_others_are_quoted_in_short(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"normal": "x" * 9999, "reduction": []}))
    with pytest.raises(ValueError, match=r"found\.json holds no genotype") as caught:
        genotype.find(str(path))
    assert len(str(caught.value)) < 1000
    (tmp_path / "ledger.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match=r"ledger\.jsonl is damaged"):
        Ledger(tmp_path / "ledger.jsonl")
    (tmp_path / "net.safetensors").write_bytes(b"\x10\x27" + bytes(6) + b'"' + b"x" * 9998 + b'"')
    with pytest.raises(ValueError, match=r"net\.safetensors cannot be read") as caught:
        pretrained._read(tmp_path / "net.safetensors")
    assert len(str(caught.value)) < 1000


def test_counts_of_others_are_quoted_in_short(tmp_path: Path) -> None:
    fuzz_seeds._resumable(tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / record.DATA).write_text(json.dumps({"train": ["x" * 9999]}))
    with pytest.raises(ValueError, match=r"the data changed .* \(x{19}… images then") as caught:
        fuzz_seeds._resume(tmp_path)
    assert len(str(caught.value)) < 1000


def test_a_text_larger_than_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read: it has 1,100 GB"):
        reading.read_text(path)
