"""Losses of a distillation against plain numpy, number by number."""

import functools

import keras
import numpy as np
import pytest

from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.kinds import registry
from bert_keras.model import distillation

RNG = np.random.default_rng(5)
TEACHER = architecture.BertConfig(
    vocab_size=30,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=9,
    initializer_range=0.3,
)
STUDENT = TEACHER.model_copy(
    update={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
)
LENGTHS = (9, 4, 7, 1)
FEATURES = {
    "input_ids": RNG.integers(0, 30, (4, 9)).astype("int32"),
    "input_mask": (np.arange(9) < np.array(LENGTHS)[:, None]).astype("int32"),
    "segment_ids": np.zeros((4, 9), "int32"),
    # The last row only fills up the batch.
    "example_weights": np.float32([1, 1, 0.5, 0]),
}
TOKENS = [(r, p, w) for r, w in enumerate((1, 1, 0.5)) for p in range(LENGTHS[r])]


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def divergence(student, teacher):
    """Of the student's probabilities from the teacher's, of one row of logits each."""
    p, q = softmax(np.float64(teacher)), softmax(np.float64(student))
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))


@functools.cache
def teacher_of(kind, labels):
    return network(TEACHER, tasks.Task(kind=kind, labels=labels), 2)


def network(bert_config, task, seed):
    made = registry.build_network(bert_config, task, seed=seed)
    # Biases of 0 and norms of 1 would hide what is added and multiplied.
    for number, weight in enumerate(made.weights):
        if "seed" not in weight.path:
            noise = np.random.default_rng([seed, number]).normal(size=weight.shape)
            weight.assign_add(np.float32(0.1 * noise))
    return made


def make(task, losses):
    student, teacher = network(STUDENT, task, 1), teacher_of(task.kind, task.labels)
    made = distillation.Distillation(
        student,
        weights=losses,
        teacher=teacher if losses.relation_weight else None,
        seed=4,
    )
    made.build()
    return made, student, teacher


def check(made, features, name, total, weight):
    terms = made.loss_terms(features, made(features, training=False))
    found = [float(keras.ops.convert_to_numpy(x)) for x in terms[name]]
    assert found[1] == weight
    assert found[0] / weight == pytest.approx(total / weight, abs=1e-6), name


def test_soft_labels_of_texts():
    task = tasks.Task(kind="classification", labels=("a", "b", "c"))
    losses = finetuning.DistillationConfig(soft_weight=2.0, temperature=3.0)
    made, student, _ = make(task, losses)
    teachers = RNG.normal(size=(4, 1, 3)).astype("float32")
    features = FEATURES | {"teacher_logits": teachers}
    logits = np.array(student(features, training=False)["logits"])
    total = sum(
        weight * 9 * divergence(logits[row] / 3, teachers[row, 0] / 3)
        for row, weight in enumerate((1, 1, 0.5))
    )
    check(made, features, "soft_loss", total, 2.5)
    # The training divides by this one: the loss counts twice.
    assert float(made.loss_weights(features)["soft_loss"]) == 1.25


def test_soft_labels_of_tokens_are_those_that_the_teacher_gave():
    task = tasks.Task(kind="tagging", labels=("O", "B-X", "I-X"))
    made, student, _ = make(task, finetuning.DistillationConfig(soft_weight=1.0))
    teachers = RNG.normal(size=(4, 9, 3)).astype("float32")
    places = [(0, 1), (0, 5), (1, 2), (2, 3), (3, 0)]
    mask = np.zeros((4, 9), "int32")
    mask[tuple(np.transpose(places))] = 1
    features = FEATURES | {"teacher_logits": teachers, "teacher_mask": mask}
    logits = np.array(student(features, training=False)["logits"])
    weights = FEATURES["example_weights"]
    pairs = ((weights[r], logits[r, p], teachers[r, p]) for r, p in places)
    total = sum(weight * divergence(ours, theirs) for weight, ours, theirs in pairs)
    check(made, features, "soft_loss", total, 3.5)


