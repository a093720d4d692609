import warnings

import numpy as np
import pytest

from bert_keras.pages import drawing
from bert_keras.training.tensorboard import panels

TOKENS = ["[CLS]", "the", "$5$", "日", "the"]


@pytest.fixture
def heads():
    return np.random.default_rng(3).dirichlet(np.ones(5), size=(6, 5))


def test_heads_are_drawn_in_rows_of_two(heads):
    (plot,) = panels.attention_maps(heads, TOKENS, first=4).axes
    cells = plot.get_images()[0].get_array()
    assert cells.shape == (21, 12)
    for number, head in enumerate(heads):
        top, left = 7 * (number // 2), 7 * (number % 2)
        # Rows are the tokens that attend.
        np.testing.assert_array_equal(cells[top : top + 5, left : left + 5], head)
    assert np.isfinite(cells.filled(np.nan)).sum() == 6 * 25
    shown = ["[CLS]", "the", "$5$", "□", "the"]
    assert [tick.get_text() for tick in plot.get_yticklabels()] == 3 * shown
    assert [tick.get_text() for tick in plot.get_xticklabels()] == 2 * shown
    assert plot.get_xticks().tolist() == [*range(5), *range(7, 12)]
    titles = {text.get_text(): text.get_position() for text in plot.texts}
    assert titles == {
        f"head {4 + n}": (7 * (n % 2) + 2, 7 * (n // 2) + 5.6) for n in range(6)
    }


def test_words_can_be_read_in_a_card_of_tensorboard():
    """The largest picture, shown 450 pixels wide: letters are 8 pixels high or more."""
    num_tokens = panels.MAX_ATTENTION_TOKENS
    heads = np.full((panels.HEADS_PER_PICTURE, num_tokens, num_tokens), 0.1)
    tokens = ["lighthouse"] * num_tokens
    png = drawing.as_png(lambda: panels.attention_maps(heads, tokens), dpi=100)
    width = drawing.pixels(png).shape[1]
    (plot,) = panels.attention_maps(heads, tokens).axes
    points = plot.get_xticklabels()[0].get_fontsize()
    assert points * 100 / 72 * 450 / width >= 8


def test_the_picture_is_dark_where_attention_is(heads):
    """The 25 cells, top to bottom, at the height and the width that they have."""
    alone = np.eye(5)[None, [0, 1, 2, 3, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png = drawing.as_png(lambda: panels.attention_maps(alone, TOKENS))
    image = drawing.pixels(png)
    is_dark = np.all(image == (8, 48, 107), axis=-1)
    rows, columns = np.flatnonzero(is_dark.any(axis=1)), np.flatnonzero(is_dark.any(0))
    side = 0.14 * 150
    assert np.ptp(rows) == pytest.approx(5 * side, abs=2)
    assert np.ptp(columns) == pytest.approx(4 * side, abs=2)
    # The last token looks at the first one.
    assert is_dark[rows[-3], columns[3]]


def test_weights_that_are_not_finite_have_white_maps():
    heads = np.full((1, 2, 2), np.nan)
    (plot,) = panels.attention_maps(heads, ["a", "b"]).axes
    assert plot.get_images()[0].get_array()[:2, :2].tolist() == [[0, 0], [0, 0]]
