"""A task and an encoder become a tuned run, which answers for new texts."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras import config, files, progress, run_directory
from bert_keras.checkpoints import starting_point, weights
from bert_keras.data import tokenization
from bert_keras.errors import InputError
from bert_keras.model import networks
from bert_keras.report import task_summaries
from bert_keras.tasks import catalogue, dataset, glue
from bert_keras.training import (
    learner,
    optimization,
    precision,
    record_batches,
    training_log,
)

logger = logging.getLogger(__name__)

TASK_KINDS = ("classification", "regression", "tagging", "span", "choice")
"""The kinds of run that `finetune` makes."""

ANSWERS_NAME = "dev_answers.jsonl"
"""In the run directory: the last evaluation, example by example, for a report."""

THRESHOLD = "best_f1_thresh"
"""The score that is the threshold on the odds of "no answer", chosen on dev."""


class _Examples(NamedTuple):
    """A file, ready to be trained or scored on."""

    data: dataset.Dataset
    inputs: dataset.Inputs


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

    The head of a checkpoint is kept where it means the same whatever the data: a
    `span` run begun with another (SQuAD after TriviaQA, as in the paper), or `choice`.
    A finished run in `output_dir` is left as it is. An unfinished one begins anew: it
    is a matter of minutes.

    Args:
        settings: the run's configuration, which names the task.
        train: file to train on (see `bert_keras.tasks.catalogue`).
        dev: files to evaluate on after every epoch, the main one first. The scores of
            the others have their file's name before them.
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
    tokenizer = tokenization.Tokenizer(
        start.vocabulary, do_lower_case=start.do_lower_case
    )
    train_data = catalogue.read(train, settings)
    task = train_data.describe().model_copy(
        update={"bilstm_units": settings.bilstm_units}
    )
    dev_data = [
        catalogue.read(path, settings, has_text_pair=task.has_text_pair) for path in dev
    ]
    # Before the directory is made: a label that is not known is found here.
    train_examples, *dev_examples = [
        _Examples(data, data.encode(task, tokenizer, settings))
        for data in (train_data, *dev_data)
    ]
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
    )
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    tuner = _build_learner(settings, run, train_examples.inputs, strategy)
    if not from_scratch:
        starting_point.assign(tuner.network, arrays, path=init)
    # As large as the model, and not needed once that has begun.
    del start, arrays
    results = _train(settings, run, tuner, train_examples, dev_examples)
    run_directory.finish_run(run, tuner.network, results)
    # Afterwards: a picture that cannot be drawn does not cost the weights.
    task_summaries.write(run.directory, step=results["steps"])
    logger.info("model and results in %s", run.directory)
    return results


def evaluate(model_dir: str | Path, input_path: str | Path) -> dict[str, float | int]:
    """Scores a tuned model on a file with what is right.

    Returns:
        `num_examples` and the task's official scores, see `tasks`.

    Raises:
        InputError: the run or the file cannot be used, or has an unknown label.
    """
    tuned = TunedModel(model_dir)
    answers, num_examples = tuned.answer(input_path, has_labels=True)
    return {
        "num_examples": num_examples,
        **answers.scores(threshold=tuned.threshold),
    }


def predict(
    model_dir: str | Path, input_path: str | Path, output_path: str | Path
) -> None:
    """Writes a tuned model's answers for a file, as `dataset.Answers.files` has them.

    One file of answers is written to `output_path`, several into it. What is right is
    not looked at, should the input have it.

    Raises:
        InputError: the run or the input cannot be used, or the output exists.
    """
    output_path = _new_output(output_path)
    tuned = TunedModel(model_dir)
    answers, num_examples = tuned.answer(input_path, has_labels=False)
    contents = answers.files(threshold=tuned.threshold)
    if len(contents) == 1:
        (content,) = contents.values()
        files.write_atomically(output_path, content.encode())
    else:
        _write_directory(output_path, contents)
    logger.info("answers to %d examples in %s", num_examples, output_path)


def submit_glue(
    model_dirs: Sequence[str | Path], data: str | Path, output_path: str | Path
) -> None:
    """Answers GLUE's test files as the leaderboard wants them.

    Args:
        model_dirs: runs on GLUE tasks, at most one of each. That on MNLI answers AX.
        data: GLUE's folder.
        output_path: a directory to make for the tables; or a `.zip`, ready to be
            uploaded, for which all tasks must be there.

    Raises:
        InputError: a run or a file cannot be used, or the output exists.
    """
    output_path = _new_output(output_path)
    tables: dict[str, str] = {}
    for model_dir in model_dirs:
        tuned = TunedModel(model_dir)
        for name, task in glue.TASKS.items():
            if (task.same_model_as or name) != tuned.run.task.name:
                continue
            paths = glue.find_files(data, name, task.submissions)
            for split, path in paths.items():
                file_name = task.submissions[split].file_name
                if file_name in tables:
                    raise InputError(f"{model_dir}: a second run on {name}: give one")
                answers, _ = tuned.answer(path, has_labels=False, task=name)
                tables[file_name] = glue.submission_tsv(name, answers.logits)
        if tuned.run.task.name not in glue.TASKS:
            raise InputError(
                f"{model_dir}: a run on {tuned.settings.task}, expected one on a task "
                "of GLUE"
            )
    if output_path.suffix == ".zip":
        files.write_atomically(output_path, glue.submission_zip(tables))
    else:
        _write_directory(output_path, tables)
    logger.info("%d tables in %s", len(tables), output_path)


def _new_output(path: str | Path) -> Path:
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: exists already; choose another name")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such directory; make it first")
    return path


def _write_directory(path: Path, contents: Mapping[str, str]) -> None:
    path.mkdir()
    for name, content in contents.items():
        files.write_atomically(path / name, content.encode())


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
        self.network = networks.build(
            self.run.bert_config,
            self.run.task,
            dropout_prob=self.settings.dropout_prob,
            dtype=precision or self.settings.precision,
        )
        run_directory.load_weights(self.run, self.network)
        results = run_directory.read_results(directory)
        self.threshold: float | None = results.get("eval", {}).get(THRESHOLD)
        """On the odds that a question has no answer, as chosen on dev."""

    def answer(
        self, path: str | Path, *, has_labels: bool, task: str | None = None
    ) -> tuple[dataset.Answers, int]:
        """Answers to a file, and how many examples it has. Shows progress.

        Args:
            path: of the file.
            has_labels: whether to read what is right too.
            task: the data set it belongs to; `None`: the one that was trained on.
        """
        settings = self.settings
        if task is not None:
            settings = settings.model_copy(update={"task": task})
        data = catalogue.read(
            path,
            settings,
            has_labels=has_labels,
            has_text_pair=self.run.task.has_text_pair,
        )
        inputs = data.encode(self.run.task, self.run.tokenizer, settings)
        outputs = Forward(self.network)(inputs, title="predicting")
        return data.answer(outputs, inputs, self.run.task, settings), len(data)


class Forward:
    """Runs a network over many inputs, without training.

    Args:
        network: built.
    """

    TOKENS_PER_BATCH = 8192
    """Padding included; bounds the memory whatever the length."""

    def __init__(self, network: keras.Model):
        self._network = network
        self._outputs: Callable[..., tf.Tensor] | None = None

    def __call__(self, inputs: dataset.Inputs, *, title: str) -> np.ndarray:
        """`(inputs.num_answers, width)` float32. Shows progress under a title."""
        num_done, outputs = 0, None
        # The longest first: what does not fit into memory fails at once.
        rest = np.argsort(-inputs.lengths, kind="stable")
        with progress.Progress(
            title,
            total=len(rest),
            unit="inputs",
            read=lambda: num_done,
            only_if_long=True,
        ):
            while len(rest):
                num_rows = self._num_rows(inputs, rest[:1])
                rows, rest = rest[:num_rows], rest[num_rows:]
                of_batch = self._run(inputs.batch(rows))
                if outputs is None:
                    shape = (inputs.num_answers, of_batch.shape[-1])
                    outputs = np.zeros(shape, np.float32)
                places = inputs.places(rows)
                outputs[places.ids] = of_batch[places.index]
                num_done += len(rows)
        return outputs

    def _num_rows(self, inputs: dataset.Inputs, longest: np.ndarray) -> int:
        """How many inputs make a batch: all may be as long as the longest."""
        num_tokens = inputs.batch(longest)["input_ids"].size
        return max(1, self.TOKENS_PER_BATCH // num_tokens)

    def _run(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        features = {name: batch[name] for name in _FEATURES}
        if self._outputs is None:
            # One trace for all shapes.
            spec = tf.TensorSpec([None] * features["input_ids"].ndim, tf.int32)
            self._outputs = tf.function(
                self._traced, input_signature=[dict.fromkeys(_FEATURES, spec)]
            )
        return self._outputs(features).numpy()

    def _traced(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        outputs = self._network(features, training=False)
        if "logits" in outputs:
            return outputs["logits"]
        return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)


_FEATURES = ("input_ids", "input_mask", "segment_ids")


def _read_init(path: str | Path, max_seq_length: int) -> weights.Checkpoint:
    checkpoint = starting_point.read_with_tokenizer(path)
    longest = checkpoint.bert_config.max_position_embeddings
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length` is {max_seq_length}, but the encoder of {path} "
            f"takes {longest} tokens at most: --set max_seq_length={longest}"
        )
    return checkpoint


def _num_steps(settings: config.FinetuningConfig, num_inputs: int) -> tuple[int, int]:
    """Updates of an epoch and of the whole run."""
    steps_per_epoch = -(-num_inputs // settings.batch_size)
    total = max(1, round(settings.num_train_epochs * steps_per_epoch))
    return min(steps_per_epoch, total), total


def _build_learner(
    settings: config.FinetuningConfig,
    run: run_directory.Run,
    train_inputs: dataset.Inputs,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)
    _, num_train_steps = _num_steps(settings, len(train_inputs.lengths))
    optimizer_settings = config.OptimizerConfig(
        adamw_mode=settings.adamw_mode,
        learning_rate=settings.learning_rate,
        warmup_steps=int(settings.warmup_proportion * num_train_steps),
        weight_decay_rate=settings.weight_decay_rate,
    )
    batch = {k: tf.constant(v) for k, v in train_inputs.batch(np.arange(1)).items()}
    return learner.build_learner(
        lambda: networks.build(
            run.bert_config,
            run.task,
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
    dev_examples: Sequence[_Examples],
) -> dict[str, Any]:
    # An attempt that was broken off left its curves there.
    logs = run.directory / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    num_train, num_dev = len(train_examples.data), len(dev_examples[0].data)
    train_inputs = train_examples.inputs
    steps_per_epoch, num_train_steps = _num_steps(settings, len(train_inputs.lengths))
    logger.info("fine-tuning on %d examples, evaluating on %d", num_train, num_dev)
    log = training_log.TrainingLog(
        logs, num_train_steps=num_train_steps, batch_size=settings.batch_size
    )
    score = _ScoreEachEpoch(run.task, settings, dev_examples)
    start = time.monotonic()
    learner.fit(
        tuner,
        record_batches.example_batches(
            train_inputs.lengths,
            train_inputs.batch,
            batch_size=settings.batch_size,
            by_length=settings.are_batches_by_length(run.task),
            seed=settings.seed,
        ),
        last_step=num_train_steps,
        steps_per_epoch=steps_per_epoch,
        evaluation=None,
        run_callbacks=[score, log],
    )
    seconds = round(time.monotonic() - start, 1)
    num_steps = training_log.optimizer_step(tuner)
    _write_answers(run, score.answers, score.scores.get(THRESHOLD))
    return {
        "steps": num_steps,
        "seconds": seconds,
        "num_parameters": tuner.network.count_params(),
        "num_train_examples": num_train,
        "num_eval_examples": num_dev,
        "train": log.last_step_logs,
        "eval": score.scores,
    }


def _write_answers(
    run: run_directory.Run, answers: dataset.Answers, threshold: float | None
) -> None:
    lines = (
        json.dumps(record) + "\n" for record in answers.records(threshold=threshold)
    )
    files.write_atomically(run.directory / ANSWERS_NAME, "".join(lines).encode())


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
        """The last ones, of all files."""
        self.answers: dataset.Answers | None = None
        """The last ones, to the main file."""

    def on_train_begin(self, logs=None):
        self._forward = Forward(self.model.network)

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
