"""Configurations of the feature-based approach (paper, section 5.3)."""

from typing import Literal

import pydantic

from bert_keras.config import Precision, StrictModel, TextColumns


class FeaturesConfig(StrictModel):
    """How a file becomes the inputs of an encoder."""

    columns: TextColumns = TextColumns()
    max_seq_length: int | None = pydantic.Field(None, ge=4)
    """Tokens of an input at most; null: as many as the encoder takes. Longer texts are
    cut, longer sentences of tagged words come in parts."""
    document_context: bool = True
    """Tagged words: put the sentences before and after beside each, as many as fit."""


Representation = Literal[
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
]
"""What stands for a word: rows of the paper's Table 7, in its order."""


class ProbeConfig(StrictModel):
    """Small taggers that are trained on a frozen encoder's layers (paper, Table 7)."""

    representations: tuple[Representation, ...] = (
        "embeddings",
        "second_to_last",
        "last",
        "weighted_sum_last_four",
        "concat_last_four",
        "weighted_sum_all",
    )
    num_restarts: int = pydantic.Field(5, gt=0)
    """Taggers of each, with other initial weights and shuffles, as in the paper."""
    max_seq_length: int | None = pydantic.Field(None, ge=4)
    """Tokens of the encoder's input at most; null: as many as it takes."""
    document_context: bool = True
    """Put the sentences before and after beside each, as many as fit."""
    num_bilstm_layers: int = pydantic.Field(2, gt=0)
    bilstm_units: int = pydantic.Field(768, gt=0)
    """Cells in each direction of a layer."""
    dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    """Dropout of each BiLSTM's output."""
    batch_size: int = pydantic.Field(32, gt=0)
    """Sentences."""
    num_train_epochs: float = pydantic.Field(10.0, gt=0)
    learning_rate: float = pydantic.Field(1e-3, gt=0)
    warmup_proportion: float = pydantic.Field(0.1, ge=0, lt=1)
    weight_decay_rate: float = pydantic.Field(0.01, ge=0)
    precision: Precision = "float32"
    """Of the taggers; the encoder computes in float32."""
    seed: int = 12345
