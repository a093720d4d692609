"""Pre-training: examples in, a run directory out, resumable after any step.

`PretrainingJob` is what `training.run` asks of a pre-training, in the order in which it
asks: prepare, build, begin, and per phase the events and what watches them.
"""

import errno
import functools
import logging
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point, training_state
from bert_keras.core import files, stores
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.core.settings import pretraining, tasks
from bert_keras.data import features
from bert_keras.model import flops, pretrainer
from bert_keras.report import scalar_log
from bert_keras.scoring import pairs_curve
from bert_keras.training import run, watching
from bert_keras.training.pretraining import (
    counted_embeddings,
    phases,
    position_growth,
    text_sample,
)
from bert_keras.training.step import (
    engine,
    fit,
    learner,
    optimization,
    precision,
    replicas,
)
from bert_keras.training.tensorboard import panels

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "draw_minutes",
    "draw_steps",
    "evaluate_minutes",
    "evaluate_steps",
    "gradient_accumulation_steps",
    "jit_compile",
    "max_skipped_steps",
    "minimal_pairs",
    "num_best_checkpoints",
    "num_checkpoints",
    "num_eval_steps",
    "phases.*.gradient_accumulation_steps",
    "profile_steps",
    "recompute",
    "save_checkpoint_minutes",
    "save_checkpoint_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: the result is the same, up to the
last bits of sums where batches are cut into other parts or compiled."""

_DOES_NOT_ANSWER = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a disk that may pass, unlike those of a name or a permission."""


