"""BertSpanPredictor: the encoder with a head for where an answer begins and ends."""

from typing import Any

from keras import ops

from bert_keras.config import BertConfig
from bert_keras.model import encoder_with_head, losses


class BertSpanPredictor(encoder_with_head.EncoderWithHead):
    """Scores each token as the first and as the last of the answer to a question.

    Section 4.2 of the paper: the head's two columns are its vectors S and E. As in
    run_squad.py, padding has scores like any token: who looks for the best span looks
    among the tokens of the text only. The encoder's pooler is not used: it keeps its
    first weights.

    Args:
        config: sizes and shapes of the encoder.
        dropout_prob: fraction of the head's input that is dropped in training; none in
            the original.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, and `dropout_seeds` as the encoder takes it;
            other keys are not looked at.

    Returns:
        A dict with `start_logits` and `end_logits`, each `(batch_size,
        sequence_length)` float32.
    """

    per_token = True

    def __init__(
        self, config: BertConfig, *, dropout_prob: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(config, 2, dropout_prob=dropout_prob, **kwargs)

    def call(self, features, training=None):
        logits = self.scores(features, training=training)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def loss_weights(self, features) -> dict[str, Any]:
        """The weight of the loss, see `loss_terms`: the number of examples."""
        return {"loss": ops.sum(ops.ones_like(features["start_positions"], "float32"))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Sum and weight of each quantity over this batch, to be divided later.

        Args:
            features: a dict with `start_positions` and `end_positions`,
                `(batch_size,)` or `(batch_size, 1)` integers below `sequence_length`:
                the first and the last token of the answer, 0 twice for no answer.
            outputs: what `call` returned for the same batch.

        Returns:
            From `loss` (nats per example, the mean of start's and end's),
            `start_accuracy` and `end_accuracy` to a pair of float32 scalars, the sum
            and the weight.
        """
        positions = [
            ops.reshape(ops.cast(features[f"{name}_positions"], "int32"), (-1,))
            for name in ("start", "end")
        ]
        logits = [outputs["start_logits"], outputs["end_logits"]]
        start, end = map(_cross_entropy, logits, positions)
        start_right, end_right = map(losses.is_right, logits, positions)
        weight = ops.sum(ops.ones_like(start))
        return {
            "loss": (ops.sum(start + end) / 2, weight),
            "start_accuracy": (ops.sum(start_right), weight),
            "end_accuracy": (ops.sum(end_right), weight),
        }


def _cross_entropy(logits, positions):
    """Of each example, `(batch_size,)`, in nats."""
    # `losses.cross_entropy` is for a number of classes that is known beforehand.
    log_probs = ops.log_softmax(logits, axis=-1)
    return -losses.logit_of(log_probs, positions)[:, 0]
