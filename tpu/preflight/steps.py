"""A step to look at before a TPU is rented: what it computes, of which sizes."""

import dataclasses
from typing import Literal

from bert_keras.core.settings import config
from bert_keras.data import features
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Feature, Labelled

Purpose = Literal["training", "evaluation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One chip's share of a step of a data-parallel slice."""

    purpose: Purpose
    task: config.Task
    """`pretraining`, or what is fine-tuned."""
    bert_config: config.BertConfig
    optimizer: config.OptimizerConfig
    num_train_steps: int
    precision: config.Precision
    next_sentence: bool
    dropout_prob: float
    """Of a fine-tuned head's input."""
    batch_size: int
    """Examples of one chip."""
    max_seq_length: int
    num_predictions: int
    """Masked positions of an example; without meaning in fine-tuning."""
    num_slots: int
    """Instances that a packed row has room for; 0: rows are not packed."""
    num_parts: int
    """Parts in which the chip computes its examples, one after the other."""
    recompute: config.Recompute
    num_chips: int
    seed: int

    @property
    def num_layers(self) -> int:
        return self.bert_config.num_hidden_layers

    @property
    def name(self) -> str:
        """For people: `pretraining, training`."""
        return f"{self.task.kind}, {self.purpose}"

    def batch(self) -> dict[str, Feature]:
        """Shape and dtype of each feature of a chip's batch.

        Tuned models are evaluated by their outputs: no labels.
        """
        rows, length = self.batch_size, self.max_seq_length
        kind = registry.find(self.task.kind)
        is_training = self.purpose == "training"
        if isinstance(kind, Labelled):
            batch = kind.features(self.task, rows, length, has_labels=is_training)
        else:
            batch = self._masked_words(rows, length)
        if is_training:
            per_instance = (rows, self.num_slots) if self.num_slots else (rows,)
            batch[features.DROPOUT_SEEDS] = (per_instance, "int32")
        return batch

    def _masked_words(self, rows: int, length: int) -> dict[str, Feature]:
        mask = "instance_ids" if self.num_slots else "input_mask"
        tokens, slots = (rows, length), (rows, self.num_predictions)
        batch: dict[str, Feature] = {
            **dict.fromkeys(("input_ids", mask, "segment_ids"), (tokens, "int32")),
            "masked_lm_positions": (slots, "int32"),
            "masked_lm_ids": (slots, "int32"),
            "masked_lm_weights": (slots, "float32"),
        }
        if self.next_sentence:
            labels = (rows, self.num_slots or 1)
            batch["next_sentence_labels"] = (labels, "int32")
        return batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """An operation that cannot be compiled."""

    operation: str
    scope: str
    """Its name, with those of the layers that it is in."""
    reason: str
