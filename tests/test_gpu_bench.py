"""The benchmark for GPUs, tried out on the CPU: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.gpu import run
from benchmarks.gpu.rivals import LAYERS, fits
from benchmarks.gpu.run import Row, main, table


def test_it_writes_a_table_and_all_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", "cpu", "--rounds", "1", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    (row,) = found["rows"]
    assert set(row["times"]) | set(row["missing"]) == {r.name for r in LAYERS} | {"floor"}
    assert all(time > 0 for time in row["times"].values())
    assert "bgn / nn.BatchNorm2d, native" in (tmp_path / "table.md").read_text()
    assert "bgn / floor" in capsys.readouterr().out


def test_it_goes_on_with_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same device and versions; a damaged or another's record is written anew."""
    record, arguments = tmp_path / "results.json", ["--device", "cpu", "--rounds", "1"]
    for before, resumes in [("", False), (None, True), ("{", False), ("other", False)]:
        if before == "other":
            found = json.loads(record.read_text())
            found["about"]["torch"] = "1.0"
            record.write_text(json.dumps(found))
        elif before is not None:
            record.write_text(before)
        assert main([*arguments, "--out", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert ("it goes on with the others" in said) == resumes
        assert ("'floor':" in said) == (not resumes)
        assert len(json.loads(record.read_text())["rows"]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "'cuda', but this torch sees no GPU; accepted: cpu" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--rounds", "0"])
    assert "--rounds: 0; accepted: at least 1" in capsys.readouterr().err


def test_ratios_are_means_over_maps() -> None:
    rows = [
        Row(shape, 2, 1, "float32", "contiguous", "eager", {"bgn": 2.0, "floor": theirs}, {})
        for shape, theirs in (("8x1x1", 1.0), ("8x2x2", 4.0))
    ]
    line = "| eager | float32 | contiguous | bgn / floor | 1.00 | 2.00 | 2x8x1x1 | 2 |"
    assert line in table(rows)


def test_who_cannot_take_part_says_why() -> None:
    rivals = {rival.name: rival for rival in LAYERS}
    assert "not installed" in fits(rivals["apex GN(32)"], 64, "channels_last", "cuda")
    assert "do not divide" in fits(rivals["nn.GroupNorm(32)"], 100, "contiguous", "cuda")
    assert fits(rivals["bgn"], 100, "contiguous", "cuda") == ""
    assert run.clocks() is not None
