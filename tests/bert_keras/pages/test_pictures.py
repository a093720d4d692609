"""Answers beside counts written out, and pictures of what was counted."""

import collections
import functools
import io
import math
import random

import numpy as np
import pytest
import scipy.sparse
from PIL import Image

from bert_keras.pages import confusion, drawing, pictures


def draw_confusion(title, names, counts):
    return pictures.draw_confusion(title, [*names], scipy.sparse.csr_array(counts))


def texts_of(labels) -> list[str]:
    return [label.get_text() for label in labels]


def test_names_that_a_picture_cannot_show_are_numbered():
    names = [
        *("yes", "a  b\n", "$x$ é", "x" * 22, "y" * 23, "z" * 25 + "1", "z" * 25 + "2"),
        *("#1", "", "שלום", "日本", "a\u202eb", "a\x00", "-"),
    ]
    assert drawing.short_names(names) == [
        *("yes", "a b", "$x$ é", "x" * 22, "y" * 21 + "…", "#6", "#7"),
        *("#8", "#9", "#10", "#11", "#12", "#13", "-"),
    ]


def test_a_picture_shows_any_characters():
    names = ("$x^{", "$\\frac$")
    png = drawing.as_png(draw_confusion, "$_$", names, [[3, 1], [0, 4]])
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_the_confusion_matrix():
    counts = [[3, 1, 0], [0, 1200, 400], [0, 0, 0]]
    plot, bar = draw_confusion("title", "abc", counts).axes
    np.testing.assert_allclose(
        plot.get_images()[0].get_array(), [[0.75, 0.25, 0], [0, 0.75, 0.25], [0, 0, 0]]
    )
    assert texts_of(plot.texts) == ["3", "1", "0", "0", "1,200", "400", "0", "0", "0"]
    for labels in (plot.get_xticklabels(), plot.get_yticklabels()):
        assert texts_of(labels) == ["a", "b", "c"]
    labels = bar.get_ylabel(), plot.get_ylabel(), plot.get_xlabel()
    assert labels == ("share of the row", "right", "answered")


def test_a_large_confusion_matrix():
    counts = np.diag(np.arange(100) + 10_000)
    counts[50, 60] = 7
    plot = draw_confusion("title", map(str, range(100)), counts).axes[0]
    names = texts_of(plot.get_yticklabels())
    assert len(names) == 25 and {"50", "60"} < set(names) and names[-1] == "76 others"
    # Noughts are left out.
    shown = [int(text.replace(",", "")) for text in texts_of(plot.texts) if text]
    assert (len(shown), sum(shown)) == (len(names) + 1, counts.sum())


def score(name: str, precision: float, recall: float, f1: float):
    return confusion.ClassScore(name, precision, recall, f1, 1234, 5)


def test_precision_recall_and_f1_of_each_class():
    nan = math.nan
    scores = [score("a", 0.75, 0.5, 0.6), score("b", nan, 0.95, 0.9)]
    (plot,) = pictures.draw_class_scores("title", scores).axes
    lines = {line.get_label(): line.get_xydata() for line in plot.get_lines()}
    np.testing.assert_array_equal(lines["precision"], [[0.75, 0], [nan, 1]])
    np.testing.assert_array_equal(lines["recall"], [[0.5, 0], [0.95, 1]])
    np.testing.assert_array_equal(lines["F1"], [[0.6, 0], [0.9, 1]])
    assert texts_of(plot.get_yticklabels()) == ["a (1,234)", "b (1,234)"]
    assert plot.get_xlim() == (pytest.approx(0.4), 1)
    # The first is above.
    assert plot.get_ylim() == (1.5, -0.5)


def test_of_many_classes_the_worst_are_drawn():
    scores = [score(str(n), 0.5, 0.5, (n * 7 % 50) / 50) for n in range(50)]
    scores[7] = score("unused", math.nan, math.nan, math.nan)
    (plot,) = pictures.draw_class_scores("title", scores).axes
    names = texts_of(plot.get_yticklabels())
    assert names[:3] == ["0 (1,234)", "43 (1,234)", "36 (1,234)"]
    assert len(names) == pictures.MAX_ROWS and "unused (1,234)" not in names
    assert plot.get_title() == "title: the lowest 40"


@pytest.mark.parametrize(
    ("confidences", "is_right", "error"),
    [
        # The two of the last bin count together.
        (
            [0.05, 0.5, 0.55, 0.9, 0.95, 1.0],
            [False, True, False, True, True, False],
            (0.05 + 0.5 + 0.55 + 0.1 + 2 * (0.975 - 0.5)) / 6,
        ),
        # The ends belong to the outer bins; rounding may pass them.
        ([0.0, 1.0000001], [False, True], 0),
        # Always sure, half the time right.
        ([1.0] * 4, [True, False] * 2, 0.5),
    ],
)
def test_the_error_is_the_weighted_mean_distance(confidences, is_right, error):
    bins = pictures.reliability_bins(confidences, is_right)
    assert pictures.calibration_error(bins) == pytest.approx(error, abs=1e-6)


