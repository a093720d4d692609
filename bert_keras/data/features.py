"""Name, shape and dtype of every feature of a pre-training record.

The pipelines write these records and training reads them. Names are
google-research/bert's (`create_pretraining_data.py`); `V2_NAMES` has those of
tf-models-official's newer loader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.core.settings.strict import build_config

PAD_TOKEN = "[PAD]"
UNK_TOKEN = "[UNK]"
CLS_TOKEN = "[CLS]"
SEP_TOKEN = "[SEP]"
MASK_TOKEN = "[MASK]"
SPECIAL_TOKENS = (PAD_TOKEN, UNK_TOKEN, CLS_TOKEN, SEP_TOKEN, MASK_TOKEN)

DROPOUT_SEEDS = "dropout_seeds"
"""Seeds of each example's dropout, `(batch_size,)` int32, or `(batch_size, slots)` for
packed rows: in batches to train on, never in records."""

EXAMPLE_WEIGHTS = "example_weights"
"""`(batch_size,)` float32 in batches of labelled examples: the weight of each in the
loss, and 0.0 for a row that fills up a batch; if absent, all rows count alike."""

LOSS_SCALES = "loss_scales"
"""`(batch_size,)` float32 in batches of windows of texts: factors of the losses. The
mean divides by `EXAMPLE_WEIGHTS` alone, so that scales below 1 weigh less."""

LABEL_TARGETS = "label_targets"
"""`(batch_size, 1, num_labels)` float32 in batches of labelled texts: the right answers
from 0 to 1. Each of several labels of a text has its own. Targets of classes stand
beside the classes and add up to 1 unless classes have weights: each target is then
times the class's weight over the true class's."""

LABEL_WEIGHTS = "label_weights"
"""`(batch_size, 1, num_labels)` float32, beside `LABEL_TARGETS` of several labels: the
weight of each true label, in proportion to its target."""

TEXT_IDS = "text_ids"
"""`(batch_size, num_texts)` int32 for vectors to compare: equal for equal texts."""

TEACHER_LOGITS = "teacher_logits"
"""Float32 logits of a teacher: `(batch_size, 1, num_labels)` for texts, `(batch_size,
sequence_length, num_labels)` for tokens."""

TEACHER_MASK = "teacher_mask"
"""`(batch_size, sequence_length)` int32: 1 for a token that has `TEACHER_LOGITS`."""

BATCH_LENGTHS = "batch_lengths"
"""`(batch_size,)` int32, beside `EXAMPLE_WEIGHTS`: tokens of the batch's longest
example. All columns beyond this length only fill up the shape."""

V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
"""tf-models-official's names where they differ from the original's."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A vector of `length` numbers in a record."""

    name: str
    length: int | None
    """`None`: one number for each token, or for each instance of a packed row."""
    dtype: Literal["int64", "float32"]
    """As stored in `tf.train.Example`; integers become int32 in the model."""


def pretraining_features(
    max_seq_length: int, max_predictions_per_seq: int
) -> tuple[Feature, ...]:
    """Returns the features of a masked example, in the order of writing.

    - `input_ids`: token ids, `[CLS] A [SEP] B [SEP]`, padded with 0.
    - `input_mask`: 1 for a token, 0 for padding.
    - `segment_ids`: 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, 0 for padding.
    - `masked_lm_positions`: places of masked tokens, ascending, padded with 0.
    - `masked_lm_ids`: true ids of these tokens, padded with 0.
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


def batch_features(config: ExamplesConfig) -> tuple[Feature, ...]:
    """Returns the features that the model receives: `pretraining_features`, which have
    `next_sentence_labels` for sentence pairs only.

    A packed row has those of several masked examples end to end, padding at its end,
    with these differences.

    - `instance_ids`, in place of `input_mask`: 1 for the tokens of the first instance,
      2 for those of the second, and so on; 0 for padding.
    - `masked_lm_positions`: places in the row.
    - `next_sentence_labels`: of each instance; -1 in an empty slot.
    """
    alone = pretraining_features(config.max_seq_length, config.num_row_predictions)
    of_packed: dict[str, dict[str, Any]] = {
        "input_mask": {"name": "instance_ids"},
        "next_sentence_labels": {"length": config.num_slots},
    }
    changes = of_packed if config.pack_instances else {}
    return tuple(
        replace(feature, **changes.get(feature.name, {}))
        for feature in alone
        if feature.name != "next_sentence_labels" or config.packing == "sentence_pairs"
    )


def record_features(config: ExamplesConfig) -> tuple[Feature, ...]:
    """Returns the features of every record, under their stored names.

    A record for dynamic masking holds only the tokens, not padded, and
    `next_sentence_labels`; in a packed record each instance begins with the next
    `[CLS]`. A packed record has a label for each instance, but not for empty slots.
    Static records without pairs may hold meaningless `next_sentence_labels`, which are
    left out here.
    """
    is_varying = {
        "input_ids": config.masking == "dynamic",
        "next_sentence_labels": config.pack_instances,
    }
    return tuple(
        replace(
            feature,
            name=stored_name(feature.name, config),
            length=None if is_varying.get(feature.name) else feature.length,
        )
        for feature in batch_features(config)
        if config.masking == "static" or feature.name in is_varying
    )


def stored_name(name: str, config: ExamplesConfig) -> str:
    return V2_NAMES.get(name, name) if config.feature_names == "v2" else name


def examples_config(settings: Mapping[str, Any], *, origin: object) -> ExamplesConfig:
    """Returns the configuration in a manifest's `config`, without keys of the job."""
    known = ExamplesConfig.model_fields
    values = {key: value for key, value in settings.items() if key in known}
    return build_config(ExamplesConfig, values, origin=origin)
