"""Literal vocabularies and rows."""

import logging

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.data import features, tokenization, vocabulary_extension

ENTRIES = ("[unused1]", "[unused2]", "play", "##ing", "##s", "##in", "##g", "jazz")
OLD = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *ENTRIES))
FIRST = len(features.SPECIAL_TOKENS)
UNUSED1, UNUSED2, PLAY, ING, S, IN, G, JAZZ = range(FIRST, len(OLD))
USED = (0, 1, 2, 3, 4, PLAY, ING, S, IN, G, JAZZ)


def extend(words, *, vocabulary=OLD, do_lower_case=True, **options):
    return vocabulary_extension.extend(
        vocabulary, words, do_lower_case=do_lower_case, **options
    )


def sources(new, *, old=OLD):
    return vocabulary_extension.sources(old, new, do_lower_case=True, path="model")


def changed(*entries):
    return tokenization.Vocabulary((*features.SPECIAL_TOKENS, *entries))


class TestExtend:
    def test_unused_entries_first_then_after_the_last(self, caplog):
        caplog.set_level(logging.INFO, logger="bert_keras")
        found = extend(["plays", "jazz", "##ish", "plays", "日"])
        assert found.tokens == (
            *features.SPECIAL_TOKENS,
            *("plays", "##ish", *ENTRIES[2:], "日"),
        )
        assert "2 words into unused entries, 1 after the last one" in caplog.text
        found = extend(["plays", "##ish"], into_unused=False)
        assert found.tokens == (*OLD.tokens, "plays", "##ish")
        assert "Jazz" in extend(["Jazz"], do_lower_case=False).ids

    @pytest.mark.parametrize(
        "word, made",
        [
            ("covid-19", "'covid' '-' '19'"),
            ("Jazz", "'jazz'"),
            ("new york", "'new' 'york'"),
            ("##ISH", "'ish'"),
            ("\u200b", "nothing"),
        ],
    )
    def test_words_that_the_tokenizer_takes_apart(self, word, made):
        with pytest.raises(InputError, match=f"would never be used: .* makes {made} "):
            extend(["plays", word])


class TestSources:
    def test_the_pieces_of_each_new_entry(self):
        new = extend(["plays", "##ings", "playing", "日", "##sx"])
        assert sources(new) == {
            UNUSED1: (PLAY, S),
            UNUSED2: (ING, S),
            len(OLD): (PLAY, ING),
            len(OLD) + 1: USED,  # [UNK] as a whole
            len(OLD) + 2: USED,  # no piece goes on with x
        }
        new = tokenization.Vocabulary((*OLD.tokens, "jazz-play"))
        assert sources(new) == {len(OLD): (JAZZ, PLAY)}
        assert sources(OLD) == {}

    @pytest.mark.parametrize(
        "entries, message",
        [
            (ENTRIES[:-1], "line 13: 'jazz' there, nothing here"),
            (
                (*ENTRIES[:2], *ENTRIES[3:2:-1], ENTRIES[2], *ENTRIES[4:]),
                "line 8: 'play' there, '##ing' here; line 9: '##ing' there, 'play' her",
            ),
            ((*ENTRIES[:-1], "blues"), "line 13: 'jazz' there, 'blues' here"),
            (
                ("[unused2]", "x", *ENTRIES[2:]),
                "line 6: '.unused1.' there, '.unused2.' here",
            ),
        ],
    )
    def test_any_other_difference(self, entries, message):
        with pytest.raises(InputError, match=f"model: not the vocabulary .*{message}"):
            sources(changed(*entries))

    def test_at_most_ten_are_named(self):
        old = changed(*(f"a{i}" for i in range(12)))
        new = changed(*(f"b{i}" for i in range(12)))
        message = (
            r"line 15: 'a9' there, 'b9' here and 2 more\. New entries may only replace"
        )
        with pytest.raises(InputError, match=message) as caught:
            sources(new, old=old)
        assert "a10" not in str(caught.value)


def test_rows_of_new_entries_are_means_of_old_rows():
    rows = np.array([[1, 2], [3, 5], [10, 20], [7, 7]], np.float32)
    before = rows.copy()
    means = {1: (0, 2), 4: (1, 3), 5: (2,)}
    found = vocabulary_extension.extend_rows(rows, means, num_rows=6)
    expected = [[1, 2], [5.5, 11], [10, 20], [7, 7], [5, 6], [10, 20]]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(rows, before)
    # A number for each entry, such as a bias.
    found = vocabulary_extension.extend_rows(rows[:, 0], {0: (1, 2, 3)}, num_rows=4)
    np.testing.assert_array_equal(found, np.float32([20 / 3, 3, 10, 7]))
