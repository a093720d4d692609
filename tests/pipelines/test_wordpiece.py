"""The learner: whole literal outputs, exact sizes, tensorflow-text's very pieces."""

import bisect
import functools
import importlib.util
import operator
import random
from collections import Counter
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.pipelines import wordpiece

WORDS = {
    **{"thinking": 3, "walking": 4, "talking": 3, "walk": 9, "talk": 7, "talked": 2},
    **{"winked": 2, ",": 30, "中": 5},
}
# What every uncased vocabulary spells with: 68 characters, 36 of them inside words.
ASCII = sorted({chr(c).lower() for c in range(33, 127)})
ALPHANUMERIC = [c for c in ASCII if c.isalnum()]
INNER_ASCII = [f"##{c}" for c in ALPHANUMERIC]
LEAST = 104 + 68 + 36


def by_rank(words):
    return sorted(words.items(), key=lambda item: (-item[1], item[0]))


def characters_of(words):
    return Counter("".join(word * count for word, count in words.items()))


def learn(words, vocab_size):
    return wordpiece.learn_vocabulary(
        by_rank(words),
        character_counts=characters_of(words),
        vocab_size=vocab_size,
        do_lower_case=True,
    )


def test_entries_and_their_order():
    learnt = learn(WORDS, LEAST + 4)
    assert learnt[:104] == list(wordpiece.RESERVED_TOKENS)
    assert learnt[104 : LEAST + 1] == [*ASCII, "中", *INNER_ASCII]
    # 10, 9 and 7 times; two of the words that end in "ing" occur 3 times.
    assert learnt[LEAST + 1 :] == ["##ing", "walk", "talk"]


def test_special_tokens_are_where_berts_are():
    reserved = tokenization.Vocabulary(wordpiece.RESERVED_TOKENS)
    assert (reserved.pad_id, reserved.unk_id, reserved.cls_id) == (0, 100, 101)
    assert (reserved.sep_id, reserved.mask_id, len(reserved)) == (102, 103, 104)
    assert (reserved.ids["[unused0]"], reserved.ids["[unused98]"]) == (1, 99)


def test_reserved_tokens_are_the_published_ones(shared_data):
    path = shared_data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    published = tokenization.Vocabulary.load(path)
    assert published.tokens[:104] == wordpiece.RESERVED_TOKENS


@pytest.mark.parametrize("surplus", [1, 3, 13, 500])
def test_size_is_exact(surplus):
    learnt = learn(WORDS, LEAST + surplus)
    # Built as one, so it has no duplicate.
    assert len(tokenization.Vocabulary(tuple(learnt))) == LEAST + surplus


def test_a_small_text_is_filled_with_its_words_then_with_unused_entries(caplog):
    learnt = learn({"ab": 3, "abc": 1, "cb": 1}, LEAST + 10)
    assert learnt[LEAST : LEAST + 3] == ["ab", "abc", "cb"]
    assert learnt[LEAST + 3 :] == [f"[unused{i}]" for i in range(99, 106)]
    assert "only 211 entries; 7 are filled with [unused] ones" in caplog.text


def test_too_small_a_size_names_the_least():
    with pytest.raises(InputError, match="--vocab_size 208 is too small: .* take 209"):
        learn(WORDS, 208)
    assert len(learn(WORDS, 209)) == 209


def test_words_of_rare_characters_and_long_words_teach_nothing():
    words = {"ab": 60_000, "ba": 30_000, "éb": 2, "a" * 60: 1}
    learnt = learn(words, LEAST + 4)
    assert learnt[LEAST:] == ["ab", "ba", "[unused99]", "[unused100]"]


