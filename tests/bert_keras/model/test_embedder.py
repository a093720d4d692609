"""Losses of vectors, beside those of sentence-transformers too."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import sentence_transformers as directories
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from bert_keras.kinds.vectors import embedding
from bert_keras.model import embedder
from tests import conftest

WORDS = "the film plot is so and a scene very with great lovely dull weak".split()
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
TOKENIZER = tokenization.Tokenizer(VOCABULARY, do_lower_case=True)
BERT_CONFIG = conftest.TINY.model_copy(
    update={"vocab_size": len(VOCABULARY), "initializer_range": 0.3}
)


def build(pooling: str = "mean", **options) -> embedder.BertEmbedder:
    task = tasks.Task(kind="embedding", pooling=pooling, **options)
    return registry.build_network(BERT_CONFIG, task, scale=17.0, seed=3)


def random_texts(num_rows: int, num_texts: int) -> list[tuple[str, ...]]:
    """Different texts of different lengths."""
    random = np.random.default_rng(5)
    texts: dict[str, None] = {}
    while len(texts) < num_rows * num_texts:
        texts[" ".join(random.choice(WORDS, random.integers(2, 12)))] = None
    listed = list(texts)
    return [tuple(listed[i::num_rows]) for i in range(num_rows)]


def batch_of(rows, labels=None) -> dict[str, np.ndarray]:
    made = embedding.EmbeddingDataset(
        path=Path("rows"),
        rows=[
            embedding.Texts(
                *(*texts, None)[:3], None if labels is None else labels[line], line
            )
            for line, texts in enumerate(rows)
        ],
        has_labels=True,
    ).for_training()
    settings = finetuning.FinetuningConfig(
        task="embedding", batch_size=len(rows), max_seq_length=32
    )
    return made.encode(made.describe(), TOKENIZER, settings).batch(np.arange(len(rows)))


def loss_of(network, batch) -> dict[str, float]:
    terms = network.loss_terms(batch, network(batch))
    return {name: float(total / weight) for name, (total, weight) in terms.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "num_texts", "has_labels"),
    [("mean", 2, False), ("cls", 3, False), ("mean", 2, True)],
)
def test_the_losses_are_theirs(pooling, num_texts, has_labels, tmp_path):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    # The same weights in sentence-transformers, which reads our directory.
    normalize = pooling == "mean"
    network = build(pooling, normalize=normalize)
    made = weights.Checkpoint(
        bert_config=BERT_CONFIG,
        task=tasks.Task(kind="embedding", pooling=pooling, normalize=normalize),
        arrays=weights.from_network(network),
        vocabulary=VOCABULARY,
        do_lower_case=True,
    )
    directories.write(made, tmp_path)
    model = package.SentenceTransformer(str(tmp_path), device="cpu").eval()
    rows = random_texts(9, num_texts)
    columns = [model.preprocess(list(column)) for column in zip(*rows, strict=True)]
    if has_labels:
        labels = np.linspace(-1, 1, 9).round(3).tolist()
        expected = losses.CosineSimilarityLoss(model)(columns, torch.tensor(labels))
        batch = batch_of(rows, labels)
    else:
        theirs = losses.MultipleNegativesRankingLoss(model, scale=17.0)
        expected, batch = theirs(columns, None), batch_of(rows)
    # The loss, and the gradient of the words.
    expected.backward()
    table = network.encoder.embeddings.word_embeddings
    with tf.GradientTape() as tape:
        total, weight = network.loss_terms(batch, network(batch))["loss"]
        loss = total / weight
    assert float(loss) == pytest.approx(float(expected.detach()), abs=1e-5)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table.value)).numpy()
    wanted = model[0].auto_model.embeddings.word_embeddings.weight.grad.numpy()
    assert np.abs(wanted).max() > 0.01
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-5)


def ranking_loss(vectors, ids, *, scale: float) -> tuple[float, float]:
    """The loss and the accuracy, row by row and candidate by candidate."""
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    losses, right = [], []
    for row, own in enumerate(ids):
        scores = [scale * vectors[row, 0] @ vectors[row, 1]]
        for other, texts in enumerate(ids):
            for place, text in enumerate(texts[1:], start=1):
                is_right = place == 1 and (other == row or texts[0] == own[0])
                if not is_right and text not in own[:2]:
                    scores.append(scale * vectors[row, 0] @ vectors[other, place])
        losses.append(np.log(np.exp(scores).sum()) - scores[0])
        right.append(scores[0] > max(scores[1:]))
    return float(np.mean(losses)), float(np.mean(right))


@pytest.mark.parametrize("num_texts", [2, 3])
def test_right_answers_of_other_rows_are_no_negatives(num_texts):
    """Rows with the same first text, the same second one, and crosswise."""
    rows = [list(texts) for texts in random_texts(6, num_texts)]
    rows[1][0] = rows[0][0]
    rows[3][1] = rows[2][1]
    rows[5][1] = rows[4][0]
    network, batch = build(), batch_of(rows)
    vectors = network(batch)["embedding"].numpy()
    loss, accuracy = ranking_loss(vectors, batch["text_ids"], scale=17.0)
    found = loss_of(network, batch)
    assert found == {
        "loss": pytest.approx(loss, abs=1e-5),
        "accuracy": pytest.approx(accuracy),
    }
    # All of it matters.
    ids = np.arange(batch["text_ids"].size).reshape(batch["text_ids"].shape)
    assert abs(loss_of(network, {**batch, "text_ids": ids})["loss"] - loss) > 0.01


def test_a_row_that_fills_up_a_batch_is_nowhere():
    network, batch = build(), batch_of(random_texts(5, 2))
    expected = loss_of(network, batch)
    rows = np.array([0, 1, 2, 3, 4, 0, 0, 0])
    filled = {name: values[rows] for name, values in batch.items()}
    # Were it not for the weights, nothing would tell the copies from other texts.
    filled["text_ids"] = np.arange(16, dtype=np.int32).reshape(8, 2)
    weights_of_rows = np.float32([1, 1, 1, 1, 1, 0, 0, 0])
    found = loss_of(network, {**filled, "example_weights": weights_of_rows})
    assert found == {name: pytest.approx(v, abs=1e-5) for name, v in expected.items()}


def test_texts_by_themselves_have_the_vectors_that_they_have_in_rows():
    for network in (build(), build("cls", normalize=True)):
        batch = batch_of(random_texts(4, 3))
        names = ("input_ids", "input_mask", "segment_ids")
        in_rows = network(batch)["embedding"].numpy()
        for row, length in enumerate(batch["input_mask"][:, 1].sum(axis=-1)):
            text = {name: batch[name][row : row + 1, 1, :length] for name in names}
            (alone,) = network(text)["embedding"].numpy()
            np.testing.assert_allclose(alone, in_rows[row, 1], rtol=0, atol=1e-5)
        lengths = np.linalg.norm(in_rows, axis=-1)
        assert np.allclose(lengths, 1, atol=1e-5) == network.normalize


def test_each_text_of_a_row_has_its_own_dropout():
    """Else a text and itself would be one vector, and nothing could be learnt."""
    bert_config = BERT_CONFIG.model_copy(update={"hidden_dropout_prob": 0.3})
    task = tasks.Task(kind="embedding", pooling="mean")
    network = registry.build_network(bert_config, task, seed=3)
    (batch,) = [batch_of([(text, text) for text, _ in random_texts(3, 2)])]
    batch["dropout_seeds"] = np.arange(3, dtype=np.int32)
    vectors = network(batch, training=True)["embedding"].numpy()
    assert np.abs(vectors[:, 0] - vectors[:, 1]).max(axis=-1).min() > 0.01
    again = network(batch, training=True)["embedding"].numpy()
    np.testing.assert_array_equal(vectors, again)
