"""Configurations and choices of the feature-based approach (paper, section 5.3)."""

import typing
from typing import Literal

import pydantic

from bert_keras.core.settings.config import Precision
from bert_keras.core.settings.finetuning import TextColumns
from bert_keras.core.settings.strict import FixedLengths, StrictModel

InputForm = Literal["lines", "text", "tagging"]
"""Kinds of files: plain text, one text a line; a table or JSON lines of texts or of
pairs (see `tasks.text`); tagged words, whose tags are not read (`tasks.ner`)."""

Pooling = Literal["first", "mean", "none"]
"""Vector of a word: that of its first piece, the mean over its pieces, or one for each
piece."""

VectorFormat = Literal["numpy", "tfrecord"]
"""Files that `features` writes."""


class FeaturesConfig(StrictModel):
    """Encoder inputs from the texts or words of a file."""

    columns: TextColumns = TextColumns()
    """Names of the columns of a table or JSON lines."""
    max_seq_length: int | None = pydantic.Field(default=None, ge=4)
    """Tokens of an input at most; null: as many as the encoder takes. Longer texts are
    cut, longer sentences of tagged words come in parts."""
    document_context: bool = True
    """Tagged words: put the sentences before and after next to each, as many as fit."""


Representation = Literal[
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
]
"""Vector of a word: rows of the paper's Table 7, in its order."""


TPU_LENGTHS = (16, 32, 64)
"""Words of a batch on a TPU, if the settings do not say it."""


class ProbeConfig(StrictModel):
    """Small taggers that are trained on a frozen encoder's layers (paper, Table 7)."""

    representations: tuple[Representation, ...] = typing.get_args(Representation)
    """Vectors to compare, with taggers for each: rows of the paper's Table 7."""
    num_restarts: int = pydantic.Field(default=5, gt=0)
    """Taggers for each, with other initial weights and shuffles, as in the paper."""
    max_seq_length: int | None = pydantic.Field(default=None, ge=4)
    """Tokens of the encoder's input at most; null: as many as it takes."""
    document_context: bool = True
    """Put the sentences before and after next to each, as many as fit."""
    num_bilstm_layers: int = pydantic.Field(default=2, gt=0)
    """Layers of the BiLSTM."""
    bilstm_units: int = pydantic.Field(default=768, gt=0)
    """Cells in each direction of a layer."""
    dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of numbers that dropout zeroes in the output of each layer."""
    batch_size: int = pydantic.Field(default=32, gt=0)
    """Sentences per step."""
    lengths: FixedLengths = None
    """Fixed shapes: each batch has `batch_size` sentences, those that lack have no
    weight, and the least of these numbers of words that is enough, or that of the
    longest sentence. []: batches are as long as their longest sentence. null: [16, 32,
    64] on a TPU, else []."""
    num_train_epochs: float = pydantic.Field(default=10.0, gt=0)
    """Passes over the training file."""
    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    """Peak learning rate."""
    warmup_proportion: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of the steps over which the rate rises; then it falls to 0, linearly."""
    weight_decay_rate: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay, per unit of learning rate."""
    max_skipped_steps: int = pydantic.Field(default=20, gt=0)
    """Updates in a row that may be skipped because the loss or a gradient is not
    finite; then it stops. So it does if all updates of a tagger are skipped."""
    precision: Precision = "float32"
    """Number format of the taggers; the encoder computes in float32."""
    seed: int = 12345
    """Seed of initial weights, shuffling and dropout; each restart derives its own."""
