"""Laws that every kind of task keeps: its files, data sets and batches.

What a law says, the tests of single kinds do not say again.
"""

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import catalogue, registry, splits
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import data_report, dataset
from tests.bert_keras.kinds.kind_data import BAD, DATA, FILLER, GOOD, tokenizer

SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=24,
    batch_size=8,
    span=finetuning.SpanConfig(doc_stride=8, max_query_length=4),
)
TOKENIZER = tokenizer(*GOOD, *BAD, *FILLER, *"bcdefghij", "##x")
NUM_TRAIN, NUM_DEV = 32, 9


class Files(NamedTuple):
    """A training file of a kind, and what it teaches."""

    name: str
    folder: Path
    rows: list[dict[str, Any]]
    """Those of the training file, then new ones."""
    settings: finetuning.FinetuningConfig
    train: dataset.Dataset
    task: tasks.Task

    @property
    def kind(self) -> Labelled:
        return registry.labelled(self.name)

    def write(self, name: str, content: str) -> Path:
        path = self.folder / f"{name}{DATA[self.name].suffix}"
        path.write_text(content)
        return path

    def read(self, path: Path, **options) -> dataset.Dataset:
        pairs = self.task.has_text_pair
        return catalogue.read(path, self.settings, has_text_pair=pairs, **options)

    def encode(self, data: dataset.Dataset) -> dataset.EncodedInputs:
        return data.encode(self.task, TOKENIZER, self.settings)

    def examples(self) -> list[Any]:
        return [DATA[self.name].python(row) for row in self.rows[NUM_TRAIN:]]

    def from_python(self, examples: list[Any]) -> dataset.Dataset:
        return self.kind.from_python(examples, self.task)


@pytest.fixture(scope="module", params=[*DATA])
def files(request, tmp_path_factory) -> Files:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    data, rng = DATA[name], random.Random(5)
    rows = [data.row(rng, number) for number in range(NUM_TRAIN + NUM_DEV)]
    path = folder / f"train{data.suffix}"
    path.write_text(data.write(rows[:NUM_TRAIN], True))
    settings = SETTINGS.model_copy(update=data.settings)
    train = catalogue.read(path, settings)
    task = train.for_training().describe()
    return Files(name, folder, rows, settings, train, task)


def assert_same_inputs(one: dataset.Inputs, other: dataset.Inputs) -> None:
    np.testing.assert_array_equal(one.lengths, other.lengths)
    rows = np.arange(len(one.lengths))
    first, second = one.batch(rows), other.batch(rows)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)


def test_the_task_is_of_the_kind(files):
    assert files.task.kind == files.name
    assert (files.task.labels is not None) == files.kind.has_labels
    assert catalogue.task_kind(files.settings) == files.name
    usual = finetuning.FinetuningConfig(**files.kind.usual_settings(files.task))
    assert catalogue.task_kind(usual) == files.name


def test_a_bad_row_is_one_line_with_its_place(files):
    broken, message = DATA[files.name].broken
    path = files.write("broken", broken)
    with pytest.raises(InputError, match=message) as caught:
        files.encode(files.read(path))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_an_unknown_label_is_one_line_with_its_place(files):
    if DATA[files.name].unknown is None:
        return  # any answer is known
    unknown, message = DATA[files.name].unknown
    data = files.read(files.write("unknown", unknown))
    with pytest.raises(InputError, match=message) as caught:
        files.encode(data)
    assert "\n" not in str(caught.value)


def test_an_object_that_is_no_example_is_refused_with_its_number(files):
    unlike, expected = DATA[files.name].unlike
    message = f"^example 2: expected {expected}, got "
    for wrong in unlike:
        with pytest.raises(InputError, match=message) as caught:
            files.from_python([files.examples()[0], wrong])
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="expected at least one example, got none"):
        files.from_python([])


def test_an_empty_example_has_an_input(files):
    data = files.from_python([files.examples()[0], DATA[files.name].empty])
    assert len(data) == 2 and files.encode(data).num_answers >= 1


def test_python_and_a_file_without_labels_give_the_same_inputs(files):
    new = DATA[files.name].write(files.rows[NUM_TRAIN:], False)
    data = files.read(files.write("new", new), has_labels=False)
    assert len(data) == NUM_DEV and not data.has_labels
    from_python = files.from_python(files.examples())
    assert_same_inputs(files.encode(data), files.encode(from_python))


def test_an_example_has_the_same_input_in_any_order_and_alone(files):
    examples = files.examples()
    data = files.from_python(examples)
    backwards = data.subset(range(NUM_DEV)[::-1])
    assert_same_inputs(
        files.encode(backwards), files.encode(files.from_python(examples[::-1]))
    )
    alone = files.encode(files.from_python(examples[3:4]))
    assert_same_inputs(alone, files.encode(data.subset([3])))


