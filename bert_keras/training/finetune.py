"""Fine-tuning: a task's data and an encoder become a tuned run."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras import (
    __version__,
    config,
    files,
    finetuning_config,
    ownership,
    provenance,
    run_directory,
)
from bert_keras.checkpoints import (
    run_weights,
    starting_point,
    training_state,
    weights,
)
from bert_keras.data import tokenization
from bert_keras.errors import InputError, Stopped
from bert_keras.inference import forward
from bert_keras.model import networks
from bert_keras.report import task_summaries
from bert_keras.tasks import (
    catalogue,
    data_report,
    dataset,
    embedding,
    held_out,
)
from bert_keras.training import (
    keeping,
    learner,
    precision,
    replicas,
    self_check,
    settings_check,
    stopping,
    task_batches,
    task_training,
)

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "max_skipped_steps",
    "save_checkpoint_minutes",
    "save_checkpoint_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: they do not affect its result."""


class _Examples(NamedTuple):
    """A file to train or score on, and its model inputs."""

    name: str
    data: dataset.Dataset
    inputs: dataset.EncodedInputs


class _Inputs(NamedTuple):
    """All that a run is made from, seen to fit together."""

    start: weights.Checkpoint
    arrays: Mapping[str, np.ndarray]
    """The checkpoint's weights that the network begins with."""
    task: config.Task
    examples: Sequence[_Examples]
    """Those to train on, then those of the files to evaluate on."""
    recorded: dict[str, Any]
    """Digests, in the run's directory: a resumed run has the same."""
    data_report: data_report.DataReport


def finetune(
    settings: finetuning_config.FinetuningConfig,
    *,
    train: str | Path,
    dev: Sequence[str | Path],
    init: str | Path,
    from_scratch: bool,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
    is_chief: bool = True,
) -> dict[str, Any]:
    """Trains the encoder of a checkpoint, and a new head, on a task.

    The head of a checkpoint is kept if it means the same on any data: in a `span` run
    that starts from another (SQuAD after TriviaQA, as in the paper), and in `choice`.
    Called again with the same arguments, resumes an unfinished run after its last
    checkpoint and leaves a finished one as it is.

    Args:
        settings: the run's configuration, which names the task.
        train: file to train on (see `bert_keras.tasks.catalogue`).
        dev: files to evaluate on, the main one first, which may be a part of `train`
            that is not trained on (see `bert_keras.tasks.held_out`). The scores of the
            others have their file's name before them.
        init: checkpoint of any format (see `checkpoints.conversion`): gives encoder,
            vocabulary and casing.
        from_scratch: take the sizes of that encoder, but random weights.
        output_dir: run directory to make; several workers must share it.
        strategy: to train and to evaluate under.
        is_chief: whether this process, of several that train together, writes files.

    Returns:
        Content of `results.json`: steps, seconds, examples, the scores of the weights.

    Raises:
        InputError: a file, the checkpoint or the directory cannot be used, the loss or
            gradients do not stay finite, devices add up wrong (see `self_check`), or a
            worker is lost.
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    settings = _resolved(settings, strategy)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(ownership.owned(output_dir)) if is_chief else None
        stop_signal = stack.enter_context(stopping.StopSignal())
        # Other workers would wait for one that leaves alone.
        stop_signal.ends_at_once = not replicas.is_multi_worker(strategy)
        stack.enter_context(_errors_for_people())
        # Before the run is made, because unknown labels are found here.
        inputs = _read_inputs(settings, train, dev, init, from_scratch=from_scratch)
        run = _create_run(
            settings, inputs, output_dir, strategy=strategy, is_chief=is_chief
        )
        if (results := run_directory.read_results(output_dir)) is not None:
            step = results["steps"]
            logger.info("%s: finished already, at step %d", output_dir, step)
            return results
        if is_chief:
            _report_data(run, inputs.data_report)
        if self_check.is_due(strategy):
            self_check.check(strategy)
        examples = inputs.examples
        tuner = _build_tuner(settings, run, examples[0].inputs, strategy)
        if not from_scratch:
            starting_point.assign(tuner.network, inputs.arrays, path=init)
        # As large as the model, and not needed any more.
        del inputs
        results = _train(
            *(settings, run, tuner, examples), owner=owner, stop_signal=stop_signal
        )
        # Seconds from its end, a run ends well.
        stop_signal.ends_at_once = False
        results["environment"] = provenance.describe(
            devices=replicas.describe_devices(strategy),
            paths={"train": train, "dev": list(dev), "init": init},
        )
        if is_chief:
            _finish(run, tuner, results, stop_signal)
        # To the others a worker that leaves early looks as if it had been killed.
        replicas.wait_for_all(strategy)
    logger.info("model and results in %s", run.directory)
    return results


def _create_run(
    settings: finetuning_config.FinetuningConfig,
    inputs: _Inputs,
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    is_chief: bool,
) -> run_directory.Run:
    """The run's directory, once all workers are seen to have been given the same."""
    start = inputs.start
    run = run_directory.create_run(
        output_dir,
        settings,
        task=inputs.task,
        bert_config=_with_dropout(start.bert_config, settings),
        vocabulary=start.vocabulary,
        do_lower_case=start.do_lower_case,
        inputs=inputs.recorded,
        changeable=CHANGEABLE,
        is_chief=is_chief,
    )
    values = run_directory.flat(settings.model_dump(mode="json")) | inputs.recorded
    replicas.check_same(strategy, values | {"version of bert-keras": __version__})
    replicas.wait_for_all(strategy)
    return run


