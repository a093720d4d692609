"""Watchers of every training: curves in TensorBoard, lines for people, and the limit of
skipped steps."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings import pretraining
from bert_keras.training import run
from bert_keras.training.step import learner
from bert_keras.training.tensorboard import event_files

logger = logging.getLogger(__name__)

EVERY_STEPS = 10
"""Curves have step 1 and each step that reaches or passes a multiple of this."""

_OPTIMIZER_SCALARS = ("learning_rate", "gradient_norm", "loss_scale", "skipped_steps")
_NOT_DRAWN = ("input_wait", "tokens")
"""`speed/` has the sums of these."""


class Sizes(NamedTuple):
    """Sizes of a training from which its rates and shares are computed."""

    num_train_steps: int
    batch_size: int
    """Examples of a step, on all devices together."""
    tokens_per_example: int | None = None
    """Padding included; `None`: no rate of tokens and no share of padding."""
    flops_per_example: int | None = None
    """Forward and backward pass, see `bert_keras.model.flops`."""
    peak_flops: float | None = None
    """Per second, of all devices together; `None`: no utilization."""


def open_watchers(
    loop: run.Loop,
    trained: learner.Learner,
    sizes: Sizes,
    *,
    logs: Path,
    max_skipped_steps: int,
    describe_skipped: Callable[[int, int], str],
) -> list[run.Watcher]:
    """Opens the watchers of the steps after the loop's; only the chief writes.

    `describe_skipped` is `describe` of `SkipLimit`.
    """
    limit = SkipLimit(trained.skipped_in_a_row, max_skipped_steps, describe_skipped)
    if not loop.is_chief:
        return [limit]
    repeats = "evaluate" in loop.due
    drawn = Curves(logs, loop.step, sizes, repeats_evaluation=repeats)
    return [drawn, ProgressLine(sizes, trained.describe(sizes.batch_size)), limit]


@dataclasses.dataclass
class SkipLimit(run.Watcher):
    """Ends a run that has skipped more than `max_skipped_steps` updates in a row."""

    skipped_in_a_row: Any
    """The variable that counts them."""
    max_skipped_steps: int
    describe: Callable[[int, int], str]
    """Says where the batches of the first to the last of these steps, from 1, came
    from."""
    num_skipped: int = 0

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        # Most steps skip nothing, and need not read the variable.
        if (num_skipped := int(logs["skipped_steps"])) == self.num_skipped:
            return
        self.num_skipped = num_skipped
        count = int(np.asarray(self.skipped_in_a_row))
        if count > self.max_skipped_steps:
            raise InputError(
                f"step {step}: the loss or a gradient was not finite in {count} steps "
                f"in a row{self.describe(step - count + 1, step)}"
            )


class Curves(run.Watcher):
    """Writes scalars of steps to `train` and of evaluations to `eval`.

    The scalars are the step's own, where Keras gives running means, and the step is the
    optimizer's. Which steps are written (`EVERY_STEPS`) does not depend on where a run
    was resumed.

    `loss/*` and `accuracy/*` show what is learnt, `optimizer/*` how (see `scalar_tag`),
    `speed/*` how fast since the last written step, without saving and evaluating:
    `sequences_per_second`, `tokens_per_second`, padding included,
    `real_tokens_per_second`, without it, `model_flop_utilization` (share of
    `peak_flops`), `input_wait` (seconds per step spent waiting for data) and
    `input_wait_share` (share of all time).

    The training continues after `step`. With `repeats_evaluation` an interrupted
    process may have written the evaluation of this step already.
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        sizes: Sizes,
        *,
        repeats_evaluation: bool = False,
    ):
        self._step, self._sizes, self._is_first = step, sizes, True
        self._train_writer = event_files.EventWriter(directory / "train", step)
        self._eval_writer = event_files.EventWriter(
            directory / "eval", step - repeats_evaluation
        )
        self.resume()

    def resume(self) -> None:
        # Time spent on saving and evaluating is not training time.
        self._window_step, self._window_start = self._step, time.monotonic()
        self._seconds_waited = self._num_tokens = 0.0

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        previous_step, self._step = self._step, step
        if self._is_first:
            # The first execution is mostly spent on building the graph.
            self.resume()
            self._is_first = False
        else:
            self._seconds_waited += logs.get("input_wait", 0.0)
            # An execution tells only its last step.
            self._num_tokens += logs.get("tokens", 0.0) * (step - previous_step)
        if is_logged(previous_step, step):
            scalars = _tagged(logs) | self._speeds(logs)
            self._train_writer.write_scalars(scalars, step)
            self.resume()

    def _speeds(self, logs: Mapping[str, float]) -> dict[str, float]:
        num_steps = self._step - self._window_step
        seconds = max(time.monotonic() - self._window_start, 1e-9)
        if not num_steps:
            return {}
        _, batch_size, tokens_per_example, flops, peak_flops = self._sizes
        rate = num_steps * batch_size / seconds
        speeds = {"sequences_per_second": rate}
        if tokens_per_example is not None:
            speeds["tokens_per_second"] = rate * tokens_per_example
        if self._num_tokens:
            speeds["real_tokens_per_second"] = self._num_tokens / seconds
        if flops is not None and peak_flops is not None:
            speeds["model_flop_utilization"] = rate * flops / peak_flops
        if "input_wait" in logs:
            speeds["input_wait"] = self._seconds_waited / num_steps
            speeds["input_wait_share"] = self._seconds_waited / seconds
        return {f"speed/{name}": value for name, value in speeds.items()}

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._eval_writer.write_scalars(_tagged(metrics), step)

    def send(self) -> None:
        self._train_writer.send()
        self._eval_writer.send()

    def close(self) -> None:
        self._train_writer.close()
        self._eval_writer.close()


def is_logged(previous_step: int, step: int) -> bool:
    """Whether an execution's last step is written: step 1, and passed multiples."""
    return step == 1 or step // EVERY_STEPS > previous_step // EVERY_STEPS


def _tagged(metrics: Mapping[str, float]) -> dict[str, float]:
    return {scalar_tag(k): v for k, v in metrics.items() if k not in _NOT_DRAWN}


def scalar_tag(name: str) -> str:
    """Returns the tag of a number; before its slash stands a section's name."""
    if name.startswith(pretraining.GROUPS):
        return name
    for section in ("loss", "accuracy"):
        if name.endswith(section):
            return f"{section}/{name}"
    section = "optimizer" if name in _OPTIMIZER_SCALARS else "metrics"
    return f"{section}/{name}"


class ProgressLine(run.Watcher):
    """Logs a line with the first step, every ten seconds and with the last step.

    `start_line` is logged while the graph is built, which may take a minute or two.
    """

    def __init__(self, sizes: Sizes, start_line: str):
        self._sizes = sizes
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
        is_last = step >= self._sizes.num_train_steps
        if is_last or now - self._line_at >= progress.LINE_SECONDS:
            self._line_at = now
            per_second = self._rate.per_second() * self._sizes.batch_size
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
        num_train_steps, batch_size, tokens_per_example, *_ = self._sizes
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
        if per_second:
            seconds = (num_train_steps - step) * batch_size / per_second
            parts.append(f"{per_second:.0f} seq/s")
            parts.append(f"{progress.duration(math.ceil(seconds))} left")
        return "  ".join(parts)
