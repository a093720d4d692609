"""Dynamic masking: its chance, its features, and training on what it makes."""

import itertools
import json
import shutil

import numpy as np
import pytest

from bert_keras.checkpoints import conversion, native, weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core.settings import pipelines
from bert_keras.data import features, masking, seeded_hash, tokenization
from bert_keras.kinds import registry
from bert_keras.model import weight_shapes
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from tests import make
from tests.bert_keras.data import test_masking


def test_seeds_are_those_of_the_formula():
    """Else a run that is resumed with a newer version trains on other masks."""
    golden, mix, bits = test_masking.GOLDEN, test_masking.mix, test_masking.BITS
    places = list(itertools.product((0, 1, 7, -1), (0, 1, 2**40, 12345)))
    epochs, records = np.array(places).T
    for seed in (0, 12345, -3, 2**80 + 5):
        states = [mix((mix(seed + golden) ^ e & bits) + golden) for e, _ in places]
        pairs = zip(states, places, strict=True)
        expected = [mix((state ^ record) + golden) for state, (_, record) in pairs]
        found = seeded_hash.record_seeds(seed, epochs, records)
        assert found.dtype == np.uint64
        assert found.tolist() == expected
        assert len(set(expected)) == len(expected)


# Random tokens are drawn from the first five: many are a [SEP] that is none.
VOCABULARY = tokenization.Vocabulary(features.SPECIAL_TOKENS)
IDS = np.array([[2, 7, 8, 3, 9, 3, 0, 0], [2, 7, 8, 9, 3, 9, 9, 3]], np.int32)


@pytest.mark.parametrize(
    ("packing", "segment_ids"),
    [
        ("sentence_pairs", [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]),
        # A [SEP] in the middle is the border of two documents.
        ("full_sentences", [[0] * 8] * 2),
    ],
)
def test_what_is_left_out_of_a_record(packing, segment_ids):
    settings = pipelines.ExamplesConfig(
        max_seq_length=8,
        max_predictions_per_seq=5,
        packing=packing,
        masked_lm_prob=0.9,
        mask_token_prob=0,
        random_token_prob=1,
    )
    lengths, options = np.array([6, 8]), {"vocabulary": VOCABULARY, "config": settings}
    made = masking.plain_examples(IDS, lengths, **options)
    made |= masking.mask_batch(IDS, lengths, np.array([1, 2], np.uint64), **options)
    # All that is no special token is hidden.
    positions = [[1, 2, 4, 0, 0], [1, 2, 3, 5, 6]]
    assert made["segment_ids"].tolist() == segment_ids
    assert made["input_mask"].tolist() == [[1] * 6 + [0] * 2, [1] * 8]
    assert made["masked_lm_weights"].tolist() == [[1] * 3 + [0] * 2, [1] * 5]
    assert made["masked_lm_positions"].tolist() == positions
    assert made["masked_lm_ids"].tolist() == [[7, 8, 9, 0, 0], [7, 8, 9, 9, 9]]
    kept = np.ones_like(IDS, bool)
    for row, columns in enumerate(positions):
        kept[row, columns[: (3, 5)[row]]] = False
    assert (made["input_ids"][kept] == IDS[kept]).all()
    assert VOCABULARY.sep_id in made["input_ids"][~kept]


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["sentence_pairs", "full_sentences"])
def test_without_next_sentences_their_weights_stay_and_are_not_read(
    packing, tiny_examples, tiny_vocab, tmp_path
):
    """Weight decay would shrink what no gradient holds up."""
    examples.build_examples(
        tiny_examples.parent / "corpus",
        tiny_vocab,
        tmp_path / "examples",
        config=pipelines.ExamplesConfig(
            max_seq_length=32, masking="dynamic", packing=packing
        ),
        do_lower_case=True,
        num_shards=3,
        engine=engines.make_engine(),
    )
    settings, path = make.pretraining_config(num_checkpoints=9), tmp_path / "run"
    make.pretrain([tmp_path / "examples"], path, settings)
    run = native.read_finished_run(path)
    fresh, network = (
        registry.build_network(run.bert_config, run.task, seed=seed)
        for seed in (settings.seed, None)
    )
    file = safetensors_files.SafetensorsFile(path / "model.safetensors")
    weights.assign(network, {name: file.read(name) for name in file.shapes})
    is_untrained = packing == "full_sentences"
    for old, new in (
        (fresh.encoder.pooler, network.encoder.pooler),
        (fresh.next_sentence_head, network.next_sentence_head),
    ):
        pairs = zip(old.get_weights(), new.get_weights(), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs) == is_untrained, old.name
    scores = json.loads((path / "results.json").read_text())["eval"]
    terms = {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    if not is_untrained:
        terms |= {"next_sentence_loss", "next_sentence_accuracy"}
    assert set(scores) == terms
    # A finished run tells by its evaluation, an unfinished one by its checkpoints.
    unfinished = shutil.copytree(path, tmp_path / "unfinished")
    for name in ("results.json", "model.safetensors"):
        (unfinished / name).unlink()
    checkpoint = "checkpoints/step-0000000010.safetensors"
    for source in (path, path / checkpoint, unfinished / checkpoint):
        found = conversion.read(source)
        lacking = {
            name.rpartition("/")[0]
            for name in weight_shapes.all_shapes(found.bert_config)
            if name not in found.arrays and not name.startswith("head/")
        }
        untrained = {"encoder/pooler", "next_sentence_head/classifier"}
        assert lacking == (untrained if is_untrained else set())
