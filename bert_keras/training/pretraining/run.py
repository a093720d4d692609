"""Pre-training as a job of the loop: its phases, events, watchers and results."""

import contextlib
import errno
import functools
import logging
import re
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point, training_state
from bert_keras.core import files, ownership, stores
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.core.settings import architecture, pretraining, tasks
from bert_keras.data import features
from bert_keras.model import flops, pretrainer
from bert_keras.report import diagnosis
from bert_keras.scoring import pairs_curve
from bert_keras.training.pretraining import (
    curve_warnings,
    inputs,
    phases,
    position_growth,
    text_sample,
)
from bert_keras.training.run import (
    Event,
    Job,
    Loop,
    Stretch,
    compare_workers,
    open_watchers,
)
from bert_keras.training.step import (
    fit,
    learner,
    optimization,
    peak_flops,
    replicas,
    stopping,
    watcher,
)
from bert_keras.training.tensorboard import curves, panels

logger = logging.getLogger(__name__)

_DOES_NOT_ANSWER = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a disk that may pass, unlike those of a name or a permission."""


class PretrainingJob(Job):
    """A pre-training; the arguments are those of `pretrain`."""

    def __init__(
        self,
        settings: pretraining.PretrainingConfig,
        examples_dirs: Sequence[str | Path],
        output_dir: str | Path,
        *,
        vocab_path: str | Path | None,
        init: starting_point.Init | None,
        verify: bool,
        **options: Any,
    ):
        paths = {"examples": examples_dirs, "vocab": vocab_path}
        paths["init"] = init and init.path
        super().__init__(output_dir, paths=paths, **options)
        self._settings, self._verify = settings, verify
        self._read = functools.partial(
            inputs.read_inputs,
            settings,
            examples_dirs,
            vocab_path=vocab_path,
            init=init,
        )
        self._planned: Sequence[phases.Phase] = ()
        self._last_evaluation: dict[str, float] = {}
        self._panels: panels.EvaluationPanels | None = None
        self._score_pairs: pairs_curve.PairsCurve | None = None
        self._sample: diagnosis.TextSample | None = None

    def prepare(self) -> None:
        """Also notes which examples this machine has hashed."""
        directory = self.output_dir
        verified = None if self._verify else run_directory.read_verified(directory)
        read = self._read(strategy=self.strategy, verified=verified)
        self._settings, self._start = read.settings, read.start
        self._is_further_training = self._start is not None
        self._planned, self._phase = read.planned, read.planned[0]
        hashes = [phase.manifest_sha256 for phase in read.planned]
        recorded = {"examples_sha256": hashes[0] if len(hashes) == 1 else hashes}
        if read.start is not None:
            recorded["init_sha256"] = read.start.sha256
        self._create_run(
            self._settings,
            compared={
                "--examples": hashes,
                "--vocab": self._phase.vocabulary.sha256,
                "--init": recorded.get("init_sha256"),
            },
            task=tasks.Task(kind="pretraining"),
            bert_config=read.bert_config,
            vocabulary=self._phase.vocabulary,
            do_lower_case=self._phase.do_lower_case,
            inputs=recorded,
            changeable=inputs.CHANGEABLE,
        )
        hashed = [
            phase.manifest_sha256
            for phase in read.planned
            if verified is None or not files.is_remote(phase.directory)
        ]
        run_directory.write_verified(directory, hashed)

    def _check_start(self) -> None:
        """Measures the text once, and warns of what no training can mend."""
        path = self.run.directory / run_directory.TEXT_SAMPLE_NAME
        if not path.is_file():
            sample = text_sample.read(self._settings, self._phase)
            files.write_json(path, sample.model_dump())
        self._sample = diagnosis.read_sample(self.run.directory)
        for finding in diagnosis.of_start(
            self._flat_settings,
            self._sample,
            is_further_training=self._is_further_training,
        ):
            logger.warning("may be wrong: %s: %s", *finding)
        last_step = self._planned[0].last_step
        usual = diagnosis.usual_losses(self._flat_settings, self._sample, last_step)
        # A model that was trained before has lower losses.
        if usual and not self._is_further_training:
            message = "usual masked-LM losses at step %d: %.1f to %.1f"
            logger.info(message, last_step, *usual)

    @property
    def _flat_settings(self) -> dict[str, Any]:
        return run_directory.flat(self._settings.model_dump(mode="json"))

    def build(self, owner: ownership.Owner | None, writer: futures.Executor) -> None:
        settings = self._settings
        if self.is_chief:
            self._check_start()
        self._learner = build_learner(
            settings, self.run.bert_config, self._planned[0], self.strategy
        )
        self.engine = fit.KerasEngine(self._learner)
        self.network = self._learner.network
        self.state = self.engine.state()
        if settings.minimal_pairs is not None:
            self._score_pairs = pairs_curve.PairsCurve(
                settings.minimal_pairs,
                self.run.bert_config,
                self.run.tokenizer,
                strategy=self.strategy,
            )
        self._logs = self.run.directory / run_directory.LOGS_NAME
        self._began = time.monotonic() - curves.seconds_so_far(self._logs)
        self.checkpoints = self._open_checkpoints(
            owner,
            keep=settings.num_checkpoints,
            keep_best=settings.num_best_checkpoints,
            always=[] if settings.decay_begin is None else [settings.decay_begin],
            writer=writer,
        )
        self.events = self._events()
        self.stretches = [self._stretch(phase) for phase in self._planned]
        self.data = [phase.directory for phase in self._planned]

    def _events(self) -> list[Event]:
        """Returns the table of events.

        Steps are saved before they are evaluated, so a failing evaluation does not lose
        them. Pictures come last: they never cost an evaluation.
        """
        settings = self._settings
        save_steps = settings.save_checkpoint_steps
        evaluate_steps = settings.evaluate_steps or save_steps
        return [
            Event(
                name="compare",
                what=compare_workers,
                every_steps=save_steps,
                is_long=False,
            ),
            Event(
                name="save",
                what=Loop.save_as_due,
                every_steps=save_steps,
                at_step=settings.decay_begin,
                every_minutes=settings.save_checkpoint_minutes,
                is_long=False,
            ),
            Event(
                name="evaluate",
                what=self._evaluate,
                every_steps=evaluate_steps,
                every_minutes=settings.evaluate_minutes,
            ),
            Event(
                name="draw",
                what=self._draw,
                every_steps=settings.draw_steps or evaluate_steps,
                every_minutes=settings.draw_minutes,
            ),
        ]

    def _stretch(self, phase: phases.Phase) -> Stretch:
        def stream_from(step: int) -> replicas.Stream:
            return replicas.Stream(
                phases.training_batches(
                    self._settings, phase, self.strategy, start_step=step
                )
            )

        return Stretch(
            last_step=phase.last_step,
            enter=functools.partial(self._enter, phase),
            watch=functools.partial(self._watch, phase),
            stream_from=stream_from,
            schedule_to=replicas.Schedule,
        )

    def unfinished(self, loop: Loop) -> list[str]:
        """Lists the evaluation and drawing that an earlier process left at a step."""
        if (step := loop.step) == 0:
            return []
        last_step = next(p.last_step for p in self._planned if step <= p.last_step)
        due = {e.name for e in self.events if e.is_due(step, last_step)}
        is_done = {
            "evaluate": lambda: self.checkpoints.has_score(step),
            "draw": lambda: panels.are_drawn(self._logs, step, self.run.bert_config),
        }
        return [n for n, done in is_done.items() if n in due and not done()]

    def begin(self) -> None:
        """Assigns the first weights, and tries the largest phase if it comes later.

        A device without memory for that phase would stop the run only when it begins.
        """
        if self._start is not None:
            network, start = self._learner.network, self._start
            starting_point.assign(network, start.arrays, path=start.path)
        # The weights are as large as the model, and no longer needed.
        self._start = None
        phase = phases.largest(self._planned, self._settings.model)
        if phase.shape == self._planned[0].shape:
            return
        logger.info("trying a step of %d examples of %d tokens", *phase.shape)
        before = training_state.copy_of(self.state)
        batches, evaluated = phases.placeholder_batches(
            self._settings, phase, self.strategy
        )
        self._take_parts_of(phase)
        fit.trial_step(self._learner, batches, (evaluated, 1))
        for name, variable in self.state.items():
            variable.assign(before[name])

    def _take_parts_of(self, phase: phases.Phase) -> None:
        self._phase = phase
        if self._learner.num_parts != phase.num_parts:
            self._learner.use_parts(phase.num_parts)

    def _enter(self, phase: phases.Phase, loop: Loop) -> None:
        self._start = None
        self._take_parts_of(phase)
        self._evaluation = phases.evaluation_batches(
            self._settings, phase, self.strategy
        )
        if loop.step == phase.last_step:
            return
        logger.info(
            "steps %d to %d: %d %s of %d word pieces, [CLS], [SEP] and padding "
            "included, %d a step; %d for evaluation, which masks %g %% of the tokens",
            *(loop.step + 1, phase.last_step, phase.num_train_records),
            "rows" if phase.examples.pack_instances else "examples",
            *(phase.examples.max_seq_length, phase.batch_size),
            sum(shard.num_records for shard in phase.eval_shards),
            100 * phase.examples.masked_lm_prob,
        )
        if loop.step == phase.first_step:
            # Losses at another sequence length do not compare with this phase's.
            loop.checkpoints.forget_scores()
            self._grow_positions(phase)

    def _grow_positions(self, phase: phases.Phase) -> None:
        """Grows the position table; no checkpoint comes before the next step."""
        earlier = [p for p in self._planned if p.last_step <= phase.first_step]
        num_trained = max((p.examples.max_seq_length for p in earlier), default=0)
        num_rows = phase.examples.max_seq_length
        if (
            self._settings.grow_positions == "extrapolate"
            # A checkpoint's table is trained.
            and not self._is_further_training
            and 0 < num_trained < num_rows
        ):
            position_growth.grow(
                self.state,
                strategy=self.strategy,
                num_trained=num_trained,
                num_rows=num_rows,
            )

    def _evaluate(self, loop: Loop) -> None:
        """Evaluates again until the loss is in the curves, and notes the loss."""
        if self._score_pairs is not None:
            loop.show(self._score_pairs(self._learner.network.weights))
        if self._evaluation is not None:
            self._last_evaluation = loop.evaluate(self._evaluation)
            loop.checkpoints.record_score(loop.step, self._last_evaluation["loss"])

    def _draw(self, loop: Loop) -> None:
        if self._panels is not None:
            self._panels.draw(loop.step)

    def _watch(self, phase: phases.Phase, loop: Loop) -> list[watcher.Watcher]:
        settings, examples = self._settings, phase.examples
        limit = stopping.SkipLimit(
            self._learner,
            settings.max_skipped_steps,
            lambda first, last: (
                ", whose batches came from "
                f"{phases.describe_data(settings, phase, first, last)}; the last "
                f"checkpoint is {max(self.checkpoints.paths(), default='none')}: lower "
                "`optimizer.learning_rate`, or look at the examples with "
                "`bert-keras inspect`"
            ),
        )
        num_predictions = examples.num_row_predictions
        if settings.model.attention == "left_to_right":
            num_predictions = examples.max_seq_length - 1
        watchers = open_watchers(
            loop,
            learner=self._learner,
            logs=self._logs,
            limit=limit,
            num_train_steps=settings.num_train_steps,
            batch_size=phase.batch_size,
            tokens_per_example=examples.max_seq_length,
            flops_per_example=flops.pretraining_flops_per_example(
                self.run.bert_config,
                max_seq_length=examples.max_seq_length,
                num_predictions=num_predictions,
                next_sentence=self._learner.network.next_sentence,
                num_instances=examples.num_slots,
            ),
            peak_flops=peak_flops.of_strategy(self.strategy, settings.precision),
        )
        if not loop.is_chief:
            return watchers
        watchers.append(
            curve_warnings.CurveWarnings(
                self._flat_settings, self._sample, phase.first_step
            )
        )
        if settings.profile_steps is not None:
            directory = self._logs / "train"
            watchers.append(
                panels.Profile(directory, self._learner, settings.profile_steps)
            )
        self._panels = None
        if phase.has_evaluation:
            batches, _ = phases.whole_evaluation_batches(settings, phase)
            self._panels = panels.EvaluationPanels(
                self._logs,
                loop.step,
                learner=self._learner,
                tokenizer=self.run.tokenizer,
                batch=next(batches.as_numpy_iterator()),
                repeats_drawing="draw" in loop.unfinished,
            )
            watchers.append(self._panels)
        return watchers

    def results(self, loop: Loop) -> dict[str, Any]:
        phase = self._planned[-1]
        if not self._last_evaluation:
            self._take_parts_of(phase)
            if evaluation := phases.evaluation_batches(
                self._settings, phase, self.strategy
            ):
                self._last_evaluation = fit.evaluate(self._learner, evaluation)
        return {
            "steps": loop.step,
            "seconds": round(time.monotonic() - self._began, 1),
            "skipped_steps": int(
                keras.ops.convert_to_numpy(self._learner.skipped_steps)
            ),
            "num_parameters": self._learner.network.count_params(),
            "eval": self._last_evaluation,
            "eval_baseline": _baseline(self._settings, phase),
        }

    @contextlib.contextmanager
    def errors_for_people(self) -> Iterator[None]:
        """Turns errors about records, workers, memory and disks into `InputError`."""
        try:
            with super().errors_for_people():
                yield
        except OSError as error:
            if not self._planned:
                raise
            kind = Unavailable if error.errno in _DOES_NOT_ANSWER else InputError
            raise kind(
                f"{error.filename or self.output_dir}: {error.strerror or error}; "
                "give the same command again when its disk answers"
            ) from error
        except tf.errors.OpError as error:
            # XLA's own errors have another type.
            if isinstance(error, tf.errors.ResourceExhaustedError) or (
                "RESOURCE_EXHAUSTED" in str(error)
            ):
                num_replicas = self.strategy.num_replicas_in_sync
                raise InputError(
                    phases.out_of_memory_message(self._phase, num_replicas=num_replicas)
                ) from None
            if stores.is_transient(error) and re.search(r"\w+://", str(error)):
                reason = str(error).strip().splitlines()[-1][:300]
                raise Unavailable(
                    f"{reason}; give the same command again when the store answers"
                ) from None
            # Errors of the input pipeline come through the iterator.
            of_data = isinstance(error, tf.errors.InvalidArgumentError) and (
                "GetNext" in str(error)
            )
            if not of_data and not isinstance(error, tf.errors.DataLossError):
                raise
            reason = re.search(r"assertion failed: \[(.*?)\]", str(error))
            # Without an assertion of ours, TensorFlow's last line is the cause.
            text = reason[1] if reason else str(error).strip().splitlines()[-1]
            directories = ", ".join(str(phase.directory) for phase in self._planned)
            raise InputError(
                f"{directories}: {text[:300]}; make the examples again"
            ) from None


def build_learner(
    settings: pretraining.PretrainingConfig,
    bert_config: architecture.BertConfig,
    phase: phases.Phase,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)
    zeros = {
        feature.name: tf.zeros(
            [1, feature.length],
            tf.int32 if feature.dtype == "int64" else tf.float32,
        )
        for feature in features.batch_features(phase.examples)
    }
    compile_step = settings.jit_compile
    if compile_step is None:
        compile_step = replicas.are_gpus(strategy)
    return learner.build_learner(
        lambda: pretrainer.BertPretrainer(
            bert_config,
            seed=settings.seed,
            next_sentence=settings.next_sentence
            and phase.examples.packing == "sentence_pairs",
            dtype=settings.precision,
            # Part of the variables' names, which Keras would number otherwise.
            name="bert_pretrainer",
        ),
        zeros,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer,
            num_train_steps=settings.num_train_steps,
            precision=settings.precision,
        ),
        strategy=strategy,
        max_grad_norm=settings.optimizer.max_grad_norm,
        steps_per_execution=settings.steps_per_execution,
        recompute=settings.recompute,
        compile_step=compile_step,
        scales_loss=settings.precision == "mixed_float16",
    )


def _baseline(
    settings: pretraining.PretrainingConfig, phase: phases.Phase
) -> dict[str, Any] | None:
    """Returns the score of always guessing the commonest masked token."""
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
