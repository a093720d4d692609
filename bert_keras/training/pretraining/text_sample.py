"""Warns of what may be wrong with a text or a training of it: see `report.diagnosis`.

A text is measured on some examples of a phase.
"""

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.settings import loading
from bert_keras.report import diagnosis
from bert_keras.report.diagnosis import TextSample
from bert_keras.report.scalar_log import Curve
from bert_keras.training import run, watching
from bert_keras.training.pretraining import phases, record_parsing

logger = logging.getLogger(__name__)

NUM_EXAMPLES = 2000
_BATCH_SIZE = 100
"""Examples that are read at a time, whatever the batches of the training."""
_RUN_LENGTH = 16
"""Pieces in a run that may come again."""


def check_start(
    directory: Path, phase: phases.Phase, *, is_further_training: bool
) -> TextSample:
    """Measures the text of a run once, and warns of what no training can mend."""
    path = directory / run_directory.TEXT_SAMPLE_NAME
    if not path.is_file():
        files.write_json(path, measure(phase).model_dump())
    sample = loading.read_json(TextSample, path)
    flat_settings = run_directory.flat(phase.settings.model_dump(mode="json"))
    findings = diagnosis.start_findings(
        flat_settings, sample, is_further_training=is_further_training
    )
    for finding in findings.items():
        logger.warning("may be wrong: %s: %s", *finding)
    usual = diagnosis.usual_losses(flat_settings, sample, phase.last_step)
    # A model that was trained before has lower losses.
    if usual and not is_further_training:
        message = "usual masked-LM losses at step %d: %.1f to %.1f"
        logger.info(message, phase.last_step, *usual)
    return sample


class CurveWarnings(run.Watcher):
    """Checks a phase's curves, as far as this process drew them, at evaluations."""

    def __init__(self, phase: phases.Phase, sample: TextSample | None):
        self._settings = run_directory.flat(phase.settings.model_dump(mode="json"))
        self._sample = sample
        self._first_step = self._step = phase.first_step
        self._train: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._held_out: list[tuple[int, float]] = []
        self._warned_of: set[str] = set()

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        if watching.is_logged(self._step, step):
            for name in logs.keys() & diagnosis.CURVES:
                self._train[name].append((step, logs[name]))
        self._step = step

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        if "masked_lm_loss" not in metrics:
            return
        self._held_out.append((step, metrics["masked_lm_loss"]))
        findings = diagnosis.curve_findings(
            self._settings,
            {name: _curve(points) for name, points in self._train.items()},
            _curve(self._held_out),
            self._sample,
            first_step=self._first_step,
        )
        for cause, text in findings.items():
            # Each cause is warned of once.
            if cause not in self._warned_of:
                logger.warning("may be wrong: %s: at step %d %s", cause, step, text)
            self._warned_of.add(cause)


def _curve(points: list[tuple[int, float]]) -> Curve:
    steps, values = zip(*points, strict=True)
    return Curve(np.array(steps), np.array(values, np.float64))


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
    ids = record_parsing.unmasked_ids(batch).numpy()
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