def _report_data(run: run_directory.Run, report: data_report.DataReport) -> None:
    """Says what the data is like, and writes it down once."""
    for line in data_report.lines(report):
        logger.info("%s", line)
    path = run.directory / run_directory.DATA_REPORT_NAME
    if not path.is_file():
        files.write_json(path, report.model_dump(mode="json"), ensure_ascii=False)


def _finish(
    run: run_directory.Run,
    tuner: learner.Learner,
    results: dict[str, Any],
    stop_signal: stopping.StopSignal,
) -> None:
    run_weights.finish_run(run, tuner.network, results)
    files.delete_tree(run.directory / run_directory.CHECKPOINTS_NAME)
    # Last: a picture that cannot be drawn does not cost the weights.
    try:
        with stop_signal.ending_at_once():
            task_summaries.write(run.directory, step=results["steps"])
    except Stopped:
        logger.warning(
            "SIGTERM: the run is finished, but TensorBoard lacks pictures of its "
            "answers; `bert-keras report` draws them"
        )


@contextlib.contextmanager
def _errors_for_people() -> Iterator[None]:
    """Turns the error of a lost worker into an `InputError`."""
    try:
        yield
    except tf.errors.OpError as error:
        if message := stopping.lost_worker_message(error):
            raise InputError(message) from None
        raise


def _resolved(
    settings: finetuning_config.FinetuningConfig, strategy: tf.distribute.Strategy
) -> finetuning_config.FinetuningConfig:
    """The settings with what the devices decide."""
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    changes = {"precision": precision.resolve(settings.precision, strategy)}
    if settings.task == "embedding" and settings.jit_compile and not on_tpu:
        if (number := strategy.num_replicas_in_sync) > 1:
            raise InputError(
                f"`jit_compile` is not for --task embedding on {number} replicas, "
                "which compare the texts of all within a step: leave it out"
            )
    if lengths := settings.fixed_lengths(on_tpu=on_tpu):
        changes |= {"lengths": lengths, "length_multiple": 1}
    elif on_tpu:
        raise InputError(replicas.NEEDS_LENGTHS)
    return settings.model_copy(update=changes)