def test_soft_labels_of_spans_are_among_the_tokens():
    made, student, _ = make(
        tasks.Task(kind="span"), finetuning.DistillationConfig(soft_weight=1.0)
    )
    teachers = RNG.normal(size=(4, 9, 2)).astype("float32")
    mask = FEATURES["input_mask"]
    features = FEATURES | {"teacher_logits": teachers, "teacher_mask": mask}
    outputs = student(features, training=False)
    total = 0.0
    for row, weight in enumerate((1, 1, 0.5)):
        length = LENGTHS[row]
        for side, name in enumerate(("start_logits", "end_logits")):
            logits = np.array(outputs[name])[row, :length]
            total += weight * divergence(logits, teachers[row, :length, side]) / 2
    check(made, features, "soft_loss", total, 2.5)


def test_soft_labels_of_numbers_and_of_several_labels():
    students, teachers = RNG.normal(size=(2, 5, 4)).astype("float32")
    number = network(STUDENT, tasks.Task(kind="regression"), 1)
    found = number.soft_distances(students[:, :1], teachers[:, :1], 3.0)
    expected = (students[:, 0] - teachers[:, 0]) ** 2
    np.testing.assert_allclose(found, expected, atol=1e-6)
    labels = network(STUDENT, tasks.Task(kind="multi_label", labels=tuple("abcd")), 1)
    found = labels.soft_distances(students, teachers, 2.0)
    # A label and its absence are two classes.
    pairs = zip(students.ravel() / 2, teachers.ravel() / 2, strict=True)
    expected = [4 * divergence(np.array([s, 0]), np.array([t, 0])) for s, t in pairs]
    expected = np.reshape(expected, (5, 4)).mean(axis=-1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


ENCODER = tasks.Task(kind="encoder")


def weights_of(network):
    """By their paths in the network."""
    return {
        weight.path.split("/", 1)[1]: keras.ops.convert_to_numpy(weight)
        for weight in network.weights
    }


def layer_outputs(network):
    found = network(FEATURES, return_all_layers=True)["encoder_outputs"]
    return [np.float64(states) for states in found]


def relations(states, weights, prefix, row, length, num_heads):
    """Probabilities of one row, by queries, keys and values: three for each head."""
    kernel, bias = (
        np.float64(weights[f"{prefix}/self_attention/query_key_value/{name}"])
        for name in ("kernel", "bias")
    )
    vectors = states[row, :length] @ kernel + bias
    for part in np.split(vectors, 3, axis=-1):
        for head in np.split(part, num_heads, axis=-1):
            scores = head @ head.T / np.sqrt(head.shape[-1])
            yield np.array([softmax(line) for line in scores])


def test_relations_of_queries_keys_and_values():
    num_heads = 8
    losses = finetuning.DistillationConfig(
        relation_weight=1.0, relation_heads=num_heads
    )
    made, student, teacher = make(ENCODER, losses)
    students = layer_outputs(student)[1], weights_of(student), "layer_1"
    teachers = layer_outputs(teacher)[2], weights_of(teacher), "layer_2"
    total = 0.0
    for row, weight in enumerate((1, 1, 0.5)):
        pairs = zip(
            *(
                relations(*x, row, LENGTHS[row], num_heads)
                for x in (students, teachers)
            ),
            strict=True,
        )
        divergences = [np.sum(t * np.log(t / s)) for s, t in pairs]
        assert len(divergences) == 3 * num_heads
        total += weight * np.mean(divergences)
    check(made, FEATURES, "relation_loss", total, 9 + 4 + 3.5)
    assert total > 0.02


def test_the_teacher_and_what_no_loss_reads_are_not_trained():
    losses = finetuning.DistillationConfig(relation_weight=1.0, relation_heads=1)
    made, student, _ = make(ENCODER, losses)
    trained = {w.path.split("/", 1)[1] for w in made.trainable_weights}
    all_of_student = {w.path.split("/", 1)[1] for w in student.weights}
    assert all_of_student - trained == {
        f"{part}/{name}"
        for part in (
            "pooler",
            "layer_1/self_attention/output_dense",
            "layer_1/feed_forward/intermediate_dense",
            "layer_1/feed_forward/output_dense",
            "layer_1/attention_layer_norm",
            "layer_1/output_layer_norm",
        )
        for name in (("gamma", "beta") if "norm" in part else ("kernel", "bias"))
    }
    assert len(made.weights) == len(student.weights)
