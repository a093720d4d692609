"""A task and an encoder become a tuned run, which answers for new texts."""

import dataclasses
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import (
    callbacks,
    classification,
    config,
    files,
    inputs,
    learner,
    optimization,
    precision,
    progress,
)
from bert_keras.checkpoints import initial, run_directory, weights
from bert_keras.errors import InputError
from bert_keras.tasks import text

logger = logging.getLogger(__name__)

TASK_KINDS = ("classification", "regression")
"""The kinds of run that `finetune` makes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Examples:
    """A labelled file, ready to be trained or scored on."""

    texts: text.TokenizedTexts
    label_ids: np.ndarray

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {**self.texts.batch(rows), "label_ids": self.label_ids[rows]}


def finetune(
    settings: config.FinetuningConfig,
    *,
    train: str | Path,
    dev: str | Path,
    init: str | Path,
    from_scratch: bool,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains the encoder of a checkpoint, and a new head, on labelled texts.

    A finished run in `output_dir` is left as it is. An unfinished one begins anew: it
    is a matter of minutes.

    Args:
        settings: the run's configuration.
        train: labelled file to train on (see `bert_keras.tasks.text`).
        dev: the same, to evaluate on after every epoch.
        init: checkpoint of any format (see `checkpoints.conversion`) whose encoder,
            vocabulary and casing are taken.
        from_scratch: take the sizes of that encoder, but random weights.
        output_dir: the run directory to make.
        strategy: to train under.

    Returns:
        What `results.json` holds: steps, seconds, examples, the last evaluation.

    Raises:
        InputError: a file, the checkpoint or the directory cannot be used.
    """
    settings = settings.model_copy(
        update={"precision": precision.resolve(settings.precision, strategy)}
    )
    start = _read_init(init, settings.max_seq_length)
    task, train_rows, dev_rows = _read_files(settings, train, dev)
    run = run_directory.create_run(
        output_dir,
        settings,
        task=task,
        bert_config=start.bert_config,
        vocabulary=start.vocabulary,
        do_lower_case=start.do_lower_case,
        inputs={
            "train_sha256": files.sha256(train),
            "dev_sha256": files.sha256(dev),
            "init_sha256": initial.digest(start, initial.encoder_arrays(start)),
            "from_scratch": from_scratch,
        },
    )
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    train_examples = _tokenize(run, settings, train_rows, path=train)
    dev_examples = _tokenize(run, settings, dev_rows, path=dev)
    tuner = _build_learner(settings, run, train_examples, strategy)
    if not from_scratch:
        initial.assign(tuner.network, initial.encoder_arrays(start), path=init)
    # As large as the model, and not needed once that has begun.
    del start
    results = _train(settings, run, tuner, train_examples, dev_examples)
    run_directory.finish_run(run, tuner.network, results)
    logger.info("model and results in %s", run.directory)
    return results


def evaluate(model_dir: str | Path, input_path: str | Path) -> dict[str, float | int]:
    """Scores a tuned model on a labelled file.

    Returns:
        `num_examples` and what `text.scores` gives.

    Raises:
        InputError: the run or the file cannot be used, or has an unknown label.
    """
    tuned = TunedModel(model_dir)
    examples = tuned.read_texts(input_path, has_label=True)
    label_ids = text.label_ids(examples, tuned.run.task.labels, path=input_path)
    logits = tuned.logits(examples)
    return {"num_examples": len(examples), **text.scores(logits, label_ids)}


def predict(
    model_dir: str | Path, input_path: str | Path, output_path: str | Path
) -> None:
    """Writes a tuned model's answers for a file of texts.

    The output is tab-separated, see `text.predictions_tsv`: a line of column names,
    then one line for each row of the input, in its order. Labels in the input are not
    looked at.

    Raises:
        InputError: the run or the input cannot be used, or the output exists.
    """
    output_path = Path(output_path)
    if output_path.exists():
        raise InputError(f"{output_path}: exists already; choose another name")
    if not output_path.parent.is_dir():
        raise InputError(f"{output_path.parent}: no such directory; make it first")
    tuned = TunedModel(model_dir)
    logits = tuned.logits(tuned.read_texts(input_path, has_label=False))
    table = text.predictions_tsv(logits, tuned.run.task.labels)
    files.write_atomically(output_path, table.encode())
    logger.info("%d predictions in %s", len(logits), output_path)


