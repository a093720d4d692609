"""Lines on the progress of training, for people."""

import logging
import math
import time
from collections.abc import Mapping

from bert_keras.core import progress
from bert_keras.core.settings import pretraining
from bert_keras.training.step import watcher

logger = logging.getLogger(__name__)


class ProgressLine(watcher.Watcher):
    """Logs a line with the first step, every ten seconds and with the last step.

    `tokens_per_example` includes padding, whose share is shown; `None`: it is not.
    `start_line` is logged while the graph is built, which may take a minute or two.
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
        self._num_train_steps = num_train_steps
        self._batch_size = batch_size
        self._tokens_per_example = tokens_per_example
        logger.info("%s; building the graph", start_line)
        self._rate, self._line_at = progress.Rate(), -math.inf
        self._idle_seconds = 0.0
        self._last_end: float | None = None

    def resume(self) -> None:
        # Time spent on saving, evaluating and drawing is not training time.
        if self._last_end is not None:
            self._idle_seconds += time.monotonic() - self._last_end

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        now = self._last_end = time.monotonic()
        # The first execution, which builds the graph, only begins the measurement.
        self._rate.note(now - self._idle_seconds, step)
        is_last = step >= self._num_train_steps
        if not is_last and now - self._line_at < self.LINE_SECONDS:
            return
        self._line_at = now
        per_second = self._rate.per_second() * self._batch_size
        logger.info("%s", self.line(step, logs, per_second))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        values = "  ".join(
            f"{name} {value:.4f}"
            for name, value in metrics.items()
            # Dozens of groups are for the curves.
            if not name.startswith(pretraining.GROUPS)
        )
        logger.info("evaluation at step %d  %s", step, values)

    def line(self, step: int, logs: Mapping[str, float], per_second: float) -> str:
        """Returns `step 12/100000  loss 6.412  ...  lr 1.2e-05  812 seq/s  1:02 left`.

        With `tokens_per_example` adds `3% padding`; special tokens are no padding. A
        rate of 0 is unknown.
        """
        scores = [
            f"{name} {value:.3f}"
            for name, value in logs.items()
            if name == "loss" or name.endswith("accuracy")
        ]
        rate = f"lr {logs['learning_rate']:.2g}"
        parts = [f"step {step}/{self._num_train_steps}", *scores, rate]
        if self._tokens_per_example and "tokens" in logs:
            share = 1 - logs["tokens"] / (self._batch_size * self._tokens_per_example)
            parts.append(f"{share:.0%} padding")
        if per_second:
            seconds = (self._num_train_steps - step) * self._batch_size / per_second
            parts.append(f"{per_second:.0f} seq/s")
            parts.append(f"{progress.duration(math.ceil(seconds))} left")
        return "  ".join(parts)
