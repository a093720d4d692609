"""Pre-training: examples in, a run directory out, under any strategy, resumable after
any step."""

import contextlib
import errno
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bert_keras import __version__
from bert_keras.checkpoints import (
    conversion,
    run_directory,
    run_weights,
    starting_point,
)
from bert_keras.core import files, ownership, provenance, stores
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.core.settings import config
from bert_keras.data import features
from bert_keras.model import pretrainer
from bert_keras.training.pretraining import phases, pretraining_run
from bert_keras.training.step import (
    learner,
    optimization,
    precision,
    replicas,
    self_check,
    stopping,
)

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "draw_minutes",
    "draw_steps",
    "evaluate_minutes",
    "evaluate_steps",
    "gradient_accumulation_steps",
    "jit_compile",
    "max_skipped_steps",
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
"""Settings that may change when a run is resumed: its result is the same, up to the
last bits of sums where batches are cut into other parts or compiled."""

_DOES_NOT_ANSWER = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a disk that may pass, unlike those of a name or a permission."""


def pretrain(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None = None,
    init: str | Path | None = None,
    is_chief: bool = True,
    verify: bool = False,
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
        verify: hash the examples even if this machine did so for this run before.

    Returns:
        Contents of `results.json`: steps, seconds, and the last evaluation.

    Raises:
        InputError: the examples, the vocabulary, the checkpoint or the directory are
            unusable, another process writes into the directory, the loss or gradients
            do not stay finite, devices add up wrong (see `self_check`), or a worker is
            lost.
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(ownership.owned(output_dir)) if is_chief else None
        return _pretrain(
            settings,
            examples_dirs,
            output_dir,
            strategy=strategy,
            owner=owner,
            vocab_path=vocab_path,
            init=init,
            verified=None if verify else run_directory.read_verified(output_dir),
        )


def _pretrain(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    owner: ownership.Owner | None,
    **inputs: Any,
) -> dict[str, Any]:
    """`pretrain` with its `inputs` (see `_plan`), in a directory that is ours."""
    settings, planned, start, run = _prepare(
        *(settings, examples_dirs, output_dir),
        strategy=strategy,
        is_chief=owner is not None,
        **inputs,
    )
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    with (
        futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint_writer") as writer,
        stopping.StopSignal() as stop_signal,
        _errors_for_people(run, planned),
    ):
        if self_check.is_due(strategy):
            self_check.check(strategy)
        under_way = pretraining_run.PretrainingRun(
            settings=settings,
            run=run,
            planned=planned,
            strategy=strategy,
            owner=owner,
            writer=writer,
            stop_signal=stop_signal,
            start=start,
            trained=_build_learner(settings, run, planned[0], strategy),
        )
        # As large as the model, and no longer needed.
        del start
        results = under_way.train()
    results["environment"] = provenance.describe(
        devices=replicas.describe_devices(strategy),
        paths={
            "examples": examples_dirs,
            "vocab": inputs["vocab_path"],
            "init": inputs["init"],
        },
    )
    if owner is not None:
        run_weights.finish_run(run, under_way.trained.network, results)
        logger.info(
            "wrote %s and %s in %s",
            run_directory.WEIGHTS_NAME,
            run_directory.RESULTS_NAME,
            run.directory,
        )
    # To the others a worker that leaves early looks as if it had been killed.
    replicas.wait_for_all(strategy)
    return results


def _prepare(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    is_chief: bool,
    verified: Collection[str] | None,
    **inputs: Any,
) -> tuple[
    config.PretrainingConfig,
    list[phases.Phase],
    starting_point.Start | None,
    run_directory.Run,
]:
    """Reads all `inputs` (see `_plan`), makes the run's directory, sees that all
    workers were given the same, and remembers the examples that were hashed."""
    settings = settings.model_copy(
        update={"precision": precision.resolve(settings.precision, strategy)}
    )
    settings, planned, start = _plan(
        settings, examples_dirs, strategy=strategy, verified=verified, **inputs
    )
    check_hosts(strategy, planned)
    run = _create_run(settings, planned, output_dir, start=start, is_chief=is_chief)
    _check_same_on_all_workers(strategy, settings, planned, start)
    replicas.wait_for_all(strategy)
    hashes = [
        phase.manifest_sha256
        for phase in planned
        if verified is None or not files.is_remote(phase.directory)
    ]
    run_directory.write_verified(output_dir, hashes)
    return settings, planned, start, run


def _plan(
    settings: config.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None,
    init: str | Path | None,
    verified: Collection[str] | None,
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
        verified=verified,
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


def check_hosts(
    strategy: tf.distribute.Strategy, planned: Sequence[phases.Phase]
) -> None:
    """Checks that all hosts of a TPU can read the examples.

    Raises:
        InputError: there are several, and masks are made while examples are read: that
            is done by Python, and only this process has it.
    """
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    num_hosts = strategy.extended.num_hosts if is_tpu else 1
    for phase in planned:
        if num_hosts > 1 and phase.examples.masking == "dynamic":
            raise InputError(
                f"{phase.directory}: examples with masking=dynamic are masked by this "
                f"process as it reads them, but a TPU of {num_hosts} hosts reads on "
                "all of them: make the examples with masking=static"
            )


def _check_same_on_all_workers(
    strategy: tf.distribute.Strategy,
    settings: config.PretrainingConfig,
    planned: Sequence[phases.Phase],
    start: starting_point.Start | None,
) -> None:
    """Compares all that decides the outcome, and the devices' own choices.

    Raises:
        InputError: on all workers, names what differs.
    """
    replicas.check_same(
        strategy,
        {
            **run_directory.flat(settings.model_dump(mode="json")),
            "--examples": [phase.manifest_sha256 for phase in planned],
            "--vocab": planned[0].vocabulary.sha256,
            "--init": None if start is None else start.sha256,
            "version of bert-keras": __version__,
        },
    )


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
            settings.optimizer,
            num_train_steps=settings.num_train_steps,
            precision=settings.precision,
        ),
        strategy=strategy,
        max_grad_norm=settings.optimizer.max_grad_norm,
        steps_per_execution=settings.steps_per_execution
        or replicas.steps_per_execution(strategy),
        recompute=settings.recompute,
        # A TPU compiles the step by itself.
        compile_step=jit_compile
        and not isinstance(strategy, tf.distribute.TPUStrategy),
        scales_loss=settings.precision == "mixed_float16",
    )


@contextlib.contextmanager
def _errors_for_people(
    run: run_directory.Run, planned: Sequence[phases.Phase]
) -> Iterator[None]:
    """Turns errors about records, workers and disks into errors for people."""
    try:
        yield
    except OSError as error:
        kind = Unavailable if error.errno in _DOES_NOT_ANSWER else InputError
        raise kind(
            f"{error.filename or run.directory}: {error.strerror or error}; "
            "give the same command again when its disk answers"
        ) from error
    except tf.errors.OpError as error:
        if message := stopping.lost_worker_message(error):
            raise InputError(message) from None
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
        directories = ", ".join(str(phase.directory) for phase in planned)
        raise InputError(
            f"{directories}: {text[:300]}; make the examples again"
        ) from None
