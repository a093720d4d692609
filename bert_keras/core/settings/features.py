"""Settings and choices of `features`, which writes vectors of words to files."""

from typing import Literal

import pydantic

from bert_keras.core.settings.finetuning import TextColumns
from bert_keras.core.settings.strict import StrictModel

InputForm = Literal["lines", "text", "tagging"]
"""Kinds of files: plain text, one text a line; a table or JSON lines of texts (see
`kinds.text`); tagged words, whose tags are not read (`kinds.tagging`)."""

Pooling = Literal["first", "mean"]
"""A word's vector: of its first piece, or the mean over its pieces."""


class FeaturesConfig(StrictModel):
    """Encoder inputs from the texts or words of a file."""

    columns: TextColumns = TextColumns()
    """Names of the columns of a table or JSON lines."""
    max_seq_length: int | None = pydantic.Field(default=None, ge=4)
    """Tokens of an input at most; null: as many as the encoder takes. Longer texts and
    sentences come in parts, each with as many neighbouring words as fit."""
    document_context: bool = True
    """Tagged words: put the sentences before and after next to each, as many as fit."""
