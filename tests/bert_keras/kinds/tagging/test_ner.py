"""Files of tagged words."""

import json
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.tagging import ner
from tests.bert_keras.kinds.kind_data import write

COUNTS = {
    "train": ("eng.train", 14_041, 203_621, 23_499, 946),
    "valid": ("eng.testa", 3250, 51_362, 5942, 216),
    "test": ("eng.testb", 3453, 46_435, 5648, 231),
}


@pytest.mark.parametrize(
    "split",
    [*(pytest.param(n, marks=pytest.mark.slow) for n in ("train", "valid")), "test"],
)
def test_conll_2003_is_the_same_in_iob1_and_in_iob2(shared_data, split, caplog):
    name, num_sentences, num_words, num_entities, num_documents = COUNTS[split]
    folder = shared_data / "ner" / "conll2003"
    sentences = ner.read(folder / name)
    assert len(sentences) == num_sentences
    assert sum(len(s.words) for s in sentences) == num_words
    tags = [tag for s in sentences for tag in s.tags]
    assert sum(tag.startswith("B-") for tag in tags) == num_entities
    assert len({s.document for s in sentences}) == num_documents
    published = ner.read(folder / "iob2" / f"{split}.txt")
    assert [s[:2] for s in sentences] == [s[:2] for s in published]
    assert len({s.document for s in published}) == num_sentences
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "content", "has_tags", "rows"),
    [
        (
            "eng.testa",
            "\ufeff-DOCSTART- -X- -X- O\r\n\r\nThe DT I-NP O\r\nUN\tNNP  I-NP I-ORG "
            "\r\n\r\n \r\nUN NNP I-NP I-ORG\r\nEU NNP I-NP B-ORG\r\nasks VB I-VP O\r\n"
            "-DOCSTART- -X- -X- O\r\nx\u00a0\u2028y NN I-NP I-PER",
            True,
            [
                (("The", "UN"), ("O", "B-ORG"), 1, 3),
                (("UN", "EU", "asks"), ("B-ORG", "B-ORG", "O"), 1, 7),
                (("x\u00a0\u2028y",), ("B-PER",), 2, 11),
            ],
        ),
        # Without lines of documents each sentence is its own.
        (
            *("a.txt", "\n\na B-X\nb I-X\n\n\nc O\n", True),
            [(("a", "b"), ("B-X", "I-X"), 0, 3), (("c",), ("O",), 1, 7)],
        ),
        (
            "a.jsonl",
            '{"words": ["a", "b"], "tags": ["I-PER", "O"], "id": 7}\n\n'
            '{"tags": ["B-geo-loc"], "words": ["\u2028é"]}',
            True,
            [(("a", "b"), ("B-PER", "O"), 0, 1), (("\u2028é",), ("B-geo-loc",), 1, 3)],
        ),
        ("a.txt", "a DT\nb NN\n", True, [(("a", "b"), ("DT", "NN"), 0, 1)]),
        (
            *("a.txt", "a\nb\n\nc\n", False),
            [(("a", "b"), None, 0, 1), (("c",), None, 1, 4)],
        ),
        ("b.txt", "a NN what\n", False, [(("a",), None, 0, 1)]),
        ("a.jsonl", '{"words": ["a"]}\n', False, [(("a",), None, 0, 1)]),
    ],
)
def test_files_are_read(tmp_path, name, content, has_tags, rows):
    sentences = ner.read(write(tmp_path / name, content), has_tags=has_tags)
    assert [sentence[:4] for sentence in sentences] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "a.txt: holds no sentences, expected at least one"),
        ("a.txt", "-DOCSTART- O\n\n", "a.txt: holds no sentences"),
        ("a.jsonl", "\n", "a.jsonl: holds no sentences"),
        ("a.txt", "a\nb\n", "line 1: expected a word and its tag, got 'a'"),
        (
            "a.txt",
            "a DT O\n\nb O\n",
            "3: expected 3 columns as in the lines before, got 2",
        ),
        (
            *("a.txt", "a O\nb B-PER\n\nc PER\nd I-PER"),
            r"a.txt: expected tags of one scheme \(plain, IOB, BIOES or BILOU\), got "
            r"'PER' \(sentence of line 4\) and 'B-PER' \(sentence of line 1\)",
        ),
        ("a.txt", "a B-X\nb L-X\nc S-X\n", r"one scheme .* 'S-X' .* and 'L-X' \(sent"),
        ("a.txt", "a B-\n", "line 1: expected a tag such as NN, or O.*, got 'B-'"),
        (
            *(
                "a.jsonl",
                '{"words": ["a"], "tags": ["O"]}\n{"words": ["a", "b"], "tags": ["O"]}',
            ),
            "a.jsonl: line 2: 2 words, but 1 tags: expected one for each word",
        ),
        (
            *("a.jsonl", '{"words": ["a"]}'),
            "line 1: expected 'tags' with a list of one string or more, got None",
        ),
        ("a.jsonl", '{"words": [], "tags": []}', r"expected 'words' with .* got \[\]"),
        ("a.jsonl", '{"words": "ab", "tags": ["O"]}', "'words' with .* got 'ab'"),
        ("a.jsonl", '{"words": ["a"], "tags": [0]}', r"'tags' with a .* got \[0\]"),
        (
            *("a.jsonl", '{"words": ["a b"], "tags": ["O"]}'),
            "line 1: expected words without blanks in them, got 'a b'",
        ),
        ("a.jsonl", '{"words": [""], "tags": ["O"]}', "words without .* got ''"),
        ("a.jsonl", '{"words": ["\\ud800"], "tags": ["O"]}', "half of a surrogate"),
        ("a.jsonl", '{"words": ["a"], "tags": ["B-a b"]}', "got 'B-a b'"),
        (
            "a.jsonl",
            '["a"]',
            r'expected {"words": \[...\], "tags": \[...\]}, got \["a"\]',
        ),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(InputError, match=message):
        ner.read(tmp_path / name)