def test_alphabet_covers_the_text_and_leaves_out_what_is_never_inside_words():
    def beyond_ascii(words, do_lower_case=True):
        found = wordpiece.alphabet(characters_of(words), do_lower_case=do_lower_case)
        assert found.issuperset([*ASCII, *INNER_ASCII])
        return found.difference(ASCII, INNER_ASCII)

    assert beyond_ascii({"é。": 1, "q中": 1}) == {"é", "##é", "。", "中"}
    assert beyond_ascii({"a\ud800b": 5, "\udfff": 1, "\ue000": 1}) == {
        "\ue000",
        "##\ue000",
    }
    # 3 in 100,000 are not worth an entry, 7 are.
    assert beyond_ascii({"a": 99_997, "é": 3}) == set()
    assert beyond_ascii({"a": 99_993, "é": 7}) == {"é", "##é"}
    capitals = {chr(c) for c in range(ord("A"), ord("Z") + 1)}
    inner_capitals = {f"##{c}" for c in capitals}
    assert beyond_ascii({"a": 1}, do_lower_case=False) == capitals | inner_capitals


@pytest.mark.parametrize("num_pieces", [0, *range(1, 16_000, 3998)])
def test_finds_a_threshold_that_gives_just_enough(num_pieces):
    counts = [max(1, 2_000_000 // (rank + 1)) for rank in range(10_000)]
    tried = []

    def size_at(threshold):
        # Pieces outnumber words: endings of words are pieces too.
        return int(1.4 * bisect.bisect(counts, -threshold, key=operator.neg))

    def learn(threshold):
        tried.append(threshold)
        return ["piece"] * size_at(threshold)

    found = len(wordpiece.find_pieces(learn, num_pieces=num_pieces, counts=counts))
    sizes = [size_at(threshold) for threshold in {2, *counts} if threshold > 1]
    just_enough = min((s for s in sizes if s >= num_pieces), default=max(sizes))
    assert found <= max(just_enough, num_pieces * 1.02)
    assert found >= min(num_pieces, max(sizes))
    assert len(tried) <= 4


def test_the_alphabet_is_that_of_the_whole_text():
    """Not that of the words which were frequent enough to be learnt from."""
    learnt = wordpiece.learn_vocabulary(
        [("ab", 9)],
        character_counts={"a": 9, "b": 9, "é": 2},
        vocab_size=LEAST + 2,
        do_lower_case=True,
    )
    assert learnt[104 : LEAST + 2] == [*ASCII, "é", *INNER_ASCII, "##é"]


@functools.cache
def tensorflow_text_learner():
    """The learner's one module: its package would import all of TensorFlow."""
    package = importlib.util.find_spec("tensorflow_text")
    if package is None:
        pytest.skip("needs tensorflow-text to compare with")
    path = "tools/wordpiece_vocab/wordpiece_tokenizer_learner_lib.py"
    path = Path(package.origin).parent / path
    spec = importlib.util.spec_from_file_location("wordpiece_learner", path)
    learner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(learner)
    return learner


def pieces_of_tensorflow_text(words, threshold):
    entries = tensorflow_text_learner().learn(
        by_rank(words),
        vocab_size=0,
        reserved_tokens=[],
        # Equal bounds: one step of its search.
        upper_thresh=threshold,
        lower_thresh=threshold,
        max_unique_chars=1 << 21,
    )
    return [entry for entry in entries if len(entry.removeprefix("##")) > 1]


@pytest.mark.parametrize("seed", range(2))
def test_pieces_are_those_of_tensorflow_text(seed):
    rng = random.Random(seed)
    # Few letters, so that endings, whole words and pieces of both coincide.
    letters = "abé" if seed % 2 else "abcdefgh"
    words = {
        "".join(rng.choices(letters, k=rng.randint(1, 9))): rng.randint(1, 40) ** 2
        for _ in range(500)
    }
    words |= {",": 900, "##": 4, "中": 30, "a" * 50: 20}
    learner = wordpiece.PieceLearner(by_rank(words))
    sizes = set()
    for threshold in (2, 3, 20, 100, 400, 1600):
        pieces = learner.learn(threshold)
        assert pieces == pieces_of_tensorflow_text(words, threshold)
        sizes.add(len(pieces))
    assert len(sizes) >= 5
    # For the progress line: each of six thresholds took three iterations.
    assert learner.num_words_done == 6 * 3 * len(words)
