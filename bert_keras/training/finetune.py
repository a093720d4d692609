"""Fine-tuning: a task's data and an encoder become a tuned run."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_keras import config, files, ownership, run_directory
from bert_keras.checkpoints import run_weights, starting_point, weights
from bert_keras.data import tokenization
from bert_keras.errors import InputError
from bert_keras.inference import forward, tuned
from bert_keras.model import networks
from bert_keras.report import task_summaries
from bert_keras.tasks import catalogue, dataset
from bert_keras.training import (
    curves,
    learner,
    optimization,
    precision,
    progress_line,
    replicas,
    stopping,
    task_batches,
)

logger = logging.getLogger(__name__)

CHANGEABLE = ("max_skipped_steps",)
"""Settings that may change when a run is resumed: they do not affect its result."""


class _Examples(NamedTuple):
    """A file to train or score on, and its model inputs."""

    data: dataset.Dataset
    inputs: dataset.Inputs


@ownership.owns("output_dir")
def finetune(
    settings: config.FinetuningConfig,
    *,
    train: str | Path,
    dev: Sequence[str | Path],
    init: str | Path,
    from_scratch: bool,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains the encoder of a checkpoint, and a new head, on a task.

    The head of a checkpoint is kept if it means the same on any data: in a `span` run
    that starts from another (SQuAD after TriviaQA, as in the paper), and in `choice`.
    A finished run in `output_dir` is left as it is. An unfinished one starts again: it
    takes minutes.

    Args:
        settings: the run's configuration, which names the task.
        train: file to train on (see `bert_keras.tasks.catalogue`).
        dev: files to evaluate on after every epoch, the main one first. The scores of
            the others have their file's name before them.
        init: checkpoint of any format (see `checkpoints.conversion`): gives encoder,
            vocabulary and casing.
        from_scratch: take the sizes of that encoder, but random weights.
        output_dir: run directory to make.
        strategy: to train under.

    Returns:
        Content of `results.json`: steps, seconds, examples, the last evaluation.

    Raises:
        InputError: a file, the checkpoint or the directory cannot be used.
    """
    settings = settings.model_copy(
        update={"precision": precision.resolve(settings.precision, strategy)}
    )
    start = _read_init(init, settings.max_seq_length)
    # Before the directory is made, because unknown labels are found here.
    task, (train_examples, *dev_examples) = _read_examples(
        (train, *dev), settings, start.tokenizer
    )
    arrays = starting_point.tuning_arrays(start, task)
    run = run_directory.create_run(
        output_dir,
        settings,
        task=task,
        bert_config=start.bert_config,
        vocabulary=start.vocabulary,
        do_lower_case=start.do_lower_case,
        inputs={
            "train_sha256": files.sha256(train),
            "dev_sha256": [files.sha256(path) for path in dev],
            "init_sha256": starting_point.digest(start, arrays),
            "from_scratch": from_scratch,
        },
        changeable=CHANGEABLE,
    )
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    tuner = _build_tuner(settings, run, train_examples.inputs, strategy)
    if not from_scratch:
        starting_point.assign(tuner.network, arrays, path=init)
    # As large as the model, and not needed any more.
    del start, arrays
    results = _train(settings, run, tuner, train_examples, dev_examples)
    run_weights.finish_run(run, tuner.network, results)
    # Last: a picture that cannot be drawn does not cost the weights.
    task_summaries.write(run.directory, step=results["steps"])
    logger.info("model and results in %s", run.directory)
    return results


