"""BertPretrainer: the encoder, both pre-training heads, and their losses."""

from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import encoder, heads, layers, losses


@keras.saving.register_keras_serializable(package="bert_keras")
class BertPretrainer(encoder.BertNetwork):
    """Masked language model and next-sentence prediction on one encoder.

    Without `next_sentence`, its head and the encoder's pooler keep their initial
    weights, and examples need no `next_sentence_labels`.

    Call arguments:
        features: a dict with `input_ids`, `input_mask`, `segment_ids` and
            `masked_lm_positions` as in `bert_keras.data.features`, for packed rows
            `instance_ids` in place of `input_mask`; labels are ignored, and unknown
            keys refused.

    Returns:
        A dict.
        `masked_lm_logits`: `(batch_size, max_predictions_per_seq, vocab_size)` float32.
        `next_sentence_logits`: `(batch_size, 2)` float32, for packed rows `(batch_size,
            slots, 2)`; only with `next_sentence`.
    """

    saved_arguments = ("seed", "next_sentence")

    def __init__(
        self,
        config: BertConfig,
        *,
        seed: int | None = None,
        next_sentence: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, seed=seed, **kwargs)
        self.next_sentence = next_sentence
        self.encoder = encoder.part_of(self)
        self.masked_lm_head = heads.MaskedLanguageModelHead(
            config.vocab_size,
            config.hidden_size,
            hidden_act=config.hidden_act,
            **layers.part_arguments(self, "masked_lm_head"),
        )
        self.next_sentence_head = heads.NextSentenceHead(
            config.hidden_size, **layers.part_arguments(self, "next_sentence_head")
        )

    def build(self, input_shape=None):
        super().build()
        if not self.next_sentence:
            # Not part of the loss, but weight decay would shrink them.
            self.next_sentence_head.trainable = False
            self.encoder.pooler.trainable = False

    @property
    def loss_names(self) -> tuple[str, ...]:
        if self.next_sentence:
            return ("masked_lm_loss", "next_sentence_loss")
        return ("masked_lm_loss",)

    def call(self, features, training=None):
        positions = features["masked_lm_positions"]
        # The next sentence is predicted at [CLS]; dropout is drawn by position.
        has_dropout = training and self.config.hidden_dropout_prob > 0
        needs_all = self.next_sentence or has_dropout
        encoded = self.encoder(
            features,
            training=training,
            output_positions=None if needs_all else positions,
        )
        outputs = {
            "masked_lm_logits": self.masked_lm_head(
                encoded["sequence_output"],
                positions if needs_all else None,
                self.encoder.word_embeddings,
            )
        }
        if self.next_sentence:
            logits = self.next_sentence_head(encoded["pooled_output"])
            outputs["next_sentence_logits"] = logits
        return outputs

    def loss_weights(self, features) -> dict[str, Any]:
        """Returns the weights of the loss terms and the number of real `tokens`."""
        mask = features["instance_ids" if "instance_ids" in features else "input_mask"]
        counts = {"tokens": ops.sum(ops.cast(ops.minimum(mask, 1), "float32"))}
        for name, (_, weights) in self._targets(features).items():
            counts[f"{name}_loss"] = ops.sum(weights)
        return counts

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Returns the sum and the weight of each quantity, float32 scalars.

        A mean over several replicas is the sum of all divided by the weight of all:
        replicas hold different numbers of predictions. The quantities are
        `masked_lm_loss` (nats per prediction), `masked_lm_accuracy` and, if next
        sentences are trained, `next_sentence_loss` (nats per example) and
        `next_sentence_accuracy`. A next-sentence label below 0 does not count.
        """
        terms = {}
        for name, targets in self._targets(features).items():
            own = losses.classification_terms(outputs[f"{name}_logits"], *targets)
            terms |= {f"{name}_{term}": pair for term, pair in own.items()}
        return terms

    def _targets(self, features) -> dict[str, tuple[Any, Any]]:
        """Returns labels and their float32 weights for each kind of logits."""
        weights = ops.cast(features["masked_lm_weights"], "float32")
        targets = {"masked_lm": (features["masked_lm_ids"], weights)}
        if self.next_sentence:
            labels = ops.reshape(features["next_sentence_labels"], (-1,))
            weights = ops.cast(labels >= 0, "float32")
            targets["next_sentence"] = ops.maximum(labels, 0), weights
        return targets