def test_inputs_have_the_length_and_the_features_that_the_kind_says(files):
    """From these facts, steps are compiled before any data are there."""
    inputs = files.encode(files.train.for_training())
    assert 3 <= inputs.lengths.max() <= files.settings.max_seq_length
    batch = inputs.batch(np.arange(4))
    length = batch["input_ids"].shape[-1]
    expected = files.kind.features(files.task, 4, length, has_labels=True)
    for name, values in batch.items():
        shape, dtype = expected.pop(name)
        if files.name == "ranking":
            # It has the usual number of passages, the file three.
            shape = (*shape[:1], 3, *shape[2:])
        assert (values.shape, str(values.dtype)) == (shape, dtype), name
    # Every batch gets these two, whatever the kind.
    assert {*expected} == {"example_weights", "batch_lengths"}


def test_folds_have_each_example_once_and_equal_ones_together(files):
    data, keys = files.train, files.train.keys()
    backwards = data.subset(range(len(data))[::-1])
    held_out_keys = []
    for part in (splits.parse_split([f"{number}/4"]) for number in range(1, 5)):
        learnt, held_out = splits.split(data, part)
        assert len(learnt) + len(held_out) == len(keys)
        assert not {*learnt.keys()} & {*held_out.keys()}
        again = splits.split(backwards, part)[1]
        assert sorted(again.keys()) == sorted(held_out.keys())
        held_out_keys += held_out.keys()
    assert sorted(held_out_keys) == sorted(keys)


def test_a_smaller_share_of_a_file_is_part_of_a_larger_one(files):
    shares = [
        splits.fraction(files.train, share, seed=3).keys() for share in (0.25, 0.5, 1)
    ]
    assert [len(keys) for keys in shares] == [NUM_TRAIN // 4, NUM_TRAIN // 2, NUM_TRAIN]
    assert {*shares[0]} <= {*shares[1]} <= {*shares[2]}


def test_the_report_on_the_data_counts_what_there_is(files):
    data = files.train
    twice = data.subset([*range(NUM_TRAIN), 0, 1])
    parts = (("train", data), ("dev", twice))
    report = data_report.describe(
        [(name, part, files.encode(part)) for name, part in parts],
        files.settings,
        kind=files.name,
    )
    train, dev = report.files
    texts, answers, labels, *_ = data.contents()
    assert (train.num_examples, train.num_empty) == (len(texts), 0)
    assert train.num_repeated == len(texts) - len({*texts})
    assert sum(train.labels.values()) == len(labels)
    assert (train.num_in_training, dev.num_in_training) == (None, dev.num_examples)
    assert dev.num_repeated > train.num_repeated
    assert not dev.num_contradicted or train.num_contradicted
    [*_, last] = data_report.lines(report, files.kind)
    assert last.startswith(f"dev: {dev.num_examples} {files.kind.examples}; ")


def test_a_file_with_other_labels_is_read_as_such(files):
    """`check-labels` writes it. Labels have the names that the answers give them."""
    data, (texts, answers, *_) = files.train, files.train.contents()
    inputs = files.encode(data)
    shape = inputs.num_answers, files.task.num_labels if files.task.labels else 2
    outputs = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    if not files.kind.judges_labels:
        return
    judged = data.answer(outputs, inputs, files.task, SETTINGS).judged_labels()
    names = judged.names[np.arange(len(judged.labels)), judged.labels]
    same = {
        row: tuple(filter(None, names[judged.rows == row])) for row in range(NUM_TRAIN)
    }
    assert np.diff(judged.rows).min() >= 0 and len({*same.values()}) > 1
    # A changed row has the labels of another one.
    other = next(row for row in same if same[row] != same[0])
    changed = [answers[other], *answers[1:]]
    cases = [
        ({}, texts, answers),
        (same, texts, answers),
        ({0: None}, texts[1:], answers[1:]),
    ]
    if files.name in ("classification", "multi_label"):
        cases.append(({0: same[other]}, texts, changed))
    for changes, expected_texts, expected in cases:
        suffix, content = data.relabelled(changes)
        again = files.folder / f"again{suffix}"
        again.write_text(content)
        found = files.read(again).contents()
        assert [*found.texts] == [*expected_texts]
        assert [*found.answers] == [*expected]


OWN_SETTINGS = {
    "embedding": finetuning.EmbeddingConfig(scale=3.0),
    "ranking": finetuning.RankingConfig(num_candidates=5),
    "span": finetuning.SpanConfig(doc_stride=9),
    "columns.negative": finetuning.TextColumns(negative="n"),
    "columns.label_separator": finetuning.TextColumns(label_separator="|"),
    "feature_layers": (-1, -2),
    "document_context": False,
}


def test_settings_of_another_kind_are_refused(files):
    own = SETTINGS.model_copy(
        update={**DATA[files.name].settings, "span": finetuning.SpanConfig()}
    )
    others = [k for k in registry.LABELLED if k != files.name]
    for key in (key for k in others for key in registry.labelled(k).own_settings):
        top = key.partition(".")[0]
        settings = own.model_copy(update={top: OWN_SETTINGS[key]})
        with pytest.raises(InputError, match=f"`{key}` is for "):
            catalogue.check_settings(settings)
    catalogue.check_settings(own)
