"""Name, shape and dtype of every feature of a pre-training record.

The one contract between the pipelines that write records and the training that reads
them. Names are those of google-research/bert (`create_pretraining_data.py`);
`V2_NAMES` gives those of tf-models-official's newer loader.
"""

from dataclasses import dataclass
from typing import Literal

PAD_TOKEN = "[PAD]"
UNK_TOKEN = "[UNK]"
CLS_TOKEN = "[CLS]"
SEP_TOKEN = "[SEP]"
MASK_TOKEN = "[MASK]"
SPECIAL_TOKENS = (PAD_TOKEN, UNK_TOKEN, CLS_TOKEN, SEP_TOKEN, MASK_TOKEN)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature of a record: a vector of `length` numbers."""

    name: str
    length: int
    dtype: Literal["int64", "float32"]
    """As stored in `tf.train.Example`; integers become int32 in the model."""


def pretraining_features(
    max_seq_length: int, max_predictions_per_seq: int
) -> tuple[Feature, ...]:
    """The features of one masked example, in the order in which they are written.

    - `input_ids`: token ids, `[CLS] A [SEP] B [SEP]`, padded with 0.
    - `input_mask`: 1 for a token, 0 for padding.
    - `segment_ids`: 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, 0 for padding.
    - `masked_lm_positions`: where a token was masked, ascending, padded with 0.
    - `masked_lm_ids`: the true ids there, padded with 0.
    - `masked_lm_weights`: 1.0 for a prediction, 0.0 for padding.
    - `next_sentence_labels`: 0 if B follows A, 1 if B is random.
    """
    tokens, predictions = max_seq_length, max_predictions_per_seq
    return (
        Feature(name="input_ids", length=tokens, dtype="int64"),
        Feature(name="input_mask", length=tokens, dtype="int64"),
        Feature(name="segment_ids", length=tokens, dtype="int64"),
        Feature(name="masked_lm_positions", length=predictions, dtype="int64"),
        Feature(name="masked_lm_ids", length=predictions, dtype="int64"),
        Feature(name="masked_lm_weights", length=predictions, dtype="float32"),
        Feature(name="next_sentence_labels", length=1, dtype="int64"),
    )


V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
"""tf-models-official's names where they differ from the original's."""
