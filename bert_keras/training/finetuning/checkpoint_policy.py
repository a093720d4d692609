"""The best evaluation of a fine-tuning, its early end, and what it resumes with."""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_keras.core import files
from bert_keras.core.settings import finetuning
from bert_keras.training.run import Loop

logger = logging.getLogger(__name__)

PENDING_NAME = "pending_evaluation.json"
"""File next to the checkpoints of a run that was interrupted in an evaluation: the
`step` reached, the `train` scalars of that step, and `kept_step`, the step of the
weights that are evaluated after the last step (null before that)."""


def read_pending(path: Path) -> dict[str, Any]:
    """Returns the contents of `PENDING_NAME`; empty if it is missing or damaged."""
    try:
        pending = json.loads(files.read_bytes(path))
        # Numbers that were not finite are null in the file.
        logs = {k: math.nan if v is None else v for k, v in pending["train"].items()}
        return {name: pending[name] for name in ("step", "kept_step")} | {"train": logs}
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return {}


class CheckpointPolicy:
    """Remembers the best evaluation of a fine-tuning, and the interrupted one.

    A resumed run ends with the same bits as a run that was never interrupted. The
    highest score named `metric` is best; checkpoints hold its negative.
    """

    def __init__(
        self,
        settings: finetuning.FinetuningConfig,
        *,
        metric: str,
        directory: Path,
        steps_per_evaluation: int,
    ):
        self._settings = settings
        self._metric = metric
        self._path = directory / PENDING_NAME
        self._interval = steps_per_evaluation
        self._pending: Mapping[str, Any] = {}
        self._best = (math.inf, 0)

    def resume(self, loop: Loop) -> list[str]:
        """Reads what an earlier process left; returns the events to be done first."""
        scores = loop.checkpoints.scores()
        self._best = min(((v, k) for k, v in scores.items()), default=self._best)
        pending = read_pending(self._path)
        # The file may be older than the checkpoint, or the best one may be damaged.
        if pending and (
            pending["kept_step"] == self._best[1]
            or (pending["kept_step"] is None and pending["step"] == loop.step)
        ):
            self._pending = pending
        return ["evaluate"] if self._pending and not self.steps_are_done else []

    @property
    def steps_are_done(self) -> bool:
        return bool(self._pending.get("kept_step"))

    def last_step(self, loop: Loop) -> int:
        return self._pending.get("step") or loop.step

    def train_logs(self, loop: Loop) -> dict[str, float]:
        return loop.train_logs or self._pending.get("train", {})

    def note_pending(self, loop: Loop, *, kept_step: int | None = None) -> None:
        """Records that an evaluation follows, which may be interrupted."""
        step, logs = self.last_step(loop), self.train_logs(loop)
        self._pending = {"step": step, "kept_step": kept_step, "train": logs}
        if loop.is_chief:
            files.write_json(self._path, self._pending)

    def note_evaluation(self, loop: Loop, scores: Mapping[str, float]) -> None:
        """Has the best evaluation saved; ends a training that no longer improves."""
        logs, self._pending = self.train_logs(loop), {}
        loop.train_logs = logs
        patience, step = self._settings.early_stopping, loop.step
        if self._settings.keep != "best" and patience is None:
            return
        if -scores[self._metric] < self._best[0]:
            self._best = (-scores[self._metric], step)
            loop.ask("save")
        num_without_gain = (step - self._best[1]) // self._interval
        if patience is not None and num_without_gain >= patience:
            logger.info(
                "no gain in %s for %d evaluations: stopped at step %d",
                self._metric,
                num_without_gain,
                step,
            )
            loop.is_over = True

    def save(self, loop: Loop) -> None:
        """Saves a checkpoint, with the score if this evaluation is the best."""
        score, step = self._best
        if step == loop.step:
            loop.save(score=score)
        else:
            loop.save_as_due()

    def restore_best(self, loop: Loop) -> int:
        """Restores the best weights, if they are wanted; returns their step."""
        last_step, step = self.last_step(loop), self._best[1]
        if self._settings.keep == "last" or step == last_step:
            return last_step
        if not step:
            logger.warning(
                "no evaluation had a number for %s: the last weights are kept",
                self._metric,
            )
            return last_step
        if not self.steps_are_done:
            self.note_pending(loop, kept_step=step)
        # Only the chief writes the checkpoint.
        loop.engine.wait_for_all()
        loop.checkpoints.restore(step, loop.state)
        logger.info("best %s at step %d: its weights are kept", self._metric, step)
        return step