def test_the_reliability_diagram():
    confidences = [0.61, 0.62, 0.63, 0.99]
    is_right = [True, True, False, True]
    upper, lower = pictures.draw_reliability(confidences, is_right).axes
    points = upper.get_lines()[1].get_xydata()
    np.testing.assert_allclose(points, [[0.62, 2 / 3], [0.99, 1.0]])
    shown = [(b.get_x(), b.get_height()) for b in lower.patches if b.get_height()]
    np.testing.assert_allclose(shown, [[9 / 15, 0.75], [14 / 15, 0.25]], atol=1e-9)
    error = (3 * abs(2 / 3 - 0.62) + 0.01) / 4
    assert upper.get_title() == f"Calibration: expected error {100 * error:.1f} %"


def test_the_scatter_plot_has_equal_axes():
    (plot,) = pictures.draw_scatter([0.0, 5.0], [1.0, -2.0]).axes
    np.testing.assert_array_equal(plot.collections[0].get_offsets(), [[0, 1], [5, -2]])
    assert plot.get_xlim() == plot.get_ylim() == pytest.approx((-2.28, 5.28))
    (plot,) = pictures.draw_scatter([3.0], [3.0]).axes
    assert plot.get_xlim() == (2, 4)


HUGE = [(1e308, -1e308), (1.7e308, 0.0), (5e-324, 0.0), (1e300, 1e300)]


@pytest.mark.parametrize(("first", "second"), HUGE)
def test_numbers_that_hardly_fit_a_float_are_drawn(first, second):
    right, answered = [first, second], [second, first]
    draw = functools.partial(pictures.draw_scatter, right, answered)
    assert drawing.as_png(draw, dpi=10).startswith(b"\x89PNG")


NAMES = ("b", "a", "c", "never")


@pytest.fixture(name="answers")
def random_answers() -> tuple[list[str], list[str]]:
    rng = random.Random(1)
    right = rng.choices(NAMES[:3], k=200)
    return right, [r if rng.random() < 0.6 else rng.choice(NAMES[:3]) for r in right]


def test_counts_and_scores_are_those_of_the_definition(answers):
    right, answered = answers
    pairs = collections.Counter(zip(right, answered, strict=True))
    counts = confusion.confusion(right, answered, NAMES)
    expected = [[pairs[row, column] for column in NAMES] for row in NAMES]
    np.testing.assert_array_equal(counts.toarray(), expected)
    for name, *found in confusion.class_scores(right, answered, NAMES)[:3]:
        hits = pairs[name, name]
        num_right, num_answered = right.count(name), answered.count(name)
        shares = hits / num_answered, hits / num_right
        f1 = 2 * hits / (num_right + num_answered)
        assert found == pytest.approx([*shares, f1, num_right, num_answered])


def test_the_share_of_nothing_is_no_number():
    found = confusion.class_scores(["a", "b"], ["a", "a"], ["a", "b", "c", "d"])
    assert found[0] == ("a", 0.5, 1.0, pytest.approx(2 / 3), 1, 2)
    name, precision, recall, f1, *counts = found[1]
    assert (name, math.isnan(precision), recall, f1, *counts) == ("b", True, 0, 0, 1, 0)
    assert all(math.isnan(share) for share in found[2][1:4])
    assert found[2][4:] == (0, 0)
    (never, always) = confusion.class_scores(["a"], ["b"], ["a", "b"])
    assert str(never.num_right) == str(always.num_answered) == "1"


def test_the_classes_of_fewest_mistakes_are_pooled():
    counts = np.diag([90, 80, 70, 60, 50])
    counts[1, 4], counts[4, 1], counts[0, 2], counts[3, 0] = 5, 4, 1, 2
    of_four = [[90, 0, 0, 1], [0, 80, 5, 0], [0, 4, 50, 0], [2, 0, 0, 130]]
    for limit, expected_names, expected in (
        (5, tuple("abcde"), counts.tolist()),
        (4, ("a", "b", "e", "2 others"), of_four),
        (3, ("b", "e", "3 others"), [[80, 5, 0], [4, 50, 0], [0, 0, 223]]),
    ):
        sparse = scipy.sparse.csr_array(counts)
        names, pooled = confusion.pooled(tuple("abcde"), sparse, limit)
        assert (names, pooled.tolist()) == (expected_names, expected)


def test_the_commonest_confusions():
    counts = scipy.sparse.csr_array([[9, 1, 0], [3, 5, 2], [0, 0, 0]])
    whole = [("b", "a", 3, 0.3), ("b", "c", 2, 0.2), ("a", "b", 1, 0.1)]
    assert confusion.commonest("abc", counts, 2) == whole[:2]
    assert confusion.commonest("abc", counts, 9) == whole


def test_many_classes_take_little_memory():
    """All pairs of these classes would take 80 GB."""
    names = [f"{number}" for number in range(100_000)]
    sparse = confusion.confusion(["7", "7", "8"], ["8", "8", "8"], names)
    assert confusion.commonest(names, sparse, 9) == [("7", "8", 2, 1.0)]
    shown, counts = confusion.pooled(names, sparse, 3)
    assert shown == ("7", "8", "99,998 others")
    np.testing.assert_array_equal(counts, [[0, 2, 0], [0, 1, 0], [0, 0, 0]])
