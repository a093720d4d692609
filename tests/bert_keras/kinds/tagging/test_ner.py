"""Named entities: files, tags and scores that are conlleval's."""

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme

from bert_keras.core.errors import InputError
from bert_keras.kinds.tagging import ner

COUNTS = {
    "train": ("eng.train", 14_041, 203_621, 23_499, 946),
    "valid": ("eng.testa", 3250, 51_362, 5942, 216),
    "test": ("eng.testb", 3453, 46_435, 5648, 231),
}


def rows_of(path: Path, **options) -> list[tuple]:
    """Words, tags, document and line of each sentence."""
    return [sentence[:4] for sentence in ner.read(path, **options)]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "split", [pytest.param("train", marks=pytest.mark.slow), "valid", "test"]
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
    assert [(s.words, s.tags) for s in sentences] == [
        (s.words, s.tags) for s in published
    ]
    assert len({s.document for s in published}) == num_sentences
    assert not caplog.records


def test_columns_are_read_with_their_documents(tmp_path):
    content = (
        "\ufeff-DOCSTART- -X- -X- O\r\n\r\nThe DT I-NP O\r\nUN\tNNP  I-NP I-ORG \r\n"
        "\r\n \r\nUN NNP I-NP I-ORG\r\nEU NNP I-NP B-ORG\r\nasks VB I-VP O\r\n"
        "-DOCSTART- -X- -X- O\r\nx\u00a0\u2028y NN I-NP I-PER"
    )
    assert rows_of(write(tmp_path / "eng.testa", content)) == [
        (("The", "UN"), ("O", "B-ORG"), 1, 3),
        (("UN", "EU", "asks"), ("B-ORG", "B-ORG", "O"), 1, 7),
        (("x\u00a0\u2028y",), ("B-PER",), 2, 11),
    ]


def test_without_document_lines_each_sentence_is_its_own(tmp_path):
    content = "\n\na B-X\nb I-X\n\n\nc O\n"
    assert rows_of(write(tmp_path / "a.txt", content)) == [
        (("a", "b"), ("B-X", "I-X"), 0, 3),
        (("c",), ("O",), 1, 7),
    ]


def test_tags_need_not_be_there_to_be_predicted(tmp_path):
    path = write(tmp_path / "a.txt", "a\nb\n\nc\n")
    assert rows_of(path, has_tags=False) == [
        (("a", "b"), None, 0, 1),
        (("c",), None, 1, 4),
    ]
    path = write(tmp_path / "b.txt", "a NN what\n")
    assert rows_of(path, has_tags=False) == [(("a",), None, 0, 1)]
    path = write(tmp_path / "a.jsonl", '{"words": ["a"]}\n')
    assert rows_of(path, has_tags=False) == [(("a",), None, 0, 1)]


