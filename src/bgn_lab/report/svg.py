"""Parts of the page's pictures: axes and marks as SVG, in the colors of the page's style sheet.

A picture is part of the page rather than an image in it, so that its colors follow light and dark
mode, its text is text, and its lines can be switched off.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 400, 270  # of a panel, in its own units: about a phone's screen
LEFT, RIGHT, TOP, BOTTOM = 40, 8, 12, 42
SIZE = 3.8  # half of a mark


def number(value: float) -> str:
    """A coordinate.

    >>> number(12.0), number(3.14159)
    ('12', '3.1')
    """
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; underscores in names of attributes are dashes.

    >>> tag("text", "a < b", x=1.0, text_anchor="end")
    '<text x="1" text-anchor="end">a < b</text>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else html.escape(str(value))


def label(text: str, x: float, y: float, **attributes: object) -> str:
    """Text, escaped."""
    return tag("text", html.escape(text, quote=False), x=x, y=y, **attributes)


def polyline(points: Sequence[tuple[float, float]], **attributes: object) -> str:
    """A line through points."""
    path = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return tag("path", d=f"M{path}", class_="line", **attributes) if len(points) > 1 else ""


def _polygon(*points: tuple[float, float]) -> str:
    return "M" + "L".join(f"{number(SIZE * x)} {number(SIZE * y)}" for x, y in points) + "Z"


def _star() -> str:
    angles = [(math.pi * (i / 5 - 0.5), 1.55 if i % 2 == 0 else 0.65) for i in range(10)]
    return _polygon(*((r * math.cos(a), r * math.sin(a)) for a, r in angles))


_R = number(SIZE)
MARKS = {
    "circle": f"M-{_R} 0A{_R} {_R} 0 1 0 {_R} 0A{_R} {_R} 0 1 0 -{_R} 0Z",
    "down": _polygon((-1.1, -0.9), (1.1, -0.9), (0, 1.1)),
    "up": _polygon((-1.1, 0.9), (1.1, 0.9), (0, -1.1)),
    "square": _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": _polygon((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "plus": _polygon(
        (-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
        (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4),
    ),
    "star": _star(),
}  # fmt: skip
CROSS = f"M-{_R} -{_R}L{_R} {_R}M-{_R} {_R}L{_R} -{_R}"


def mark(shape: str, x: float, y: float, title: str = "", hollow: bool = False) -> str:
    """A mark at a point, with a text that shows when the pointer rests on it."""
    tooltip = tag("title", html.escape(title, quote=False)) if title else ""
    kind = "cross" if shape == "cross" else "mark hollow" if hollow else "mark"
    path = CROSS if shape == "cross" else MARKS[shape]
    return tag(
        "path", tooltip, d=path, class_=kind, transform=f"translate({number(x)} {number(y)})"
    )


def bar(x: float, low: float, high: float) -> str:
    """An error bar between two heights."""
    ends = "".join(f"M{number(x - 2.5)} {number(y)}h5" for y in (low, high))
    return tag("path", d=f"M{number(x)} {number(low)}V{number(high)}{ends}", class_="bar")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two values.

    >>> ticks(61.2, 84.9), ticks(1, 3)
    ([65.0, 70.0, 75.0, 80.0], [1.0, 1.5, 2.0, 2.5, 3.0])
    """
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(m * power for m in (1, 2, 5, 10, 20) if span / (m * power) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Panel:
    """A frame with axes: values to coordinates."""

    x: tuple[float, float]
    """Values at the left and right end."""
    y: tuple[float, float]
    height: int = HEIGHT
    logarithmic: bool = False
    """x, to the base 2."""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Coordinates of a point."""
        return self.across(x), self.up(y)

    def across(self, x: float) -> float:
        """Horizontal coordinate."""
        scale: Callable[[float], float] = math.log2 if self.logarithmic else float
        low, high = map(scale, self.x)
        return LEFT + (scale(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def up(self, y: float) -> float:
        """Vertical coordinate."""
        low, high = self.y
        return self.floor - (y - low) / (high - low) * (self.floor - TOP)

    @property
    def floor(self) -> float:
        """Vertical coordinate of the horizontal axis."""
        return self.height - BOTTOM

    def frame(self, x_ticks: Sequence[float], x_name: str) -> str:
        """Grid, axes, numbers at them, and the name of the horizontal one."""
        parts = []
        for value in ticks(*self.y):
            y = self.up(value)
            parts += [
                tag("path", d=f"M{LEFT} {number(y)}H{WIDTH - RIGHT}", class_="grid"),
                label(f"{value:g}", LEFT - 6, y + 4, text_anchor="end"),
            ]
        for value in x_ticks:
            x = self.across(value)
            parts += [
                tag("path", d=f"M{number(x)} {number(self.floor)}v4", class_="axis"),
                label(f"{value:g}", x, self.floor + 17, text_anchor="middle"),
            ]
        middle = (LEFT + WIDTH - RIGHT) / 2
        return "".join([
            *parts,
            tag("path", d=f"M{LEFT} {number(self.floor)}H{WIDTH - RIGHT}", class_="axis"),
            label(x_name, middle, self.height - 7, text_anchor="middle", class_="name"),
        ])  # fmt: skip


def picture(content: str, name: str, height: int = HEIGHT) -> str:
    """The whole picture; ``name`` is what somebody hears who does not see it."""
    return tag(
        "svg", content, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=name,
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def around(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The least and the largest value, with some room.

    >>> around([50.0, 70.0], 0.1)
    (48.0, 72.0)
    """
    low, high = min(values, default=0.0), max(values, default=100.0)
    room = margin * (high - low) or 1.0
    return low - room, high + room