class TunedModel:
    """A finished fine-tuning run, loaded.

    Args:
        directory: made by `finetune`.
        precision: to compute in; `None`: as it was trained.

    Raises:
        InputError: the directory is no finished fine-tuning run.
    """

    def __init__(
        self, directory: str | Path, *, precision: config.Precision | None = None
    ):
        self.run = run_directory.read_run(directory, kinds=TASK_KINDS, verb="finetune")
        self.settings = config.load_config(
            config.FinetuningConfig, self.run.directory / "config.yaml"
        )
        self.network = classification.BertClassifier(
            self.run.bert_config,
            num_labels(self.run.task),
            dropout_prob=self.settings.dropout_prob,
            dtype=precision or self.settings.precision,
        )
        self.network.build()
        run_directory.load_weights(self.run, self.network)

    def read_texts(
        self, path: str | Path, *, has_label: bool
    ) -> list[text.LabelledText]:
        """Reads a file with the columns that the run was trained on."""
        return text.read_texts(
            path,
            self.settings.columns,
            has_text_pair=self.run.task.has_text_pair,
            has_label=has_label,
        )

    def logits(self, examples: list[text.LabelledText]) -> np.ndarray:
        """`(num_examples, num_labels)` float32, with a progress line."""
        texts = text.tokenize(
            examples, self.run.tokenizer, max_seq_length=self.settings.max_seq_length
        )
        forward = Forward(self.network)
        with progress.Progress(
            "predicting", total=len(texts), unit="texts", read=lambda: forward.num_done
        ):
            return forward(texts)


