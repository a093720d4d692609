"""The common style of a report's pictures."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import collections
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import axes, figure, font_manager, ft2font
from numpy.typing import ArrayLike
from PIL import Image

# Okabe and Ito's palette, which the colour-blind can tell apart.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"

STYLE = {
    "font.size": 12,
    "axes.titlesize": 14,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Long runs have paths of very many points, which are drawn in pieces.
    "agg.path.chunksize": 10_000,
}

LARGEST = 1e100
"""Number that is drawn in place of larger ones."""

MAX_NAME_LENGTH = 22
"""Longest name in a picture, in characters."""


def as_png(
    draw: Callable[..., figure.Figure], *arguments: Any, dpi: int = 150, **options: Any
) -> bytes:
    """Calls `draw`, for a picture in which names may contain any characters."""
    file = io.BytesIO()
    with matplotlib.rc_context(STYLE | {"text.parse_math": False}):
        draw(*arguments, **options).savefig(
            file, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.15
        )
    return file.getvalue()


def placeable(values: ArrayLike) -> np.ndarray:
    """Limits values to what matplotlib can place, since it divides by their squares."""
    return np.clip(np.asarray(values, float), -LARGEST, LARGEST)


def pixels(png: bytes) -> np.ndarray:
    """Returns a picture as TensorBoard takes it, `(height, width, 3)` uint8."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def new_plot(
    title: str, *, width: float = 8, height: float = 4.5
) -> tuple[figure.Figure, axes.Axes]:
    """Makes an empty picture with a title; sizes in inches."""
    picture = figure.Figure(figsize=(width, height), layout="constrained")
    picture.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    plot = picture.add_subplot(title=title)
    # A run's name may hold dollar signs.
    plot.title.set_parse_math(False)
    return picture, plot


def add_legend(picture: figure.Figure, *, num_columns: int = 5) -> None:
    """Adds a legend below the picture, where it hides nothing."""
    picture.legend(
        loc="outside lower center", ncols=num_columns, frameon=False, fontsize=11
    )


def short_names(names: Sequence[str]) -> list[str]:
    """Shortens names to a form that a picture can show.

    A name becomes its beginning; or `#` and its number among them, from 1, if the font
    lacks a character, the name runs from right to left, or another name has the same
    beginning.
    """
    plain = [" ".join(name.split()) for name in names]
    cut = [
        name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
        for name in plain
    ]
    counts, short = collections.Counter(cut), []
    for number, (name, boxed) in enumerate(zip(cut, drawable(cut), strict=True), 1):
        # A name like a number would be taken for one.
        is_clear = name == boxed and not re.fullmatch(r"(#[0-9]+)?", name)
        short.append(name if is_clear and counts[name] == 1 else f"#{number}")
    return short


def drawable(texts: Sequence[str]) -> list[str]:
    """Replaces each character that a picture cannot show by a box."""
    path = font_manager.findfont(font_manager.FontProperties())
    known = ft2font.FT2Font(path).get_charmap()

    def can_be_shown(char: str) -> bool:
        # Not all versions of matplotlib turn text that runs from right to left.
        is_turned = unicodedata.bidirectional(char) in ("R", "AL")
        return char.isprintable() and ord(char) in known and not is_turned

    return ["".join(c if can_be_shown(c) else "□" for c in text) for text in texts]
