"""Lines on the progress of training, for people."""

import logging
import math
import time

import keras

from bert_keras import progress
from bert_keras.training import replicas

logger = logging.getLogger(__name__)


class ProgressLine(keras.callbacks.Callback):
    """Logs a line with the first step, every ten seconds and with the last step.

    Evaluations have a line each. Rates leave out the first execution, which builds the
    graph, and the time between epochs, which goes into saving and evaluating.

    Args:
        num_train_steps: steps of the whole run, for the time left.
        batch_size: examples per step, for the rate.
        start_line: logged while the graph is built, which may take a minute or two.
    """

    LINE_SECONDS = 10.0

    def __init__(self, *, num_train_steps: int, batch_size: int, start_line: str):
        super().__init__()
        self._start_line = start_line
        self._num_train_steps = num_train_steps
        self._batch_size = batch_size

    def on_train_begin(self, logs=None):
        logger.info("%s; building the graph", self._start_line)
        self._is_first = True

    def on_epoch_begin(self, epoch, logs=None):
        self._begin_window(replicas.optimizer_step(self.model))

    def _begin_window(self, step: int) -> None:
        self._window_step, self._window_start = step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        step = replicas.optimizer_step(self.model)
        seconds = time.monotonic() - self._window_start
        is_last = step >= self._num_train_steps
        if not (self._is_first or is_last or seconds >= self.LINE_SECONDS):
            return
        rate = None
        if not self._is_first:
            num_examples = (step - self._window_step) * self._batch_size
            rate = num_examples / max(seconds, 1e-9)
        logger.info(
            step_line(
                {name: float(value) for name, value in logs.items()},
                step=step,
                num_train_steps=self._num_train_steps,
                sequences_per_second=rate,
                batch_size=self._batch_size,
            )
        )
        self._is_first = False
        self._begin_window(step)

    def on_epoch_end(self, epoch, logs=None):
        if metrics := evaluation_metrics(logs):
            step = replicas.optimizer_step(self.model)
            logger.info("evaluation at step %d  %s", step, metrics_text(metrics))


def evaluation_metrics(logs: dict[str, float] | None) -> dict[str, float]:
    """Metrics among the logs of an epoch: those that begin with `val_`, without it."""
    return {
        name.removeprefix("val_"): float(value)
        for name, value in (logs or {}).items()
        if name.startswith("val_")
    }


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
        parts.append(f"{sequences_per_second:.0f} seq/s")
        parts.append(f"{progress.duration(math.ceil(seconds))} left")
    return "  ".join(parts)
