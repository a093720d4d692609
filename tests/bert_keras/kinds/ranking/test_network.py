"""The network of a ranker: its losses against definitions and sentence-transformers."""

import itertools

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from tests import make

CONFIG = make.small_config(40, max_position_embeddings=16)
RANKING = tasks.Task(kind="ranking", has_text_pair=True)
RELEVANCES = np.array([[0, 2, 1, 0], [1, 0, 0, -1], [3, 1, -1, -1]], np.float32)


@pytest.fixture(scope="module")
def network(randomize):
    network = registry.build_network(CONFIG, RANKING, seed=1)
    randomize(network, stddev=0.5)
    return network


@pytest.fixture(scope="module")
def pairs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shape = (3, 4, 9)
    mask = np.arange(9) < rng.integers(3, 10, (3, 4, 1))
    return {
        "input_ids": np.int32(rng.integers(1, 40, shape) * mask),
        "input_mask": np.int32(mask),
        "segment_ids": np.int32((np.arange(9) > 2) & mask),
    }


def mean_loss(network, logits, **features) -> float:
    terms = network.loss_terms(features, {"logits": tf.constant(logits)})
    total, weight = terms["loss"]
    assert weight == network.loss_weights(features)["loss"]
    return float(total / weight)


def shares(relevances: np.ndarray) -> np.ndarray:
    gains = np.maximum(relevances, 0)
    return gains / gains.sum(axis=1, keepdims=True)


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=RELEVANCES.shape).astype(np.float32)


def test_losses_are_those_of_the_definitions(network):
    logits = logits_of(1)
    listwise, pairwise = [], []
    for scores, relevances in zip(logits, RELEVANCES, strict=True):
        scores, relevances = scores[relevances >= 0], relevances[relevances >= 0]
        log_probs = scipy.special.log_softmax(scores)
        listwise.append(-(relevances / relevances.sum() * log_probs).sum())
        pairs = itertools.permutations(zip(scores, relevances, strict=True), 2)
        pairwise.append(
            np.mean([np.log1p(np.exp(b - a)) for (a, r), (b, s) in pairs if r > s])
        )
    found = mean_loss(network, logits, label_ids=RELEVANCES)
    assert found == pytest.approx(np.mean(pairwise), rel=1e-6)
    features = {"label_ids": RELEVANCES, "label_targets": shares(RELEVANCES)}
    found = mean_loss(network, logits, **features)
    assert found == pytest.approx(np.mean(listwise), rel=1e-6)


@pytest.mark.slow
def test_both_losses_are_those_of_sentence_transformers(network):
    """Of one question each, for their means are over all pairs of a batch."""
    losses = pytest.importorskip("sentence_transformers.cross_encoder.losses")
    torch = pytest.importorskip("torch")

    class Scores(torch.nn.Module):
        """Stands for a model whose scores are given."""

        num_labels = 1
        device = torch.device("cpu")
        values = None

        def preprocess(self, pairs, **_):
            return {"numbers": [int(passage[1:]) for _, passage in pairs]}

        tokenizer = preprocess

        def forward(self, batch):
            return {"scores": self.values[batch["numbers"]]}

    def theirs(name: str, scores: np.ndarray, labels: np.ndarray, **options) -> float:
        model = Scores()
        model.values = torch.tensor(scores)[:, None]
        passages = [[f"p{n}" for n in range(len(scores))]]
        loss = getattr(losses, name)(model, **options)
        return float(loss([["q"], passages], [torch.tensor(labels)]))

    for scores, whole in zip(logits_of(2), RELEVANCES, strict=True):
        relevances = whole[whole >= 0]
        known, features = scores[: len(relevances)], {"label_ids": whole[None]}
        found = mean_loss(network, scores[None], **features)
        expected = theirs("RankNetLoss", known, relevances, reduction_log="natural")
        assert found == pytest.approx(expected, rel=1e-5)
        features["label_targets"] = shares(features["label_ids"])
        found = mean_loss(network, scores[None], **features)
        # Their targets are a softmax: of logarithms it is the shares.
        with np.errstate(divide="ignore"):
            labels = np.maximum(np.log(relevances), np.float32(-1e4))
        assert found == pytest.approx(theirs("ListNetLoss", known, labels))


def test_questions_that_fill_up_a_batch_and_missing_passages_count_nothing(network):
    logits = logits_of(3)
    for more in ({}, {"label_targets": shares(RELEVANCES)}):
        features = {"label_ids": RELEVANCES, **more}
        weights = {"example_weights": np.array([1, 1, 0], np.float32)}
        first = {name: values[:2] for name, values in features.items()}
        expected = network.loss_terms(first, {"logits": logits[:2]})
        other = np.where(RELEVANCES < 0, np.float32(50), logits)
        found = network.loss_terms(features | weights, {"logits": other})
        for name, pair in expected.items():
            np.testing.assert_allclose(found[name], pair, rtol=1e-6)


def test_accuracy_counts_the_most_relevant_passage_alone(network):
    for scores, expected in (([0, 3, 1, 0], 1), ([0, 1, 3, 0], 0), ([3, 3, 1, 0], 0)):
        features = {"label_ids": RELEVANCES[:1]}
        outputs = {"logits": np.array([scores], np.float32)}
        total, weight = network.loss_terms(features, outputs)["accuracy"]
        assert (float(total), float(weight)) == (expected, 1)


def test_a_score_depends_on_its_pair_alone(network, pairs):
    logits = network(pairs, training=False)["logits"].numpy()
    assert logits.shape == (3, 4)
    order = [2, 0, 3, 1]
    swapped = {name: values[:, order] for name, values in pairs.items()}
    found = network(swapped, training=False)["logits"].numpy()
    np.testing.assert_allclose(found, logits[:, order], atol=1e-6)
    alone = {name: values.reshape(12, 9) for name, values in pairs.items()}
    found = network(alone, training=False)["logits"].numpy()
    np.testing.assert_allclose(found, logits.reshape(12, 1), atol=1e-6)


def test_gradients_stay_finite_for_scores_far_apart(network):
    logits = tf.Variable([[1e4, -1e4, 0, 0]] * 3)
    for more in ({}, {"label_targets": shares(RELEVANCES)}):
        features = {"label_ids": RELEVANCES, **more}
        with tf.GradientTape() as tape:
            loss, _ = network.loss_terms(features, {"logits": logits})["loss"]
        assert np.isfinite(tape.gradient(loss, logits)).all()
