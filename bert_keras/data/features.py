"""Name, shape and dtype of every feature of a pre-training record.

The one contract between the pipelines that write records and the training that reads
them. Names are those of google-research/bert (`create_pretraining_data.py`);
`V2_NAMES` gives those of tf-models-official's newer loader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bert_keras.config import ExamplesConfig, build_config

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
    length: int | None
    """`None`: as many as the example has tokens, at most `max_seq_length`."""
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


DROPOUT_SEEDS = "dropout_seeds"
"""Of batches to train on, never of records: `(batch_size,)` int32, the seed of each
example's dropout."""

V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
"""tf-models-official's names where they differ from the original's."""


def batch_features(config: ExamplesConfig) -> tuple[Feature, ...]:
    """What the model is given: `pretraining_features`, of examples made with `config`.

    Examples of `full_sentences` have no second segment, and so no
    `next_sentence_labels`.
    """
    return tuple(
        feature
        for feature in pretraining_features(
            config.max_seq_length, config.num_predictions
        )
        if feature.name != "next_sentence_labels" or config.packing == "sentence_pairs"
    )


def record_features(config: ExamplesConfig) -> tuple[Feature, ...]:
    """What a record holds for sure, under the names that it is stored with.

    A record made for dynamic masking holds only the tokens, not padded, and
    `next_sentence_labels`. Static records of `full_sentences` may hold
    `next_sentence_labels` that say nothing, and these are not named here.
    """
    stored = batch_features(config)
    if config.masking == "dynamic":
        stored = tuple(
            replace(feature, length=None if feature.name == "input_ids" else 1)
            for feature in stored
            if feature.name in ("input_ids", "next_sentence_labels")
        )
    return tuple(
        replace(feature, name=stored_name(feature.name, config)) for feature in stored
    )


def stored_name(name: str, config: ExamplesConfig) -> str:
    """The name in the records of the feature that the model knows as `name`."""
    return V2_NAMES.get(name, name) if config.feature_names == "v2" else name


def examples_config(
    settings: Mapping[str, Any], *, origin: str | Path
) -> ExamplesConfig:
    """How the examples of a directory were made, as far as its manifest says.

    What older manifests do not know has its default, which is how they were made.

    Args:
        settings: `config` of the manifest; keys of the whole job are passed over.
        origin: the manifest, for errors.

    Raises:
        InputError: a value that no configuration can have.
    """
    known = ExamplesConfig.model_fields
    values = {key: value for key, value in settings.items() if key in known}
    return build_config(ExamplesConfig, values, origin=origin)
