"""Vocabularies with the pieces of some texts only: the same pieces for these texts."""

import random

import pytest

from bert_keras.data import features, tokenization, vocabulary_pruning

SPECIAL = features.SPECIAL_TOKENS
TOKENS = (*SPECIAL, "a", "b", "x", "##a", "##b", "##x", "ab", "##bx", "abx", "é", "e")
VOCABULARY = tokenization.Vocabulary(TOKENS)


def kept(texts, *, do_lower_case=True, vocabulary=VOCABULARY):
    ids = vocabulary_pruning.kept_ids(vocabulary, texts, do_lower_case=do_lower_case)
    return [vocabulary.tokens[i] for i in ids]


def pieces(tokens, text, do_lower_case):
    vocabulary = tokenization.Vocabulary(tokens)
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    return [vocabulary.tokens[i] for i in tokenizer.encode(text)]


def test_what_is_kept_is_literal():
    characters = ["a", "b", "x", "##a", "##b", "##x"]
    assert kept(["abx"]) == [*SPECIAL, *characters, "abx", "e"]
    assert kept(["xbx."]) == [*SPECIAL, *characters, "##bx", "e"]
    # `é` is cased text's own character; lower-cased text has none.
    assert kept(["é"]) == [*SPECIAL, *characters, "e"]
    assert kept(["é"], do_lower_case=False) == [*SPECIAL, *characters, "é", "e"]
    assert kept(["É"], do_lower_case=False) == [*SPECIAL, *characters, "é", "e"]
    # Texts without words keep nothing.
    assert kept([]) == kept([""]) == kept([" \n\t\x00"]) == []


def test_the_beginning_of_an_unknown_word_is_kept():
    """Without `ab`, the pieces `a`, `##bx` and `##q` would spell it."""
    tokens = (*SPECIAL, "a", "ab", "##bx", "q", "##q")
    vocabulary = tokenization.Vocabulary(tokens)
    left = kept(["abxq"], vocabulary=vocabulary)
    assert "ab" in left
    assert pieces(left, "abxq", True) == pieces(tokens, "abxq", True) == ["[UNK]"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_texts_have_the_same_pieces(do_lower_case):
    """Any vocabulary of short entries, and words that it cannot spell."""
    rng = random.Random(7)
    letters = "abcéE中."
    for _ in range(60):
        entries = {
            rng.choice(["", "##"]) + "".join(rng.choices(letters, k=rng.randint(1, 4)))
            for _ in range(rng.randint(3, 25))
        }
        tokens = (*SPECIAL, *sorted(entries))
        texts = [
            " ".join(
                "".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(4)
            )
            for _ in range(5)
        ]
        vocabulary = tokenization.Vocabulary(tokens)
        left = kept(texts, do_lower_case=do_lower_case, vocabulary=vocabulary)
        for text in texts:
            expected = pieces(tokens, text, do_lower_case)
            assert pieces(left, text, do_lower_case) == expected, (text, tokens)


def test_a_word_that_is_too_long_stays_unknown():
    word = "a" * (tokenization.MAX_INPUT_CHARS_PER_WORD + 1)
    tokens = (*SPECIAL, "aaaa", "##aaaa", "a", "##a")
    vocabulary = tokenization.Vocabulary(tokens)
    left = kept([word], vocabulary=vocabulary)
    assert left == [*SPECIAL, "a", "##a"]
    assert pieces(left, word, True) == ["[UNK]"]
    assert kept([word[1:]], vocabulary=vocabulary) == [*tokens]