def _read_inputs(
    settings: finetuning_config.FinetuningConfig,
    train: str | Path,
    dev: Sequence[str | Path],
    init: str | Path,
    *,
    from_scratch: bool,
) -> _Inputs:
    start = _read_init(init, settings.max_seq_length)
    task, examples = _read_examples((train, *dev), settings, start.tokenizer)
    settings_check.check(settings, task, start.bert_config)
    if isinstance(first_dev := examples[1].data, embedding.EmbeddingDataset):
        first_dev.check_metric()
    arrays = starting_point.tuning_arrays(start, task)
    recorded = {
        "train_sha256": held_out.digest(train),
        "dev_sha256": held_out.digests(dev),
        "init_sha256": starting_point.digest(start, arrays),
        "from_scratch": from_scratch,
    }
    report = data_report.describe(
        examples,
        kind=task.kind,
        max_seq_length=settings.max_seq_length,
        long_texts=settings.long_texts,
    )
    return _Inputs(start, arrays, task, examples, recorded, report)


def _read_init(path: str | Path, max_seq_length: int) -> weights.Checkpoint:
    checkpoint = starting_point.read_with_tokenizer(path)
    longest = checkpoint.bert_config.max_position_embeddings
    if max_seq_length > longest:
        raise InputError(
            f"`max_seq_length` is {max_seq_length}, but the encoder of {path} "
            f"takes {longest} tokens at most: --set max_seq_length={longest}"
        )
    return checkpoint


def _with_dropout(
    bert_config: config.BertConfig, settings: finetuning_config.FinetuningConfig
) -> config.BertConfig:
    """The checkpoint's configuration with the dropout that the settings say."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    given = {name: getattr(settings, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return bert_config.model_copy(update=changes)


def _read_examples(
    paths: Sequence[str | Path],
    settings: finetuning_config.FinetuningConfig,
    tokenizer: tokenization.Tokenizer,
) -> tuple[config.Task, list[_Examples]]:
    """The task that the first file teaches, and the examples of all files."""
    train, *dev = paths
    task, names, data = held_out.read(train, dev, settings)
    task = task.model_copy(update={"bilstm_units": settings.bilstm_units})
    return task, [
        _Examples(name, examples, examples.encode(task, tokenizer, settings))
        for name, examples in zip(names, data, strict=True)
    ]


def _build_tuner(
    settings: finetuning_config.FinetuningConfig,
    run: run_directory.Run,
    inputs: dataset.Inputs,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    keras.utils.set_random_seed(settings.seed)

    def make_network() -> keras.Model:
        network = networks.build(
            run.bert_config,
            run.task,
            dropout_prob=settings.dropout_prob,
            scale=settings.embedding.scale,
            seed=settings.seed,
            dtype=settings.precision,
        )
        if run.task.kind == "embedding":
            network.gather = replicas.rows_of_all
        return network

    return task_training.build_learner(
        settings,
        make_network,
        inputs,
        strategy=strategy,
        optimizer_settings={
            "adamw_mode": settings.adamw_mode,
            "max_grad_norm": settings.max_grad_norm,
        },
        steps_per_execution=settings.steps_per_execution,
        num_parts=settings.gradient_accumulation_steps,
        recompute=settings.recompute,
        # A TPU compiles the step by itself.
        compile_step=settings.jit_compile
        and not isinstance(strategy, tf.distribute.TPUStrategy),
    )


def _train(
    settings: finetuning_config.FinetuningConfig,
    run: run_directory.Run,
    tuner: learner.Learner,
    examples: Sequence[_Examples],
    *,
    owner: ownership.Owner | None,
    stop_signal: stopping.StopSignal,
) -> dict[str, Any]:
    """Trains, keeps the weights that are to be kept, and gives the run's results."""
    train_examples, *dev_examples = examples
    num_train, num_dev = len(train_examples.data), len(dev_examples[0].data)
    logger.info("fine-tuning on %d examples, evaluating on %d", num_train, num_dev)
    num_inputs = len(train_examples.inputs.lengths)
    steps_per_epoch, num_train_steps = task_training.num_steps(settings, num_inputs)
    interval = settings.evaluate_steps or steps_per_epoch
    keeper = keeping.Keeper(
        tuner,
        settings,
        metric=catalogue.main_metric(settings, run.task.labels),
        directory=run.directory / run_directory.CHECKPOINTS_NAME,
        owner=owner,
        stop_signal=stop_signal,
        steps_per_evaluation=interval,
        num_train_steps=num_train_steps,
    )
    keeper.restore()
    evaluation = _Evaluation(tuner, run.task, settings, dev_examples, keeper)
    task_training.fit(
        tuner,
        settings,
        train_examples.inputs,
        by_length=settings.are_batches_by_length(run.task),
        seed=settings.seed,
        logs=run.directory / run_directory.LOGS_NAME,
        batch_shapes=task_batches.BatchShapes.of(settings),
        callbacks=[
            stopping.StopOnDrift(
                tuner.distribute_strategy,
                training_state.named_variables(tuner, tuner.optimizer),
                every_steps=interval,
                last_step=num_train_steps,
            ),
            evaluation,
        ],
        steps_per_evaluation=interval,
        save_steps=settings.save_checkpoint_steps,
        keeper=keeper,
        is_chief=owner is not None,
    )
    num_steps = keeper.last_step
    seconds = round(keeper.seconds, 1)
    kept_step = keeper.restore_best()
    if kept_step != num_steps:
        evaluation.evaluate()
    thresholds = evaluation.answers.best_threshold()
    results = {
        "steps": num_steps,
        **({"kept_step": kept_step} if settings.keep == "best" else {}),
        "seconds": seconds,
        "num_parameters": tuner.network.count_params(),
        "num_train_examples": num_train,
        "num_eval_examples": num_dev,
        "train": keeper.step_logs,
        "eval": evaluation.scores,
        **({run_directory.THRESHOLDS: thresholds} if thresholds else {}),
    }
    if owner is not None:
        _write_answers(run, evaluation.answers, run_directory.threshold_of(results))
    return results