def test_json_lines_are_read(tmp_path):
    rows = [
        {"words": ["a", "b"], "tags": ["I-PER", "O"], "id": 7},
        {"tags": ["B-geo-loc"], "words": ["\u2028é"]},
    ]
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert rows_of(write(tmp_path / "a.jsonl", lines)) == [
        (("a", "b"), ("B-PER", "O"), 0, 1),
        (("\u2028é",), ("B-geo-loc",), 1, 3),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "a.txt: holds no sentences, expected at least one"),
        ("a.txt", "-DOCSTART- O\n\n", "a.txt: holds no sentences"),
        ("a.jsonl", "\n", "a.jsonl: holds no sentences"),
        ("a.txt", b"a O\n\xe9 O\n", "a.txt: line 2: not UTF-8"),
        ("a.txt", "a\nb\n", "line 1: expected a word and its tag, got 'a'"),
        (
            "a.txt",
            "a DT O\n\nb O\n",
            "a.txt: line 3: expected 3 columns as in the lines before, got 2",
        ),
        (
            "a.txt",
            "a O\nb B-PER\n\nc PER\nd I-PER",
            r"a.txt: expected tags of one scheme \(plain, IOB, BIOES or BILOU\), got "
            r"'PER' \(sentence of line 4\) and 'B-PER' \(sentence of line 1\)",
        ),
        ("a.txt", "a B-X\nb L-X\nc S-X\n", r"one scheme .* 'S-X' .* and 'L-X' \(sent"),
        ("a.txt", "a B-\n", "line 1: expected a tag such as NN, or O.*, got 'B-'"),
        (
            "a.jsonl",
            '{"words": ["a"], "tags": ["O"]}\n{"words": ["a", "b"], "tags": ["O"]}\n',
            "a.jsonl: line 2: 2 words, but 1 tags: expected one for each word",
        ),
        ("a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}', "1 words, but 2 tags"),
        (
            "a.jsonl",
            '{"words": ["a"]}',
            "line 1: expected 'tags' with a list of one string or more, got None",
        ),
        ("a.jsonl", '{"words": [], "tags": []}', r"expected 'words' with .* got \[\]"),
        ("a.jsonl", '{"words": "ab", "tags": ["O"]}', "'words' with .* got 'ab'"),
        ("a.jsonl", '{"words": ["a"], "tags": [0]}', r"'tags' with a .* got \[0\]"),
        (
            "a.jsonl",
            '{"words": ["a b"], "tags": ["O"]}',
            "line 1: expected words without blanks in them, got 'a b'",
        ),
        ("a.jsonl", '{"words": [""], "tags": ["O"]}', "words without .* got ''"),
        ("a.jsonl", '{"words": ["\\ud800"], "tags": ["O"]}', "half of a surrogate"),
        ("a.jsonl", '{"words": ["a"], "tags": ["B-a b"]}', "got 'B-a b'"),
        (
            "a.jsonl",
            '["a"]',
            r'line 1: expected {"words": \[...\], "tags": \[...\]}, got \["a"\]',
        ),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        ner.read(write(tmp_path / name, content))


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InputError, match="a.txt: .*cannot read it: No such file"):
        ner.read(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("tags", "iob2"),
    [
        ("I-A I-A B-A I-A O I-A", "B-A I-A B-A I-A O B-A"),
        ("I-A I-B I-B B-B I-A", "B-A B-B I-B B-B B-A"),
        ("B-A I-A O B-B B-B I-B", "B-A I-A O B-B B-B I-B"),
        ("B-A I-B O I-B I-A", "B-A B-B O B-B B-A"),
    ],
)
def test_both_kinds_of_iob_become_iob2(tags, iob2):
    assert ner.to_iob2(tags.split()) == tuple(iob2.split())


def test_faults_of_iob2_are_mended_and_reported(tmp_path, caplog):
    content = "a B-A\nb O\n\nc O\nd I-B\ne B-A\n\nf B-B\ng I-A\n\nh B-A\n"
    sentences = ner.read(write(tmp_path / "a.txt", content))
    assert [s.tags for s in sentences] == [
        ("B-A", "O"),
        ("O", "B-B", "B-A"),
        ("B-B", "B-A"),
        ("B-A",),
    ]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith(
        "a.txt: 2 entities of an IOB2 file begin with I-, read as B- (the first is in "
        "the sentence of line 4)"
    )


def sentence(tags: str, *, line: int = 1) -> ner.Sentence:
    tags = tuple(tags.split())
    return ner.Sentence(tuple("w" for _ in tags), tags, line, line)


def test_labels_are_both_tags_of_every_type():
    sentences = [sentence("O B-b O"), sentence("B-A I-A")]
    labels = ner.distinct_labels(sentences, path="f")
    assert labels == ("O", "B-A", "I-A", "B-b", "I-b")
    ids = ner.label_ids(sentences, labels, path="f")
    assert (ids.tolist(), ids.dtype) == ([0, 3, 0, 1, 2], np.int32)
    with pytest.raises(
        InputError,
        match=r"f: sentence of line 9: tag 'B-a' was not in the training data \(known: "
        r"O, B-A, I-A, B-b, I-b\); did you mean ",
    ):
        ner.label_ids([sentence("O B-a", line=9)], labels, path="f")
    with pytest.raises(InputError, match="f: every word is tagged O: expected some"):
        ner.distinct_labels([sentence("O O")], path="f")


