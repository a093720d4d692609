"""Why a tuned model answers as it does: integrated gradients of the answer's score.

The attribution of a token is its part of the integral of the score's gradient along the
straight line from a baseline to the input (Sundararajan et al., 2017, "Axiomatic
Attribution for Deep Networks"). The line is drawn between outputs of the embeddings
layer (word, position and segment together, normalised), as by captum's
`LayerIntegratedGradients` for `BertEmbeddings`. In the baseline each piece of the texts
is [MASK]; [CLS] and [SEP] stay, so their attributions are 0. All attributions add up to
the score less the baseline's, but for the error of the integral.
"""

import functools
import logging
from typing import NamedTuple

import numpy as np
import scipy.fft
import tensorflow as tf

from bert_keras.core.errors import InputError, check_choice
from bert_keras.data import token_offsets, tokenization
from bert_keras.inference import finetuned, forward
from bert_keras.labelled import dataset
from bert_keras.model import recomputation

logger = logging.getLogger(__name__)

TOLERANCE = 0.01
"""Error of the integral that is small enough, as a share of the difference between the
two scores; of `LEAST_DIFFERENCE` where these are closer."""

LEAST_DIFFERENCE = 0.1

FEWEST_STEPS, MOST_STEPS = 8, 512
"""Powers of 2."""

TOKENS_PER_BATCH = 1024
"""Of a pass forward and back, which takes 2 GB for a BERT-BASE."""


class Word(NamedTuple):
    """`texts[text][start:end]`: a word as BERT divides texts, before it spells it."""

    text: int
    start: int
    end: int
    attribution: float | None = None
    """`None`: the text is too long, and the model did not read the word."""


class Explanation(NamedTuple):
    """The words for an answer and those against it; see `dataset.Explained`."""

    texts: tuple[str, ...]
    answer: str
    score: float
    baseline_score: float
    words: tuple[Word, ...]
    completeness_error: float
    """Error of the integral, as `TOLERANCE` counts it."""
    steps: int


