"""What a report concludes: computed by hand from differences, seed by seed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bgn_lab.report import glossary, text
from bgn_lab.report.cells import AHEAD
from bgn_lab.report.collect import collect, read
from bgn_lab.report.comparison import compare
from bgn_lab.report.grid import Comparison
from bgn_lab.report.page import page
from bgn_lab.report.verdict import FEW_SEEDS, advice, noise, verdict
from tests.lab.report_runs import NAN, UNFINISHED, Seeds, make

BN = (60.0, 61.0, 62.0)


def found(folder: Path, rows: dict[str, Seeds], size: int = 2, **settings: Any) -> Comparison:
    """A comparison at one batch size; rows as ``bgn+ws``, those of BGN with G = 1."""
    runs = []
    for norm, seeds in rows.items():
        groups = 1 if "bgn" in norm else None
        for seed, value in enumerate(seeds):
            own = {"norm": norm, "groups": groups, "batch_size": size, "seed": seed, **settings}
            runs.append(read(make(folder, value, **own)))
    (one,) = compare(runs)
    return one


def said(one: Comparison) -> list[str]:
    return [str(sentence) for sentence in verdict(one)]


def test_one_row_leads(tmp_path: Path) -> None:
    ahead = (63.0, 64.2, 65.1)
    one = found(tmp_path, {"bn": BN, "gn": (60.5, 60.4, 62.6), "ln": BN, "bgn+ws": ahead})
    gaps = np.subtract(ahead, BN)
    half = stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps))[1] - gaps.mean()
    assert said(one) == [
        f"At 2 images BGN + WS (G = 1) leads BN by {gaps.mean():.1f} ± {half:.1f} points over"
        " 3 seeds; the others are within noise."
    ]
    apart = one.at("BGN + WS, G = 1", 2).difference
    assert apart is not None
    assert (apart.mean, apart.deviation) == (pytest.approx(gaps.mean()), pytest.approx(half))
    assert advice(one) == ""


def test_pairs_count_and_not_the_spread_of_each(tmp_path: Path) -> None:
    """Seeds differ by 20 points, the rows by 1.0 or 1.1 in every seed: that is no noise."""
    one = found(tmp_path, {"bn": (50.0, 60.0, 70.0), "gn": (51.0, 61.1, 71.0)})
    assert one.at("GN", 2).standing == AHEAD
    assert "GN leads BN by 1.0 ± 0.1 points" in said(one)[0]


def test_rows_that_lead_and_rows_that_trail(tmp_path: Path) -> None:
    rows = {"bn": BN, "in": (57.0, 58.1, 59.0), "ln": (40.0, 41.1, 42.0), "gn": (62.0, 63.1, 64.0),
            "bgn": (63.0, 64.1, 65.0), "pn": (60.0, 60.0, 63.0)}  # fmt: skip
    assert said(found(tmp_path, rows)) == [
        "At 2 images BGN (G = 1) leads BN by 3.0 ± 0.1 points over 3 seeds; so does GN"
        " (+2.0 ± 0.1); LN and IN trail it; PN is within noise."
    ]


def test_bn_leads(tmp_path: Path) -> None:
    rows = {"bn": BN, "in": (57.0, 58.1, 59.0), "ln": (40.0, 41.1, 42.0)}
    assert said(found(tmp_path, rows)) == [
        "At 2 images BN leads every other row by more than noise over 3 seeds,"
        " IN (-3.0 ± 0.1) by least."
    ]


def test_nothing_but_noise(tmp_path: Path) -> None:
    rows = {"bn": BN, "in": (61.0, 60.0, 63.0), "ln": (59.0, 62.0, 60.0)}
    assert said(found(tmp_path / "a", rows)) == [
        "At 2 images every row is within noise of BN over 3 seeds, LN (-0.7 ± 3.8) farthest"
        " from it."
    ]
    del rows["ln"]
    (sentence,) = said(found(tmp_path / "b", rows))
    assert sentence == "At 2 images IN (+0.3 ± 2.9) is within noise of BN over 3 seeds."


def test_one_seed_says_nothing_about_spread(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": (60.0,), "gn": (75.0,), "ln": (50.0,)})
    assert said(one) == ["At 2 images GN is 15.0 points above BN, with one seed."]
    assert advice(one).startswith("One seed says nothing about spread")
    assert noise(one) == ""
    assert not any(cell.standing for cell in one.cells.values()), "nothing is highlighted"
    for written in (text.markdown([one]), page([one])):
        assert FEW_SEEDS[1] in written
        assert "**" not in written
        assert 'class="ahead"' not in written


def test_bn_is_highest_with_one_seed(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": (60.0,), "gn": (55.0,), "ln": (50.0,)})
    assert said(one) == ["At 2 images BN is highest with one seed, GN (-5.0) next."]


def test_two_seeds_are_few(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": BN[:2], "gn": (63.0, 64.1)})
    assert said(one) == ["At 2 images GN leads BN by 3.0 ± 0.6 points over 2 seeds."]
    assert advice(one).startswith("Two seeds leave wide intervals.")


def test_a_row_with_a_single_seed_is_not_judged(tmp_path: Path) -> None:
    rows: dict[str, Seeds] = {"bn": BN, "gn": (63.0, 64.1, 65.0), "ln": (90.0, UNFINISHED)}
    assert said(found(tmp_path, rows)) == [
        "At 2 images GN leads BN by 3.0 ± 0.1 points over 3 seeds; LN: one seed only."
    ]


def test_what_did_not_converge_is_named(tmp_path: Path) -> None:
    rows: dict[str, Seeds] = {"bn": BN, "gn": BN, "pn": (NAN, 10.0, NAN)}
    assert said(found(tmp_path, rows))[0].endswith("; PN (3 of 3 runs) did not converge.")
    one = found(tmp_path / "all", {"bn": (NAN, NAN)})
    assert said(one) == ["At 2 images BN (2 of 2 runs) did not converge."]


def test_without_bn_the_best_is_beside_the_next(tmp_path: Path) -> None:
    one = found(tmp_path / "a", {"gn": BN, "ln": (50.0, 51.1, 52.0)})
    assert said(one) == [
        "At 2 images GN is highest with 61.0 ± 1.0 %; its lead over LN, 10.0 ± 0.1 points over"
        " 3 seeds, is more than noise."
    ]
    one = found(tmp_path / "b", {"gn": (61.0, 61.0, 63.0), "ln": (60.0, 62.0, 61.0)})
    assert said(one)[0].endswith(
        "; its lead over LN, 0.7 ± 3.8 points over 3 seeds, is within noise."
    )
    one = found(tmp_path / "c", {"gn": (60.0,), "ln": (50.0,)})
    assert said(one) == ["At 2 images GN is highest with 60.0 % and one seed, LN next (-10.0)."]
    assert said(found(tmp_path / "d", {"gn": BN})) == [
        "At 2 images GN is highest with 61.0 ± 1.0 %."
    ]


def test_nothing_finished_says_nothing(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": (UNFINISHED,), "gn": (UNFINISHED,)})
    assert said(one) == []
    assert advice(one) == ""
    assert 'class="verdict"' not in page([one])


def test_batch_sizes_that_say_the_same_share_a_sentence(tmp_path: Path) -> None:
    for size in (1, 8, 32):
        for norm, seeds in {"bn": BN, "gn": (63.0, 64.1, 65.0)}.items():
            for seed, value in enumerate(seeds):
                if size > 1:
                    make(tmp_path, value, norm=norm, batch_size=size, seed=seed)
        make(tmp_path, 50.0, norm="bn", batch_size=1)
    (one,) = compare(collect([tmp_path]))
    assert said(one) == [
        "At 1 image BN is highest with 50.0 %.",
        "At 8 and 32 images GN leads BN by 3.0 ± 0.1 points over 3 seeds.",
    ]


def test_batch_sizes_are_those_of_a_worker(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": BN, "gn": (63.0, 64.1, 65.0)}, simulate_workers=8)
    assert said(one)[0].startswith("At 2 images per worker GN leads")


def test_intervals_that_chance_makes_exclude_zero_are_counted(tmp_path: Path) -> None:
    one = found(tmp_path, {"bn": BN, "gn": BN})
    assert noise(one).endswith("includes zero.")
    rows = dict.fromkeys(("bn", "in", "ln", "gn", "pn", "gbgn", "bgn", "in+ws", "ln+ws", "gn+ws",
                          "bn+ws", "bgn+ws"), BN)  # fmt: skip
    assert "Of 11 intervals chance alone makes about 1 exclude it." in noise(
        found(tmp_path / "many", rows)
    )


def test_rows_with_partners_come_after_the_plain_ones(tmp_path: Path) -> None:
    names = ("bgn+center", "bn+renorm", "bgn+ws+renorm", "bgn+ws", "gn+ws", "bn+ws", "bgn", "bn",
             "gn", "in")  # fmt: skip
    assert found(tmp_path, dict.fromkeys(names, (60.0,))).labels == (
        "BN", "IN", "GN", "BGN, G = 1",
        "BN + WS", "GN + WS", "BGN + WS, G = 1", "BN + renorm", "BGN + centered, G = 1",
        "BGN + WS + renorm, G = 1",
    )  # fmt: skip


def test_the_key_has_what_occurs_and_nothing_else() -> None:
    terms = dict(glossary.key(["BN", "BGN + WS, G = 1", "BGN + WS, G = 64", "GN, 16+ values"]))
    assert list(terms) == ["BN", "GN", "BGN", "+ WS", "G = 1, 64", "16+ values"]
    assert "standardized weights" in terms["+ WS"]
