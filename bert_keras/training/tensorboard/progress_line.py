"""Lines on the progress of training, for people."""

import collections
import functools
import logging
import math
import time
from collections.abc import Mapping

from bert_keras.core import progress
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
        self._line = functools.partial(
            step_line,
            num_train_steps=num_train_steps,
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
        )
        logger.info("%s; building the graph", start_line)
        self._rate, self._line_at = Rate(), -math.inf

    def go_on(self) -> None:
        self._rate.go_on(time.monotonic())

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        now = time.monotonic()
        self._rate.note(step, now)
        is_last = step >= self._num_train_steps
        if not is_last and now - self._line_at < self.LINE_SECONDS:
            return
        self._line_at = now
        rate = self._rate.steps_per_second()
        per_second = rate and rate * self._batch_size
        logger.info(self._line(logs, step=step, sequences_per_second=per_second))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        values = "  ".join(
            f"{name} {value:.4f}"
            for name, value in metrics.items()
            # Dozens of groups are for the curves.
            if not name.endswith("_minimal_pairs_accuracy")
        )
        logger.info("evaluation at step %d  %s", step, values)


class Rate:
    """Steps per second over the last minute of training.

    The first execution, which builds the graph, does not count, nor does the time
    between events, which goes into saving, evaluating and drawing.
    """

    WINDOW_SECONDS = 60.0

    def __init__(self) -> None:
        self._idle = 0.0
        self._last_end: float | None = None
        # Seconds of training and step, at the end of executions.
        self._seen: collections.deque[tuple[float, int]] = collections.deque()

    def go_on(self, now: float) -> None:
        if self._last_end is not None:
            self._idle += now - self._last_end

    def note(self, step: int, now: float) -> None:
        self._last_end, seconds = now, now - self._idle
        self._seen.append((seconds, step))
        while len(self._seen) > 2 and (
            self._seen[1][0] <= seconds - self.WINDOW_SECONDS
        ):
            self._seen.popleft()

    def steps_per_second(self) -> float | None:
        """Returns the rate; `None` after the first execution, which says nothing."""
        (begin, before), (end, step) = self._seen[0], self._seen[-1]
        return (step - before) / max(end - begin, 1e-9) if step > before else None


def step_line(
    logs: Mapping[str, float],
    *,
    step: int,
    num_train_steps: int,
    sequences_per_second: float | None,
    batch_size: int,
    tokens_per_example: int | None = None,
) -> str:
    """Returns `step 1200/100000  loss 6.412  ...  lr 1.2e-05  812 seq/s  1:02:03 left`.

    With `tokens_per_example` adds `3% padding`; special tokens are no padding.
    """
    scores = [
        f"{name} {value:.3f}"
        for name, value in logs.items()
        if name == "loss" or name.endswith("accuracy")
    ]
    rate = f"lr {logs['learning_rate']:.2g}"
    parts = [f"step {step}/{num_train_steps}", *scores, rate]
    if tokens_per_example and "tokens" in logs:
        share = 1 - logs["tokens"] / (batch_size * tokens_per_example)
        parts.append(f"{share:.0%} padding")
    if sequences_per_second:
        seconds = (num_train_steps - step) * batch_size / sequences_per_second
        parts.append(f"{sequences_per_second:.0f} seq/s")
        parts.append(f"{progress.duration(math.ceil(seconds))} left")
    return "  ".join(parts)
