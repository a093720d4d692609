"""The network that scores passages for a question; Keras alone."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import losses, networks

# Not -inf, of which a share of 0 would be NaN.
_NEVER = -1e9


@keras.saving.register_keras_serializable(package="bert_keras")
class BertRanker(networks.PartsWithHead):
    """Scores passages, each read as a pair with its question (a cross-encoder).

    Nogueira & Cho (2019, "Passage Re-ranking with BERT") score the pooled output of
    each pair. Features of the encoder are `(batch_size, sequence_length)`, a pair each,
    and `logits` `(batch_size, 1)`; or several passages of a question go together, see
    `PartsWithHead`. A passage's score depends on its question and itself alone.

    For `loss_terms`, `label_ids` are `(batch_size, num_passages)` float32 relevances,
    below 0 where a question has no such passage. With `label_targets`, the same shape,
    shares of the relevance that add up to 1, the loss of a question is the cross
    entropy of the softmax over its passages' scores (ListNet; Cao et al., 2007).
    Without them it is the mean of `log(1 + exp(-difference))` over the pairs of a more
    and a less relevant passage (RankNet; Burges et al., 2005). `accuracy` is the share
    of questions whose most relevant passage has the highest score, alone.
    """

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        logits = ops.cast(outputs["logits"], "float32")
        relevances = ops.cast(features["label_ids"], "float32")
        is_there = relevances >= 0
        if "label_targets" in features:
            log_probs = ops.log_softmax(ops.where(is_there, logits, _NEVER), axis=-1)
            found = -ops.sum(features["label_targets"] * log_probs, axis=-1)
        else:
            differences = logits[:, :, None] - logits[:, None, :]
            is_pair = relevances[:, :, None] > relevances[:, None, :]
            # A missing passage, below 0, would be less relevant than all others.
            is_pair = ops.cast(is_pair & is_there[:, None, :], "float32")
            found = ops.sum(ops.softplus(-differences) * is_pair, axis=(1, 2))
            found = found / ops.maximum(ops.sum(is_pair, axis=(1, 2)), 1.0)
        is_best = relevances == ops.max(relevances, axis=-1, keepdims=True)
        best = ops.max(ops.where(is_best, logits, _NEVER), axis=-1)
        other = ops.max(ops.where(is_there & ~is_best, logits, _NEVER), axis=-1)
        is_right = ops.cast(best > other, "float32")
        # 0 for a question that fills up a batch.
        weights = networks.example_weights(features, relevances)
        return losses.weighted_terms(weights, loss=found, accuracy=is_right)
