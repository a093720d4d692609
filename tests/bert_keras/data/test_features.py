"""Features: what is stored for each way of making examples, and what is made of it."""

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings.config import ExamplesConfig
from bert_keras.data import features

STATIC = [
    ("input_ids", 16, "int64"),
    ("input_mask", 16, "int64"),
    ("segment_ids", 16, "int64"),
    ("masked_lm_positions", 3, "int64"),
    ("masked_lm_ids", 3, "int64"),
    ("masked_lm_weights", 3, "float32"),
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
    ],
)
def test_what_is_stored_and_what_the_model_is_given(changes, stored, given):
    config = settings(**changes)
    assert described(features.record_features(config)) == stored
    assert described(features.batch_features(config)) == given


def test_newer_names():
    names = [f.name for f in features.record_features(settings(feature_names="v2"))]
    assert names == [
        "input_word_ids",
        "input_mask",
        "input_type_ids",
        "masked_lm_positions",
        "masked_lm_ids",
        "masked_lm_weights",
        "next_sentence_labels",
    ]


def test_an_older_manifest():
    """As the first version wrote it, when there was only one kind of examples."""
    made = {
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "masked_lm_prob": 0.15,
        "dupe_factor": 10,
        "short_seq_prob": 0.1,
        "do_whole_word_mask": False,
        "random_seed": 12345,
        "do_lower_case": True,
        "num_shards": 3,
        "corpus_sha256": "ab",
    }
    config = features.examples_config(made, origin="manifest.json")
    assert config == ExamplesConfig(max_predictions_per_seq=20, dupe_factor=10)
    assert (config.masking, config.packing) == ("static", "sentence_pairs")
    assert (config.feature_names, config.compression) == ("v1", "none")


def test_a_manifest_of_a_later_version():
    with pytest.raises(InputError, match=r"x/manifest\.json: `masking`: .*'later'"):
        features.examples_config({"masking": "later"}, origin="x/manifest.json")
