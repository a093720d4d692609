"""Checkpoints of a fine-tuning: when they are written, which is best, when to stop."""

import contextlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from bert_keras.checkpoints import training_state
from bert_keras.core import files, ownership
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import finetuning
from bert_keras.training.step import learner, replicas, stopping
from bert_keras.training.tensorboard import event_files

logger = logging.getLogger(__name__)

REACHED_NAME = "reached.json"
"""File next to the checkpoints with what they lack where a run ends in an evaluation:
`step` that it reached, `train` scalars of that step, and `kept_step`, of the weights
that were evaluated after the last step (else null)."""


def read_reached(path: Path) -> dict[str, Any]:
    """Contents of a file named `REACHED_NAME`; empty if it is missing or damaged."""
    try:
        reached = json.loads(files.read_bytes(path))
        # Numbers that were not finite are null in the file.
        logs = {k: math.nan if v is None else v for k, v in reached["train"].items()}
        return {name: reached[name] for name in ("step", "kept_step")} | {"train": logs}
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return {}


class Keeper(keras.callbacks.Callback):
    """Saves a fine-tuning's state, remembers its best evaluation and may end it.

    With several workers all restore what one writes, and end together: a signal to one
    of them travels with the next step, as in `stopping.StopOnSignal`.

    Checkpoints come after the steps or minutes that the settings say, with the best
    evaluation so far if the settings ask for it, and when a signal came. The last step
    has none: the run's weights follow it at once. A resumed run ends with the same bits
    as one that was never interrupted, wherever its checkpoints are.

    It is called after the callbacks that evaluate and draw, so that a checkpoint has
    them behind it.

    Args:
        tuner: built; its state is saved and restored.
        settings: of the run.
        metric: of the evaluations' logs, that decides; higher is better.
        directory: of the checkpoints.
        owner: see `training_state.CheckpointDirectory`; `None`: another worker writes.
        stop_signal: ends the run with `Stopped`, after a checkpoint.
        steps_per_evaluation: steps between evaluations, counted from step 0.
        num_train_steps: steps of the whole run.
    """

    def __init__(
        self,
        tuner: learner.Learner,
        settings: finetuning.FinetuningConfig,
        *,
        metric: str,
        directory: Path,
        owner: ownership.Owner | None,
        stop_signal: stopping.StopSignal,
        steps_per_evaluation: int,
        num_train_steps: int,
    ):
        super().__init__()
        self._tuner = tuner
        self._settings = settings
        self._metric = metric
        self._signal = stop_signal
        self._is_chief = owner is not None
        self._is_multi_worker = replicas.is_multi_worker(tuner.distribute_strategy)
        self._interval = steps_per_evaluation
        self._num_train_steps = num_train_steps
        self._compares = settings.keep == "best" or settings.early_stopping is not None
        self._seconds = keras.Variable(0.0, trainable=False, dtype="float64")
        self._state = {
            **training_state.named_variables(tuner, tuner.optimizer),
            "run/seconds": self._seconds,
        }
        self._checkpoints = training_state.CheckpointDirectory(
            directory,
            keep=1,
            keep_best=int(self._compares),
            is_chief=self._is_chief,
            owner=owner,
            before_writing=event_files.send_all,
        )
        self._reached_path = directory / REACHED_NAME
        self._reached: Mapping[str, Any] = {}
        self._step_logs: Mapping[str, float] = {}
        self._best = (math.inf, 0)
        self._began_at = self._saved_at = time.monotonic()
        self._stops_early = False
        self._is_asked = False

    @property
    def _must_stop(self) -> bool:
        """Whether a signal came, or with several workers the request of one."""
        return self._is_asked if self._is_multi_worker else self._signal.received

    @property
    def seconds(self) -> float:
        """Seconds of training, those before the last checkpoint included."""
        return float(self._seconds.numpy()) + time.monotonic() - self._began_at

    def restore(self) -> None:
        """Restores the last checkpoint, if there is one."""
        step = self._checkpoints.restore_latest(self._state)
        self._began_at = time.monotonic()
        scores = self._checkpoints.scores()
        self._best = min(((v, k) for k, v in scores.items()), default=self._best)
        if reached := read_reached(self._reached_path):
            # It may be older than the checkpoint, or the best one may be damaged.
            if reached["kept_step"] in (None, self._best[1]) and (
                reached["kept_step"] or reached["step"] == step
            ):
                self._reached, self._step_logs = reached, reached["train"]
        strategy = self._tuner.distribute_strategy
        if replicas.differing(strategy, {"found": [step, self._reached]}):
            raise InputError(
                f"{self._reached_path.parent}: the workers found different ones, this "
                f"one that of step {step}: give all of them one directory that they "
                "share"
            )
        # Until the next step nothing is lost.
        self._signal.ends_at_once = not self._is_multi_worker

    @property
    def owes_evaluation(self) -> bool:
        """Whether the evaluation of the restored state was interrupted."""
        return "step" in self._reached and not self.is_trained

    @property
    def is_trained(self) -> bool:
        """Whether all steps were made: only the answers of the best weights lack."""
        return bool(self._reached.get("kept_step"))

    @property
    def is_over(self) -> bool:
        """Whether no step is to be made, perhaps because there is no gain any more."""
        return self.is_trained or self._stops_early

    @property
    def last_step(self) -> int:
        """Step that the training has reached."""
        return self._reached.get("step") or replicas.optimizer_step(self._tuner)

    @property
    def step_logs(self) -> dict[str, float]:
        """Scalars of that step."""
        logs = self._step_logs.items()
        return {k: float(v) for k, v in logs if k not in learner.REQUESTS}

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within it a signal ends the run at once, and the state is saved.

        A resumed run makes the evaluation first. Several workers go on to its end.
        """
        if self._is_multi_worker:
            yield
            return
        try:
            with self._signal.ending_at_once():
                yield
        except Stopped:
            step = replicas.optimizer_step(self._tuner)
            if self.is_trained or step == self._checkpoints.step:
                raise
            self._note(step)
            self._save(step)

    def _note(self, step: int, *, kept_step: int | None = None) -> None:
        values = {"step": step, "kept_step": kept_step, "train": self.step_logs}
        if self._is_chief:
            files.write_json(self._reached_path, values)
        self._reached = values

    def restore_best(self) -> int:
        """Restores the best evaluation's weights if they are to be kept.

        Returns:
            The step of the weights.
        """
        last_step, step = self.last_step, self._best[1]
        if self._settings.keep == "last" or step == last_step:
            return last_step
        if not step:
            logger.warning(
                "no evaluation had a number for %s: the last weights are kept",
                self._metric,
            )
            return last_step
        if not self.is_trained:
            self._note(last_step, kept_step=step)
        # The one that writes has written it.
        replicas.wait_for_all(self._tuner.distribute_strategy)
        self._checkpoints.restore(step, self._state)
        logger.info("best %s at step %d: its weights are kept", self._metric, step)
        return step

    def on_train_batch_end(self, batch, logs=None):
        step = replicas.optimizer_step(self.model)
        self._step_logs = logs
        if self._is_multi_worker:
            if self._signal.received:
                self.model.request("stop_requested")
            self._is_asked = float(logs["stop_requested"]) > 0
        if step % self._interval and step < self._num_train_steps:
            if self._must_stop or self._is_due(step):
                self._save(step)
        is_saved = step == self._checkpoints.step
        # Other workers would wait for one that leaves alone.
        self._signal.ends_at_once = is_saved and not self._is_multi_worker

    def on_epoch_end(self, epoch, logs=None):
        step = replicas.optimizer_step(self.model)
        if self.owes_evaluation:
            self._reached = {}
        is_best = self._compares and self._note_best(-logs[f"val_{self._metric}"], step)
        if self._stops_early:
            self.model.stop_training = True
        elif step < self._num_train_steps:
            if is_best or self._must_stop or self._is_due(step):
                self._save(step, score=self._best[0] if is_best else None)

    def _note_best(self, score: float, step: int) -> bool:
        """Whether this evaluation, whose lower scores are better, is the best."""
        is_best = score < self._best[0]
        if is_best:
            self._best = (score, step)
        num_without_gain = (step - self._best[1]) // self._interval
        patience = self._settings.early_stopping
        self._stops_early = patience is not None and num_without_gain >= patience
        if self._stops_early:
            logger.info(
                "no gain in %s for %d evaluations: stopped at step %d",
                self._metric,
                num_without_gain,
                step,
            )
        return is_best

    def _is_due(self, step: int) -> bool:
        steps = self._settings.save_checkpoint_steps
        minutes = self._settings.save_checkpoint_minutes
        return (steps is not None and step % steps == 0) or (
            minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        )

    def _save(self, step: int, *, score: float | None = None) -> None:
        self._seconds.assign(self.seconds)
        self._began_at = time.monotonic()
        self._checkpoints.save(step, self._state, score=score)
        self._saved_at = time.monotonic()
        if self._must_stop:
            raise self._signal.stopped(step)
