"""Laws that a tuned model of every kind keeps: its files, answers and exports.

What a law says, the tests of single kinds do not say again.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import conversion, weights
from bert_keras.core.settings import finetuning
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import answers
from bert_keras.report import model_card, task_summaries
from tests import make
from tests.bert_keras.kinds.kind_data import DATA
from tests.bert_keras.training.step import test_learner

SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=24, batch_size=8, num_train_epochs=2.0, learning_rate=2e-3
)
SPAN = finetuning.SpanConfig(doc_stride=8, max_query_length=4, max_answer_length=3)
NUM_TRAIN, NUM_DEV = 32, 9


class Served(NamedTuple):
    """How the graph of a kind is asked for what a record of Python holds."""

    inputs: Callable[[Mapping[str, Any]], dict[str, Any]]
    """From a row of the data to the inputs of a signature, for a batch of one."""
    output: str
    field: str
    signature: str = "serving_default"


def texts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("text", "text_pair") if name in row}


SERVED = {
    "classification": Served(texts, "label", "prediction"),
    "multi_label": Served(texts, "labels", "prediction"),
    "regression": Served(texts, "score", "prediction"),
    "tagging": Served(
        lambda row: {"words": row["words"]}, "tags", "prediction", "words"
    ),
    "span": Served(
        lambda row: {"question": row["question"], "context": row["context"]},
        *("answer", "prediction"),
    ),
    "choice": Served(
        lambda row: {
            "sentence": row["sent1"],
            "beginning": row["sent2"],
            "endings": [row[f"ending{number}"] for number in range(4)],
        },
        *("best", "prediction"),
    ),
    "embedding": Served(lambda row: {"text": row["text"]}, "embedding", "prediction"),
    "ranking": Served(
        lambda row: {"question": row["question"], "passages": row["passages"]},
        *("scores", "scores"),
    ),
}


class Run(NamedTuple):
    name: str
    path: Path
    """With `train` and `dev` beside it."""
    results: dict[str, Any]
    rows: list[dict[str, Any]]
    """Those of the dev file."""
    changes: dict[str, Any]
    """Of the settings."""

    @property
    def kind(self) -> Labelled:
        return registry.labelled(self.name)

    def file(self, name: str) -> Path:
        return self.path.parent / f"{name}{DATA[self.name].suffix}"

    def examples(self) -> list[Any]:
        return [DATA[self.name].python(row) for row in self.rows]


def tune(init: Path, folder: Path, name: str, output: str = "run", **options) -> dict:
    suffix = DATA[name].suffix
    changes = {**DATA[name].settings, **options.pop("changes", {})}
    changes |= {"span": SPAN} if name == "span" else {}
    return make.finetune(
        SETTINGS.model_copy(update=changes),
        train=folder / f"train{suffix}",
        dev=options.pop("dev", [folder / f"dev{suffix}"]),
        init=init,
        output_dir=folder / output,
        **options,
    )


# Three kinds in every run of the tests: a training of each takes ten seconds.
FAST = ("classification", "tagging", "ranking")
FAST_WITH_LORA = ("classification",)
LORA = {"lora_rank": 4, "lora_targets": ("query", "value", "output.dense")}
KINDS = [
    pytest.param((name, changes), id=f"{name}{label}", marks=marks)
    for label, changes, fast in (("", {}, FAST), (" lora", LORA, FAST_WITH_LORA))
    for name in DATA
    for marks in [() if name in fast else pytest.mark.slow]
]


@pytest.fixture(scope="module", params=KINDS)
def run(request, init, tmp_path_factory) -> Run:
    name, changes = request.param
    folder = tmp_path_factory.mktemp(name)
    data, rng = DATA[name], random.Random(5)
    rows = [data.row(rng, number) for number in range(NUM_TRAIN + NUM_DEV)]
    parts = {"train": rows[:NUM_TRAIN], "dev": rows[NUM_TRAIN:]}
    for part, of_part in parts.items():
        (folder / f"{part}{data.suffix}").write_text(data.write(of_part, True))
    results = tune(init, folder, name, changes=changes)
    return Run(name, folder / "run", results, parts["dev"], changes)


@pytest.fixture(scope="module")
def model(run) -> finetuned.FinetunedModel:
    return finetuned.FinetunedModel.load(run.path)


def content(record: answers.Record) -> dict[str, Any]:
    """What a record says, but for the place of its example."""
    return {k: v for k, v in record.model_dump().items() if k not in ("line", "id")}


def assert_alike(first: Any, second: Any) -> None:
    if isinstance(first, answers.Record):
        assert_alike(content(first), content(second))
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        assert_alike([*first.values()], [*second.values()])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_alike(one, other)
    elif isinstance(first, float):
        assert first == pytest.approx(second, abs=2e-5)
    else:
        assert first == second


# Answers.


def test_an_evaluation_gives_the_scores_of_the_training(run):
    scores = finetuned.evaluate(run.path, run.file("dev"))
    assert scores.pop("num_examples") == run.results["num_eval_examples"] == NUM_DEV
    if run.name == "multi_label":
        # The run's thresholds are those with the best F1 here; training has 0.5.
        del scores["accuracy"]
    whole = run.results["eval"]
    expected = {key: whole.get(f"best_{key}", whole.get(key)) for key in scores}
    assert scores == pytest.approx(expected, abs=1e-5)


def test_every_score_has_a_meaning(run, model):
    scores = run.results["eval"]
    metric = run.kind.main_metric(model.settings, model.task.labels)
    assert metric in scores and run.kind.metric(metric).better == "more"
    known = {metric.name for metric in run.kind.metrics}
    for key in scores:
        assert run.kind.metric(key).name in known, key
        assert run.kind.metric(f"second file_{key}") == run.kind.metric(key)


def test_records_of_a_run_have_the_scores_of_the_run(run, model):
    lines = (run.path / "dev_answers.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    known = {k.partition(" of ")[0]: v for k, v in run.results["eval"].items()}
    for metric in {*run.kind.resampled} & {*known}:
        sums = run.kind.score(records, metric, labels=model.task.labels or ())
        score = sums.score(sums.rows.sum(axis=0))
        assert score == pytest.approx(known[metric], abs=1e-5), metric


def test_saved_records_are_read_back_and_fill_a_page(run, model):
    path = run.path / "dev_answers.jsonl"
    records = answers.read_answers(path, run.kind.record)
    assert len(records) == NUM_DEV
    data = model.read(run.file("dev"), has_labels=True)
    computed = [*model.answer(data).records(decision=model.decision)]
    assert_alike(records, computed)
    sections = task_summaries.read_sections(run.kind, run.path)
    assert sections and all(part.title for part in sections)
    assert all(part.text or part.picture is not None for part in sections)
    assert run.kind.sign(run.results["eval"], [r.model_dump() for r in records]) in (
        None,
        run.kind.sign(run.results["eval"], [r.model_dump() for r in computed]),
    )
    card = model_card.text(run.path, name="tiny", form="saved_model")
    assert card is not None
    assert f"pipeline_tag: {run.kind.names.pipeline}" in card


def test_python_answers_as_the_file_without_its_labels(run, model, tmp_path):
    path = tmp_path / f"new{DATA[run.name].suffix}"
    path.write_text(DATA[run.name].write(run.rows, False))
    data = model.read(path, has_labels=False)
    from_file = [*model.answer(data).records(decision=model.decision)]
    assert_alike(from_file, model.predict(run.examples()))
    truth = run.kind.record.truth_name
    assert not any(getattr(record, truth) for record in from_file)


def test_labels_of_the_input_change_no_answer(run, tmp_path):
    """And equal input gives equal bytes."""
    written = []
    with_labels = tmp_path / f"dev{run.file('dev').suffix}"
    shutil.copy(run.file("dev"), with_labels)
    for number in range(2):
        output = tmp_path / f"out{number}"
        finetuned.predict(run.path, with_labels, output.with_suffix(".jsonl"))
        found = output.with_suffix(".jsonl")
        files = sorted(found.iterdir()) if found.is_dir() else [found]
        written.append([file.read_bytes() for file in files])
    assert written[0] == written[1]


def test_neither_the_order_nor_the_batch_changes_an_answer(run, model):
    examples = run.examples()
    records = model.predict(examples)
    assert_alike(records, model.predict(examples[::-1])[::-1])
    for place in (0, NUM_DEV - 1):
        assert_alike([records[place]], model.predict([examples[place]]))


def test_an_empty_text_is_answered_and_changes_no_other_answer(run, model):
    examples = [run.examples()[0], DATA[run.name].empty]
    first, second = model.predict(examples)
    assert answers.are_finite([first, second])
    assert_alike([first], model.predict(examples[:1]))


def longer(example: Any, words: str) -> Any:
    if isinstance(example, str):
        return f"{example} {words}"
    return type(example)(longer(part, words) for part in example)


def test_any_text_of_any_length_is_answered(run, model):
    odd = "日本語 русский العربية 🙂 \u200b\ufffd\x00\ttab İ \ud800"
    found = model.predict(
        [longer(run.examples()[0], text) for text in (odd, "film " * 300)]
    )
    assert len(found) == 2 and answers.are_finite(found)


def test_a_moved_directory_answers_as_before(run, model, tmp_path):
    moved = shutil.copytree(run.path, tmp_path / "elsewhere")
    examples = run.examples()
    found = finetuned.FinetunedModel.load(moved).predict(examples)
    assert [content(record) for record in found] == [
        content(record) for record in model.predict(examples)
    ]


# Other formats.


def assert_serves(run: Run, model, answer) -> None:
    """Asks a graph row by row: rows of some kinds have lists of different lengths."""
    inputs_of, output, field, _ = SERVED[run.name]
    for row, record in zip(run.rows, model.predict(run.examples()), strict=True):
        inputs = {name: tf.constant([v]) for name, v in inputs_of(row).items()}
        [values] = answer(inputs)[output].numpy()
        expected = getattr(record, field)
        if isinstance(values, bytes):
            assert values.decode() == expected
        elif values.dtype == object:
            # Several labels are in the order of their probabilities.
            assert sorted(v.decode() for v in values if v) == sorted(expected)
        else:
            np.testing.assert_allclose(values, expected, atol=2e-5)


def test_the_graph_answers_as_python(run, model):
    signature = make.served(run.path).signatures()[SERVED[run.name].signature]
    assert_serves(run, model, lambda inputs: signature.answer(*inputs.values()))


@pytest.mark.slow
def test_an_export_answers_as_python(run, model, tmp_path):
    export.export_model(run.path, tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    signature = signatures[SERVED[run.name].signature]
    assert_serves(run, model, lambda inputs: signature(**inputs))


def test_a_converted_model_has_the_weights_and_says_what_it_loses(
    run, tmp_path, caplog
):
    """In every format that has names for the head."""
    arrays = conversion.read(run.path).arrays
    for to in sorted({"hugging_face", *run.kind.names.heads}):
        caplog.clear()
        conversion.convert(run.path, tmp_path / to, to=to, approximate_gelu=True)
        back = conversion.read(tmp_path / to)
        lost = {name for name in arrays if name not in back.arrays}
        assert not {*filter(run.kind.needs, lost)}, to
        for name in arrays.keys() & back.arrays.keys():
            np.testing.assert_array_equal(back.arrays[name], arrays[name], err_msg=name)
        kind = back.task.kind
        assert kind == run.name or f"read back as one for {kind}" in caplog.text


def test_the_network_has_the_parts_that_its_kind_names(run, model):
    names = [*weights.from_network(model.network)]
    assert names and all(name.startswith(run.kind.parts) for name in names)


# Training.


def bits(path: Path) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in conversion.read(path).arrays.items()}


@pytest.mark.slow
def test_killed_anywhere_is_never_killed(run, init, at_step, monkeypatch):
    class Killed(BaseException):
        """Nothing catches it, as nothing catches a signal that kills."""

    def die():
        raise Killed

    folder = run.path.parent
    changes = {"save_checkpoint_steps": 3, "save_checkpoint_minutes": None}
    changes |= run.changes
    for step in (1, 4, 7):
        with monkeypatch.context(), pytest.raises(Killed):
            at_step(step, die)
            tune(init, folder, run.name, "killed", changes=changes)
        monkeypatch.undo()
    results = tune(init, folder, run.name, "killed", changes=changes)
    assert results["eval"] == run.results["eval"]
    assert bits(folder / "killed") == bits(run.path)
    written = [folder / name / "dev_answers.jsonl" for name in ("killed", "run")]
    assert written[0].read_bytes() == written[1].read_bytes()


@pytest.mark.slow
def test_two_replicas_train_as_one_device(run, init):
    two = test_learner.mirrored(2)
    folder, options = run.path.parent, {"strategy": two, "changes": run.changes}
    results = tune(init, folder, run.name, "two", **options)
    two = conversion.read(run.path.parent / "two").arrays
    for name, values in conversion.read(run.path).arrays.items():
        # The gradient of these biases may be 0, so Adam scales up its rounding.
        is_free = name.endswith(("key/bias", "classifier/bias"))
        atol = 1e-4 if is_free else 1e-5
        np.testing.assert_allclose(two[name], values, rtol=0, atol=atol, err_msg=name)
    assert results["eval"] == pytest.approx(run.results["eval"], rel=1e-4)


@pytest.mark.slow
def test_a_share_of_the_training_file_is_held_out(run, init):
    options = {"dev": ["25%"], "changes": run.changes}
    results = tune(init, run.path.parent, run.name, "share", **options)
    total = results["num_train_examples"] + results["num_eval_examples"]
    assert total == NUM_TRAIN and results["num_eval_examples"] > 1
