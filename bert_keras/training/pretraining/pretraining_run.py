"""A pre-training under way: trains, saves, evaluates and shows, phase after phase."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point, training_state
from bert_keras.core import files, ownership, stores
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import config
from bert_keras.model import flops
from bert_keras.training.pretraining import phases, position_growth
from bert_keras.training.step import fitting, learner, peak_flops, replicas, stopping
from bert_keras.training.tensorboard import curves, event_files, panels, progress_line

logger = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True)
class PretrainingRun:
    """State of a run under way."""

    settings: config.PretrainingConfig
    run: run_directory.Run
    planned: Sequence[phases.Phase]
    strategy: tf.distribute.Strategy
    owner: ownership.Owner | None
    """The chief's; other workers write nothing."""
    writer: futures.Executor
    stop_signal: stopping.StopSignal
    start: starting_point.Start | None
    trained: learner.Learner

    def __post_init__(self) -> None:
        self._is_further_training = self.start is not None
        self._state = training_state.named_variables(
            self.trained, self.trained.optimizer
        )
        self._checkpoints = training_state.CheckpointDirectory(
            self.run.directory / run_directory.CHECKPOINTS_NAME,
            keep=self.settings.num_checkpoints,
            keep_best=self.settings.num_best_checkpoints,
            is_chief=self.owner is not None,
            owner=self.owner,
            writer=self.writer,
            before_writing=event_files.send_all,
        )
        self._last_evaluation: dict[str, float] = {}
        settings = self.settings
        # They go on from one `fit` to the next.
        self._save_timer, self._evaluation_timer, self._draw_timer = (
            stopping.Timer(minutes)
            for minutes in (
                settings.save_checkpoint_minutes,
                settings.evaluate_minutes,
                settings.draw_minutes,
            )
        )
        self._evaluate_steps = settings.evaluate_steps or settings.save_checkpoint_steps
        self._draw_steps = settings.draw_steps or self._evaluate_steps
        # Ends of Keras's epochs: what comes by steps, comes at these only.
        self._epoch_steps = math.gcd(
            settings.save_checkpoint_steps, self._evaluate_steps, self._draw_steps
        )

    def train(self) -> dict[str, Any]:
        """Trains from the last checkpoint to the end, and returns the results."""
        try:
            results = self._train()
        except Stopped:
            # "Resume" is said only of what is written.
            self._checkpoints.wait()
            raise
        self._checkpoints.wait()
        return results

    def _train(self) -> dict[str, Any]:
        logs = self.run.directory / run_directory.LOGS_NAME
        began = time.monotonic() - curves.seconds_so_far(logs)
        step = self._checkpoints.restore_latest(self._state)
        owes_evaluation = self._is_evaluated(step) and not self._checkpoints.has_score(
            step
        )
        if replicas.differing(self.strategy, {"found": [step, owes_evaluation]}):
            raise InputError(
                f"{self.run.directory}: the workers found different checkpoints, this "
                f"one that of step {step}: give all of them one directory that they "
                "share"
            )
        if step == 0 and self.start is not None:
            starting_point.assign(
                self.trained.network, self.start.arrays, path=self.start.path
            )
        self.start = None
        self.stop_signal.ends_at_once = not replicas.is_multi_worker(self.strategy)
        if step == 0:
            self._try_largest_phase()
        step = self._train_from(step, owes_evaluation=step > 0 and owes_evaluation)
        phase = self.planned[-1]
        if not self._last_evaluation and (
            evaluation := phases.evaluation_batches(self.settings, phase, self.strategy)
        ):
            with _memory_for(phase, self.strategy):
                self._last_evaluation = fitting.evaluate(
                    self._with_parts_of(phase), evaluation
                )
        return {
            "steps": step,
            "seconds": round(time.monotonic() - began, 1),
            "skipped_steps": int(
                keras.ops.convert_to_numpy(self.trained.skipped_steps)
            ),
            "num_parameters": self.trained.network.count_params(),
            "eval": {k: float(value) for k, value in self._last_evaluation.items()},
            "eval_baseline": _baseline(self.settings, phase),
        }

    def _train_from(self, step: int, *, owes_evaluation: bool) -> int:
        """Makes the steps that are left, and returns the last one.

        If a store does not give the examples, goes on in memory when it does again: a
        batch is a function of seed and step.
        """
        patience = None
        while step < self.settings.num_train_steps or owes_evaluation:
            try:
                if owes_evaluation:
                    self._evaluate(step)
                else:
                    phase = next(p for p in self.planned if step < p.last_step)
                    self._fit(phase, step, self._stretch_end(phase, step))
                patience, owes_evaluation = None, False
            except tf.errors.OpError as error:
                reached = replicas.optimizer_step(self.trained)
                # Patience is for one outage: steps were made since the last one.
                patience = patience if reached == step else None
                patience = self._wait_for_store(error, patience)
                owes_evaluation = (
                    self._is_evaluated(reached)
                    and reached == self._checkpoints.step
                    and not self._checkpoints.has_score(reached)
                )
            step = replicas.optimizer_step(self.trained)
        return step

    def _wait_for_store(
        self, error: tf.errors.OpError, patience: stores.Backoff | None
    ) -> stores.Backoff:
        """Waits after an error of reading examples; raises any other one again."""
        places = [p.directory for p in self.planned if files.is_remote(p.directory)]
        schemes = {place.partition("://")[0] for place in places}
        is_of_store = any(f"{scheme}://" in str(error) for scheme in schemes)
        # The others would wait in a sum, and take this worker for lost.
        if replicas.is_multi_worker(self.strategy) or not (
            is_of_store and stores.is_transient(error)
        ):
            raise error
        # Of the callbacks that were not told of an end.
        event_files.send_all()
        patience = patience or stores.Backoff(places[0])
        try:
            with self.stop_signal.ending_at_once():
                patience.wait(error)
        except Stopped:
            step = replicas.optimizer_step(self.trained)
            # A store that does not answer would keep the process from ending.
            if not files.is_remote(self.run.directory):
                if step != self._checkpoints.step:
                    self._checkpoints.save(step, self._state, is_interim=True)
                raise self.stop_signal.stopped(step) from None
            raise
        return patience

    def _is_evaluated(self, step: int) -> bool:
        return step % self._evaluate_steps == 0 or any(
            step == phase.last_step for phase in self.planned
        )

    def _evaluate(self, step: int) -> None:
        """Makes the evaluation that an interrupted process did not come to."""
        phase = next(p for p in self.planned if step <= p.last_step)
        evaluation = phases.evaluation_batches(self.settings, phase, self.strategy)
        if evaluation is None:
            return
        with _memory_for(phase, self.strategy):
            self._last_evaluation = fitting.evaluate(
                self._with_parts_of(phase),
                evaluation,
                run_callbacks=[
                    *self._shown(phase, repeats_evaluation=True),
                    self._stop_on_signal(),
                ],
            )

    def _try_largest_phase(self) -> None:
        """Makes a step of the largest phase, if the first is smaller, and undoes it.

        A device without the memory for it would stop the run when it comes to that.
        """
        phase = phases.largest(self.planned, self.settings.model)
        if phase.shape == self.planned[0].shape:
            return
        logger.info("trying a step of %d examples of %d tokens", *phase.shape)
        before = training_state.copy_of(self._state)
        batches, evaluated = phases.placeholder_batches(
            self.settings, phase, self.strategy
        )
        with _memory_for(phase, self.strategy):
            fitting.try_out(self._with_parts_of(phase), batches, (evaluated, 1))
        for name, variable in self._state.items():
            variable.assign(before[name])

    def _with_parts_of(self, phase: phases.Phase) -> learner.Learner:
        if self.trained.num_parts != phase.num_parts:
            self.trained.use_parts(phase.num_parts)
        return self.trained

    def _stretch_end(self, phase: phases.Phase, step: int) -> int:
        """Last step of one call of `fit`.

        Evaluations and checkpoints come at the same steps in every run: a call that
        starts within an epoch goes to its end only.
        """
        interval = self._epoch_steps
        if step % interval == 0:
            return phase.last_step
        return min(phase.last_step, (step // interval + 1) * interval)

    def _fit(self, phase: phases.Phase, step: int, last_step: int) -> None:
        logger.info(
            "steps %d to %d: %d %s of %d word pieces, [CLS], [SEP] and padding "
            "included, %d a step; %d for evaluation",
            step + 1,
            last_step,
            phase.num_train_records,
            "rows" if phase.examples.pack_instances else "examples",
            phase.examples.max_seq_length,
            phase.batch_size,
            sum(shard.num_records for shard in phase.eval_shards),
        )
        if step == phase.first_step:
            # Losses at another sequence length do not compare with this phase's.
            self._checkpoints.forget_scores()
            self._grow_positions(phase)
        with _memory_for(phase, self.strategy):
            logs = fitting.fit(
                self._with_parts_of(phase),
                phases.training_batches(
                    self.settings, phase, self.strategy, start_step=step
                ),
                last_step=last_step,
                steps_per_epoch=self._epoch_steps,
                evaluation=phases.evaluation_batches(
                    self.settings, phase, self.strategy
                ),
                evaluates_after=self._is_evaluated,
                evaluation_timer=self._evaluation_timer,
                is_chief=self.owner is not None,
                run_callbacks=[*self._shown(phase), *self._keepers(phase)],
            )
        self._last_evaluation = {
            k.removeprefix("val_"): v for k, v in logs.items() if k.startswith("val_")
        }

    def _grow_positions(self, phase: phases.Phase) -> None:
        """Makes the change of `grow_positions`, which depends on the state alone.

        No checkpoint comes between it and the next step.
        """
        earlier = [p for p in self.planned if p.last_step <= phase.first_step]
        num_trained = max((p.examples.max_seq_length for p in earlier), default=0)
        num_rows = phase.examples.max_seq_length
        if (
            self.settings.grow_positions == "extrapolate"
            # A checkpoint's table is trained.
            and not self._is_further_training
            and 0 < num_trained < num_rows
        ):
            position_growth.grow(
                self._state,
                strategy=self.strategy,
                num_trained=num_trained,
                num_rows=num_rows,
            )

    def _keepers(self, phase: phases.Phase) -> list[keras.callbacks.Callback]:
        """Callbacks that save, and those that end the training."""
        return [
            stopping.StopOnDrift(
                self.strategy,
                self._state,
                every_steps=self.settings.save_checkpoint_steps,
                last_step=phase.last_step,
            ),
            stopping.SaveAtSteps(
                self._checkpoints,
                self._state,
                every_steps=self.settings.save_checkpoint_steps,
                timer=self._save_timer,
                last_step=phase.last_step,
            ),
            self._stop_on_signal(),
            stopping.StopOnSkips(
                self.settings.max_skipped_steps,
                lambda first, last: (
                    ", whose batches came from "
                    f"{phases.describe_data(self.settings, phase, first, last)}; the "
                    f"last checkpoint is {self._checkpoints.latest_name()}: lower "
                    "`optimizer.learning_rate`, or look at the examples with "
                    "`bert-keras inspect`"
                ),
            ),
        ]

    def _stop_on_signal(self) -> stopping.StopOnSignal:
        return stopping.StopOnSignal(
            self.stop_signal,
            self._checkpoints,
            self._state,
            is_multi_worker=replicas.is_multi_worker(self.strategy),
        )

    def _shown(
        self, phase: phases.Phase, *, repeats_evaluation: bool = False
    ) -> list[keras.callbacks.Callback]:
        """Callbacks that write to TensorBoard and to the log, and note scores.

        The note comes between curves and pictures: an interrupted evaluation is made
        again until it is in the curves, and a picture never costs one.
        """
        record = stopping.RecordScores(self._checkpoints)
        if self.owner is None:
            return [record]
        settings, examples = self.settings, phase.examples
        logs = self.run.directory / run_directory.LOGS_NAME
        num_predictions = examples.num_row_predictions
        if settings.model.attention == "left_to_right":
            num_predictions = examples.max_seq_length - 1
        shown = [
            curves.Curves(
                logs,
                batch_size=phase.batch_size,
                tokens_per_example=examples.max_seq_length,
                flops_per_example=flops.pretraining_flops_per_example(
                    self.run.bert_config,
                    max_seq_length=examples.max_seq_length,
                    num_predictions=num_predictions,
                    next_sentence=self.trained.network.next_sentence,
                    num_instances=examples.num_slots,
                ),
                peak_flops=peak_flops.of_strategy(self.strategy, settings.precision),
                repeats_evaluation=repeats_evaluation,
            ),
            progress_line.ProgressLine(
                num_train_steps=settings.num_train_steps,
                batch_size=phase.batch_size,
                tokens_per_example=examples.max_seq_length,
                start_line=self.trained.describe(phase.batch_size),
            ),
            record,
        ]
        if settings.profile_steps is not None:
            shown.append(panels.Profile(logs / "train", steps=settings.profile_steps))
        if phase.has_evaluation:
            batches, _ = phases.whole_evaluation_batches(settings, phase)
            evaluation_panels = panels.EvaluationPanels(
                logs,
                tokenizer=self.run.tokenizer,
                batch=next(batches.as_numpy_iterator()),
                every_steps=self._draw_steps,
                timer=self._draw_timer,
                last_step=phase.last_step,
            )
            shown.append(evaluation_panels)
        return shown


def _baseline(
    settings: config.PretrainingConfig, phase: phases.Phase
) -> dict[str, Any] | None:
    """Score of always guessing the commonest masked token."""
    if not phase.has_evaluation:
        return None
    batches, num_batches = phases.whole_evaluation_batches(settings, phase)
    counts = np.zeros(len(phase.vocabulary), np.int64)
    for batch in batches.take(num_batches).as_numpy_iterator():
        predicted = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        counts += np.bincount(predicted, minlength=len(phase.vocabulary))
    return {
        "commonest_token": phase.vocabulary.tokens[int(counts.argmax())],
        "masked_lm_accuracy": float(counts.max() / max(counts.sum(), 1)),
    }


@contextlib.contextmanager
def _memory_for(
    phase: phases.Phase, strategy: tf.distribute.Strategy
) -> Iterator[None]:
    """Turns the error of a device that is full into an `InputError`."""
    try:
        yield
    except tf.errors.OpError as error:
        if not isinstance(error, tf.errors.ResourceExhaustedError) and (
            # XLA's own errors have another type.
            "RESOURCE_EXHAUSTED" not in str(error)
        ):
            raise
        raise InputError(
            phases.out_of_memory_message(
                phase, num_replicas=strategy.num_replicas_in_sync
            )
        ) from None
