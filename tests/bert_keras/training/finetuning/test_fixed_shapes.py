"""Batches of labelled examples, and steps on them: of fixed shapes, on replicas."""

import types
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.inference import forward
from bert_keras.kinds import registry
from bert_keras.labelled import dataset, tokenized
from bert_keras.training.finetuning import job as tuning
from bert_keras.training.finetuning import learning
from bert_keras.training.pretraining import record_parsing
from bert_keras.training.step import replicas
from tests import make
from tests.bert_keras.training.step.test_learner import CPU, mirrored

NUM_INPUTS, NUM_ENDINGS, MAX_LENGTH, VOCAB_SIZE = 22, 3, 16, 50
LADDER = (13, MAX_LENGTH)
TASKS = {
    "classification": tasks.Task(kind="classification", labels=("a", "b", "c")),
    # As many labels as a text may have tokens: none is taken for the other.
    "multi_label": tasks.Task(kind="multi_label", labels=tuple("abcdefghijklmnop")),
    "regression": tasks.Task(kind="regression"),
    "tagging": tasks.Task(kind="tagging", labels=("O", "B-X", "I-X")),
    "span": tasks.Task(kind="span"),
    "choice": tasks.Task(kind="choice"),
    "bilstm": tasks.Task(kind="classification", labels=("a", "b"), bilstm_units=3),
}
# Two batches of eight rows and one of six; 2.34 epochs, so that no epoch is whole.
SETTINGS = finetuning.FinetuningConfig(
    batch_size=8,
    num_train_epochs=7 / 3,
    learning_rate=3e-4,
    max_seq_length=MAX_LENGTH,
    seed=4,
)


@dataclass(frozen=True)
class RandomInputs:
    """Random tokens of 3 to 16 a text, with random labels."""

    kind: str

    @property
    def lengths(self):
        shortest = np.random.default_rng(1).integers(3, MAX_LENGTH - 1, NUM_INPUTS)
        return np.sort(shortest)[np.random.default_rng(2).permutation(NUM_INPUTS)]

    @property
    def num_answers(self):
        per_token = self.kind in ("tagging", "span")
        return self.lengths.sum() if per_token else NUM_INPUTS

    def batch(self, rows):
        """As those of a task: padded to the longest."""
        random = np.random.default_rng(3)
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = random.integers(5, VOCAB_SIZE, (NUM_INPUTS, NUM_ENDINGS, MAX_LENGTH))
        ids = ids[rows, :, : lengths.max()]
        classes = random.integers(0, 2, (NUM_INPUTS, MAX_LENGTH))[rows]
        if self.kind != "choice":
            ids = ids[:, 0]
        else:
            mask = np.repeat(mask[:, None], NUM_ENDINGS, axis=1)
        batch = {
            "input_ids": np.where(mask, ids, 0).astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": np.zeros_like(ids, np.int32),
        }
        if self.kind == "span":
            return batch | {
                "start_positions": np.int32(classes[:, 0]),
                "end_positions": np.int32(classes[:, 0] + classes[:, 1]),
            }
        if self.kind == "tagging":
            labels = np.where(mask, classes[:, : lengths.max()], -1)
            return batch | {"label_ids": labels.astype(np.int32)}
        if self.kind == "multi_label":
            targets = np.float32(classes)[:, None]
            weights = random.uniform(0.5, 2, NUM_INPUTS)[rows]
            return batch | {
                "label_targets": targets,
                "label_weights": 1 + targets,
                "example_weights": weights.astype(np.float32),
            }
        dtype = np.float32 if self.kind == "regression" else np.int32
        # As windows of long texts have.
        scales = random.uniform(0.5, 2, NUM_INPUTS)[rows].astype(np.float32)
        return batch | {"label_ids": classes[:, 0].astype(dtype), "loss_scales": scales}

    def places(self, rows):
        if self.num_answers == NUM_INPUTS:
            return dataset.Places(rows, (np.arange(len(rows)),))
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max()) < lengths[:, None]
        return dataset.Places(tokenized.ranges(starts, lengths), np.nonzero(mask))


