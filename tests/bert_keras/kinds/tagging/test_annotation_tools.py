"""Entities of annotation tools are those of our own form."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import catalogue
from bert_keras.kinds.tagging import ner
from tests.bert_keras.kinds.kind_data import write

ROWS = [
    (
        "\U0001f600\U0001f44d Ada Lovelace left London.\n",
        [(3, 15, "PER"), (21, 27, "LOC")],
    ),
    ("Nobody else did.", []),
    (
        "In Jose\u0301's\u2028\U0001f469\u200d\U0001f52c New York",
        [(3, 8, "PER"), (15, 23, "LOC")],
    ),
]


def label_studio(text, spans, **more):
    values = [
        {
            "start": start,
            "end": end,
            "text": text[start:end].replace(" ", "\\n"),
            "labels": [label],
        }
        for start, end, label in spans
    ]
    results = [{"type": "labels", "from_name": "x", "value": value} for value in values]
    # A relation, and a choice for the text.
    results += [{"type": "relation"}, {"value": {"choices": ["good"]}}]
    guess = {"result": [{"value": {"start": 0, "end": 1, "labels": ["X"]}}]}
    annotation = {"result": results, "was_cancelled": False, "ground_truth": False}
    return {
        **{"id": 7, "data": {"text": text, "source": "a"}, "predictions": [guess]},
        "annotations": [annotation | more],
    }


def spans_of(*names: str):
    return lambda spans: [dict(zip(names, span, strict=True)) for span in spans]


OFFSETS = spans_of("start_offset", "end_offset", "label")
OWN = spans_of("start", "end", "label")

TOOLS = {
    "doccano.jsonl": lambda t, s: {"id": 1, "text": t, "label": s, "Comments": []},
    "doccano_1.0.jsonl": lambda t, s: {"text": t, "labels": s},
    "doccano_data.jsonl": lambda t, s: {"id": 1, "data": t, "label": s},
    "doccano_relations.jsonl": lambda t, s: {
        **{"id": 1, "text": t, "relations": []},
        "entities": [{"id": n, **e} for n, e in enumerate(OFFSETS(s))],
    },
    "label_studio.JSON": label_studio,
    "label_studio_one_name.json": lambda t, s: label_studio(t, s) | {"data": {"t": t}},
    "prodigy.jsonl": lambda t, s: {
        **{"text": t, "_input_hash": -1, "tokens": [{"text": "a", "id": 0}]},
        **({"spans": OWN(s)} if s else {}),
        "answer": "accept",
    },
    "spacy.json": lambda t, s: [t, {"entities": s}],
    "spacy_objects.json": lambda t, s: {"text": t, "entities": [[*e, "Q1"] for e in s]},
    "own.json": lambda t, s: {"text": t, "entities": OWN(s), "data": "2024"},
}


def write_records(path: Path, records: list) -> Path:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    is_array = path.suffix.lower() == ".json"
    return write(path, json.dumps(records, indent=1) if is_array else lines)


def own(path: Path, rows=ROWS) -> list[ner.Sentence]:
    records = [{"text": text, "entities": OWN(spans)} for text, spans in rows]
    return ner.read(write_records(path / "expected.jsonl", records))


@pytest.mark.parametrize("name", TOOLS)
def test_examples_are_those_of_our_own_form(name, tmp_path, caplog):
    records = [TOOLS[name](text, spans) for text, spans in ROWS]
    path = write_records(tmp_path / name, records)
    found = ner.read(path)
    assert found == own(tmp_path)
    assert found[0].tags == ("O", "B-PER", "I-PER", "O", "B-LOC", "O")
    assert not caplog.messages
    # Without tags they are texts, one for each record.
    texts = ner.read(path, has_tags=False, has_lines=True)
    assert texts == [sentence._replace(tags=None) for sentence in found]
    # The first record may have no entity.
    assert ner.read(write_records(path, records[1:])) == own(tmp_path, ROWS[1:])


def test_what_people_left_out(tmp_path, caplog):
    prodigy = [
        TOOLS["prodigy.jsonl"](text, spans) | {"answer": answer}
        for (text, spans), answer in zip(
            ROWS, ("accept", "reject", "ignore"), strict=True
        )
    ]
    path = write_records(tmp_path / "a.jsonl", prodigy)
    assert ner.read(path) == own(tmp_path, ROWS[:1])
    studio = [label_studio(*ROWS[0]) for _ in range(4)]
    other = label_studio(ROWS[0][0], [(3, 6, "X")])["annotations"]
    # The first is another person's; the others are cancelled, or not there.
    studio[0]["annotations"] += other
    studio[1]["annotations"] = other + [
        studio[1]["annotations"][0] | {"ground_truth": True}
    ]
    studio[2]["annotations"] = [other[0] | {"was_cancelled": True}]
    studio[3]["annotations"] = []
    tasks_path = write_records(tmp_path / "a.json", studio)
    assert ner.read(tasks_path) == own(tmp_path, [ROWS[0]] * 2)
    assert caplog.messages == [
        f"{path}: 2 records were rejected, ignored or not finished: left out",
        f"{tasks_path}: 2 texts have several annotations: the first counts, or "
        "`ground_truth`",
        f"{tasks_path}: 2 records were rejected, ignored or not finished: left out",
    ]
    # Each is answered.
    assert [len(ner.read(p, has_tags=False)) for p in (path, tasks_path)] == [3, 4]


def test_answers_stand_beside_what_the_tool_wrote(tmp_path):
    text = "\U0001f600 Ada left."
    task = tasks.Task(kind="tagging", labels=("O", "B-PER"), reads_text=True)
    logits = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    answer = {"start": 2, "end": 5, "label": "PER"}
    for name, record in (
        ("a.jsonl", {"id": 3, "text": text, "label": [[2, 5, "X"]]}),
        ("b.jsonl", {"text": text, "spans": [], "answer": "reject"}),
        ("a.json", {"data": {"text": text}, "annotations": []}),
        ("b.json", [text, {"entities": [], "cats": {}}]),
    ):
        path = write_records(tmp_path / name, [record])
        settings = finetuning.FinetuningConfig(task="tagging")
        data = catalogue.read(path, settings, has_labels=False, reads_text=True)
        [content] = data.files(data.answers_of(logits, task), suffix=".jsonl").values()
        found = json.loads(content)
        assert [entity.pop("probability") > 0.7 for entity in found["entities"]] == [
            True
        ]
        expected = record[1] if isinstance(record, list) else record
        assert found == {**expected, "text": text, "entities": [answer]}


ADA = {"text": "Ada left.", "label": [[0, 3, "PER"]]}
TASK = label_studio("Ada left.", [(0, 3, "PER")])


def changed(**value):
    value = {"start": 0, "end": 3, "labels": ["PER"]} | value
    return TASK | {"annotations": [{"result": [{"value": value}]}]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([1, 2], 'record 1: expected {"words": [...], "tags": [...]}, got 1'),
        ([ADA, [ADA]], "record 2: expected an object, got [{'text': 'Ada left.', 'lab"),
        ([["Ada", "left"]], "record 1: expected an object, got ['Ada', 'left']"),
        ([], "holds no sentences, expected at least one"),
        (
            [ADA, {"text": "a", "spans": [], "answer": "accept"}],
            "record 2: expected 'label' as in the first record, got 'spans'",
        ),
        ([TASK, ADA], "2: expected 'annotations' as in the first record, got 'label'"),
        ([ADA, {"text": "a"}], "2: expected 'label' with a list, [] if there are none"),
        ([{"text": "a", "label": "x"}], "'label' with a list, [] if there are none, g"),
        ([{"text": "a", "spans": None}], "'spans' with a list, [] if there are none"),
        ([{"text": "a", "spans": 1, "answer": "accept"}], "'spans' with a list, [] if"),
        ([{"label": []}], "record 1: expected 'words' with a list of one string or m"),
        ([{"text": 3, "label": []}], "expected 'text' with a string, got 3"),
        ([ADA | {"label": [[0, 30, "PER"]]}], "entity 1: expected 0 <= start < end <="),
        ([ADA | {"label": [[0, 0, "PER"]]}], "entity 1: expected 0 <= start < end <= "),
        ([ADA | {"label": [[0, 3]]}], 'entity 1: expected {"start": 0, "end": 5, "lab'),
        ([ADA | {"label": [[0, 3, "A"], [1, 3, "B"]]}], "(1 to 3) overlap: a word has"),
        ([ADA | {"label": [[3, 4, "A"]]}], "from 3 to 4 (A) has no character of a wo"),
        ([ADA | {"label": [[0, 3, "Job Title"]]}], "PER or Job_Title, got 'Job Title'"),
        ([changed(labels=["A", "B"])], "record 1: the entities 'Ada' (0 to 3) and"),
        ([changed(text="left")], "record 1: the entity 'left' is not in its place 0"),
        ([changed(start="0")], "record 1: entity 1: expected"),
        ([changed(start=None, text="a")], "expected `annotations` as Label Studio ha"),
        ([changed(start=0.5, text="a")], "expected `annotations` as Label Studio has"),
        ([changed(hypertextlabels=["A"])], "`labels` of plain text, got 'hypertextlab"),
        ([TASK | {"annotations": [3]}], "expected `annotations` as Label Studio has t"),
        ([TASK | {"annotations": None}], "expected `annotations` as Label Studio has"),
        ([TASK | {"data": {}}], "1: expected `annotations` as Label Studio has them"),
        ([TASK, {"text": "\ud83d"}], "record 2: half of a surrogate p"),
        ('[{"text": "a"', "a.json: expected JSON: "),
        ('{"text": "a"', "a.json: line 1: not JSON: "),
        ("[" * 99_999, "a.json: expected JSON: brackets are nested too deeply"),
        ("", "a.json: holds no sentences"),
    ],
)  # fmt: skip
def test_bad_records_are_named(records, message, tmp_path):
    content = records if isinstance(records, str) else json.dumps(records)
    path = write(tmp_path / "a.json", content)
    with pytest.raises(InputError) as error:
        ner.read(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)
    assert "\n" not in str(error.value)
