"""The network that scores where an answer begins and ends; Keras alone."""

from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import losses, networks
from bert_keras.model.networks import EncoderWithHead, choice_terms, example_weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertSpanPredictor(EncoderWithHead):
    """Scores each token as the first and as the last of the answer to a question.

    Section 4.2 of the paper: the head's two columns are its vectors S and E. As in
    run_squad.py, padding has scores like any token: a search for the best span has to
    stay among the tokens of the text. The encoder's pooler is unused and keeps its
    initial weights. The original drops nothing before the head, hence `dropout_prob=0`.

    The outputs are `start_logits` and `end_logits`, each `(batch_size,
    sequence_length)`. For `loss_terms`, `start_positions` and `end_positions` are
    `(batch_size,)` or `(batch_size, 1)`: the first and the last token of the answer, 0
    twice for no answer. Tokens from `features["batch_lengths"]` on are not chosen
    among. `loss` is the mean of start's and end's; `start_accuracy` and `end_accuracy`
    take the place of `accuracy`.
    """

    saved_arguments = networks.SAVED_ARGUMENTS
    label_name = "start_positions"
    per_token = True

    def __init__(
        self, config: BertConfig, *, dropout_prob: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(config, 2, dropout_prob=dropout_prob, **kwargs)

    def call(self, features, training=None, return_all_layers=False):
        logits, layer_outputs = self.scores(features, training, return_all_layers)
        start, end = logits[..., 0], logits[..., 1]
        return {"start_logits": start, "end_logits": end, **layer_outputs}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        terms = {}
        for name in ("start", "end"):
            logits = outputs[f"{name}_logits"]
            if "batch_lengths" in features:
                # Tokens that pad a batch to a fixed length: far below any score, and
                # the exponential is 0.
                positions = ops.arange(ops.shape(logits)[1], dtype="int32")
                lengths = ops.cast(features["batch_lengths"], "int32")
                logits = ops.where(positions < lengths[:, None], logits, -1e9)
            terms[name] = choice_terms(logits, features[f"{name}_positions"])
        (start_loss, start_right), (end_loss, end_right) = terms.values()
        weights = example_weights(features, features["start_positions"])
        weight = ops.sum(weights)
        return {
            "loss": (ops.sum((start_loss + end_loss) * weights) / 2, weight),
            "start_accuracy": (ops.sum(start_right * weights), weight),
            "end_accuracy": (ops.sum(end_right * weights), weight),
        }

    def soft_losses(self, features, outputs, temperature):
        """Compares probabilities over the tokens, of starts and of ends."""
        students = ops.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
        mask = ops.cast(features["teacher_mask"], "bool")
        # (batch_size, 2, sequence_length): probabilities are along the last axis.
        students, teachers = (
            ops.transpose(ops.where(mask[..., None], logits, -1e9), (0, 2, 1))
            for logits in (students, features["teacher_logits"])
        )
        distances = losses.soft_cross_entropy(students, teachers, temperature)
        return ops.mean(distances, axis=-1)
