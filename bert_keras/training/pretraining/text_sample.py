"""Measures the text of a phase on some of its examples, for `report.diagnosis`."""

import dataclasses
import logging
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.settings import pretraining
from bert_keras.report import diagnosis
from bert_keras.report.diagnosis import TextSample
from bert_keras.training.pretraining import phases
from bert_keras.training.step import batch_features

logger = logging.getLogger(__name__)

NUM_EXAMPLES = 2000
_BATCH_SIZE = 100
"""Examples that are read at a time, whatever the batches of the training."""
_RUN_LENGTH = 16
"""Pieces in a run that may come again."""


def check_start(
    directory: Path,
    settings: pretraining.PretrainingConfig,
    phase: phases.Phase,
    *,
    is_further_training: bool,
) -> TextSample:
    """Measures the text of a run once, and warns of what no training can mend."""
    path = directory / run_directory.TEXT_SAMPLE_NAME
    if not path.is_file():
        files.write_json(path, measure(phase).model_dump())
    sample = diagnosis.read_sample(directory)
    flat_settings = run_directory.flat(settings.model_dump(mode="json"))
    for finding in diagnosis.start_findings(
        flat_settings, sample, is_further_training=is_further_training
    ):
        logger.warning("may be wrong: %s: %s", *finding)
    usual = diagnosis.usual_losses(flat_settings, sample, phase.last_step)
    # A model that was trained before has lower losses.
    if usual and not is_further_training:
        message = "usual masked-LM losses at step %d: %.1f to %.1f"
        logger.info(message, phase.last_step, *usual)
    return sample


def measure(phase: phases.Phase) -> TextSample:
    """Reads the first examples of several shards, which take turns."""
    examples, vocabulary = phase.examples, phase.vocabulary
    reader = dataclasses.replace(
        phase.batches,
        batch_size=_BATCH_SIZE,
        # Left to right nothing would be masked.
        attention="bidirectional",
    )
    data, num_batches = reader.to_evaluate(
        phase.train_shards, num_batches=NUM_EXAMPLES // _BATCH_SIZE
    )
    batches = list(data.take(num_batches).as_numpy_iterator())
    batch = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    mask = batch["instance_ids" if "instance_ids" in batch else "input_mask"] > 0
    ids = batch_features.unmasked_ids(batch).numpy()
    # The last batch is filled up with examples of a `[CLS]` alone.
    mask, ids = (array[mask.sum(axis=1) > 1] for array in (mask, ids))
    special = [vocabulary.cls_id, vocabulary.sep_id]
    pieces = ids[mask & ~np.isin(ids, special)]
    counts = np.bincount(pieces, minlength=len(vocabulary))
    shares = counts[counts > 0] / max(len(pieces), 1)
    is_continuation = np.asarray(reader.vocabulary.is_continuation)
    num_words = max(counts[~is_continuation].sum(), 1)
    return TextSample(
        num_examples=len(ids),
        num_shards=len(phase.train_shards),
        num_records=phase.num_train_records,
        pieces_per_word=len(pieces) / num_words,
        unknown_share=counts[vocabulary.unk_id] / max(len(pieces), 1),
        # A random next sentence comes once more.
        repeated_share=_repeated_share(ids, mask, 3 * examples.num_duplicates),
        padding_share=float(1 - mask.mean()),
        tokens_per_example=float(mask.sum() / max(len(ids), 1)),
        masked_share=float(batch["masked_lm_weights"].sum() / max(len(pieces), 1)),
        entropy=float(-(shares * np.log(shares)).sum()),
    )


def _repeated_share(ids: np.ndarray, mask: np.ndarray, usual: int) -> float:
    """Returns the share of runs of pieces that more than `usual` rows contain.

    `ids` are `(n, L)`, and `mask` tells padding. Only the runs whose hash is below an
    eighth of all hashes count: these are the same wherever a row begins. Rows shorter
    than a run have a share of 0.
    """
    num_runs = max(0, ids.shape[1] - _RUN_LENGTH + 1)
    hashes = np.zeros((len(ids), num_runs), np.uint64)
    chosen = np.ones(hashes.shape, bool)
    factors = np.random.default_rng(0).integers(1, 2**62, _RUN_LENGTH, np.uint64)
    for place, factor in enumerate(factors | np.uint64(1)):
        columns = slice(place, place + num_runs)
        hashes += ids[:, columns].astype(np.uint64) * factor
        chosen &= mask[:, columns]
    chosen &= hashes >> np.uint64(61) == 0
    rows, columns = np.nonzero(chosen)
    pairs = np.unique(np.stack([hashes[rows, columns], rows.astype(np.uint64)]), axis=1)
    _, counts = np.unique(pairs[0], return_counts=True)
    return float(counts[counts > usual].sum() / max(counts.sum(), 1))
