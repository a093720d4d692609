"""A run on labelled or plain texts, from its inputs to its results.

`finetune` and `distill` say what a run is made from and what network it trains; this
is all that they do alike.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_keras import __version__
from bert_keras.checkpoints import run_directory, run_weights, training_state
from bert_keras.core import files, ownership, provenance
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import config, finetuning
from bert_keras.data import tokenization
from bert_keras.inference import forward
from bert_keras.kinds import catalogue, registry
from bert_keras.labelled import data_report, dataset
from bert_keras.report import task_summaries
from bert_keras.training.finetuning import keeping, task_batches, task_training
from bert_keras.training.step import learner, precision, replicas, self_check, stopping

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "max_skipped_steps",
    "save_checkpoint_minutes",
    "save_checkpoint_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: they do not affect its result."""


class Examples(NamedTuple):
    """A file to train or score on, and its model inputs."""

    name: str
    data: dataset.Dataset
    inputs: dataset.EncodedInputs


class Inputs(NamedTuple):
    """All that a run is made from, seen to fit together."""

    bert_config: config.BertConfig
    """Of the encoder to train."""
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    task: config.Task
    num_train_examples: int
    dev: Sequence[Examples]
    """Those of the files to evaluate on, perhaps none."""
    recorded: dict[str, Any]
    """Digests, in the run's directory: a resumed run has the same."""
    data_report: data_report.DataReport | None
    build: "Callable[[run_directory.Run], Trained]"
    """Makes what is trained, with its initial weights."""


class Trained(NamedTuple):
    """What a run trains, and on what."""

    tuner: learner.Learner
    network: keras.Model
    """What its directory keeps: all that the tuner trains, or the part to be used."""
    inputs: dataset.Inputs
    """Model inputs to train on."""


def run(
    settings: finetuning.FinetuningConfig,
    read: Callable[[], Inputs],
    *,
    paths: Mapping[str, Any],
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
    is_chief: bool,
) -> dict[str, Any]:
    """Makes or resumes a run, and leaves a finished one as it is.

    Args:
        settings: `resolved`.
        read: gives all that the run is made from.
        paths: of what was read, for `results.json`.
        output_dir: run directory to make; several workers must share it.
        strategy: to train and to evaluate under.
        is_chief: whether this process, of several that train together, writes files.

    Returns:
        Content of `results.json`.

    Raises:
        InputError, Stopped: see `finetune.finetune`.
    """
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(ownership.owned(output_dir)) if is_chief else None
        stop_signal = stack.enter_context(stopping.StopSignal())
        # Other workers would wait for one that leaves alone.
        stop_signal.ends_at_once = not replicas.is_multi_worker(strategy)
        stack.enter_context(_errors_for_people())
        # Before the run is made, because unknown labels are found here.
        inputs = read()
        directory = _create_run(
            settings, inputs, output_dir, strategy=strategy, is_chief=is_chief
        )
        if (results := run_directory.read_results(output_dir)) is not None:
            step = results["steps"]
            logger.info("%s: finished already, at step %d", output_dir, step)
            return results
        if is_chief and inputs.data_report is not None:
            _report_data(directory, inputs.data_report)
        if self_check.is_due(strategy):
            self_check.check(strategy)
        trained = inputs.build(directory)
        # It holds initial weights, as large as the model, that are not needed any more.
        inputs = inputs._replace(build=_is_built)
        results = _train(
            *(settings, directory, trained, inputs),
            owner=owner,
            stop_signal=stop_signal,
        )
        # Seconds from its end, a run ends well.
        stop_signal.ends_at_once = False
        results["environment"] = provenance.describe(
            devices=replicas.describe_devices(strategy), paths=paths
        )
        if is_chief:
            _finish(directory, trained.network, results, stop_signal)
        # To the others a worker that leaves early looks as if it had been killed.
        replicas.wait_for_all(strategy)
    logger.info(
        "wrote %s and %s in %s",
        run_directory.WEIGHTS_NAME,
        run_directory.RESULTS_NAME,
        directory.directory,
    )
    return results


def _is_built(run: run_directory.Run) -> Trained:
    raise AssertionError("a run is built once")


