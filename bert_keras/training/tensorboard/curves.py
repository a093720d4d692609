"""Curves in TensorBoard: scalars of the training steps and of the evaluations."""

import time
from collections.abc import Mapping
from pathlib import Path

from bert_keras.core import files
from bert_keras.core.settings import pretraining
from bert_keras.training.step import watcher
from bert_keras.training.tensorboard import event_files


class Curves(watcher.Watcher):
    """Writes scalars of steps to `train` and of evaluations to `eval`.

    The scalars are the step's own, where Keras gives running means, and the step is the
    optimizer's. Step 1 is written and then every one that reaches or passes a multiple
    of `every_steps`: which ones does not depend on where a run was resumed.

    `loss/*` and `accuracy/*` show what is learnt, `optimizer/*` how (see `scalar_tag`),
    `speed/*` how fast since the last written step, without saving and evaluating:
    `sequences_per_second`, `tokens_per_second`, padding included,
    `real_tokens_per_second`, without it, `model_flop_utilization` (share of
    `peak_flops`), `input_wait` (seconds per step spent waiting for data) and
    `input_wait_share` (share of all time).

    Args:
        step: the training continues after this step.
        batch_size: examples per step, for the rates.
        tokens_per_example: padding included; `None`: no rate of tokens.
        flops_per_example: forward and backward pass, see `bert_keras.model.flops`.
        peak_flops: per second, all devices together; `None`: no utilization.
        repeats_evaluation: an interrupted process may have written the evaluation of
            this step already.
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        *,
        batch_size: int,
        tokens_per_example: int | None = None,
        flops_per_example: int | None = None,
        peak_flops: float | None = None,
        every_steps: int = 10,
        repeats_evaluation: bool = False,
    ):
        self._step = step
        self._batch_size = batch_size
        self._tokens_per_example = tokens_per_example
        self._flops_per_example = flops_per_example
        self._peak_flops = peak_flops
        self._every_steps = every_steps
        directory = files.path(directory)
        self._train_writer = event_files.open_writer(directory / "train", step)
        self._eval_writer = event_files.open_writer(
            directory / "eval", step - repeats_evaluation
        )
        self._is_first = True
        self._begin_window()

    def resume(self) -> None:
        # Time spent on saving and evaluating is not training time.
        self._begin_window()

    def _begin_window(self) -> None:
        self._window_step, self._window_start = self._step, time.monotonic()
        self._seconds_waited = self._num_tokens = 0.0

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        previous_step, self._step = self._step, step
        if self._is_first:
            # The first execution is mostly spent on building the graph.
            self._begin_window()
            self._is_first = False
        else:
            self._seconds_waited += logs.get("input_wait", 0.0)
            # An execution tells only its last step.
            tokens = logs.get("tokens", 0.0)
            self._num_tokens += tokens * (self._step - previous_step)
        if is_logged(previous_step, self._step, every_steps=self._every_steps):
            scalars = _tagged(logs) | self._speeds(logs)
            event_files.write_scalars(self._train_writer, scalars, self._step)
            self._begin_window()

    def _speeds(self, logs: Mapping[str, float]) -> dict[str, float]:
        num_steps = self._step - self._window_step
        seconds = max(time.monotonic() - self._window_start, 1e-9)
        if not num_steps:
            return {}
        rate = num_steps * self._batch_size / seconds
        speeds = {"sequences_per_second": rate}
        if self._tokens_per_example is not None:
            speeds["tokens_per_second"] = rate * self._tokens_per_example
        if self._num_tokens:
            speeds["real_tokens_per_second"] = self._num_tokens / seconds
        if self._flops_per_example is not None and self._peak_flops is not None:
            flops = rate * self._flops_per_example
            speeds["model_flop_utilization"] = flops / self._peak_flops
        if "input_wait" in logs:
            speeds["input_wait"] = self._seconds_waited / num_steps
            speeds["input_wait_share"] = self._seconds_waited / seconds
        return {f"speed/{name}": value for name, value in speeds.items()}

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        event_files.write_scalars(self._eval_writer, _tagged(metrics), step)

    def send(self) -> None:
        self._train_writer.send()
        self._eval_writer.send()

    def close(self) -> None:
        self._train_writer.close()
        self._eval_writer.close()


def _tagged(metrics: Mapping[str, float]) -> dict[str, float]:
    return {
        scalar_tag(name): value
        for name, value in metrics.items()
        if name not in _NOT_DRAWN
    }


def is_logged(previous_step: int, step: int, *, every_steps: int) -> bool:
    """Whether an execution's last step is written: step 1, and passed multiples."""
    return step == 1 or step // every_steps > previous_step // every_steps


def scalar_tag(name: str) -> str:
    """Returns the tag of a number; before its slash stands a section's name."""
    if name.startswith(pretraining.GROUPS):
        return name
    if name.endswith("loss"):
        return f"loss/{name}"
    if name.endswith("accuracy"):
        return f"accuracy/{name}"
    section = "optimizer" if name in _OPTIMIZER_SCALARS else "metrics"
    return f"{section}/{name}"


_OPTIMIZER_SCALARS = ("learning_rate", "gradient_norm", "loss_scale", "skipped_steps")

_NOT_DRAWN = ("input_wait", "tokens")
"""`speed/` has the sums of these."""
