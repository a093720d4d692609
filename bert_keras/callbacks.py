"""What happens beside the training steps: progress, TensorBoard, checkpoints."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

logger = logging.getLogger(__name__)


class StopAtStep(keras.callbacks.Callback):
    """Ends training when the optimizer has made `num_train_steps` updates."""

    def __init__(self, num_train_steps: int):
        super().__init__()
        self._num_train_steps = num_train_steps

    def on_train_batch_end(self, batch, logs=None):
        if optimizer_step(self.model) >= self._num_train_steps:
            self.model.stop_training = True


class SaveEachEpoch(keras.callbacks.Callback):
    """Calls `save(step)` at the end of each epoch: of each save interval."""

    def __init__(self, save: Callable[[int], object]):
        super().__init__()
        self._save = save

    def on_epoch_end(self, epoch, logs=None):
        self._save(optimizer_step(self.model))


class TrainingLog(keras.callbacks.Callback):
    """Scalars for TensorBoard and a line for people.

    TensorBoard gets the first step and then every `every_steps`-th; the scalars are
    the step's own, where Keras gives running means, and the step is the optimizer's,
    so that curves go on where a resumed run left them. Evaluations go to a second
    curve of the same name. The line comes with the first step and every ten seconds.

    Args:
        directory: of the event files; `train` and `eval` are made in it.
        num_train_steps: for the time left.
        batch_size: examples per step, for the rate.
        every_steps: how often scalars are written.
    """

    LINE_SECONDS = 10.0

    def __init__(
        self,
        directory: Path,
        *,
        num_train_steps: int,
        batch_size: int,
        every_steps: int = 10,
    ):
        super().__init__()
        self._train_writer = tf.summary.create_file_writer(str(directory / "train"))
        self._eval_writer = tf.summary.create_file_writer(str(directory / "eval"))
        self._num_train_steps = num_train_steps
        self._batch_size = batch_size
        self._every_steps = every_steps
        self.last_evaluation: dict[str, float] = {}
        self.last_step_logs: dict[str, float] = {}

    def on_train_begin(self, logs=None):
        step = optimizer_step(self.model)
        self._scalar_mark = self._line_mark = (step, time.monotonic())
        self._is_first = True

    def on_train_batch_end(self, batch, logs=None):
        step, now = optimizer_step(self.model), time.monotonic()
        self.last_step_logs = {name: float(value) for name, value in logs.items()}
        if self._is_first or step % self._every_steps == 0:
            rate = self._rate_since(self._scalar_mark, step, now)
            scalars = {**self.last_step_logs, "sequences_per_second": rate}
            write_scalars(self._train_writer, scalars, step)
            self._scalar_mark = (step, now)
        line_is_due = now - self._line_mark[1] >= self.LINE_SECONDS
        if self._is_first or line_is_due or step >= self._num_train_steps:
            # The first step is mostly spent on building the graph.
            rate = None
            if not self._is_first:
                rate = self._rate_since(self._line_mark, step, now)
            logger.info(
                step_line(
                    self.last_step_logs,
                    step=step,
                    num_train_steps=self._num_train_steps,
                    sequences_per_second=rate,
                    batch_size=self._batch_size,
                )
            )
            self._line_mark = (step, now)
        self._is_first = False

    def on_epoch_end(self, epoch, logs=None):
        evaluation = {
            name.removeprefix("val_"): float(value)
            for name, value in (logs or {}).items()
            if name.startswith("val_")
        }
        if evaluation:
            step = optimizer_step(self.model)
            self.last_evaluation = evaluation
            write_scalars(self._eval_writer, evaluation, step)
            logger.info("evaluation at step %d  %s", step, metrics_text(evaluation))
        # Time spent on saving and evaluating is not training time.
        mark = (optimizer_step(self.model), time.monotonic())
        self._scalar_mark = self._line_mark = mark

    def on_train_end(self, logs=None):
        self._train_writer.close()
        self._eval_writer.close()

    def _rate_since(self, mark: tuple[int, float], step: int, now: float) -> float:
        return (step - mark[0]) * self._batch_size / max(now - mark[1], 1e-9)


def optimizer_step(model: keras.Model) -> int:
    """Updates made so far; also right for a variable mirrored over replicas."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def write_scalars(
    writer: tf.summary.SummaryWriter, scalars: dict[str, float], step: int
) -> None:
    """Writes numbers to TensorBoard and makes them visible at once."""
    with writer.as_default(step):
        for name, value in scalars.items():
            tf.summary.scalar(name, value)
    writer.flush()


def metrics_text(metrics: dict[str, float]) -> str:
    """`loss 6.4123  masked_lm_accuracy 0.1312`."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def step_line(
    logs: dict[str, float],
    *,
    step: int,
    num_train_steps: int,
    sequences_per_second: float | None,
    batch_size: int,
) -> str:
    """`step 1200/100000  loss 6.412  ...  lr 1.2e-05  812 seq/s  1:02:03 left`."""
    shown = [
        f"{name} {value:.3f}"
        for name, value in logs.items()
        if name == "loss" or name.endswith("accuracy")
    ]
    parts = [
        f"step {step}/{num_train_steps}",
        *shown,
        f"lr {logs['learning_rate']:.2g}",
    ]
    if sequences_per_second:
        seconds = (num_train_steps - step) * batch_size / sequences_per_second
        minutes, seconds = divmod(math.ceil(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{sequences_per_second:.0f} seq/s")
        parts.append(f"{hours}:{minutes:02}:{seconds:02} left")
    return "  ".join(parts)