class Forward:
    """Runs a classifier over many texts, without training.

    Args:
        network: built.
    """

    TOKENS_PER_BATCH = 8192
    """Padding included; bounds the memory whatever the length."""

    def __init__(self, network: classification.BertClassifier):
        self._num_labels = network.num_labels
        matrix = tf.TensorSpec([None, None], tf.int32)
        names = ("input_ids", "input_mask", "segment_ids")
        # One trace for all shapes.
        self._logits = tf.function(
            lambda features: network(features, training=False)["logits"],
            input_signature=[{name: matrix for name in names}],
        )
        self.num_done = 0

    def __call__(self, texts: text.TokenizedTexts) -> np.ndarray:
        """`(num_texts, num_labels)` float32, in the order of the texts."""
        self.num_done = 0
        logits = np.empty((len(texts), self._num_labels), np.float32)
        # The longest first: what does not fit into memory fails at once.
        rest = np.argsort(-texts.lengths, kind="stable")
        while len(rest):
            num_rows = max(1, self.TOKENS_PER_BATCH // int(texts.lengths[rest[0]]))
            rows, rest = rest[:num_rows], rest[num_rows:]
            logits[rows] = self._logits(texts.batch(rows)).numpy()
            self.num_done += len(rows)
        return logits


def num_labels(task: run_directory.Task) -> int:
    """Outputs of the head: one for each class, or one number."""
    return 1 if task.labels is None else len(task.labels)


def _read_init(path: str | Path, max_seq_length: int) -> weights.Checkpoint:
    checkpoint = initial.read_with_tokenizer(path)
    longest = checkpoint.bert_config.max_position_embeddings
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length` is {max_seq_length}, but the encoder of {path} "
            f"takes {longest} tokens at most: --set max_seq_length={longest}"
        )
    return checkpoint


def _read_files(
    settings: config.FinetuningConfig, train: str | Path, dev: str | Path
) -> tuple[run_directory.Task, list[text.LabelledText], list[text.LabelledText]]:
    """Reads both files, finds out what the task is, and checks all labels."""
    train_rows = text.read_texts(train, settings.columns)
    has_text_pair = train_rows[0].text_pair is not None
    dev_rows = text.read_texts(dev, settings.columns, has_text_pair=has_text_pair)
    if settings.regression:
        kind, labels = "regression", None
    else:
        kind, labels = "classification", text.distinct_labels(train_rows, path=train)
    text.label_ids(train_rows, labels, path=train)
    text.label_ids(dev_rows, labels, path=dev)
    task = run_directory.Task(kind=kind, labels=labels, has_text_pair=has_text_pair)
    return task, train_rows, dev_rows


def _tokenize(
    run: run_directory.Run,
    settings: config.FinetuningConfig,
    rows: list[text.LabelledText],
    *,
    path: str | Path,
) -> _Examples:
    return _Examples(
        texts=text.tokenize(
            rows, run.tokenizer, max_seq_length=settings.max_seq_length
        ),
        label_ids=text.label_ids(rows, run.task.labels, path=path),
    )


def _num_steps(settings: config.FinetuningConfig, num_examples: int) -> tuple[int, int]:
    """Updates of an epoch and of the whole run."""
    steps_per_epoch = -(-num_examples // settings.batch_size)
    total = max(1, round(settings.num_train_epochs * steps_per_epoch))
    return min(steps_per_epoch, total), total


def _build_learner(
    settings: config.FinetuningConfig,
    run: run_directory.Run,
    examples: _Examples,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)
    _, num_train_steps = _num_steps(settings, len(examples.texts))
    optimizer_settings = config.OptimizerConfig(
        learning_rate=settings.learning_rate,
        warmup_steps=int(settings.warmup_proportion * num_train_steps),
        weight_decay_rate=settings.weight_decay_rate,
    )
    batch = {k: tf.constant(v) for k, v in examples.batch(np.arange(1)).items()}
    return learner.build_learner(
        lambda: classification.BertClassifier(
            run.bert_config,
            num_labels(run.task),
            dropout_prob=settings.dropout_prob,
            seed=settings.seed,
            dtype=settings.precision,
        ),
        batch,
        optimizer=lambda: optimization.build_optimizer(
            optimizer_settings, num_train_steps=num_train_steps
        ),
        max_grad_norm=optimizer_settings.max_grad_norm,
        strategy=strategy,
    )


def _train(
    settings: config.FinetuningConfig,
    run: run_directory.Run,
    tuner: learner.Learner,
    train_examples: _Examples,
    dev_examples: _Examples,
) -> dict[str, Any]:
    # An attempt that was broken off left its curves there.
    logs = run.directory / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    num_train, num_dev = len(train_examples.texts), len(dev_examples.texts)
    steps_per_epoch, num_train_steps = _num_steps(settings, num_train)
    logger.info("fine-tuning on %d examples, evaluating on %d", num_train, num_dev)
    log = callbacks.TrainingLog(
        logs, num_train_steps=num_train_steps, batch_size=settings.batch_size
    )
    forward = Forward(tuner.network)
    score = _ScoreEachEpoch(
        lambda: text.scores(forward(dev_examples.texts), dev_examples.label_ids)
    )
    start = time.monotonic()
    learner.fit(
        tuner,
        inputs.bucketed_batches(
            train_examples.texts.lengths,
            train_examples.batch,
            batch_size=settings.batch_size,
            seed=settings.seed,
        ),
        last_step=num_train_steps,
        steps_per_epoch=steps_per_epoch,
        evaluation=None,
        run_callbacks=[score, log],
    )
    return {
        "steps": callbacks.optimizer_step(tuner),
        "seconds": round(time.monotonic() - start, 1),
        "num_parameters": tuner.network.count_params(),
        "num_train_examples": num_train,
        "num_eval_examples": num_dev,
        "train": log.last_step_logs,
        "eval": log.last_evaluation,
    }


class _ScoreEachEpoch(keras.callbacks.Callback):
    """Adds scores to the logs that the callbacks after it are given."""

    def __init__(self, score: Callable[[], dict[str, float]]):
        super().__init__()
        self._score = score

    def on_epoch_end(self, epoch, logs=None):
        logs.update({f"val_{name}": value for name, value in self._score().items()})
