"""The README's drawing of the line from raw text to a served model.

`python docs/pictures/line.py` writes `docs/pictures/line.png`.
"""

from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

PICTURE = Path(__file__).with_suffix(".png")

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#5f6368"

BOXES = {
    "dumps, books,\nJSON lines": (0.0, 1, GREY),
    "documents": (2.1, 1, BLUE),
    "masked\nexamples": (4.2, 1, BLUE),
    "pre-trained\nBERT": (6.3, 1, ORANGE),
    "tuned\nmodel": (8.4, 1, ORANGE),
    "SavedModel,\nLiteRT, ONNX": (10.5, 1, GREEN),
    "vocab.txt": (4.2, 0, BLUE),
    "third-party\ncheckpoints": (6.3, 0, GREY),
    "your labels": (8.4, 0, GREY),
}
"""Left edge, row and colour of each box."""

ARROWS = (
    ("dumps, books,\nJSON lines", "documents", "corpus"),
    ("documents", "masked\nexamples", "examples"),
    ("masked\nexamples", "pre-trained\nBERT", "pretrain"),
    ("pre-trained\nBERT", "tuned\nmodel", "finetune"),
    ("tuned\nmodel", "SavedModel,\nLiteRT, ONNX", "export"),
    ("documents", "vocab.txt", "vocab"),
    ("vocab.txt", "masked\nexamples", ""),
    ("third-party\ncheckpoints", "pre-trained\nBERT", "--init"),
    ("your labels", "tuned\nmodel", ""),
)
WIDTH, HEIGHT = 1.35, 0.5


def draw_line(axes: Axes) -> None:
    axes.set(xlim=(-0.1, 11.95), ylim=(-0.2, 1.75))
    axes.axis("off")
    for name, (x, row, colour) in BOXES.items():
        box = FancyBboxPatch(
            (x, row),
            WIDTH,
            HEIGHT,
            boxstyle="round,pad=0.02,rounding_size=0.08",
            facecolor="white",
            edgecolor=colour,
            linewidth=1.8,
        )
        axes.add_patch(box)
        axes.text(x + WIDTH / 2, row + HEIGHT / 2, name, ha="center", va="center")
    for start, end, verb in ARROWS:
        draw_arrow(axes, BOXES[start], BOXES[end], verb)


def draw_arrow(axes: Axes, start: tuple, end: tuple, verb: str) -> None:
    (x1, row1, _), (x2, row2, _) = start, end
    half = HEIGHT / 2
    if row1 == row2:
        here, there = (x1 + WIDTH + 0.03, row1 + half), (x2 - 0.03, row2 + half)
    elif x1 == x2:
        here, there = (x1 + WIDTH / 2, row1 + HEIGHT + 0.03), (x2 + WIDTH / 2, 0.97)
    else:
        here, there = (x1 + WIDTH / 2, row1 - 0.03), (x2 - 0.03, row2 + half)
    bend = "angle,angleA=-90,angleB=180,rad=6" if row1 > row2 else "arc3"
    style = {"arrowstyle": "-|>", "color": GREY, "connectionstyle": bend}
    axes.annotate("", there, here, arrowprops=style)
    if row1 == row2:
        middle = (here[0] + there[0]) / 2
        axes.text(middle, row1 + HEIGHT + 0.06, verb, ha="center", family="monospace")
    else:
        x = here[0] + (0.08 if row1 < row2 else -0.08)
        align = "left" if row1 < row2 else "right"
        axes.text(x, 0.7, verb, ha=align, va="center", family="monospace")


def main() -> None:
    pyplot.rcParams.update({"font.size": 9})
    figure, axes = pyplot.subplots(figsize=(10, 2.1), layout="constrained")
    draw_line(axes)
    figure.savefig(PICTURE, dpi=160, facecolor="white", metadata={"Software": None})


if __name__ == "__main__":
    main()
