"""Minimal pairs as a curve of a pre-training: a fixed sample, at each evaluation."""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, pretraining
from bert_keras.data import tokenization
from bert_keras.model import pretrainer
from bert_keras.scoring import minimal_pairs
from bert_keras.scoring.scorer import SentenceScorer

METRIC = "minimal_pairs_accuracy"
"""The mean of the groups."""

NUM_PAIRS = 1000
"""Pairs of a sample, about: as many of each group."""


class PairsCurve:
    """Scores pairs with the weights that a training has reached, in float32."""

    def __init__(
        self,
        path: str,
        bert_config: architecture.BertConfig,
        tokenizer: tokenization.Tokenizer,
        *,
        strategy: tf.distribute.Strategy,
    ):
        pairs = minimal_pairs.read_pairs(path)
        num_groups = len({pair.group for pair in pairs})
        if num_groups > NUM_PAIRS:
            raise InputError(
                f"{path}: {num_groups:,} groups, each of which would be a curve: "
                f"expected at most {NUM_PAIRS:,}; name the kinds of pairs in `group`"
            )
        per_group = NUM_PAIRS // num_groups
        # The seed is not the run's: curves of several runs are of the same pairs.
        self._pairs = minimal_pairs.sample(pairs, per_group, seed=0)
        with strategy.scope():
            self._network = pretrainer.BertPretrainer(
                bert_config, dtype="float32", next_sentence=False
            )
            self._network.build()
        longest = bert_config.max_position_embeddings
        lengths = ()
        if isinstance(strategy, tf.distribute.TPUStrategy):  # compiles each shape
            lengths = (*(n for n in (16, 32, 64, 128) if n < longest), longest)
        self._score = SentenceScorer(
            self._network, tokenizer, strategy=strategy, ladder=lengths
        )
        # Sentences that cannot be scored are refused here, not when training has begun.
        for pair in self._pairs:
            for text in (pair.good, pair.bad):
                self._score.encode(text, path)

    def __call__(self, weights: Sequence[keras.Variable]) -> Mapping[str, float]:
        """Returns the share of right pairs, of each group with a name and in the mean;
        `weights` are a `BertPretrainer`'s, in its order."""
        for own, variable in zip(self._network.weights, weights, strict=True):
            own.assign(variable)
        tally = minimal_pairs.Tally()
        for pair in minimal_pairs.score_pairs(self._score, self._pairs):
            tally.add(pair)
        prefix = pretraining.GROUPS + METRIC
        groups = {f"{prefix}/{g.name}": g.share for g in tally.groups() if g.name}
        return {METRIC: tally.mean().share, **groups}
