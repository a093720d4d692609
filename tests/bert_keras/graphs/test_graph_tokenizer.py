"""The tokenizer in the graph against the reference tokenizer: the same ids, always."""

import itertools
import json
import random
import subprocess
import sys
import textwrap
import unicodedata

import pytest
import tensorflow as tf

from bert_keras.data import tokenization
from bert_keras.graphs import graph_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMALL = (*SPECIAL, "un", "##want", "##ed", "runn", "##ing", ",", "a", "##b")
CODE_POINTS = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]


def in_graph(vocabulary, do_lower_case):
    """The graph tokenizer as a function from a list of strings to lists of ids."""
    tokenizer = graph_tokenizer.GraphTokenizer(vocabulary, do_lower_case=do_lower_case)
    signature = [tf.TensorSpec([None], tf.string)]
    function = tf.function(tokenizer.__call__, input_signature=signature)
    return lambda texts: function(tf.constant(texts, tf.string)).to_list()


def check_agreement(vocabulary, do_lower_case, texts):
    reference = tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    tokenize = in_graph(vocabulary, do_lower_case)
    for first in range(0, len(texts), 4096):
        batch = texts[first : first + 4096]
        encoded = tokenize([text.encode() for text in batch])
        for text, ids in zip(batch, encoded, strict=True):
            assert ids == reference.encode(text), ascii(text)


def alphabet_vocabulary():
    """Every character that a mark can become is an entry, so that order shows."""
    letters = {"σ", "ς", "a", "b", "i", "中", "'"}
    for char in map(chr, CODE_POINTS):
        if unicodedata.combining(char) or unicodedata.decomposition(char):
            letters |= set(tokenization.strip_accents(char.lower()))
    letters = sorted(letters)
    return tokenization.Vocabulary(
        (*SPECIAL, *letters, *(f"##{letter}" for letter in letters))
    )


@pytest.mark.parametrize(
    ("name", "do_lower_case"),
    [("uncased", True), ("cased", False), ("chinese", True), ("multi_cased", False)],
)
def test_gives_the_originals_ids_on_every_recorded_case(
    shared_data, name, do_lower_case
):
    vocabulary = tokenization.Vocabulary.load(
        shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    )
    lines = (shared_data / f"tokenization/{name}.jsonl").read_bytes().splitlines()
    cases = [json.loads(line) for line in lines]
    tokenize = in_graph(vocabulary, do_lower_case)
    assert tokenize([case["text"] for case in cases]) == [c["ids"] for c in cases]


def all_in_context(code_points):
    return [text for c in map(chr, code_points) for text in (c, f"a{c}b")]


