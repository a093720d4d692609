"""Features: what is stored for each way of making examples, and what is made of it."""

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features

STATIC = [
    ("input_ids", 16, "int64"),
    ("input_mask", 16, "int64"),
    ("segment_ids", 16, "int64"),
    ("masked_lm_positions", 3, "int64"),
    ("masked_lm_ids", 3, "int64"),
    ("masked_lm_weights", 3, "float32"),
]
RENAMED = [
    ("input_word_ids", 16, "int64"),
    ("input_mask", 16, "int64"),
    ("input_type_ids", 16, "int64"),
    *STATIC[3:],
]
LABELS = [("next_sentence_labels", 1, "int64")]


def described(found):
    return [(feature.name, feature.length, feature.dtype) for feature in found]


def settings(**changes):
    return ExamplesConfig(max_seq_length=16, max_predictions_per_seq=3, **changes)


@pytest.mark.parametrize(
    ("changes", "stored", "given"),
    [
        ({}, STATIC + LABELS, STATIC + LABELS),
        ({"packing": "full_sentences"}, STATIC, STATIC),
        (
            {"masking": "dynamic"},
            [("input_ids", None, "int64"), *LABELS],
            STATIC + LABELS,
        ),
        (
            {"masking": "dynamic", "packing": "full_sentences", "feature_names": "v2"},
            [("input_word_ids", None, "int64")],
            STATIC,
        ),
        ({"feature_names": "v2", "packing": "full_sentences"}, RENAMED, STATIC),
    ],
)
def test_what_is_stored_and_what_the_model_is_given(changes, stored, given):
    config = settings(**changes)
    assert described(features.record_features(config)) == stored
    assert described(features.batch_features(config)) == given


def test_settings_of_a_manifest():
    """Facts of the directory are left out, and settings that are missing usual."""
    made = {"max_predictions_per_seq": 20, "dupe_factor": 10, "do_lower_case": True}
    made |= {"num_shards": 3, "corpus_sha256": "ab"}
    found = features.examples_config(made, origin="manifest.json")
    assert found == ExamplesConfig(max_predictions_per_seq=20, dupe_factor=10)
    with pytest.raises(InputError, match=r"x/manifest\.json: `masking`: .*'later'"):
        features.examples_config({"masking": "later"}, origin="x/manifest.json")