def conlleval(pairs: list[tuple[str, str]]) -> dict[str, list[int]]:
    """Counts of the official script, line by line as its rules are.

    Args:
        pairs: true and predicted tag of each word; `("O", "O")` between sentences.

    Returns:
        From a type to correct, predicted and true entities.
    """

    def split(tag: str) -> tuple[str, str]:
        kind, _, name = tag.partition("-")
        return kind, name

    def ends(last: tuple[str, str], now: tuple[str, str]) -> bool:
        if last[0] in "BI" and now[0] in "BO":
            return True
        return last[0] != "O" and last[1] != now[1]

    def begins(last: tuple[str, str], now: tuple[str, str]) -> bool:
        if now[0] == "B" or (last[0] == "O" and now[0] == "I"):
            return True
        return now[0] != "O" and last[1] != now[1]

    counts: dict[str, list[int]] = {}
    in_correct = False
    last_true = last_predicted = ("O", "")
    for true, predicted in [(split(t), split(p)) for t, p in [*pairs, ("O", "O")]]:
        true_ends = ends(last_true, true)
        predicted_ends = ends(last_predicted, predicted)
        if in_correct:
            if true_ends and predicted_ends and last_true[1] == last_predicted[1]:
                in_correct = False
                counts[last_true[1]][0] += 1
            elif true_ends != predicted_ends or true[1] != predicted[1]:
                in_correct = False
        true_begins = begins(last_true, true)
        predicted_begins = begins(last_predicted, predicted)
        if true_begins and predicted_begins and true[1] == predicted[1]:
            in_correct = True
        if true_begins:
            counts.setdefault(true[1], [0, 0, 0])[2] += 1
        if predicted_begins:
            counts.setdefault(predicted[1], [0, 0, 0])[1] += 1
        last_true, last_predicted = true, predicted
    return counts


def scores_of(num_correct: int, num_predicted: int, num_true: int) -> ner.EntityScores:
    precision = num_correct / num_predicted if num_predicted else 0.0
    recall = num_correct / num_true if num_true else 0.0
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    return ner.EntityScores(precision, recall, f1, num_true)


def check_scores(true: list[list[str]], predicted: list[list[str]]) -> None:
    """Compares with conlleval, and IOB2 of what was predicted with itself."""
    pairs = []
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        pairs += [*zip(true_tags, predicted_tags, strict=True), ("O", "O")]
    counts = conlleval(pairs)
    for tags in (predicted, [ner.to_iob2(tags) for tags in predicted]):
        by_type = ner.entity_scores_by_type(true, tags)
        assert list(by_type) == sorted(counts)
        for name, expected in counts.items():
            assert by_type[name] == pytest.approx(scores_of(*expected))
        total = np.array(list(counts.values())).reshape(-1, 3).sum(axis=0)
        assert ner.entity_scores(true, tags) == pytest.approx(scores_of(*total))


HARD = [
    # Predicted entities that begin with I-, at the start, after O, after another type.
    ("B-A I-A O", "I-A I-A O"),
    ("O B-A I-A", "O I-A I-A"),
    ("B-A B-B I-B", "B-A I-B I-B"),
    ("B-A I-A B-B", "B-A I-B I-A"),
    # Two neighbours taken for one, one for two.
    ("B-A I-A B-A I-A", "B-A I-A I-A I-A"),
    ("B-A I-A I-A", "B-A B-A I-A"),
    # Too short, too long, another type, nothing at all.
    ("B-A I-A I-A O", "B-A I-A O O"),
    ("B-A I-A O O", "B-A I-A I-A O"),
    ("B-A I-A", "B-B I-B"),
    ("B-A I-A", "B-A I-B"),
    ("O O", "B-A O"),
    ("B-A O", "O O"),
    # At the end of a sentence, going on in the next.
    ("O B-A", "O B-A"),
    ("I-A O", "I-A O"),
    ("O O", "O O"),
    # IOB1 in the data.
    ("I-A I-A B-A O", "B-A I-A B-A O"),
]


@pytest.mark.parametrize(("true", "predicted"), HARD)
def test_entities_are_counted_as_by_conlleval(true, predicted):
    check_scores([true.split()], [predicted.split()])


def test_many_sentences_are_counted_as_by_conlleval():
    true, predicted = zip(*[(t.split(), p.split()) for t, p in HARD], strict=True)
    check_scores(list(true), list(predicted))
    rng = random.Random(6)
    tags = ["O", "O", "B-A", "I-A", "I-A", "B-B", "I-B", "B-B-2", "I-B-2"]
    for _ in range(30):
        true, predicted = [], []
        for _ in range(rng.randint(1, 20)):
            true.append(rng.choices(tags, k=rng.randint(1, 8)))
            share = rng.random()
            predicted.append(
                [t if rng.random() < share else rng.choice(tags) for t in true[-1]]
            )
        check_scores(true, predicted)


