"""Lines on the progress of training, for people."""

import collections
import logging
import math
import time

import keras

from bert_keras.core import progress
from bert_keras.training.step import replicas

logger = logging.getLogger(__name__)


class ProgressLine(keras.callbacks.Callback):
    """Logs a line with the first step, every ten seconds and with the last step.

    Evaluations have a line each. The rate is that of the last minute, see `Rate`.

    Args:
        num_train_steps: steps of the whole run, for the time left.
        batch_size: examples per step, for the rate.
        tokens_per_example: padding included, for the share of it; `None`: not said.
        start_line: logged while the graph is built, which may take a minute or two.
    """

    LINE_SECONDS = 10.0

    def __init__(
        self,
        *,
        num_train_steps: int,
        batch_size: int,
        tokens_per_example: int | None = None,
        start_line: str,
    ):
        super().__init__()
        self._tokens_per_example = tokens_per_example
        self._start_line = start_line
        self._num_train_steps = num_train_steps
        self._batch_size = batch_size

    def on_train_begin(self, logs=None):
        logger.info("%s; building the graph", self._start_line)
        self._rate, self._line_at = Rate(), -math.inf

    def on_epoch_begin(self, epoch, logs=None):
        self._rate.go_on(time.monotonic())

    def on_train_batch_end(self, batch, logs=None):
        step, now = replicas.optimizer_step(self.model), time.monotonic()
        self._rate.note(step, now)
        is_last = step >= self._num_train_steps
        if not is_last and now - self._line_at < self.LINE_SECONDS:
            return
        self._line_at = now
        steps_per_second = self._rate.steps_per_second()
        logger.info(
            step_line(
                {name: float(value) for name, value in logs.items()},
                step=step,
                num_train_steps=self._num_train_steps,
                sequences_per_second=(
                    steps_per_second and steps_per_second * self._batch_size
                ),
                batch_size=self._batch_size,
                tokens_per_example=self._tokens_per_example,
            )
        )

    def on_epoch_end(self, epoch, logs=None):
        if metrics := evaluation_metrics(logs):
            step = replicas.optimizer_step(self.model)
            logger.info("evaluation at step %d  %s", step, metrics_text(metrics))


class Rate:
    """Steps per second over the last minute of training.

    The first execution, which builds the graph, does not count, nor does the time
    between epochs, which goes into saving, evaluating and drawing.
    """

    WINDOW_SECONDS = 60.0

    def __init__(self) -> None:
        self._idle = 0.0
        self._last_end: float | None = None
        # Seconds of training and step, at the end of executions.
        self._seen: collections.deque[tuple[float, int]] = collections.deque()

    def go_on(self, now: float) -> None:
        """Notes that an epoch begins; `now` is in seconds."""
        if self._last_end is not None:
            self._idle += now - self._last_end

    def note(self, step: int, now: float) -> None:
        """Notes that an execution has reached `step`."""
        self._last_end, seconds = now, now - self._idle
        self._seen.append((seconds, step))
        while len(self._seen) > 2 and (
            self._seen[1][0] <= seconds - self.WINDOW_SECONDS
        ):
            self._seen.popleft()

    def steps_per_second(self) -> float | None:
        """`None` after the first execution, which says nothing."""
        (begin, before), (end, step) = self._seen[0], self._seen[-1]
        return (step - before) / max(end - begin, 1e-9) if step > before else None


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
    tokens_per_example: int | None = None,
) -> str:
    """`step 1200/100000  loss 6.412  ...  lr 1.2e-05  812 seq/s  1:02:03 left`.

    With `tokens_per_example` and `tokens` of a step, `3% padding` too: the rest are
    word pieces, `[CLS]` and `[SEP]` included.
    """
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
    if tokens_per_example and "tokens" in logs:
        share = 1 - logs["tokens"] / (batch_size * tokens_per_example)
        parts.append(f"{share:.0%} padding")
    if sequences_per_second:
        seconds = (num_train_steps - step) * batch_size / sequences_per_second
        parts.append(f"{sequences_per_second:.0f} seq/s")
        parts.append(f"{progress.duration(math.ceil(seconds))} left")
    return "  ".join(parts)
