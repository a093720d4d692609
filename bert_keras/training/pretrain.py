"""Pre-training: examples in, a run directory out, under any strategy, resumable after
any step."""

import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import config, ownership, run_directory
from bert_keras.checkpoints import (
    conversion,
    run_weights,
    starting_point,
    training_state,
)
from bert_keras.data import features
from bert_keras.errors import InputError
from bert_keras.model import flops, pretrainer
from bert_keras.training import (
    curves,
    learner,
    optimization,
    panels,
    peak_flops,
    phases,
    precision,
    progress_line,
    replicas,
    stopping,
)

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "max_skipped_steps",
    "num_best_checkpoints",
    "num_checkpoints",
    "profile_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: they do not affect its result."""


def pretrain(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None = None,
    init: str | Path | None = None,
    is_chief: bool = True,
) -> dict[str, Any]:
    """Pre-trains a model with masked LM and next sentence prediction.

    Called again with the same arguments, resumes an unfinished run after its last
    checkpoint and leaves a finished one as it is.

    Args:
        settings: the run's configuration.
        examples_dirs: made by `bert-keras examples`, one for each phase.
        output_dir: run directory; several workers must share it.
        strategy: to train under.
        vocab_path: vocabulary to check the examples against; they bring their own.
        init: checkpoint of any format (see `checkpoints.conversion`) whose weights and
            architecture are trained further by a new schedule; `None`: new weights. The
            examples have its vocabulary or one that extends it (see
            `data.vocabulary_extension`).
        is_chief: whether this process, of several that train together, writes files.

    Returns:
        Contents of `results.json`: steps, seconds, and the last evaluation.

    Raises:
        InputError: the examples, the vocabulary, the checkpoint or the directory are
            unusable, another process writes into the directory, the loss or gradients
            do not stay finite, or a worker is lost.
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(ownership.owned(output_dir)) if is_chief else None
        return _pretrain(
            settings,
            examples_dirs,
            output_dir,
            strategy=strategy,
            vocab_path=vocab_path,
            init=init,
            owner=owner,
        )


def _pretrain(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None,
    init: str | Path | None,
    owner: ownership.Owner | None,
) -> dict[str, Any]:
    is_chief = owner is not None
    settings = settings.model_copy(
        update={"precision": precision.resolve(settings.precision, strategy)}
    )
    settings, planned, start = _plan(
        settings, examples_dirs, strategy=strategy, vocab_path=vocab_path, init=init
    )
    run = _create_run(settings, planned, output_dir, start=start, is_chief=is_chief)
    replicas.check_equal(
        strategy,
        0 if start is None else int(start.sha256[:6], 16),
        f"{init}: the workers begin with different weights: give all of them the same",
    )
    replicas.wait_for_all(strategy)
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    with stopping.StopSignal() as stop_signal, _errors_for_people(run, planned):
        pretraining_run = _PretrainingRun(
            settings=settings,
            run=run,
            planned=planned,
            strategy=strategy,
            owner=owner,
            stop_signal=stop_signal,
            start=start,
            trained=_build_learner(settings, run, planned[0], strategy),
        )
        # As large as the model, and no longer needed.
        del start
        results = pretraining_run.train()
    if is_chief:
        run_weights.finish_run(run, pretraining_run.trained.network, results)
        logger.info("model and results in %s", run.directory)
    # To the others a worker that leaves early looks as if it had been killed.
    replicas.wait_for_all(strategy)
    return results


def _plan(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None,
    init: str | Path | None,
) -> tuple[config.PretrainingConfig, list[phases.Phase], starting_point.Start | None]:
    """Reads all inputs, and completes the settings from the first checkpoint."""
    checkpoint = None if init is None else conversion.read(init)
    if checkpoint is not None:
        model = starting_point.model_config(settings.model, checkpoint, path=init)
        settings = settings.model_copy(update={"model": model})
    planned = phases.read_phases(
        settings,
        examples_dirs,
        vocab_path=vocab_path,
        num_replicas=strategy.num_replicas_in_sync,
    )
    if checkpoint is None:
        return settings, planned, None
    start = starting_point.pretraining_start(
        checkpoint,
        planned[0].vocabulary,
        do_lower_case=planned[0].do_lower_case,
        path=init,
    )
    return settings, planned, start


def _create_run(
    settings: config.PretrainingConfig,
    planned: Sequence[phases.Phase],
    output_dir: str | Path,
    *,
    start: starting_point.Start | None,
    is_chief: bool,
) -> run_directory.Run:
    hashes = [phase.manifest_sha256 for phase in planned]
    inputs = {"examples_sha256": hashes[0] if len(hashes) == 1 else hashes}
    if start is not None:
        inputs["init_sha256"] = start.sha256
    return run_directory.create_run(
        output_dir,
        settings,
        task=config.Task(kind="pretraining"),
        bert_config=_bert_config(settings, planned, start),
        vocabulary=planned[0].vocabulary,
        do_lower_case=planned[0].do_lower_case,
        inputs=inputs,
        changeable=CHANGEABLE,
        is_chief=is_chief,
    )


def _bert_config(
    settings: config.PretrainingConfig,
    planned: Sequence[phases.Phase],
    start: starting_point.Start | None,
) -> config.BertConfig:
    bert_config = settings.model.with_vocab_size(len(planned[0].vocabulary))
    if start is not None:
        if settings.model.vocab_size not in (None, start.vocab_size):
            raise InputError(
                f"`model.vocab_size` is {settings.model.vocab_size}, but with the "
                f"weights of {start.path} it is {start.vocab_size}: leave it out"
            )
        bert_config = settings.model.with_vocab_size(start.vocab_size)
    for phase in planned:
        if phase.examples.max_seq_length > bert_config.max_position_embeddings:
            raise InputError(
                f"{phase.directory}: sequences of {phase.examples.max_seq_length} "
                "tokens, but `model.max_position_embeddings` is "
                f"{bert_config.max_position_embeddings}"
                + (": raise it or" if start is None else f" in {start.path}:")
                + " make shorter examples"
            )
    return bert_config


def _build_learner(
    settings: config.PretrainingConfig,
    run: run_directory.Run,
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
    jit_compile = settings.jit_compile
    if jit_compile is None:
        jit_compile = replicas.are_gpus(strategy)
    return learner.build_learner(
        lambda: pretrainer.BertPretrainer(
            run.bert_config,
            seed=settings.seed,
            next_sentence=settings.next_sentence
            and phase.examples.packing == "sentence_pairs",
            dtype=settings.precision,
            # Part of the variables' names, which Keras would number otherwise.
            name="bert_pretrainer",
        ),
        zeros,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer, num_train_steps=settings.num_train_steps
        ),
        strategy=strategy,
        max_grad_norm=settings.optimizer.max_grad_norm,
        steps_per_execution=settings.steps_per_execution,
        # A TPU compiles the step by itself.
        compile_step=jit_compile
        and not isinstance(strategy, tf.distribute.TPUStrategy),
        scales_loss=settings.precision == "mixed_float16",
    )


@dataclasses.dataclass(kw_only=True)
class _PretrainingRun:
    """State of a run under way."""

    settings: config.PretrainingConfig
    run: run_directory.Run
    planned: Sequence[phases.Phase]
    strategy: tf.distribute.Strategy
    owner: ownership.Owner | None
    """The chief's; other workers write nothing."""
    stop_signal: stopping.StopSignal
    start: starting_point.Start | None
    trained: learner.Learner

    def __post_init__(self) -> None:
        self._state = training_state.named_variables(
            self.trained, self.trained.optimizer
        )
        self._checkpoints = training_state.CheckpointDirectory(
            self.run.directory / run_directory.CHECKPOINTS_NAME,
            keep=self.settings.num_checkpoints,
            keep_best=self.settings.num_best_checkpoints,
            is_chief=self.owner is not None,
            owner=self.owner,
        )
        self._last_evaluation: dict[str, float] = {}

    def train(self) -> dict[str, Any]:
        """Trains from the last checkpoint to the end, and returns the results."""
        began = time.monotonic()
        step = self._checkpoints.restore_latest(self._state)
        replicas.check_equal(
            self.strategy,
            step,
            f"{self.run.directory}: the workers found different checkpoints, this one "
            f"that of step {step}: give all of them one directory that they share",
        )
        if step == 0 and self.start is not None:
            starting_point.assign(
                self.trained.network, self.start.arrays, path=self.start.path
            )
        self.start = None
        while step < self.settings.num_train_steps:
            phase = next(p for p in self.planned if step < p.last_step)
            self._fit(phase, step, self._stretch_end(phase, step))
            step = replicas.optimizer_step(self.trained)
        phase = self.planned[-1]
        if phase.has_evaluation and not self._last_evaluation:
            batches, num_batches = phases.evaluation_batches(
                self.settings, phase, self.strategy
            )
            self._last_evaluation = self.trained.evaluate(
                batches, steps=num_batches, return_dict=True, verbose=0
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

    def _stretch_end(self, phase: phases.Phase, step: int) -> int:
        """Last step of one call of `fit`.

        Evaluations and checkpoints come at the same steps in every run: a call that
        starts between two of them goes to the next one only.
        """
        interval = self.settings.save_checkpoint_steps
        if step % interval == 0:
            return phase.last_step
        return min(phase.last_step, (step // interval + 1) * interval)

    def _fit(self, phase: phases.Phase, step: int, last_step: int) -> None:
        logger.info(
            "steps %d to %d: %d examples of %d tokens, %d a step; %d for evaluation",
            step + 1,
            last_step,
            phase.num_train_records,
            phase.examples.max_seq_length,
            phase.batch_size,
            sum(shard.num_records for shard in phase.eval_shards),
        )
        if step == phase.first_step:
            # Losses at another sequence length do not compare with this phase's.
            self._checkpoints.forget_scores()
        if self.trained.num_parts != phase.num_parts:
            self.trained.num_parts = phase.num_parts
            self.trained.train_function = None
        logs = learner.fit(
            self.trained,
            phases.training_batches(
                self.settings, phase, self.strategy, start_step=step
            ),
            last_step=last_step,
            steps_per_epoch=self.settings.save_checkpoint_steps,
            evaluation=phases.evaluation_batches(self.settings, phase, self.strategy),
            run_callbacks=[
                *(self._shown(phase) if self.owner else []),
                stopping.SaveEachEpoch(self._save),
                *self._stoppers(phase, last_step),
            ],
        )
        self._last_evaluation = {
            k.removeprefix("val_"): v for k, v in logs.items() if k.startswith("val_")
        }

    def _save(self, step: int, evaluation_loss: float | None) -> None:
        self._checkpoints.save(step, self._state, score=evaluation_loss)

    def _stoppers(
        self, phase: phases.Phase, last_step: int
    ) -> list[keras.callbacks.Callback]:
        return [
            stopping.StopOnSignal(
                self.stop_signal,
                lambda step: self._checkpoints.save(step, self._state, is_interim=True),
                is_multi_worker=replicas.is_multi_worker(self.strategy),
                steps_per_epoch=self.settings.save_checkpoint_steps,
                last_step=last_step,
            ),
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

    def _shown(self, phase: phases.Phase) -> list[keras.callbacks.Callback]:
        """Callbacks that write to TensorBoard and to the log."""
        settings, examples = self.settings, phase.examples
        logs = self.run.directory / run_directory.LOGS_NAME
        num_predictions = examples.num_predictions
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
                ),
                peak_flops=self._peak_flops(),
            ),
            progress_line.ProgressLine(
                num_train_steps=settings.num_train_steps, batch_size=phase.batch_size
            ),
        ]
        if settings.profile_steps is not None:
            shown.append(panels.Profile(logs / "train", steps=settings.profile_steps))
        if phase.has_evaluation:
            batches, _ = phases.whole_evaluation_batches(settings, phase)
            evaluation_panels = panels.EvaluationPanels(
                logs,
                tokenizer=self.run.tokenizer,
                batch=next(batches.as_numpy_iterator()),
                last_step=phase.last_step,
            )
            shown.append(evaluation_panels)
        return shown

    def _peak_flops(self) -> float:
        dtype = "float32" if self.settings.precision == "float32" else "bfloat16"
        if self.settings.precision == "mixed_float16":
            dtype = "float16"
        # Logical devices share the one processor of this process.
        on_gpu = bool(tf.config.list_physical_devices("GPU"))
        num_devices = self.strategy.num_replicas_in_sync if on_gpu else 1
        return peak_flops.measure(dtype) * num_devices


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
def _errors_for_people(
    run: run_directory.Run, planned: Sequence[phases.Phase]
) -> Iterator[None]:
    """Turns errors about records, workers and disks into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or run.directory}: {error.strerror or error}; "
            "give the same command again when its disk answers"
        ) from error
    except tf.errors.OpError as error:
        if message := stopping.lost_worker_message(error):
            raise InputError(message) from None
        # Errors of the input pipeline come through the iterator.
        of_data = isinstance(error, tf.errors.InvalidArgumentError) and (
            "GetNext" in str(error)
        )
        if not of_data and not isinstance(error, tf.errors.DataLossError):
            raise
        reason = re.search(r"assertion failed: \[(.*?)\]", str(error))
        # Without an assertion of ours, TensorFlow's last line is the cause.
        text = reason[1] if reason else str(error).strip().splitlines()[-1]
        directories = ", ".join(str(phase.directory) for phase in planned)
        raise InputError(
            f"{directories}: {text[:300]}; make the examples again"
        ) from None