def test_the_strict_mode_of_seqeval_would_count_otherwise():
    true, predicted = [["B-A", "I-A"]], [["I-A", "I-A"]]
    assert ner.entity_scores(true, predicted).f1 == 1.0
    assert seqeval.metrics.f1_score(true, predicted) == 1.0
    strict = seqeval.metrics.f1_score(
        true, predicted, mode="strict", scheme=seqeval.scheme.IOB2, zero_division=0
    )
    assert strict == 0.0


def test_without_entities_all_scores_are_zero():
    nothing = [["O", "O"]]
    assert ner.entity_scores(nothing, nothing) == (0.0, 0.0, 0.0, 0)
    assert ner.entity_scores_by_type(nothing, nothing) == {}


def test_answers_are_decoded_and_scored():
    labels = ("O", "B-A", "I-A")
    sentences = [sentence("B-A I-A"), sentence("O"), sentence("O B-A")]
    places = [2, 2, 0, 0, 0]
    logits = np.log(0.1 + 0.7 * np.eye(3)[places])
    tags = ner.decode(logits, labels, sentences)
    assert tags == [("B-A", "I-A"), ("O",), ("O", "O")]
    assert ner.scores(logits, labels, sentences) == pytest.approx(
        {
            "loss": -np.log([0.1, 0.8, 0.8, 0.8, 0.1]).mean(),
            "accuracy": 3 / 5,
            "precision": 1.0,
            "recall": 0.5,
            "f1": 2 / 3,
        }
    )


def test_predictions_are_what_conlleval_reads(tmp_path):
    sentences = [sentence("B-A I-A"), sentence("O")]
    columns = ner.predictions_columns(sentences, [("B-A", "O"), ("B-B",)])
    assert columns == "w B-A B-A\nw I-A O\n\nw O B-B\n\n"
    again = ner.read(write(tmp_path / "a.txt", columns))
    assert [s.tags for s in again] == [("B-A", "O"), ("B-B",)]
    untagged = [s._replace(tags=None) for s in sentences]
    columns = ner.predictions_columns(untagged, [("B-A", "O"), ("B-B",)])
    assert columns == "w B-A\nw O\n\nw B-B\n\n"


def test_scores_by_type_are_a_table():
    by_type = ner.entity_scores_by_type(
        [["B-PER", "O", "B-LOC"]], [["B-PER", "B-PER", "O"]]
    )
    assert ner.scores_table(by_type) == (
        "type\tprecision\trecall\tf1\tentities\n"
        "LOC\t0.0000\t0.0000\t0.0000\t1\n"
        "PER\t0.5000\t1.0000\t0.6667\t1\n"
    )


PLAIN = [sentence("DT NN O"), sentence("NN NN -LRB-")]
BIOES = [sentence("B-a I-a E-a S-b"), sentence("O S-a E-b O")]
BILOU = [sentence("B-a I-a L-a U-b"), sentence("O U-a L-b O")]


@pytest.mark.parametrize(
    ("tags", "scheme", "labels"),
    [
        (PLAIN, "plain", "-LRB- DT NN O"),
        (BIOES, "BIOES", "O B-a I-a E-a S-a B-b I-b E-b S-b"),
        (BILOU, "BILOU", "O B-a I-a L-a U-a B-b I-b L-b U-b"),
        ([sentence("O I-a")], "IOB", "O B-a I-a"),
    ],
)
def test_schemes_are_known_by_their_tags(tags, scheme, labels):
    assert ner.scheme_of(tag for s in tags for tag in s.tags) == scheme
    found = ner.distinct_labels(tags, path="f")
    assert found == tuple(labels.split())
    # A model has nothing but its labels to know it by.
    assert ner.scheme_of(found) == scheme


def test_tags_of_another_scheme_than_the_model_are_refused():
    labels = ner.distinct_labels(BIOES, path="f")
    message = "f: its tags are IOB, those of the training data BIOES: convert one of"
    with pytest.raises(InputError, match=message):
        ner.label_ids([sentence("B-a I-a O")], labels, path="f")
    assert ner.label_ids([sentence("O O")], labels, path="f").tolist() == [0, 0]
    with pytest.raises(InputError, match="f: every word is tagged 'NN'"):
        ner.distinct_labels([sentence("NN NN")], path="f")