def _create_run(
    settings: finetuning.FinetuningConfig,
    inputs: Inputs,
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    is_chief: bool,
) -> run_directory.Run:
    """The run's directory, once all workers are seen to have been given the same."""
    run = run_directory.create_run(
        output_dir,
        settings,
        task=inputs.task,
        bert_config=inputs.bert_config,
        vocabulary=inputs.vocabulary,
        do_lower_case=inputs.do_lower_case,
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
    for line in data_report.lines(report, registry.labelled(report.kind)):
        logger.info("%s", line)
    path = run.directory / run_directory.DATA_REPORT_NAME
    if not path.is_file():
        files.write_json(path, report.model_dump(mode="json"), ensure_ascii=False)


def _finish(
    run: run_directory.Run,
    network: keras.Model,
    results: dict[str, Any],
    stop_signal: stopping.StopSignal,
) -> None:
    run_weights.finish_run(run, network, results)
    files.delete_tree(run.directory / run_directory.CHECKPOINTS_NAME)
    if run.task.kind == "encoder":
        # It answers nothing.
        return
    # Last: a picture that cannot be drawn does not cost the weights.
    try:
        with stop_signal.ending_at_once():
            task_summaries.write(run.directory, step=results["steps"])
    except Stopped:
        logger.warning(
            "stopped: the run is finished, but TensorBoard lacks pictures of its "
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


def resolved(
    settings: finetuning.FinetuningConfig, strategy: tf.distribute.Strategy
) -> finetuning.FinetuningConfig:
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


def with_dropout(
    bert_config: config.BertConfig, settings: finetuning.FinetuningConfig
) -> config.BertConfig:
    """The checkpoint's configuration with the dropout that the settings say."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    given = {name: getattr(settings, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return bert_config.model_copy(update=changes)


def describe_data(
    settings: finetuning.FinetuningConfig,
    task: config.Task,
    examples: Sequence[Examples],
) -> data_report.DataReport:
    """What the files of a run are like, the training file first."""
    return data_report.describe(
        examples,
        kind=task.kind,
        max_seq_length=settings.max_seq_length,
        long_texts=settings.long_texts,
    )


def build_network(
    settings: finetuning.FinetuningConfig, run: run_directory.Run
) -> keras.Model:
    """Makes the network of a run, its weights from the seed."""
    network = registry.build_network(
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


def build_tuner(
    settings: finetuning.FinetuningConfig,
    make_network: Callable[[], keras.Model],
    inputs: dataset.Inputs,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    """Builds a learner as the settings say.

    Args:
        settings: `resolved`.
        make_network: makes the network, its weights from `settings.seed`.
        inputs: of all examples, with all that its loss reads.
        strategy: to train under.
    """
    keras.utils.set_random_seed(settings.seed)
    return task_training.build_learner(
        settings,
        make_network,
        inputs,
        strategy=strategy,
        optimizer_settings={
            "adamw_mode": settings.decided_adamw_mode,
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
    settings: finetuning.FinetuningConfig,
    run: run_directory.Run,
    trained: Trained,
    inputs: Inputs,
    *,
    owner: ownership.Owner | None,
    stop_signal: stopping.StopSignal,
) -> dict[str, Any]:
    """Trains, keeps the weights that are to be kept, and gives the run's results."""
    tuner, network, train_inputs = trained
    num_train = inputs.num_train_examples
    num_dev = len(inputs.dev[0].data) if inputs.dev else 0
    evaluating = f", evaluating on {num_dev}" if num_dev else ""
    logger.info("fine-tuning on %d examples%s", num_train, evaluating)
    steps_per_epoch, num_train_steps = task_training.num_steps(
        settings, len(train_inputs.lengths)
    )
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
    evaluation = _Evaluation(
        network,
        run.task,
        settings,
        inputs.dev,
        keeper,
        strategy=tuner.distribute_strategy,
    )
    task_training.fit(
        tuner,
        settings,
        train_inputs,
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
            *([evaluation] if inputs.dev else []),
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
    answers = evaluation.answers
    thresholds = answers.best_threshold() if answers else None
    results = {
        "steps": num_steps,
        **({"kept_step": kept_step} if settings.keep == "best" else {}),
        "seconds": seconds,
        "num_parameters": network.count_params(),
        "num_train_examples": num_train,
        "num_eval_examples": num_dev,
        "train": keeper.step_logs,
        "eval": evaluation.scores,
        **({run_directory.THRESHOLDS: thresholds} if thresholds else {}),
    }
    if owner is not None and answers:
        _write_answers(run, answers, run_directory.threshold_of(results))
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
        network: keras.Model,
        task: config.Task,
        settings: finetuning.FinetuningConfig,
        examples: Sequence[Examples],
        keeper: keeping.Keeper,
        *,
        strategy: tf.distribute.Strategy,
    ):
        super().__init__()
        self._keeper = keeper
        self._forward = forward.of_task(
            network,
            strategy=strategy,
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
