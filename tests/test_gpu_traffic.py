"""Traffic of the GPU core by its launch plans: about batch_norm's, and near the floor fused."""

from __future__ import annotations

from benchmarks.gpu.traffic import DEVICES, FLOOR, of_positional, of_row, rows, table


def test_passes_and_launches() -> None:
    for row in rows():
        for device in DEVICES:
            found = of_row(row, device)
            large = row.part.N * row.part.D * row.itemsize > 1 << 20
            if found.launches == (1, 2):
                assert sum(found.passes) <= 1.1 * row.floor, row
            else:
                assert found.launches == (3, 3)
                features = row.last and row.part.D % row.part.G
                limit = 1.2 if features else 1.05 if large else 1.1
                swept = 8 + row.floor - sum(FLOOR)
                assert sum(found.passes) <= limit * swept, (row, device, found)


def test_positional_norm_reads_once() -> None:
    for last in (False, True):
        found = of_positional(8, 256, 3136, last, 4, 132)
        assert sum(found.passes) <= 1.05 * sum(FLOOR)


def test_the_table_has_every_row_and_an_estimate_on_request() -> None:
    assert len(table().splitlines()) == len(list(rows())) + 2
    assert "H100: ours, BN, GN (us)" in table(roofline=True)
    assert "(us)" not in table()
