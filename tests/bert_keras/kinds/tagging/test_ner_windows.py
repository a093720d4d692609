"""Windows around sentences: every word once, as much of the document as fits."""

import numpy as np
import pytest

from bert_keras.kinds.tagging import ner, ner_windows
from tests.bert_keras.kinds import kind_data

# "aa" is two pieces, "aaa" three.
TOKENIZER = kind_data.tokenizer(*"abcdefgh", "##a", do_lower_case=False)
VOCABULARY = TOKENIZER.vocabulary


def sentences_of(*documents: str) -> list[ner.Sentence]:
    """Sentences of documents whose sentences are divided by `/`."""
    return [
        ner.Sentence(tuple(words.split()), None, number, 1)
        for number, document in enumerate(documents)
        for words in document.split("/")
    ]


def windows_of(
    sentences: list[ner.Sentence], max_seq_length: int, **options
) -> list[tuple[str, str]]:
    """The pieces of each window, and those of them where an own word begins."""
    words = ner_windows.tokenize(
        sentences, TOKENIZER, max_seq_length=max_seq_length, **options
    )
    found = []
    for row in range(len(words.lengths)):
        rows = np.array([row])
        pieces = [VOCABULARY.tokens[i] for i in words.batch(rows)["input_ids"][0]]
        assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
        assert len(pieces) == words.lengths[row] <= max_seq_length
        own = [pieces[position] for position in words.places(rows).index[1]]
        found.append((" ".join(pieces[1:-1]), " ".join(own)))
    return found


@pytest.mark.parametrize(
    ("documents", "max_seq_length", "context", "windows"),
    [
        (
            *(["a b c/d e/f g h", "a/b"], 8, True),
            "a b c d e f=a b c|b c d e f g=d e|c d e f g h=f g h|a b=a|a b=b",
        ),
        (
            *(["a b c/d e/f g h", "a/b"], 8, False),
            "a b c=a b c|d e=d e|f g h=f g h|a=a|b=b",
        ),
        # Two pieces of room for each side of "e". The left takes none of "aaa" and
        # leaves both to the right, of which "ga" takes all.
        (
            *(["b aaa/e/f gaa h"], 7, True),
            "b a ##a ##a e=b a|e f g ##a ##a=e|f g ##a ##a h=f g h",
        ),
        # What the right cannot use goes to the left again.
        (*(["b aa/e/faaa"], 7, True), "b a ##a e=b a|b a ##a e=e|e f ##a ##a ##a=f"),
        # Long sentences are cut, and words at the cuts have neighbours.
        (
            *(["a b c d e f g/h"], 6, True),
            "a b c d=a b|b c d e=c d|d e f g=e f|e f g h=g|e f g h=h",
        ),
        # The same sentence is context in any case.
        (["a b c d e/h"], 6, False, "a b c d=a b|b c d e=c d|b c d e=e|h=h"),
        # Words of no pieces, or of too many, have a place.
        (
            *(["a \x01 z caaaaaa b"], 5, True),
            "a [UNK] [UNK]=a|a [UNK] [UNK]=[UNK]|a [UNK] [UNK]=[UNK]|c ##a ##a=c|b=b",
        ),
    ],
)
def test_windows_by_hand(documents, max_seq_length, context, windows):
    """Pieces of each window, and those of them where an own word begins."""
    sentences = sentences_of(*documents)
    with pytest.raises(ValueError, match="must be at least 3, got 2"):
        windows_of(sentences, 2)
    actual = windows_of(sentences, max_seq_length, document_context=context)
    assert actual == [tuple(window.split("=")) for window in windows.split("|")]


def test_labels_are_at_first_pieces_of_own_words_alone():
    sentences = sentences_of("a baa/c d", "e")
    words = ner_windows.tokenize(sentences, TOKENIZER, max_seq_length=6)
    assert "label_ids" not in words.batch(np.arange(3))
    words = ner_windows.tokenize(
        sentences, TOKENIZER, max_seq_length=6, label_ids=np.int32([5, 6, 7, 8, 9])
    )
    batch = words.batch(np.array([1, 2, 0]))
    assert [VOCABULARY.tokens[i] for i in batch["input_ids"][0]] == (
        "[CLS] c d [SEP] [PAD] [PAD]".split()
    )
    assert batch["label_ids"].tolist() == [
        [-1, 7, 8, -1, -1, -1],
        [-1, 9, -1, -1, -1, -1],
        [-1, 5, 6, -1, -1, -1],
    ]
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}
    assert batch["segment_ids"].sum() == 0
