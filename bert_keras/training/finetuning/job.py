"""Training on labelled or plain texts as a job of the loop.

`finetune` and `distill` say what a run is made from and what network it trains.
"""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError, Stopped, one_line
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.inference import forward
from bert_keras.kinds.kind import Kind, Labelled
from bert_keras.labelled import data_report, dataset
from bert_keras.model import lora
from bert_keras.report import scalar_log, task_summaries
from bert_keras.training import run, watching
from bert_keras.training.finetuning import learning
from bert_keras.training.step import engine, learner, precision, replicas, stopping

logger = logging.getLogger(__name__)

CHANGEABLE = (
    "max_skipped_steps",
    "save_checkpoint_minutes",
    "save_checkpoint_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: they do not affect its result."""


class Examples(NamedTuple):
    name: str
    data: dataset.Dataset
    inputs: dataset.EncodedInputs


class Inputs(NamedTuple):
    """The validated inputs of a run."""

    bert_config: architecture.BertConfig
    """Of the encoder that the run begins with; the settings may change its dropout."""
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    kind: Kind
    task: tasks.Task
    metric: str
    """The metric that chooses the best checkpoint."""
    num_train_examples: int
    dev: Sequence[Examples]
    """Files to evaluate on; may be empty."""
    recorded: dict[str, Any]
    """Digests in the run's directory, which a resumed run must match."""
    data_report: data_report.DataReport | None
    adapter: tasks.Adapter | None = None
    """`None`: the run keeps all weights."""

    @property
    def num_dev_examples(self) -> int:
        return len(self.dev[0].data) if self.dev else 0


Build = Callable[
    [run_directory.Run], tuple[learner.Learner, keras.Model, dataset.Inputs]
]
"""Returns what is trained, the network whose weights are kept, perhaps a part of it,
and the inputs."""


class TuningJob(run.Job):
    """A run on labelled or plain texts.

    `read` returns the inputs and the function that builds the network.
    """

    engine: engine.KerasEngine
    _inputs: Inputs

    def __init__(
        self,
        settings: finetuning.FinetuningConfig,
        read: Callable[[], tuple[Inputs, Build]],
        output_dir: str | Path,
        **options: Any,
    ):
        super().__init__(output_dir, **options)
        self._settings, self._read = settings, read
        self._scores: dict[str, float] = {}
        self._answers: dataset.Answers | None = None
        self._best = (math.inf, 0)
        """Score of the best evaluation, the lowest, and its step; 0: none so far."""

    def prepare(self) -> None:
        # Before the run is made, because unknown labels are seen here.
        self._inputs, self._build = inputs, _ = self._read()
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        dropout = {name: getattr(self._settings, name) for name in names}
        dropout = {name: value for name, value in dropout.items() if value is not None}
        self._create_run(
            self._settings,
            compared=inputs.recorded,
            task=inputs.task,
            bert_config=inputs.bert_config.model_copy(update=dropout),
            vocabulary=inputs.vocabulary,
            do_lower_case=inputs.do_lower_case,
            adapter=inputs.adapter,
            inputs=inputs.recorded,
            changeable=CHANGEABLE,
        )

    def build(self) -> None:
        settings, inputs = self._settings, self._inputs
        # 1. What the files hold is said before the first step.
        if self.is_chief and inputs.data_report is not None:
            for line in data_report.lines(inputs.data_report, inputs.kind):
                logger.info("%s", line)
            path = self.run.directory / run_directory.DATA_REPORT_NAME
            if not path.is_file():
                report = inputs.data_report.model_dump(mode="json")
                files.write_json(path, report, ensure_ascii=False)
        # 2. The network with its optimizer, on the devices.
        tuner, network, train_inputs = self._build(self.run)
        # They hold initial weights, as large as the model, which are no longer needed.
        del self._build, self._read
        self.engine.take(tuner, network)
        if self.run.task.feature_layers and not settings.lengths:
            train_inputs = self._with_word_vectors(train_inputs)
        self._forward = forward.predictor_for(
            network, strategy=self.engine.strategy, ladder=settings.lengths or ()
        )
        self._seconds = keras.Variable(0.0, trainable=False, dtype="float64")
        # The frozen weights of an adapter are read from its base again.
        frozen = network.non_trainable_weights if inputs.adapter else []
        left_out = {id(weight) for weight in frozen}
        state = {k: v for k, v in self.engine.state().items() if id(v) not in left_out}
        self.state = {**state, "run/seconds": self._seconds}
        # 3. Files of the run: its curves, the newest checkpoint, and the best one if it
        # is asked for.
        self._logs = self.run.directory / run_directory.LOGS_NAME
        keeps_best = settings.keep == "best" or settings.early_stopping is not None
        self.checkpoints_to_keep = {"keep": 1, "keep_best": int(keeps_best)}
        # 4. What is trained on, and what watches it.
        num_dev, num_train = inputs.num_dev_examples, inputs.num_train_examples
        evaluating = f", evaluating on {num_dev}" if num_dev else ""
        logger.info("fine-tuning on %d examples%s", num_train, evaluating)
        per_epoch, num_train_steps = learning.num_steps(
            settings, len(train_inputs.lengths)
        )
        enter = functools.partial(
            watching.open_watchers,
            trained=tuner,
            sizes=watching.Sizes(num_train_steps, settings.batch_size),
            logs=self._logs,
            # A short run must not end well without a single update.
            max_skipped_steps=min(settings.max_skipped_steps, num_train_steps - 1),
            describe_skipped=lambda first, last: (
                ": lower `learning_rate`, or take another checkpoint"
            ),
        )
        by_length = settings.are_batches_by_length(self.run.task)
        self.stretches = [
            learning.build_stretch(
                tuner, settings, train_inputs, by_length=by_length, enter=enter
            )
        ]
        # 5. What comes between the steps. Steps that may be the best are saved before
        # they are evaluated, so that the score goes beside the checkpoint; else the
        # last step has no checkpoint, for the run's weights follow it at once.
        self._interval = interval = settings.evaluate_steps or per_epoch
        saves_to_evaluate = keeps_best and bool(inputs.dev)
        save_steps = settings.save_checkpoint_steps, saves_to_evaluate and interval
        self.events = [
            run.Event(name="compare", what=run.compare_workers, every_steps=[interval]),
            run.Event(
                name="save",
                what=run.Loop.save,
                every_steps=[steps for steps in save_steps if steps],
                every_minutes=settings.save_checkpoint_minutes,
                at_end=saves_to_evaluate,
            ),
        ]
        if inputs.dev:
            evaluate = run.Event(
                name="evaluate",
                what=self._evaluate,
                every_steps=[interval],
                is_done=lambda loop: loop.checkpoints.has_score(loop.step),
            )
            self.events.append(evaluate)

    def _with_word_vectors(self, inputs: Any) -> dataset.Inputs:
        """Runs the frozen encoder once, and not in each epoch."""
        network: Any = self.engine.network

        def compute(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
            vectors = network.word_vectors(features)
            if self.engine.strategy.num_replicas_in_sync == 1:
                return vectors
            # The vectors of all replicas are gathered, so their shapes are alike.
            missing = tf.shape(features["word_positions"])[1] - tf.shape(vectors)[1]
            return tf.pad(vectors, [[0, 0], [0, missing], [0, 0], [0, 0]])

        predict = forward.BatchPredictor(compute, strategy=self.engine.strategy)
        vectors = predict(inputs, title="vectors of words", on_disk=True)
        return dataclasses.replace(inputs, vectors=vectors)

    def begin(self, loop: run.Loop) -> None:
        scores = loop.checkpoints.scores()
        self._best = min(((v, k) for k, v in scores.items()), default=self._best)
        if loop.step == 0 and self.is_chief:
            files.delete_tree(self._logs)
        self._began_at = time.monotonic()

    def _evaluate(self, loop: run.Loop) -> None:
        self._answer()
        # Counts, which do not change, are no curves.
        scores = {k: v for k, v in self._scores.items() if isinstance(v, float)}
        loop.log_metrics(scores)
        # The highest is best of metrics, the lowest of checkpoints.
        score, step = -self._scores[self._inputs.metric], loop.step
        loop.checkpoints.record_score(step, score)
        if score < self._best[0]:
            self._best = (score, step)
        if self.is_over(loop):
            logger.info(
                "no gain in %s for %d evaluations: stopped at step %d",
                self._inputs.metric,
                self._settings.early_stopping,
                step,
            )

    def is_over(self, loop: run.Loop) -> bool:
        patience = self._settings.early_stopping
        num_without_gain = (loop.step - self._best[1]) // self._interval
        return patience is not None and num_without_gain >= patience

    def _answer(self) -> None:
        """Computes scores of all files, and answers to the main one."""
        self._scores = {}
        for number, (_, data, inputs) in enumerate(self._inputs.dev):
            outputs = self._forward(inputs, title=f"evaluating on {data.path.name}")
            answers = data.answer(outputs, inputs, self.run.task, self._settings)
            prefix = f"{data.path.stem}_" if number else ""
            self._scores |= {f"{prefix}{k}": v for k, v in answers.scores().items()}
            self._answers = self._answers if number else answers

    @property
    def _seconds_so_far(self) -> float:
        """Returns the seconds of training, also before the last checkpoint."""
        return float(self._seconds.numpy()) + time.monotonic() - self._began_at

    def before_save(self) -> None:
        self._seconds.assign(self._seconds_so_far)
        self._began_at = time.monotonic()

    def results(self, loop: run.Loop) -> dict[str, Any]:
        # 1. The weights: the best ones, if they are asked for.
        num_steps, seconds = loop.step, self._seconds_so_far
        kept_step = num_steps
        if self._settings.keep == "best":
            kept_step = self._restore_best(loop)
        # 2. Their scores. An earlier process may have made the last evaluation.
        if kept_step != num_steps or not self._scores:
            self._answer()
        answers = self._answers
        decision = answers.best_decision() if answers else tasks.LIKELIEST
        thresholds = decision.label_thresholds
        # The last scalars in the curves, without the speeds, which depend on time.
        curves = scalar_log.read_log(self._logs / "train").scalars
        train = {
            tag.partition("/")[2]: float(curve.values[-1])
            for tag, curve in curves.items()
            if not tag.startswith("speed/")
        }
        results = {
            "steps": num_steps,
            **({"kept_step": kept_step} if self._settings.keep == "best" else {}),
            "seconds": round(seconds, 1),
            "num_parameters": self.engine.network.count_params(),
            "num_train_examples": self._inputs.num_train_examples,
            "num_eval_examples": self._inputs.num_dev_examples,
            "train": train,
            "eval": self._scores,
            **({run_directory.THRESHOLDS: thresholds} if thresholds else {}),
        }
        # 3. Their answers.
        if self.is_chief and answers:
            records = answers.records(decision=run_directory.decision_of(results))
            run_directory.write_answers(self.run.directory, records)
        return results

    def _restore_best(self, loop: run.Loop) -> int:
        """Restores the weights of the best evaluation; returns their step."""
        last_step, step, metric = loop.step, self._best[1], self._inputs.metric
        if step == last_step:
            return last_step
        if not step:
            message = "no evaluation had a number for %s: the last weights are kept"
            logger.warning(message, metric)
            return last_step
        # Only the chief writes the checkpoint, and may rename it once all have read it.
        self.engine.wait_for_all()
        is_whole = loop.checkpoints.restore(step, self.state)
        self.engine.wait_for_all()
        if not is_whole:
            if self.is_chief:
                loop.checkpoints.set_aside(step)
            logger.warning(
                "best %s at step %d: its checkpoint is damaged, so the last weights "
                "are kept",
                *(metric, step),
            )
            return last_step
        logger.info("best %s at step %d: its weights are kept", metric, step)
        return step

    def delete_leftovers(self) -> None:
        files.delete_tree(self.run.directory / run_directory.CHECKPOINTS_NAME)

    def finish(
        self, results: Mapping[str, Any], stop_signal: stopping.StopSignal
    ) -> None:
        directory, kind = self.run.directory, self._inputs.kind
        self.delete_leftovers()
        if not isinstance(kind, Labelled):
            return
        # Pictures come last: one that fails does not cost the weights.
        try:
            with stop_signal.ending_at_once():
                task_summaries.write(kind, directory, step=results["steps"])
        except (Stopped, tf.errors.OpError) as error:
            # TensorFlow's own tell of a full disk, among others.
            logger.warning(
                "%s: the run is finished, but TensorBoard lacks pictures of its "
                "answers; `bert-keras report` draws them",
                "stopped" if isinstance(error, Stopped) else one_line(error),
            )


def resolved(
    settings: finetuning.FinetuningConfig, strategy: tf.distribute.Strategy
) -> finetuning.FinetuningConfig:
    """Returns the settings with the values that the devices decide."""
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
        raise InputError(
            "--strategy tpu: a TPU needs batches of fixed shapes, got `lengths=[]`: "
            "leave `lengths` out"
        )
    return settings.model_copy(update=changes)


def build_network(
    kind: Kind, settings: finetuning.FinetuningConfig, directory: run_directory.Run
) -> keras.Model:
    """Builds the network of a run, with weights from the seed."""
    compares_rows = directory.task.kind == "embedding"
    network = kind.build(
        directory.bert_config,
        directory.task,
        dropout_prob=settings.dropout_prob,
        seed=settings.seed,
        dtype=settings.precision,
        **{"scale": settings.embedding.scale} if compares_rows else {},
    )
    if compares_rows:
        network.gather = replicas.rows_of_all
    if directory.adapter is not None:
        lora.enable(network, directory.adapter, seed=settings.seed)
    return network
