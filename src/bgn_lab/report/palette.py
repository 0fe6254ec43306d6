"""Colors of the page, for light and dark screens.

Text has a contrast of at least 4.5 with what is behind it, lines and marks of at least 3, as
WCAG 2 asks for (level AA). ``tests/lab/test_report_palette.py`` computes it.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from functools import cache

TEXT, GRAPHICS = 4.5, 3.0  # least contrast of text and of lines
RAMP = 10  # colors for more rows of one normalizer than dashes can tell apart
Mode = Mapping[str, str]

# names are those of CSS: page and panel are backgrounds, ink and soft are text, line separates
LIGHT: Mode = {
    "page": "#f5f6f8", "panel": "#ffffff", "raised": "#eef0f4", "ink": "#171b22",
    "soft": "#555d6b", "line": "#d9dde4", "axis": "#7d8594", "accent": "#1a56c4",
    "ahead": "#0b6b3a", "ahead-back": "#e0f4e8", "behind": "#9a3412", "behind-back": "#fdece4",
    "bad": "#b3261e",
    "bn": "#0065ad", "in": "#1b8fc9", "ln": "#00805d", "gn": "#a87000", "pn": "#b4558d",
    "gbgn": "#7a5230", "bgn": "#c94c00", "own": "#5b6270",
}  # fmt: skip
DARK: Mode = {
    "page": "#0e1116", "panel": "#161a21", "raised": "#20252e", "ink": "#e7eaf0",
    "soft": "#a3abb9", "line": "#2c323d", "axis": "#6f7887", "accent": "#86b4ff",
    "ahead": "#6fdc9f", "ahead-back": "#12301f", "behind": "#ffab85", "behind-back": "#3a2016",
    "bad": "#ff8f87",
    "bn": "#4da3ee", "in": "#93d3f8", "ln": "#2fc49a", "gn": "#edb02f", "pn": "#e695c6",
    "gbgn": "#c59b74", "bgn": "#ff7f3f", "own": "#aab1be",
}  # fmt: skip
MODES: Mapping[str, Mode] = {"light": LIGHT, "dark": DARK}
BACKGROUNDS = "page", "panel", "raised", "ahead-back", "behind-back"
LINES = "bn", "in", "ln", "gn", "pn", "gbgn", "bgn", "own"


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it.

    >>> luminance("#000000"), luminance("#ffffff")
    (0.0, 1.0)
    """
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(share * p for share, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast of two colors, from 1 to 21.

    >>> round(contrast("#ffffff", "#767676"), 2)
    4.54
    """
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@cache
def ramp(mode: str) -> dict[str, str]:
    """Colors from violet to yellow, by names such as ``ramp-0``, that can be seen as lines."""
    found = {}
    for i in range(RAMP):
        hue = (0.72 + 0.44 * i / (RAMP - 1)) % 1  # violet, red, yellow: past BGN's orange
        found[f"ramp-{i}"] = _readable(hue, MODES[mode]["panel"])
    return found


def _readable(hue: float, background: str) -> str:
    """The color of a hue that is as far from the background as lines have to be, and no farther."""
    is_light = luminance(background) > 0.5
    for step in range(100):
        lightness = 0.62 - step / 200 if is_light else 0.5 + step / 200
        parts = colorsys.hls_to_rgb(hue, lightness, 0.75)
        color = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
        if contrast(color, background) >= GRAPHICS + 0.4:
            return color
    raise AssertionError(f"no color of hue {hue} can be seen on {background}")


def colors(mode: str) -> dict[str, str]:
    """All colors of a mode by name.

    >>> colors("dark")["page"]
    '#0e1116'
    """
    return {**MODES[mode], **ramp(mode)}