class Explainer:
    """Explains answers to the examples of a data set without labels, or the score of a
    `label`. Raises an `InputError` for a kind of task without such scores, a network
    that does not compute in float32, and outputs that are not finite."""

    def __init__(
        self,
        model: finetuned.FinetunedModel,
        data: dataset.Dataset,
        *,
        label: str | None = None,
        tolerance: float = TOLERANCE,
    ):
        task, tokenizer, settings = model.task, model.tokenizer, model.settings
        self._network, self._tolerance = model.network, tolerance
        self._vocabulary = tokenizer.vocabulary
        if self._network.compute_dtype != "float32":
            raise InputError(
                "an explanation needs float32, but the model computes in "
                f"{self._network.compute_dtype}: load it with precision='float32'"
            )
        if label is not None:
            if task.labels is None:
                raise InputError(f"a model for {task.kind} has no label {label!r}")
            check_choice("the label to explain", label, task.labels)
        self._inputs = data.encode(task, tokenizer, settings)
        outputs = forward.predictor_for(self._network)(self._inputs, title="predicting")
        if not np.isfinite(outputs).all():
            raise InputError("the model's scores are not finite: its training failed")
        explained = data.explained(outputs, self._inputs, task, settings, label=label)
        if explained is None:
            raise InputError(
                f"a model for {task.kind}, expected one for classes or numbers of "
                "texts, for answers within a text, or for ranking"
            )
        self._explained = explained
        self._offsets = token_offsets.OffsetTokenizer(tokenizer)
        self._keeps_tail = settings.long_texts == "head_tail"
        # Each function is traced once for all lengths.
        ids, floats = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None,))
        signature = [dict.fromkeys(forward.INPUT_NAMES, ids), floats, ids, floats]
        compiled = functools.partial(tf.function, autograph=False)
        self._scores = compiled(self._score, input_signature=signature[:2])
        self._slopes = compiled(self._slope, input_signature=signature)

    def __len__(self) -> int:
        return len(self._explained)

    @recomputation.custom_gradients_end()
    def explain(self, example: int) -> Explanation:
        """Explains the answer to an example, counted from 0."""
        features, weights, words, word_of = self._read(example)
        ids = features["input_ids"]
        baseline = np.where(word_of < 0, ids, np.int32(self._vocabulary.mask_id))
        size = max(1, TOKENS_PER_BATCH // len(word_of))

        def slopes(nodes: np.ndarray) -> np.ndarray:
            parts = np.split(nodes.astype(np.float32), range(size, len(nodes), size))
            return np.concatenate(
                [self._slopes(features, weights, baseline, part) for part in parts]
            )

        # A row of each node; half as many steps have every second node.
        rows = slopes(quadrature(FEWEST_STEPS)[0])
        while True:
            steps, (before, score) = len(rows) - 1, rows[[0, -1], -1].tolist()
            of_tokens = quadrature(steps)[1] @ rows[:, :-1]
            error = abs(float(of_tokens.sum()) - (score - before))
            error /= max(abs(score - before), LEAST_DIFFERENCE)
            if error <= self._tolerance or steps == MOST_STEPS:
                break
            between = slopes(quadrature(2 * steps)[0][1::2])
            rows = np.insert(rows, range(1, steps + 1), between, axis=0)
        if error > self._tolerance:
            logger.warning(
                "example %d: the attributions miss %.2g %% of the score in %d steps",
                *(example + 1, 100 * error, steps),
            )
        for word in {*word_of.tolist()} - {-1}:
            value = float(of_tokens[word_of == word].sum())
            words[word] = words[word]._replace(attribution=value)
        answer, texts, *_ = self._explained[example]
        return Explanation(texts, answer, score, before, tuple(words), error, steps)

    @recomputation.custom_gradients_end()
    def scores_without(self, example: int, is_masked: np.ndarray) -> np.ndarray:
        """Returns the scores of an answer, `(num_variants,)`, where some words are
        [MASK]: `(num_variants, num_words)` bool, words as `explain` numbers them."""
        features, weights, _, word_of = self._read(example)
        # The last column belongs to special tokens.
        is_masked = np.pad(is_masked, ((0, 0), (0, 1)))[:, word_of]
        ids = np.where(is_masked, self._vocabulary.mask_id, features["input_ids"])
        rows = {k: np.repeat(v, len(ids), axis=0) for k, v in features.items()}
        rows["input_ids"] = ids.astype(np.int32)
        return self._scores(rows, weights).numpy()

    def _read(
        self, example: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray, list[Word], np.ndarray]:
        """Returns the features of an input, `(1, length)` each, the weights of all
        outputs in the score, the words of the texts, and the number of each token's
        word, `(length,)`; -1 for special tokens."""
        _, texts, row, weights, skipped = self._explained[example]
        batch, vocabulary = self._inputs.batch(np.array([row])), self._vocabulary
        special = [vocabulary.cls_id, vocabulary.sep_id]
        is_piece = ~np.isin(batch["input_ids"][0], special)
        words, word_of = [], np.full(len(is_piece), -1)
        for segment, text in enumerate(texts):
            ids, starts, ends = self._offsets.encode(text)
            is_first = ~vocabulary.is_continuation[ids]
            is_here = is_piece & (batch["segment_ids"][0] == segment)
            # The pieces that are left of a text that was cut.
            first = skipped if segment == len(texts) - 1 else 0
            left = tokenization.shortened(
                *(range(first, len(ids)), is_here.sum()), keeps_tail=self._keeps_tail
            )
            word_of[is_here] = len(words) - 1 + np.cumsum(is_first)[[*left]]
            ends = ends[np.append(is_first, True)[1:]]
            places = zip(starts[is_first].tolist(), ends.tolist(), strict=True)
            words += [Word(segment, *place) for place in places]
        features = {name: batch[name] for name in forward.INPUT_NAMES}
        return features, weights.ravel().astype(np.float32), words, word_of

    def _score(self, features, weights):
        outputs, _ = self._network.scores(features, False, False)
        outputs = tf.reshape(outputs, (-1, tf.size(weights)))
        return tf.linalg.matvec(outputs, weights)

    def _slope(self, features, weights, baseline_ids, nodes):
        """Returns, at each node of the line, the slope of the score by token and, in
        the last column, the score: `(num_nodes, length + 1)`."""
        embed, segment_ids = self._network.encoder.embeddings, features["segment_ids"]
        start = embed(baseline_ids, segment_ids)
        way = embed(features["input_ids"], segment_ids) - start
        rows = {k: tf.repeat(v, tf.size(nodes), axis=0) for k, v in features.items()}
        points = start + nodes[:, None, None] * way
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(points)
            scores = self._score({**rows, "embedding_output": points}, weights)
        slopes = tf.reduce_sum(tape.gradient(scores, points) * way, axis=-1)
        return tf.concat([slopes, scores[:, None]], axis=1)


def quadrature(num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and weights of an integral from 0 to 1, `(num_steps + 1,)` each, by
    Clenshaw and Curtis (1960). The number of steps is even; twice as many have all of
    the nodes, and the error falls nearly as fast as Gauss's (Trefethen, 2008)."""
    moments, even = np.zeros(num_steps + 1), np.arange(0, num_steps + 1, 2)
    moments[even] = 1 / (1.0 - even**2)
    weights = np.asarray(scipy.fft.dct(moments, type=1)) / num_steps
    weights[[0, -1]] /= 2
    return (1 - np.cos(np.linspace(0, np.pi, num_steps + 1))) / 2, weights