def _read_init(path: str | Path, max_seq_length: int) -> weights.Checkpoint:
    checkpoint = starting_point.read_with_tokenizer(path)
    longest = checkpoint.bert_config.max_position_embeddings
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length` is {max_seq_length}, but the encoder of {path} "
            f"takes {longest} tokens at most: --set max_seq_length={longest}"
        )
    return checkpoint


def _read_examples(
    paths: Sequence[str | Path],
    settings: config.FinetuningConfig,
    tokenizer: tokenization.Tokenizer,
) -> tuple[config.Task, list[_Examples]]:
    """The task that the first file teaches, and the examples of all files."""
    data = [catalogue.read(paths[0], settings)]
    task = data[0].describe().model_copy(update={"bilstm_units": settings.bilstm_units})
    data += [
        catalogue.read(path, settings, has_text_pair=task.has_text_pair)
        for path in paths[1:]
    ]
    return task, [_Examples(d, d.encode(task, tokenizer, settings)) for d in data]


def _build_tuner(
    settings: config.FinetuningConfig,
    run: run_directory.Run,
    inputs: dataset.Inputs,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)
    return build_learner(
        settings,
        lambda: networks.build(
            run.bert_config,
            run.task,
            dropout_prob=settings.dropout_prob,
            seed=settings.seed,
            dtype=settings.precision,
        ),
        inputs,
        strategy=strategy,
        adamw_mode=settings.adamw_mode,
    )


class Settings(Protocol):
    """Training on labelled examples that memory holds: part of a configuration."""

    batch_size: int
    num_train_epochs: float
    learning_rate: float
    warmup_proportion: float
    weight_decay_rate: float
    max_skipped_steps: int


def _num_steps(settings: Settings, num_inputs: int) -> tuple[int, int]:
    """Updates of an epoch and of the whole run."""
    steps_per_epoch = -(-num_inputs // settings.batch_size)
    total = max(1, round(settings.num_train_epochs * steps_per_epoch))
    return min(steps_per_epoch, total), total


def build_learner(
    settings: Settings,
    make_network: Callable[[], keras.Model],
    inputs: dataset.Inputs,
    *,
    strategy: tf.distribute.Strategy,
    **optimizer_settings: Any,
) -> learner.Learner:
    """Builds a learner that trains a network on labelled examples.

    Args:
        settings: how it is trained.
        make_network: makes the network.
        inputs: of all examples, with labels.
        strategy: to train under.
        optimizer_settings: other fields of `config.OptimizerConfig`.
    """
    _, num_train_steps = _num_steps(settings, len(inputs.lengths))
    optimizer = config.OptimizerConfig(
        learning_rate=settings.learning_rate,
        warmup_steps=int(settings.warmup_proportion * num_train_steps),
        weight_decay_rate=settings.weight_decay_rate,
        **optimizer_settings,
    )
    return learner.build_learner(
        make_network,
        {k: tf.constant(v) for k, v in inputs.batch(np.arange(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            optimizer, num_train_steps=num_train_steps
        ),
        max_grad_norm=optimizer.max_grad_norm,
        strategy=strategy,
    )


def fit(
    tuner: learner.Learner,
    settings: Settings,
    inputs: dataset.Inputs,
    *,
    by_length: bool,
    seed: int,
    logs: Path,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Trains for the epochs that the settings say.

    Args:
        tuner: from `build_learner`, of the same settings and inputs.
        settings: how it is trained.
        inputs: of all examples, with labels.
        by_length: see `task_batches.epoch_batches`.
        seed: of the order of examples, and of dropout.
        logs: directory of the curves; those of an interrupted attempt are deleted.
        callbacks: called before the curves are written.

    Returns:
        The scalars of the last step.

    Raises:
        InputError: the loss or gradients do not stay finite.
    """
    shutil.rmtree(logs, ignore_errors=True)
    steps_per_epoch, num_train_steps = _num_steps(settings, len(inputs.lengths))
    batch_size = settings.batch_size
    run_curves = curves.Curves(logs, batch_size=batch_size)
    line = progress_line.ProgressLine(
        num_train_steps=num_train_steps, batch_size=batch_size
    )
    learner.fit(
        tuner,
        task_batches.example_batches(
            inputs.lengths,
            inputs.batch,
            batch_size=batch_size,
            by_length=by_length,
            seed=seed,
        ),
        last_step=num_train_steps,
        steps_per_epoch=steps_per_epoch,
        evaluation=None,
        run_callbacks=[
            *callbacks,
            run_curves,
            line,
            stopping.StopOnSkips(
                # A short run must not end well without a single update.
                min(settings.max_skipped_steps, num_train_steps - 1),
                lambda first, last: (
                    ": lower `learning_rate`, or take another checkpoint"
                ),
            ),
        ],
    )
    return run_curves.last_step_logs


def _train(
    settings: config.FinetuningConfig,
    run: run_directory.Run,
    tuner: learner.Learner,
    train_examples: _Examples,
    dev_examples: Sequence[_Examples],
) -> dict[str, Any]:
    num_train, num_dev = len(train_examples.data), len(dev_examples[0].data)
    logger.info("fine-tuning on %d examples, evaluating on %d", num_train, num_dev)
    score = _ScoreEachEpoch(run.task, settings, dev_examples)
    start = time.monotonic()
    last_step_logs = fit(
        tuner,
        settings,
        train_examples.inputs,
        by_length=settings.are_batches_by_length(run.task),
        seed=settings.seed,
        logs=run.directory / run_directory.LOGS_NAME,
        callbacks=[score],
    )
    seconds = round(time.monotonic() - start, 1)
    num_steps = replicas.optimizer_step(tuner)
    _write_answers(run, score.answers, score.scores.get(tuned.THRESHOLD))
    return {
        "steps": num_steps,
        "seconds": seconds,
        "num_parameters": tuner.network.count_params(),
        "num_train_examples": num_train,
        "num_eval_examples": num_dev,
        "train": last_step_logs,
        "eval": score.scores,
    }


def _write_answers(
    run: run_directory.Run, answers: dataset.Answers, threshold: float | None
) -> None:
    lines = (
        files.to_json(record.model_dump()) + "\n"
        for record in answers.records(threshold=threshold)
    )
    path = run.directory / run_directory.ANSWERS_NAME
    files.write_atomically(path, "".join(lines).encode())


class _ScoreEachEpoch(keras.callbacks.Callback):
    """Adds scores to the logs that the callbacks after it are given."""

    def __init__(
        self,
        task: config.Task,
        settings: config.FinetuningConfig,
        examples: Sequence[_Examples],
    ):
        super().__init__()
        self._task, self._settings, self._examples = task, settings, examples
        self.scores: dict[str, float] = {}
        """Last scores, of all files."""
        self.answers: dataset.Answers | None = None
        """Last answers, to the main file."""

    def on_train_begin(self, logs=None):
        self._forward = forward.of_task(self.model.network)

    def on_epoch_end(self, epoch, logs=None):
        self.scores = {}
        for number, (data, data_inputs) in enumerate(self._examples):
            outputs = self._forward(
                data_inputs, title=f"evaluating on {data.path.name}"
            )
            answers = data.answer(outputs, data_inputs, self._task, self._settings)
            prefix = f"{data.path.stem}_" if number else ""
            self.scores |= {f"{prefix}{k}": v for k, v in answers.scores().items()}
            if not number:
                self.answers = answers
        # Counts, which do not change, are no curves.
        curves = {k: v for k, v in self.scores.items() if isinstance(v, float)}
        logs.update({f"val_{name}": value for name, value in curves.items()})
