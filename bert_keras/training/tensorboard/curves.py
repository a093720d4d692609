"""Curves in TensorBoard: scalars of the training steps and of the evaluations."""

import time
from pathlib import Path

import keras

from bert_keras.core import files
from bert_keras.report import event_log
from bert_keras.training.step import replicas
from bert_keras.training.tensorboard import event_files, progress_line


class Curves(keras.callbacks.Callback):
    """Writes scalars of steps to `train` and of evaluations to `eval`.

    The scalars are the step's own, where Keras gives running means, and the step is the
    optimizer's. Step 1 is written and then every one that reaches or passes a multiple
    of `every_steps`: which ones does not depend on where a run was resumed.

    `loss/*` and `accuracy/*` show what is learnt, `optimizer/*` how (see `scalar_tag`),
    `speed/*` how fast since the last step that was written, without saving and
    evaluating: `sequences_per_second`, `tokens_per_second`, padding included,
    `real_tokens_per_second`, without it, `model_flop_utilization` (share of
    `peak_flops`), `input_wait` (seconds per step spent waiting for data) and
    `input_wait_share` (share of all time).

    Args:
        directory: for the event files; `train` and `eval` are made in it.
        batch_size: examples per step, for the rates.
        tokens_per_example: padding included; `None`: no rate of tokens.
        flops_per_example: forward and backward pass, see `bert_keras.model.flops`.
        peak_flops: per second, all devices together; `None`: no utilization.
        every_steps: steps between two points.
        repeats_evaluation: an interrupted process may have written the evaluation of
            this step already.
    """

    def __init__(
        self,
        directory: Path,
        *,
        batch_size: int,
        tokens_per_example: int | None = None,
        flops_per_example: int | None = None,
        peak_flops: float | None = None,
        every_steps: int = 10,
        repeats_evaluation: bool = False,
    ):
        super().__init__()
        self._directory = files.path(directory)
        self._batch_size = batch_size
        self._tokens_per_example = tokens_per_example
        self._flops_per_example = flops_per_example
        self._peak_flops = peak_flops
        self._every_steps = every_steps
        self._repeats_evaluation = repeats_evaluation
        self.last_step_logs: dict[str, float] = {}

    def on_train_begin(self, logs=None):
        self._step = replicas.optimizer_step(self.model)
        self._train_writer, self._eval_writer = (
            event_files.open_writer(self._directory / name, step)
            for name, step in (
                ("train", self._step),
                ("eval", self._step - self._repeats_evaluation),
            )
        )
        self._is_first = True

    def on_epoch_begin(self, epoch, logs=None):
        # Time spent on saving and evaluating is not training time.
        self._begin_window()

    def _begin_window(self) -> None:
        """Begins to measure the speed of the steps to come."""
        self._window_step, self._window_start = self._step, time.monotonic()
        self._seconds_waited = self._num_tokens = 0.0

    def on_train_batch_end(self, batch, logs=None):
        previous_step, self._step = self._step, replicas.optimizer_step(self.model)
        self.last_step_logs = {name: float(value) for name, value in logs.items()}
        if self._is_first:
            # The first execution is mostly spent on building the graph.
            self._begin_window()
            self._is_first = False
        else:
            self._seconds_waited += self.last_step_logs.get("input_wait", 0.0)
            # Of an execution's steps only the last one is known.
            tokens = self.last_step_logs.get("tokens", 0.0)
            self._num_tokens += tokens * (self._step - previous_step)
        if is_logged(previous_step, self._step, every_steps=self._every_steps):
            scalars = _tagged(self.last_step_logs) | self._speeds()
            event_files.write_scalars(self._train_writer, scalars, self._step)
            self._begin_window()

    def _speeds(self) -> dict[str, float]:
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
        if "input_wait" in self.last_step_logs:
            speeds["input_wait"] = self._seconds_waited / num_steps
            speeds["input_wait_share"] = self._seconds_waited / seconds
        return {f"speed/{name}": value for name, value in speeds.items()}

    def on_epoch_end(self, epoch, logs=None):
        if metrics := progress_line.evaluation_metrics(logs):
            event_files.write_scalars(self._eval_writer, _tagged(metrics), self._step)

    def on_train_end(self, logs=None):
        self._train_writer.close()
        self._eval_writer.close()


def seconds_so_far(directory: Path) -> float:
    """Time of all earlier processes of a run, from start to last event.

    Args:
        directory: of the event files, as for `Curves`.
    """
    return event_log.read_log(files.path(directory) / "train").seconds


def _tagged(metrics: dict[str, float]) -> dict[str, float]:
    return {
        scalar_tag(name): value
        for name, value in metrics.items()
        if name not in _NOT_DRAWN
    }


def is_logged(previous_step: int, step: int, *, every_steps: int) -> bool:
    """Whether an execution that went from `previous_step` to `step` is written.

    Step 1 is, and every execution that reached or passed a multiple of `every_steps`.
    """
    return step == 1 or step // every_steps > previous_step // every_steps


def scalar_tag(name: str) -> str:
    """Tag in TensorBoard of a number that a step or an evaluation has.

    The part before the slash is a section of TensorBoard's page.
    """
    if name.endswith("loss"):
        return f"loss/{name}"
    if name.endswith("accuracy"):
        return f"accuracy/{name}"
    section = "optimizer" if name in _OPTIMIZER_SCALARS else "metrics"
    return f"{section}/{name}"


_OPTIMIZER_SCALARS = ("learning_rate", "gradient_norm", "loss_scale", "skipped_steps")

# `speed/` has the sums of the first two; the others are messages between workers.
_NOT_DRAWN = ("input_wait", "tokens", "stop_requested", "evaluation_requested")
