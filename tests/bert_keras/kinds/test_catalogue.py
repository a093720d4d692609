"""Every task by name: its files, its inputs, and answers with their official scores."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import catalogue, kind, registry
from bert_keras.kinds.text import glue
from bert_keras.labelled import dataset
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.span import test_squad

WORDS = "the cat sat on a mat . paris is in france who where good bad film".split()
TOKENIZER = kind_data.tokenizer(*WORDS)


def squad_file(path: Path, *questions: dict, version: str = "1.1") -> Path:
    context = "The cat sat on a mat. Paris is in France."
    path.write_text(test_squad.content(*questions, context=context, version=version))
    return path


WHERE = test_squad.qas("where", [("France", 34)], question="Where is Paris")
WHO = test_squad.qas("who", [("The cat", 0)], question="Who sat")
NOBODY = test_squad.qas("none", (), question="Who", is_impossible=True)


def make_files(folder: Path) -> dict[str, Path]:
    """A small file for each form, with the settings that read it."""
    texts = folder / "texts.tsv"
    texts.write_text("text\tlabel\nthe good film\tgood\na bad film .\tbad\nbad\tbad\n")
    numbers = folder / "numbers.jsonl"
    numbers.write_text(
        '{"text": "good", "text_pair": "the film", "label": 4.5}\n'
        '{"text": "the bad film", "text_pair": "bad", "label": 1}\n'
    )
    tags = folder / "tags.txt"
    tags.write_text("Paris B-LOC\nis O\nin O\nFrance B-LOC\n\nthe O\ncat O\n")
    endings = folder / "endings.csv"
    endings.write_text(
        "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        "the cat sat,it,is good,is bad,is a film,sat on the mat .,3\n"
        "the film,it,is good,is bad,sat,is in france,0\n"
    )
    return {
        **{"text": texts, "regression": numbers, "tagging": tags, "choice": endings},
        "span": squad_file(folder / "span.json", WHERE, WHO),
        "span with none": squad_file(
            folder / "none.json", WHERE, WHO, NOBODY, version="v2.0"
        ),
    }


def settings_of(name: str) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(
        task={"regression": "text"}.get(name, name.split()[0]),
        regression=name == "regression",
        max_seq_length=16,
        span=finetuning.SpanConfig(doc_stride=3, max_query_length=4),
    )


def perfect_outputs(
    inputs: dataset.Inputs, task: tasks.Task, batch_size: int
) -> np.ndarray:
    """What a network gives that knows what is right, gathered from batches."""
    order = np.random.default_rng(0).permutation(len(inputs.lengths))
    outputs = None
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        of_batch, places = perfect_batch(inputs.batch(rows), task), inputs.places(rows)
        if outputs is None:
            outputs = np.full((inputs.num_answers, of_batch.shape[-1]), np.nan)
        outputs[places.ids] = of_batch[places.index]
    return outputs.astype(np.float32)


def perfect_batch(batch: dict[str, np.ndarray], task: tasks.Task) -> np.ndarray:
    if task.kind == "regression":
        return batch["label_ids"][:, None]
    if task.kind == "span":
        positions = [batch[f"{end}_positions"] for end in ("start", "end")]
        return 9.0 * np.eye(batch["input_ids"].shape[1])[positions].transpose(1, 2, 0)
    num_labels = 4 if task.kind == "choice" else len(task.labels)
    return 9.0 * np.eye(num_labels)[np.maximum(batch["label_ids"], 0)]


class Case(NamedTuple):
    """What becomes of a file of `make_files`, where the network is always right."""

    task: dict
    scores: dict
    files: dict[str, str | None]
    """`None`: any content."""
    last_record: dict
    """Of the file, or a part of it."""


CASES = {
    "text": Case(
        {"kind": "classification", "labels": ("bad", "good"), "positive_label": "good"},
        {"accuracy": 1, "f1 of good": 1, "matthews": 1},
        {
            "predictions": "text\tlabel\tprediction\tp(bad)\tp(good)\n"
            "the good film\tgood\tgood\t0.000123\t0.999877\n"
            "a bad film .\tbad\tbad\t0.999877\t0.000123\n"
            "bad\tbad\tbad\t0.999877\t0.000123\n"
        },
        {
            **{"text": "bad", "text_pair": None, "line": 4},
            **{"label": "bad", "prediction": "bad"},
            "probabilities": {"bad": 0.99988, "good": 0.00012},
        },
    ),
    "regression": Case(
        {"kind": "regression", "has_text_pair": True},
        {"pearson": 1, "spearman": 1, "loss": 0},
        {
            "predictions": "text\ttext_pair\tlabel\tprediction\n"
            "good\tthe film\t4.5\t4.5\nthe bad film\tbad\t1\t1\n"
        },
        {
            **{"text": "the bad film", "text_pair": "bad", "line": 2},
            **{"label": 1.0, "prediction": 1.0},
        },
    ),
    "tagging": Case(
        {"kind": "tagging", "labels": ("O", "B-LOC", "I-LOC")},
        {"accuracy": 1, "precision": 1, "recall": 1, "f1": 1},
        {
            "predictions": "Paris B-LOC B-LOC\nis O O\nin O O\n"
            "France B-LOC B-LOC\n\nthe O O\ncat O O\n\n"
        },
        {
            **{"words": ["the", "cat"], "line": 6},
            **{"labels": ["O", "O"], "prediction": ["O", "O"]},
        },
    ),
    "choice": Case(
        {"kind": "choice", "has_text_pair": True},
        {"accuracy": 1},
        {
            "predictions": "sent1\tsent2\tending0\tending1\tending2\tending3\t"
            "label\tprediction\tp(0)\tp(1)\tp(2)\tp(3)\n"
            "the cat sat\tit\tis good\tis bad\tis a film\tsat on the mat .\t3\t"
            "3\t0.000123\t0.000123\t0.000123\t0.999630\n"
            "the film\tit\tis good\tis bad\tsat\tis in france\t0\t"
            "0\t0.999630\t0.000123\t0.000123\t0.000123\n"
        },
        {
            **{"text": "the film", "beginning": "it", "line": 3},
            "endings": ["is good", "is bad", "sat", "is in france"],
            **{"label": 0, "prediction": 0},
            "probabilities": [0.99963, 0.00012, 0.00012, 0.00012],
        },
    ),
    "span": Case(
        {"kind": "span", "has_text_pair": True},
        {"exact_match": 100, "f1": 100, "total": 2, "num_unanswered": 0},
        dict.fromkeys(("predictions.json", "nbest_predictions.json")),
        {
            **{"id": "who", "question": "Who sat", "answers": ["The cat"]},
            "context": "The cat sat on a mat. Paris is in France.",
            **{"prediction": "The cat", "null_odds": None, "best_text": "The cat"},
        },
    ),
    "span with none": Case(
        {"kind": "span", "has_text_pair": True, "has_impossible": True},
        {"exact": 100, "f1": 100, "total": 3, "best_f1": 100},
        dict.fromkeys(("predictions.json", "nbest_predictions.json", "null_odds.json")),
        {
            **{"id": "none", "question": "Who", "answers": []},
            **{"prediction": "", "null_odds": 18.0},
        },
    ),
}


def right_answers(data: dataset.Dataset, settings, *, batch_size=2):
    """Answers of a network that knows what is right."""
    task = data.describe()
    inputs = data.encode(task, TOKENIZER, settings)
    outputs = perfect_outputs(inputs, task, batch_size)
    return data.answer(outputs, inputs, task, settings)


@pytest.mark.parametrize("name", CASES)
def test_right_outputs_to_a_file_of_each_form(tmp_path, name):
    case, settings = CASES[name], settings_of(name)
    path = make_files(tmp_path)[name]
    data = catalogue.read(path, settings)
    task = data.describe()
    assert (task, data.path) == (tasks.Task(**case.task), path)
    answers = right_answers(data, settings)
    scores = answers.scores()
    assert {key: scores[key] for key in case.scores} == pytest.approx(case.scores)
    files = data.files(answers, suffix=".tsv")
    records = [record.model_dump() for record in answers.records()]
    assert len(records) == len(data)
    written = json.dumps(records, allow_nan=False)
    last = json.loads(written, parse_float=lambda s: round(float(s), 5))[-1]
    assert {key: last[key] for key in case.last_record} == case.last_record
    assert files.keys() == case.files.keys()
    assert {n: c if case.files[n] else None for n, c in files.items()} == case.files
    # The same file read without what is right.
    inputs = data.encode(task, TOKENIZER, settings)
    unknown = catalogue.read(
        path, settings, has_labels=False, has_text_pair=name == "regression"
    )
    without = unknown.encode(task, TOKENIZER, settings)
    outputs = perfect_outputs(inputs, task, 3)
    found = unknown.answer(outputs, without, task, settings)
    assert unknown.files(found, suffix=".tsv") == files


def test_a_threshold_decides_who_has_no_answer(tmp_path):
    settings = settings_of("span with none")
    data = catalogue.read(make_files(tmp_path)["span with none"], settings)
    answers = right_answers(data, settings)
    never = tasks.Decision(no_answer_odds=-100.0)
    high, low = (
        json.loads(data.files(answers, suffix="", decision=d)["predictions.json"])
        for d in (tasks.Decision(no_answer_odds=100.0), never)
    )
    assert high["none"] and high["where"] == "France"
    assert answers.scores(decision=never)["HasAns_exact"] == 0
    assert set(low.values()) == {""}
    assert {r.prediction for r in answers.records(decision=never)} == {""}


def test_a_wrong_place_counts_as_wrong_and_is_listed(tmp_path, caplog):
    """As in the official script, which looks at no place."""
    astray = test_squad.qas("x", [("dog", 3)])
    moved = test_squad.qas("who", [("The cat", 3)])
    path = squad_file(tmp_path / "dev.json", WHERE, moved, astray)
    data = catalogue.read(path, settings_of("span"))
    assert caplog.messages == [
        f"{path}: 1 answers were not where the file says, but in one other place",
        f"{path}: 1 questions without a text that has the answer, not trained on:\n"
        "  x: the text does not have the answer 'dog' "
        "where it should be, nor exactly once",
    ]
    scores = right_answers(data, settings_of("span")).scores()
    assert (scores["total"], scores["num_unanswered"]) == (3, 0)
    assert scores["exact_match"] == pytest.approx(200 / 3)


@pytest.mark.parametrize("name", [n for n, t in glue.TASKS.items() if t.train])
def test_every_glue_task_is_trained_on_its_own_files(shared_data, name):
    folder = shared_data / "glue"
    if name in ("MNLI", "QQP", "QNLI"):
        pytest.skip("read to the last row in test_glue.py; not all files are here")
    train, dev = catalogue.training_files(name, folder)
    settings = finetuning.FinetuningConfig(task=name)
    data = catalogue.read(dev[0], settings)
    task = data.describe()
    assert task.name == name
    assert task.labels == glue.TASKS[name].labels
    assert task == catalogue.read(train, settings).describe()
    scores = right_answers(data, settings, batch_size=64).scores()
    assert set(scores) == {"loss", *glue.TASKS[name].metrics}
    assert scores[glue.TASKS[name].metrics[0]] == pytest.approx(1)


def test_mnli_is_evaluated_on_both_files(tmp_path):
    (tmp_path / "MNLI").mkdir()
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / "MNLI" / f"{name}.tsv").write_text("")
    train, dev = catalogue.training_files("MNLI", tmp_path)
    assert train.name == "train.tsv"
    assert [path.name for path in dev] == ["dev_matched.tsv", "dev_mismatched.tsv"]


def test_official_folders(shared_data):
    conll, trivia = ("eng.train", "eng.testa"), "triviaqa/original_format"
    for name, folder, names, size in (
        ("SWAG", "multiple_choice/swag_sample", ("train.csv", "val.csv"), 4),
        ("CoNLL-2003", "ner/conll2003", conll, 3250),
        ("TriviaQA", trivia, ("wikipedia-train.json", "wikipedia-dev.json"), None),
    ):
        train, (dev,) = catalogue.training_files(name, shared_data / folder)
        assert (train.name, dev.name) == names
        data = catalogue.read(dev, finetuning.FinetuningConfig(task=name))
        assert data.describe().name == name
        assert size is None or len(data) == size


@pytest.mark.parametrize(
    "name, folder, message",
    [
        ("MRPD", ".", "`task` is one of text, tagging, .*, got 'MRPD'; did you mean"),
        ("span", ".", "`span` is a form of your own data: give its files with --train"),
        ("AX", ".", "AX has no training data: fine-tune on MNLI; `predict --data`"),
        ("RTE", ".", "no train.tsv, dev.tsv: expected the folder of GLUE as it is unp"),
        ("SWAG", ".", "no train.csv, val.csv: expected the folder of SWAG; files of"),
    ],
)
def test_mistakes_with_names_and_folders(tmp_path, name, folder, message):
    with pytest.raises(InputError, match=message):
        catalogue.training_files(name, tmp_path / folder)


def test_all_kinds_of_task_have_a_form():
    forms = {k.form for k in registry.KINDS.values() if isinstance(k, kind.Labelled)}
    assert forms == {*tasks.FORMS}
    assert {official.form for official in catalogue.DATASETS.values()} < forms
    assert len(set(catalogue.NAMES)) == len(catalogue.NAMES)