@pytest.mark.parametrize(
    "do_lower_case", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_agrees_on_every_assigned_character(do_lower_case):
    # Of the unassigned and private ones, which are all alike, one in 97.
    telling = [
        c
        for c in CODE_POINTS
        if unicodedata.category(chr(c)) not in ("Cn", "Co") or c % 97 == 0
    ]
    texts = all_in_context(telling)
    check_agreement(alphabet_vocabulary(), do_lower_case, texts)


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_agrees_on_every_code_point(do_lower_case):
    check_agreement(alphabet_vocabulary(), do_lower_case, all_in_context(CODE_POINTS))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_agrees_on_random_strings(do_lower_case):
    rng = random.Random(5)
    everything = [chr(c) for c in CODE_POINTS]
    marks = [c for c in everything if unicodedata.combining(c)]
    kept_marks = [c for c in marks if unicodedata.category(c) != "Mn"]
    decomposed = [c for c in everything if unicodedata.decomposition(c)]
    pools = ["aΣb Σ'.", "\u0345\u034f\u0f73\U0001d15e", kept_marks, kept_marks]
    pools += [marks, decomposed, everything, " 中한,[İ\u00ad\u2028\u2000"]
    texts = [
        "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(15)))
        for _ in range(10_000)
    ]
    check_agreement(alphabet_vocabulary(), do_lower_case, texts)


def test_context_decides_sigma_and_the_order_of_marks():
    texts = ["ΑΣ", "ΑΣ.", "ΑΣ.Α", "ΑΣ'", "Σ", "Α Σ", "Α\u0301Σ\u0301", "ΑΣ中Σ", "Σ中ΑΣ"]
    texts += ["ΑΣ\u200b", "Α\ufffdΣ", "ΣΣΣ", "aΣ\u02b0", "\u02b0Σ", "", "Α", "Σ\nΑ"]
    # Classes 224 and 216: canonical order swaps them, unless something parts them.
    texts += [
        f"a\u302e{part}\U0001d165b" for part in ("", "\u0301", "\u034f", "x", " ")
    ]
    texts += ["\u302e", "\U0001d165"]
    vocabulary = alphabet_vocabulary()
    check_agreement(vocabulary, True, texts)
    swapped, kept = in_graph(vocabulary, True)(
        ["a\u302e\U0001d165", "a\u302e\u034f\U0001d165"]
    )
    assert [vocabulary.tokens[i] for i in swapped] == ["a", "##\U0001d165", "##\u302e"]
    assert [vocabulary.tokens[i] for i in kept] == ["a", "##\u302e", "##\U0001d165"]


def test_ids_are_these():
    tokenize = in_graph(tokenization.Vocabulary(SMALL), True)
    assert tokenize(["UNwantéd,running", "", " \x00\ufffd\t", "[MASK]", "ab ba"]) == [
        [5, 6, 7, 10, 8, 9],
        [],
        [],
        [1, 1, 1],
        [11, 12, 1],
    ]
    assert tokenize([]) == []


def test_the_longest_word_has_200_characters_of_any_width():
    vocabulary = tokenization.Vocabulary((*SPECIAL, "a", "##a", "𝔞", "##𝔞"))
    texts = [c * n for c in "aá𝔞" for n in (199, 200, 201)]
    check_agreement(vocabulary, True, texts)
    assert in_graph(vocabulary, True)(["𝔞" * 200, "𝔞" * 201]) == [[7] + [8] * 199, [1]]


def test_bytes_that_are_not_utf8_are_skipped():
    tokenize = in_graph(tokenization.Vocabulary(SMALL), True)
    for malformed in (b"\xff", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        assert tokenize([b"a" + malformed + b"b", b"un"]) == [[11, 12], [5]]


@pytest.mark.parametrize("max_seq_length", [3, 4, 5, 6, 9, 30])
@pytest.mark.parametrize("keeps_tail", [False, True])
def test_packs_as_the_reference_does(max_seq_length, keeps_tail):
    vocabulary = tokenization.Vocabulary(SMALL)
    lengths = itertools.product([*range(9), 40], repeat=2)
    pairs = [(list(range(5, 5 + a)), list(range(60, 60 + b))) for a, b in lengths]
    packed = graph_tokenizer.pack_pairs(
        tf.ragged.constant([a for a, _ in pairs], tf.int32),
        tf.ragged.constant([b for _, b in pairs], tf.int32),
        max_seq_length=max_seq_length,
        vocabulary=vocabulary,
        keeps_tail=keeps_tail,
    )
    longest = 0
    for row, (a, b) in enumerate(pairs):
        ids, segments = tokenization.pack_pair(
            *(a, b),
            max_seq_length=max_seq_length,
            vocabulary=vocabulary,
            keeps_tail=keeps_tail,
        )
        longest = max(longest, len(ids))
        for name, values in (
            ("input_ids", ids),
            ("segment_ids", segments),
            ("input_mask", [1] * len(ids)),
        ):
            found = packed[name][row].numpy().tolist()
            assert found == values + [0] * (len(found) - len(values)), (name, a, b)
    assert packed["input_ids"].shape == (len(pairs), longest)
    assert {values.dtype for values in packed.values()} == {tf.int32}


def test_packs_single_texts_to_a_fixed_length():
    packed = graph_tokenizer.pack_pairs(
        tf.ragged.constant([[5, 6], [], [5] * 9], tf.int32),
        None,
        max_seq_length=6,
        vocabulary=tokenization.Vocabulary(SMALL),
        pad_to_max_seq_length=True,
    )
    assert packed["input_ids"].numpy().tolist() == [
        [2, 5, 6, 3, 0, 0],
        [2, 3, 0, 0, 0, 0],
        [2, 5, 5, 5, 5, 3],
    ]
    assert packed["segment_ids"].numpy().tolist() == [[0] * 6] * 3
    assert packed["input_mask"].numpy().sum(1).tolist() == [4, 2, 6]


def test_packing_needs_room_for_special_tokens():
    with pytest.raises(ValueError, match="at least 3, got 2"):
        graph_tokenizer.pack_pairs(
            tf.ragged.constant([[5]], tf.int32),
            None,
            max_seq_length=2,
            vocabulary=tokenization.Vocabulary(SMALL),
        )


@pytest.mark.slow
def test_a_saved_model_needs_nothing_of_ours(tmp_path):
    class Packer(tf.Module):
        def __init__(self, vocabulary):
            super().__init__()
            self.vocabulary = vocabulary
            self.tokenizer = graph_tokenizer.GraphTokenizer(
                vocabulary, do_lower_case=True
            )

        def pack(self, texts, pairs):
            return graph_tokenizer.pack_pairs(
                self.tokenizer(texts),
                self.tokenizer(pairs),
                max_seq_length=9,
                vocabulary=self.vocabulary,
            )

    packer = Packer(tokenization.Vocabulary(SMALL))
    strings = tf.TensorSpec([None], tf.string)
    function = tf.function(packer.pack)
    signature = function.get_concrete_function(strings, strings)
    tf.saved_model.save(packer, str(tmp_path / "model"), signatures=signature)
    script = """
        import sys
        import tensorflow as tf
        import tensorflow_text
        model = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
        packed = model(
            texts=tf.constant(["UNwanted 한ΑΣ", "Á"]), pairs=tf.constant(["ab", ""])
        )
        assert "bert_keras" not in sys.modules
        print(packed["input_ids"].numpy().tolist())
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "model")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    ids = [[2, 5, 6, 7, 1, 3, 11, 12, 3], [2, 11, 3, 0, 0, 0, 0, 0, 0]]
    assert json.loads(result.stdout.splitlines()[-1]) == ids