def inputs_of(kind):
    return RandomInputs(TASKS[kind].kind)


def tuned(
    kind, strategy, *, dropout=0.0, num_parts=1, per_execution=1, ladder=(), stops=(7,)
):
    """A learner after seven steps, the scalars of the last one, the stream, and the
    last steps of executions.

    It is called once for each of `stops`, as by the loop.
    """
    bert = make.small_config(
        VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    inputs = inputs_of(kind)
    changes = {
        "gradient_accumulation_steps": num_parts,
        "steps_per_execution": per_execution,
        "lengths": ladder,
    }
    settings = SETTINGS.model_copy(update=changes)
    learner = learning.build_learner(
        settings,
        lambda: registry.build_network(bert, TASKS[kind], dropout_prob=dropout, seed=5),
        inputs,
        strategy,
    )
    stretch = learning.build_stretch(learner, settings, inputs, by_length=True)
    stream, steps = stretch.stream_from(0), []
    for stop in stops:
        logs = learner.make_steps(
            stream, stop, after=lambda step, scalars: steps.append(step)
        )
    return learner, logs, stream, steps


def assert_alike(found, wanted, atol):
    """Weights, moments and counters, and the scalars of the last step."""
    (found, found_logs, *_), (wanted, wanted_logs, *_) = found, wanted
    assert replicas.optimizer_step(found) == replicas.optimizer_step(wanted) == 7
    # The same number for all that is chosen among: its gradient is 0, and Adam makes
    # a step of what rounding leaves.
    is_shift = found.network.name in ("bert_span", "bert_choice")
    for ours, theirs in zip(found.variables, wanted.variables, strict=True):
        if is_shift and "classifier/bias" in ours.path:
            continue
        np.testing.assert_allclose(
            ours.numpy(), theirs.numpy(), rtol=0, atol=atol, err_msg=ours.path
        )
    for name in found_logs.keys() - {"input_wait"}:
        assert found_logs[name] == pytest.approx(wanted_logs[name], abs=1e-5), name


def answers_of(learner, kind, ladder=()):
    strategy = learner.distribute_strategy
    predict = forward.predictor_for(learner.network, strategy=strategy, ladder=ladder)
    return predict(inputs_of(kind), title=None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_fixed_shapes_give_what_shapes_as_they_come_give(kind, monkeypatch):
    """Without dropout, whose bits in the attention depend on the length."""
    fixed = tuned(kind, CPU, ladder=LADDER, num_parts=3)
    assert_alike(fixed, tuned(kind, CPU), atol=1e-5)
    spec = fixed[2].spec_of_step
    shapes = {tuple(spec(step)["input_ids"].shape) for step in range(7)}
    middle = (NUM_ENDINGS,) if kind == "choice" else ()
    assert shapes == {(9, *middle, length) for length in LADDER}
    monkeypatch.setattr(forward, "TOKENS_PER_BATCH", 70)
    free, padded = (answers_of(fixed[0], kind, ladder) for ladder in ((), LADDER))
    np.testing.assert_allclose(padded, free, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_execution_has_steps_of_one_length():
    """It ends where the length changes, and where the loop stops; not a bit depends on
    it, nor on whether the batches go on from one call to the next."""
    options = {"dropout": 0.2, "ladder": LADDER}
    many, many_logs, _, steps = tuned(
        *("classification", CPU), per_execution=4, stops=(4, 5, 7), **options
    )
    one, one_logs, stream, _ = tuned("classification", CPU, **options)
    lengths = [stream.spec_of_step(n)["input_ids"].shape[1] for n in range(7)]
    changes = [n for n in range(1, 7) if lengths[n] != lengths[n - 1]]
    # Neither all alike nor each one other than the last.
    assert 0 < len(changes) < 4
    assert steps == sorted({*changes, 4, 5, 7})
    for ours, theirs in zip(many.variables, one.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)
    assert many_logs["loss"] == one_logs["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("ladder", [(), LADDER])
@pytest.mark.parametrize("kind", TASKS)
def test_two_replicas_give_what_one_device_gives(kind, ladder, monkeypatch):
    """With dropout; the last batch of an epoch has six rows, three parts each."""
    options = {"dropout": 0.2, "ladder": ladder, "num_parts": 3}
    two, one = (tuned(kind, strategy, **options) for strategy in (mirrored(2), CPU))
    assert_alike(two, one, atol=1e-6)
    monkeypatch.setattr(forward, "TOKENS_PER_BATCH", 5 * MAX_LENGTH)
    outputs = [answers_of(learner, kind, ladder) for learner, *_ in (two, one)]
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-5)


def test_a_tpu_has_fixed_shapes():
    tpu = object.__new__(tf.distribute.TPUStrategy)
    made = tuning.resolved(finetuning.FinetuningConfig(length_multiple=8), tpu)
    assert (made.lengths, made.length_multiple) == ((64, 128), 1)
    finetuning.FinetuningConfig.model_validate(made.model_dump())
    with pytest.raises(InputError, match="a TPU needs batches of fixed shapes, got"):
        tuning.resolved(finetuning.FinetuningConfig(lengths=()), tpu)


def batches_of(lengths, **settings):
    inputs = types.SimpleNamespace(lengths=lengths, batch=lambda rows: {"ids": rows})
    return learning.Batches(inputs=inputs, **settings)


@pytest.mark.parametrize("by_length", [True, False])
def test_an_epoch_has_every_row_once_and_perhaps_batches_of_like_length(by_length):
    lengths = np.random.default_rng(0).integers(3, 128, 10_007)
    settings = {"batch_size": 32, "by_length": by_length, "seed": 5}
    batches = batches_of(lengths, **settings).epoch(0)
    assert sorted(np.concatenate(batches)) == list(range(10_007))
    assert sorted({len(rows) for rows in batches}) == [10_007 % 32, 32]
    if by_length:
        padded = sum(lengths[rows].max() * len(rows) for rows in batches)
        assert padded < 1.05 * lengths.sum()
        # Shuffled: neither the batches nor the rows come in order of length.
        means = np.array([lengths[rows].mean() for rows in batches])
        assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2
    else:
        same = batches_of(np.full(10_007, 9), **settings).epoch(0)
        assert [sorted(rows) for rows in same] == [sorted(rows) for rows in batches]


@pytest.mark.parametrize("by_length", [True, False])
def test_epochs_differ_and_repeat_exactly(by_length):
    lengths = np.arange(3, 103)

    def batches(seed, epoch):
        order = batches_of(lengths, batch_size=8, by_length=by_length, seed=seed)
        return [sorted(rows) for rows in order.epoch(epoch)]

    assert batches(seed=1, epoch=0) == batches(seed=1, epoch=0)
    assert batches(seed=1, epoch=0) != batches(seed=2, epoch=0)
    first, second = batches(seed=1, epoch=0), batches(seed=1, epoch=1)
    shared = [rows for rows in first if rows in second]
    assert len(shared) <= 1
    few = batches_of(np.array([5]), batch_size=8, by_length=by_length, seed=0)
    assert [rows.tolist() for rows in few.epoch(0)] == [[0]]


def test_training_batches_are_those_of_every_epoch():
    """With seeds of seed, epoch and row; resumed at any step."""
    batches = batches_of(np.arange(3, 24), batch_size=8, by_length=True, seed=4)
    expected = [
        (rows.tolist(), record_parsing.dropout_seeds(4, 0 * rows + epoch, rows))
        for epoch in range(3)
        for rows in batches.epoch(epoch)
    ]
    for start_step, count in ((0, 7), (2, 2), (3, 2), (5, 2)):
        stream = batches.stream(start_step=start_step).take(count)
        for batch, (rows, seeds) in zip(stream, expected[start_step:], strict=False):
            assert batch["ids"].numpy().tolist() == rows
            np.testing.assert_array_equal(batch["dropout_seeds"], seeds)