def pretrain(
    settings: pretraining.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None = None,
    init: starting_point.Init | None = None,
    verify: bool = False,
) -> dict[str, Any]:
    """Pre-trains a model with masked LM and next sentence prediction.

    A second call resumes an unfinished run and leaves a finished one as it is.

    Args:
        examples_dirs: made by `bert-keras examples`, one for each phase.
        output_dir: run directory, which several workers must share.
        vocab_path: vocabulary to check the examples against; they bring their own.
        init: checkpoint (`conversion.init`) whose weights and architecture are trained
            further by a new schedule; `None`: new weights. The examples have its
            vocabulary or one that extends it (see `data.vocabulary_extension`).
        verify: hash the examples even if this machine did so for this run before.

    Raises:
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    job = PretrainingJob(
        settings,
        examples_dirs,
        output_dir,
        vocab_path=vocab_path,
        init=init,
        verify=verify,
        engine=engine.KerasEngine(strategy),
        paths={
            "examples": examples_dirs,
            "vocab": vocab_path,
            "init": init and init.path,
        },
    )
    return run.run(job)


class PretrainingJob(run.Job):
    """A pre-training in phases; for the arguments see `pretrain`."""

    engine: engine.KerasEngine
    _phase: phases.Phase | None = None
    """The phase under way; `None`: the inputs are not read yet."""
    _panels: panels.EvaluationPanels | None = None
    _score_pairs: pairs_curve.PairsCurve | None = None
    _evaluation: fit.Evaluation | None = None
    _start: starting_point.Start | None = None
    """First weights, until they are assigned; `None`: new ones."""

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
        super().__init__(output_dir, **options)
        self._settings, self._examples_dirs = settings, examples_dirs
        self._vocab_path, self._init, self._verify = vocab_path, init, verify
        self._last_evaluation: dict[str, float] = {}

    def prepare(self) -> None:
        init, strategy = self._init, self.engine.strategy
        # 1. The settings, with `auto` precision and the sizes of `--init` filled in.
        settings, checkpoint = self._settings, None
        changes: dict[str, Any] = {
            "precision": precision.resolve(settings.precision, strategy)
        }
        if init is not None:
            if settings.word_embeddings == "counts":
                raise InputError(
                    "`word_embeddings` is counts, but --init brings word embeddings of "
                    "its own: leave one of them out"
                )
            checkpoint = init.read(init.path)
            changes["model"] = starting_point.model_config(
                settings.model, checkpoint, path=init.path
            )
        self._settings = settings = settings.model_copy(update=changes)
        # 2. The examples, whose shards this machine need not hash again: it notes the
        # hashes of their manifests.
        verified, machine = None, socket.gethostname()
        note = files.path(self.output_dir) / "verified" / f"{machine}.json"
        if not self._verify:
            known = files.read_json(note) if note.is_file() else {}
            verified = known.get("manifests", [])
        self._planned = planned = phases.read_phases(
            settings,
            self._examples_dirs,
            vocab_path=self._vocab_path,
            num_replicas=strategy.num_replicas_in_sync,
            verified=verified,
        )
        first, hashes = planned[0], [phase.manifest_sha256 for phase in planned]
        recorded: dict[str, Any] = {
            "examples_sha256": hashes[0] if len(hashes) == 1 else hashes
        }
        if init is not None:
            self._start = starting_point.pretraining_start(
                checkpoint,
                first.vocabulary,
                do_lower_case=first.do_lower_case,
                path=init.path,
            )
            recorded["init_sha256"] = self._start.sha256
        phases.check_hosts(strategy, planned)
        self._phase = first
        # 3. The directory, which has what a resumed run must match.
        self._create_run(
            settings,
            compared={
                "--examples": hashes,
                "--vocab": first.vocabulary.sha256,
                "--init": recorded.get("init_sha256"),
            },
            task=tasks.Task(kind="pretraining"),
            bert_config=phases.bert_config(planned, self._start),
            vocabulary=first.vocabulary,
            do_lower_case=first.do_lower_case,
            inputs=recorded,
            changeable=CHANGEABLE,
        )
        hashed = [
            phase.manifest_sha256
            for phase in planned
            if verified is None or not files.is_remote(phase.directory)
        ]
        note.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(note, {"manifests": hashed})

    def build(self) -> None:
        settings, planned = self._settings, self._planned
        # 1. What is wrong with the text or the settings is said before the first step.
        self._sample = None
        if self.is_chief:
            self._sample = text_sample.check_start(
                self.run.directory,
                planned[0],
                is_further_training=self._init is not None,
            )
        # 2. The network with its optimizer, on the devices.
        self._learner = self._build_learner(planned[0])
        self.engine.take(self._learner, self._learner.network)
        self.state = self.engine.state()
        if settings.minimal_pairs is not None:
            self._score_pairs = pairs_curve.PairsCurve(
                settings.minimal_pairs,
                self.run.bert_config,
                self.run.tokenizer,
                strategy=self.engine.strategy,
            )
        # 3. Files of the run: its curves, and the checkpoints that stay.
        self._logs = self.run.directory / run_directory.LOGS_NAME
        # Seconds of earlier processes count, too.
        earlier = scalar_log.read_log(self._logs / "train").seconds
        self._began = time.monotonic() - earlier
        self.checkpoints_to_keep = {
            "keep": settings.num_checkpoints,
            "keep_best": settings.num_best_checkpoints,
            "always": [] if settings.decay_begin is None else [settings.decay_begin],
        }
        # 4. What is trained on, and what comes between the steps. Steps are saved
        # before they are evaluated, so that a failing evaluation does not lose them;
        # pictures come last, and never cost an evaluation.
        self.data = [phase.directory for phase in planned]
        self.stretches = [
            run.Stretch(
                last_step=phase.last_step,
                enter=functools.partial(self._enter, phase),
                stream_from=functools.partial(self._stream_from, phase),
            )
            for phase in planned
        ]
        save_steps = settings.save_checkpoint_steps
        evaluate_steps = settings.evaluate_steps or save_steps
        self.events = [
            run.Event(
                name="compare", what=run.compare_workers, every_steps=[save_steps]
            ),
            run.Event(
                name="save",
                what=run.Loop.save,
                every_steps=[save_steps],
                at_step=settings.decay_begin,
                every_minutes=settings.save_checkpoint_minutes,
            ),
            run.Event(
                name="evaluate",
                what=self._evaluate,
                every_steps=[evaluate_steps],
                every_minutes=settings.evaluate_minutes,
                is_done=lambda loop: loop.checkpoints.has_score(loop.step),
            ),
            run.Event(
                name="draw",
                what=self._draw,
                every_steps=[settings.draw_steps or evaluate_steps],
                every_minutes=settings.draw_minutes,
                is_done=lambda loop: panels.are_drawn(
                    self._logs, loop.step, self.run.bert_config
                ),
            ),
        ]

    def _build_learner(self, phase: phases.Phase) -> learner.Learner:
        settings, strategy = self._settings, self.engine.strategy
        keras.utils.set_random_seed(settings.seed)
        # Integers become int32 in the model.
        types = {"int64": tf.int32, "float32": tf.float32}
        return learner.build_learner(
            lambda: pretrainer.BertPretrainer(
                self.run.bert_config,
                seed=settings.seed,
                next_sentence=settings.next_sentence
                and phase.examples.packing == "sentence_pairs",
                dtype=settings.precision,
                # Part of the variables' names, which Keras would number otherwise.
                name="bert_pretrainer",
            ),
            {
                feature.name: tf.zeros([1, feature.length], types[feature.dtype])
                for feature in features.batch_features(phase.examples)
            },
            optimizer=lambda: optimization.build_optimizer(
                settings.optimizer,
                num_train_steps=settings.num_train_steps,
                precision=settings.precision,
            ),
            strategy=strategy,
            max_grad_norm=settings.optimizer.max_grad_norm,
            steps_per_execution=settings.steps_per_execution,
            recompute=settings.recompute,
            compile_step=settings.jit_compile,
            scales_loss=settings.precision == "mixed_float16",
        )

    def _stream_from(self, phase: phases.Phase, step: int) -> replicas.Stream:
        to_train = functools.partial(phase.to_train, start_step=step)
        return replicas.Stream(replicas.distribute(self.engine.strategy, to_train))

    def begin(self, loop: run.Loop) -> None:
        start, planned = self._start, self._planned
        if loop.step == 0 and start is not None:
            starting_point.assign(self.engine.network, start.arrays, path=start.path)
        if loop.step == 0 and self._settings.word_embeddings == "counts":
            counted_embeddings.begin(self.state, planned, strategy=self.engine.strategy)
        # The weights are as large as the model, and no longer needed.
        self._start = start = None
        largest = phases.largest(planned)
        if loop.step or largest.shape == planned[0].shape:
            return
        # A device without memory for a later phase would stop the run only there.
        logger.info("trying a step of %d examples of %d tokens", *largest.shape)
        before = training_state.copy_of(self.state)
        batches, evaluation = largest.placeholder_batches(self.engine.strategy)
        self._take_parts_of(largest)
        self._learner.make_steps(batches, 1)
        self._learner.evaluate_round((evaluation, 1))
        for name, variable in self.state.items():
            variable.assign(before[name])

    def _take_parts_of(self, phase: phases.Phase) -> None:
        self._phase = phase
        self._learner.use_parts(phase.num_parts)

    def _enter(self, phase: phases.Phase, loop: run.Loop) -> list[run.Watcher]:
        settings, strategy = self._settings, self.engine.strategy
        self._take_parts_of(phase)
        self._evaluation = phase.evaluation_batches(strategy)
        if loop.step < phase.last_step:
            logger.info("%s", phase.describe(loop.step + 1))
        if loop.step == phase.first_step:
            # Losses at another sequence length do not compare with this phase's.
            loop.checkpoints.forget_scores()
            # No checkpoint comes before the next step.
            position_growth.grow(
                self.state,
                strategy=strategy,
                num_trained=phases.num_positions_before(
                    self._planned, phase, is_further_training=self._init is not None
                ),
                num_rows=phase.examples.max_seq_length,
            )
        # What watches its steps.
        trained, examples = self._learner, phase.examples

        def describe_skipped(first: int, last: int) -> str:
            data = phase.describe_data(first, last)
            return (
                f", whose batches came from {data}; the last checkpoint is "
                f"{max(loop.checkpoints.paths(), default='none')}: lower "
                "`optimizer.learning_rate`, or look at the examples with `bert-keras "
                "inspect`"
            )

        num_predictions = examples.num_row_predictions
        if settings.model.attention == "left_to_right":
            num_predictions = examples.max_seq_length - 1
        watchers = watching.open_watchers(
            loop,
            trained,
            watching.Sizes(
                settings.num_train_steps,
                phase.batch_size,
                examples.max_seq_length,
                flops.pretraining_flops_per_example(
                    self.run.bert_config,
                    max_seq_length=examples.max_seq_length,
                    num_predictions=num_predictions,
                    next_sentence=trained.network.next_sentence,
                    num_instances=examples.num_slots,
                ),
                precision.peak_flops(strategy, settings.precision),
            ),
            logs=self._logs,
            max_skipped_steps=settings.max_skipped_steps,
            describe_skipped=describe_skipped,
        )
        self._panels = None
        if not loop.is_chief:
            return watchers
        watchers.append(text_sample.CurveWarnings(phase, self._sample))
        if settings.profile_steps is not None:
            profile = panels.Profile(
                self._logs / "train", trained, settings.profile_steps
            )
            watchers.append(profile)
        if phase.has_evaluation:
            batches, _ = phase.to_evaluate()
            self._panels = panels.EvaluationPanels(
                self._logs,
                loop.step,
                learner=trained,
                tokenizer=self.run.tokenizer,
                batch=next(batches.as_numpy_iterator()),
                repeats_drawing="draw" in loop.due,
            )
            watchers.append(self._panels)
        return watchers

    def _evaluate(self, loop: run.Loop) -> None:
        if self._score_pairs is not None:
            loop.log_metrics(self._score_pairs(self.engine.network.weights))
        if self._evaluation is not None:
            self._last_evaluation = loop.evaluate(self._evaluation)
            loop.checkpoints.record_score(loop.step, self._last_evaluation["loss"])

    def _draw(self, loop: run.Loop) -> None:
        if self._panels is not None:
            self._panels.draw(loop.step)

    def results(self, loop: run.Loop) -> dict[str, Any]:
        phase = self._planned[-1]
        if not self._last_evaluation:
            # An earlier process made the last evaluation.
            self._take_parts_of(phase)
            if evaluation := phase.evaluation_batches(self.engine.strategy):
                self._last_evaluation = self._learner.evaluate_round(evaluation)
        return {
            "steps": loop.step,
            "seconds": round(time.monotonic() - self._began, 1),
            "skipped_steps": int(np.asarray(self._learner.skipped_steps)),
            "num_parameters": self.engine.network.count_params(),
            "eval": self._last_evaluation,
            "eval_baseline": phase.evaluation_baseline(),
        }

    def in_words(self, error: Exception) -> Exception | None:
        described, phase = super().in_words(error), self._phase
        if described is not None or phase is None:
            return described
        if isinstance(error, OSError):
            kind = Unavailable if error.errno in _DOES_NOT_ANSWER else InputError
            return kind(
                f"{error.filename or self.output_dir}: {error.strerror or error}; run "
                "the same command again when its disk answers"
            )
        if not isinstance(error, tf.errors.OpError):
            return None
        text = str(error)
        # XLA's own errors have another type.
        is_memory = isinstance(error, tf.errors.ResourceExhaustedError)
        if is_memory or "RESOURCE_EXHAUSTED" in text:
            num_replicas = self.engine.strategy.num_replicas_in_sync
            num_rows, num_parts = phase.batch_size // num_replicas, phase.num_parts
            more = [n for n in range(num_parts + 1, num_rows + 1) if num_rows % n == 0]
            way_out = (
                f"set `gradient_accumulation_steps` (here {num_parts}) to {more[0]}"
                if more
                else "set `recompute` to layers, or take more devices, shorter "
                "examples or a smaller model"
            )
            return InputError(
                f"a device has no memory for {num_rows // num_parts} examples of "
                f"{phase.examples.max_seq_length} tokens at once: {way_out} and run "
                "the same command again"
            )
        # Without an assertion of ours, TensorFlow's last line is the cause.
        cause = text.strip().splitlines()[-1]
        if stores.is_transient(error) and re.search(r"\w+://", text):
            return Unavailable(
                f"{cause[:300]}; run the same command again when the store answers"
            )
        # Errors of the input pipeline come through the iterator.
        is_argument = isinstance(error, tf.errors.InvalidArgumentError)
        of_data = is_argument and "GetNext" in text
        if not of_data and not isinstance(error, tf.errors.DataLossError):
            return None
        if assertion := re.search(r"assertion failed: \[(.*?)\]", text):
            cause = assertion[1]
        directories = ", ".join(phase.directory for phase in self._planned)
        return InputError(f"{directories}: {cause[:300]}; make the examples again")
