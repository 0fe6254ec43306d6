"""Pictures of cells can be read."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bgn_lab.experiments.nas.figure import draw
from bgn_lab.experiments.nas.genotype import NAMED, OPERATIONS, Genotype, drawn


@pytest.mark.parametrize("genotype", [*NAMED.values(), *map(drawn, range(8)), drawn(0, 5)])
def test_no_name_hides_another(genotype: Genotype) -> None:
    figure = draw(genotype)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text() in OPERATIONS]
        others = [text for text in axes.texts if text.get_text() and text not in names]
        if axes.get_visible():
            assert (len(names), len(others)) == (8, 7)
        boxes = {text: text.get_window_extent(canvas.get_renderer()) for text in [*names, *others]}
        for one, other in combinations(boxes, 2):
            assert not boxes[one].overlaps(boxes[other]), f"{one.get_text()} and {other.get_text()}"


def test_titles_tell_which_cells_halve_the_image() -> None:
    titles = [axes.get_title() for axes in draw(drawn(0, 5)).axes if axes.get_visible()]
    assert titles == ["cell 1", "cell 2, reduction", "cell 3", "cell 4, reduction", "cell 5"]