def test_faults_of_iob2_are_mended_and_reported(tmp_path, caplog):
    content = "a B-A\nb O\n\nc O\nd I-B\ne B-A\n\nf B-B\ng I-A\n\nh B-A\n"
    sentences = ner.read(write(tmp_path / "a.txt", content))
    tags = [" ".join(s.tags) for s in sentences]
    assert tags == ["B-A O", "O B-B B-A", "B-B B-A", "B-A"]
    assert caplog.messages == [
        f"{tmp_path}/a.txt: 2 entities of an IOB2 file begin with I-, read as B- "
        "(the first is in the sentence of line 4)"
    ]


def test_predictions_are_what_conlleval_reads(tmp_path):
    path = write(tmp_path / "dev.txt", "w B-A\nw I-A\n\nw O\n")
    predicted = [("B-A", "O"), ("B-B",)]
    columns = ner.with_columns(path, ner.read(path), predicted, suffix=".txt")
    assert columns == "w B-A B-A\nw I-A O\n\nw O B-B\n\n"
    again = ner.read(write(tmp_path / "a.txt", columns))
    assert [s.tags for s in again] == predicted


def span(start: int, end: int, label: str = "PER") -> dict:
    return {"start": start, "end": end, "label": label}


def texts(path: Path, *rows: tuple[str, list[dict]]) -> Path:
    lines = [json.dumps({"text": text, "entities": found}) for text, found in rows]
    return write(path, "\n".join(lines) + "\n")


def test_spans_of_characters_become_tags(tmp_path, caplog):
    for text, entities, tags in (
        ("Ada met Bob.", [span(8, 11), span(0, 3)], "B-PER O B-PER O"),
        ("  New York\r\nUS", [span(2, 10, "LOC"), span(12, 14)], "B-LOC I-LOC B-PER"),
        # A combining mark, an emoji of several characters, ideographs, a control.
        ("Jose\u0301 Paz", [span(0, 5)], "B-PER O"),
        ("\U0001f469\u200d\U0001f52c Eva", [span(4, 7)], "O B-PER"),
        ("\u5317\u4eac\u5e02\u957f", [span(0, 2, "LOC")], "B-LOC I-LOC O O"),
        ("A\x00b c", [span(0, 3)], "B-PER O"),
        *(("", [], ""), (" \n", [], "")),
    ):
        sentence, _ = ner.read(
            texts(tmp_path / "a.jsonl", (text, entities), ("Bob", []))
        )
        assert sentence.tags == tuple(tags.split())
        assert [text[start:end] for start, end in sentence.places] == [*sentence.words]
    assert not caplog.records


def test_spans_that_cut_words_are_widened_and_counted(tmp_path, caplog):
    path = texts(
        tmp_path / "a.jsonl",
        ("Ada met Bob", [span(0, 3)]),
        ("Adas Bobs", [span(0, 3), span(4, 8), span(8, 9)]),
    )
    assert [s.tags for s in ner.read(path)] == [("B-PER", "O", "O"), ("B-PER",) * 2]
    assert caplog.messages == [
        f"{path}: 3 of 4 entities do not begin and end where words do: widened "
        "to words (the first in line 2)",
        f"{path}: 1 of 4 entities share their only words with the one before: "
        "left out (the first in line 2)",
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Ada"}, "'entities' with a list, [] if there are none, got None"),
        ({"text": 3, "entities": []}, "expected 'text' with a string, got 3"),
        ({"text": "\ud83d", "entities": []}, "half of a surrogate pair"),
        ({"entities": [span(0, 4)]}, "entity 1: expected 0 <= start < end <= 3 (char"),
        ({"entities": [span(-1, 2)]}, "of the text), got -1 and 2"),
        ({"entities": [span(1, 1)]}, "of the text), got 1 and 1"),
        ({"entities": [[0, 3]]}, 'expected {"start": 0, "end": 5, "label": "PE'),
        ({"entities": [span(0.0, 3)]}, "with whole numbers of characters"),
        ({"entities": [span(0, True)]}, "with whole numbers of characters"),
        ({"entities": [span(0, 3, "a b")]}, "such as PER or Job_Title, got 'a b'"),
        (
            {"entities": [span(0, 3), span(1, 2)]},
            "the entities 'Ada' (0 to 3) and 'd' (1 to 2) overlap",
        ),
        (
            {"text": "a  b", "entities": [span(1, 3)]},
            "the entity from 1 to 3 (PER) has no character of a word",
        ),
    ],
)
def test_spans_that_are_none_of_their_text(tmp_path, row, message):
    rows = [{"text": "x", "entities": []}, {"text": "Ada"} | row]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError) as error:
        ner.read(path)
    assert f"{path}: line 2: " in str(error.value)
    assert message in str(error.value)


def test_texts_without_labels_are_lines(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffAda met\r\n\r\n Bob\u2028x\n")
    sentences = ner.read(path, has_tags=False, has_lines=True)
    assert [(s.words, s.text, s.line) for s in sentences] == [
        (("Ada", "met"), "Ada met", 1),
        ((), "", 2),
        (("Bob", "x"), " Bob\u2028x", 3),
    ]
