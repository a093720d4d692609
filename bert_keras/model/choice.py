"""BertChooser: the encoder with a head for the best of several endings."""

from typing import Any

from keras import ops

from bert_keras.config import BertConfig
from bert_keras.model import encoder_with_head, losses


class BertChooser(encoder_with_head.EncoderWithHead):
    """Chooses one of several endings of a text, each read as a pair with the text.

    Section 4.4 of the paper: one vector scores the pooled output of every ending, and
    the softmax is over the endings of an example.

    Args:
        config: sizes and shapes of the encoder.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, but each `(batch_size, num_endings,
            sequence_length)`; and `dropout_seeds`, `(batch_size,)`, as the encoder
            takes it, see `ending_seeds`; other keys are not looked at.

    Returns:
        A dict with `logits`, `(batch_size, num_endings)` float32.
    """

    def __init__(
        self, config: BertConfig, *, dropout_prob: float, **kwargs: Any
    ) -> None:
        super().__init__(config, 1, dropout_prob=dropout_prob, **kwargs)

    def call(self, features, training=None):
        _, num_endings, length = ops.shape(features["input_ids"])
        endings = {
            name: ops.reshape(features[name], (-1, length))
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        if training:
            endings["dropout_seeds"] = ending_seeds(
                self.encoder.dropout_seeds(features), num_endings
            )
        logits = self.scores(endings, training=training)
        return {"logits": ops.reshape(logits, (-1, num_endings))}

    def loss_weights(self, features) -> dict[str, Any]:
        """The weight of the loss, see `loss_terms`: the number of examples."""
        return {"loss": ops.sum(ops.ones_like(features["label_ids"], "float32"))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Sum and weight of each quantity over this batch, to be divided later.

        Args:
            features: a dict with `label_ids`, `(batch_size,)` or `(batch_size, 1)`
                integers below `num_endings`: the right one.
            outputs: what `call` returned for the same batch.

        Returns:
            From `loss` (nats per example) and `accuracy` to a pair of float32 scalars,
            the sum and the weight.
        """
        logits = outputs["logits"]
        label_ids = ops.reshape(ops.cast(features["label_ids"], "int32"), (-1,))
        # `losses.cross_entropy` is for a number of classes that is known beforehand.
        log_probs = ops.log_softmax(logits, axis=-1)
        right = losses.is_right(logits, label_ids)
        weight = ops.sum(ops.ones_like(right))
        return {
            "loss": (-ops.sum(losses.logit_of(log_probs, label_ids)), weight),
            "accuracy": (ops.sum(right), weight),
        }


def ending_seeds(dropout_seeds, num_endings):
    """A seed of dropout for each ending, a function of the example's seed alone.

    The first ending has the example's own. The others are far from it and from those
    of other examples, whose seeds may be numbers in a row; sums wrap around.

    Args:
        dropout_seeds: `(batch_size,)` int32, one for each example.
        num_endings: of each example.

    Returns:
        `(batch_size * num_endings,)` int32, example after example.
    """
    # The golden ratio of 2 ** 32, whose multiples keep apart.
    step = ops.convert_to_tensor(0x9E3779B9, dtype="uint32")
    steps = ops.cast(ops.arange(num_endings, dtype="int32"), "uint32") * step
    seeds = ops.cast(dropout_seeds, "uint32")[:, None] + steps
    return ops.cast(ops.reshape(seeds, (-1,)), "int32")