def test_entities_of_bioes_and_bilou_are_those_of_iob2():
    iob2 = [sentence("B-a I-a I-a B-b"), sentence("O B-a B-b O")]
    predicted = {
        "IOB": [("B-a", "I-a", "B-a", "B-b"), ("O", "B-a", "B-a", "O")],
        "BIOES": [("B-a", "E-a", "S-a", "S-b"), ("O", "S-a", "S-a", "O")],
        "BILOU": [("B-a", "L-a", "U-a", "U-b"), ("O", "U-a", "U-a", "O")],
    }
    wanted = ner.entity_scores([s.tags for s in iob2], predicted["IOB"])
    assert wanted.num_entities == 4
    for right, name in ((BIOES, "BIOES"), (BILOU, "BILOU")):
        assert ner.entity_scores([s.tags for s in right], predicted[name]) == wanted


def test_plain_tags_are_scored_word_by_word(tmp_path):
    labels = ner.distinct_labels(PLAIN, path="f")
    logits = np.log(np.eye(4)[[1, 2, 3, 2, 1, 0]] + 0.1)
    assert ner.decode(logits, labels, PLAIN) == [
        ("DT", "NN", "O"),
        ("NN", "DT", "-LRB-"),
    ]
    scores = ner.scores(logits, labels, PLAIN)
    assert scores.keys() == {"loss", "accuracy"}
    assert scores["accuracy"] == pytest.approx(5 / 6)
    path = write(tmp_path / "a.txt", "a DT\nb NN\n\nc O\n")
    assert [s.tags for s in ner.read(path)] == [("DT", "NN"), ("O",)]


def test_an_inside_after_an_end_begins_an_entity():
    assert ner.to_iob2(("S-a", "I-a", "I-a", "E-a")) == ("S-a", "B-a", "I-a", "E-a")


def span(start: int, end: int, label: str = "PER") -> dict:
    return {"start": start, "end": end, "label": label}


def texts(path: Path, *rows: tuple[str, list[dict]]) -> Path:
    lines = [json.dumps({"text": text, "entities": found}) for text, found in rows]
    return write(path, "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("text", "entities", "tags"),
    [
        ("Ada met Bob.", [span(8, 11), span(0, 3)], "B-PER O B-PER O"),
        ("  New York\r\nUS", [span(2, 10, "LOC"), span(12, 14)], "B-LOC I-LOC B-PER"),
        # A combining mark, an emoji of several characters, ideographs, a control.
        ("Jose\u0301 Paz", [span(0, 5)], "B-PER O"),
        ("\U0001f469\u200d\U0001f52c Eva", [span(4, 7)], "O B-PER"),
        ("\u5317\u4eac\u5e02\u957f", [span(0, 2, "LOC")], "B-LOC I-LOC O O"),
        ("A\x00b c", [span(0, 3)], "B-PER O"),
        ("", [], ""),
        (" \n", [], ""),
    ],
)
def test_spans_of_characters_become_tags(tmp_path, caplog, text, entities, tags):
    rows = (text, entities), ("Bob", [])
    sentence, _ = ner.read(texts(tmp_path / "a.jsonl", *rows))
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
        (
            {"text": "\ud83d", "entities": []},
            "half of a surrogate pair",
        ),
        ({"entities": [span(0, 4)]}, "entity 1: expected 0 <= start < end <= 3 (char"),
        ({"entities": [span(-1, 2)]}, "of the text), got -1 and 2"),
        ({"entities": [span(1, 1)]}, "of the text), got 1 and 1"),
        ({"entities": [[0, 3, "PER"]]}, 'expected {"start": 0, "end": 5, "label": "PE'),
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


@pytest.mark.parametrize("split", ["testa", "testb"])
def test_conll_2003_as_spans_has_the_same_entities(shared_data, tmp_path, split):
    sentences = ner.read(shared_data / "ner" / "conll2003" / f"eng.{split}")
    rows, entities = [], []
    for sentence in sentences:
        lengths = np.array([len(word) + 1 for word in sentence.words])
        ends = np.cumsum(lengths) - 1
        starts = ends - lengths + 1
        found = [
            span(int(starts[first]), int(ends[last]), label)
            for label, first, last in ner.entities(sentence.tags)
        ]
        rows.append((" ".join(sentence.words), found))
        entities.append(found)
    assert entities == [
        [
            span(sentence.places[first][0], sentence.places[last][1], label)
            for label, first, last in ner.entities(sentence.tags)
        ]
        for sentence in ner.read(texts(tmp_path / "a.jsonl", *rows))
    ]