def _write_answers(
    run: run_directory.Run, answers: dataset.Answers, threshold: dataset.Threshold
) -> None:
    lines = (
        files.to_json(record.model_dump()) + "\n"
        for record in answers.records(threshold=threshold)
    )
    path = run.directory / run_directory.ANSWERS_NAME
    files.write_atomically(path, "".join(lines).encode())


class _Evaluation(keras.callbacks.Callback):
    """Adds scores to the logs that the callbacks after it are given."""

    def __init__(
        self,
        tuner: learner.Learner,
        task: config.Task,
        settings: finetuning_config.FinetuningConfig,
        examples: Sequence[_Examples],
        keeper: keeping.Keeper,
    ):
        super().__init__()
        self._keeper = keeper
        self._forward = forward.of_task(
            tuner.network,
            strategy=tuner.distribute_strategy,
            ladder=settings.lengths or (),
        )
        self._task, self._settings, self._examples = task, settings, examples
        self.scores: dict[str, float] = {}
        """Last scores, of all files."""
        self.answers: dataset.Answers | None = None
        """Last answers, to the main file."""

    def evaluate(self) -> None:
        with self._keeper.evaluating():
            self._evaluate()

    def _evaluate(self) -> None:
        self.scores = {}
        for number, (_, data, data_inputs) in enumerate(self._examples):
            outputs = self._forward(
                data_inputs, title=f"evaluating on {data.path.name}"
            )
            answers = data.answer(outputs, data_inputs, self._task, self._settings)
            prefix = f"{data.path.stem}_" if number else ""
            self.scores |= {f"{prefix}{k}": v for k, v in answers.scores().items()}
            if not number:
                self.answers = answers

    def on_epoch_end(self, epoch, logs=None):
        self.evaluate()
        # Counts, which do not change, are no curves.
        curves = {k: v for k, v in self.scores.items() if isinstance(v, float)}
        logs.update({f"val_{name}": value for name, value in curves.items()})
