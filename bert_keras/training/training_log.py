"""Scalars of the training steps for TensorBoard, and lines for people."""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import tensorflow as tf

from bert_keras import progress

logger = logging.getLogger(__name__)


class TrainingLog(keras.callbacks.Callback):
    """Scalars for TensorBoard and a line for people.

    The scalars are the step's own, where Keras gives running means, and the step is the
    optimizer's. Step 1 is written and then every one that reaches or passes a multiple
    of `every_steps`: which ones does not depend on where a run was taken up again.
    Evaluations go to a second curve of the same name. The line comes with the first
    step and every ten seconds.

    `loss/*` and `accuracy/*` are what is learnt, `optimizer/*` how (see `scalar_tag`),
    `speed/*` how fast since the last step that was written, without saving and
    evaluating: `sequences_per_second`, `tokens_per_second`, `model_flop_utilization`
    (share of `peak_flops`), `input_wait` (seconds per step spent waiting for data) and
    `input_wait_share` (of all time).

    Args:
        directory: of the event files; `train` and `eval` are made in it.
        num_train_steps: for the time left.
        batch_size: examples per step, for the rates.
        tokens_per_example: padding included; `None`: no rate of tokens.
        flops_per_example: of forward and backward pass, see `bert_keras.model.flops`.
        peak_flops: per second, of all devices together; `None`: no utilization.
        every_steps: how often scalars are written.
    """

    LINE_SECONDS = 10.0

    def __init__(
        self,
        directory: Path,
        *,
        num_train_steps: int,
        batch_size: int,
        tokens_per_example: int | None = None,
        flops_per_example: int | None = None,
        peak_flops: float | None = None,
        every_steps: int = 10,
    ):
        super().__init__()
        self._directory = Path(directory)
        self._num_train_steps = num_train_steps
        self._batch_size = batch_size
        self._tokens_per_example = tokens_per_example
        self._flops_per_example = flops_per_example
        self._peak_flops = peak_flops
        self._every_steps = every_steps
        self.last_evaluation: dict[str, float] = {}
        self.last_step_logs: dict[str, float] = {}

    def on_train_begin(self, logs=None):
        self._step = optimizer_step(self.model)
        self._train_writer = open_event_writer(self._directory / "train", self._step)
        self._eval_writer = open_event_writer(self._directory / "eval", self._step)
        self._is_first = True

    def on_epoch_begin(self, epoch, logs=None):
        # Time spent on saving and evaluating is not training time.
        now = time.monotonic()
        self._scalar_window = _Window(self._step, now)
        self._line_window = _Window(self._step, now)

    def on_train_batch_end(self, batch, logs=None):
        previous_step, self._step = self._step, optimizer_step(self.model)
        now = time.monotonic()
        self.last_step_logs = {name: float(value) for name, value in logs.items()}
        if self._is_first:
            # The first execution is mostly spent on building the graph.
            self._scalar_window = _Window(self._step, now)
            self._line_window = _Window(self._step, now)
        else:
            self._scalar_window.waited += self.last_step_logs.get("input_wait", 0.0)
        if is_logged(previous_step, self._step, every_steps=self._every_steps):
            self._write_scalars(now)
        line_is_due = now - self._line_window.start >= self.LINE_SECONDS
        if self._is_first or line_is_due or self._step >= self._num_train_steps:
            self._write_line(now)
        self._is_first = False

    def _write_scalars(self, now: float) -> None:
        tagged = {
            scalar_tag(name): value
            for name, value in self.last_step_logs.items()
            if name not in _NOT_DRAWN
        }
        tagged |= self._speeds(now)
        write_scalars(self._train_writer, tagged, self._step)
        self._scalar_window = _Window(self._step, now)

    def _speeds(self, now: float) -> dict[str, float]:
        window = self._scalar_window
        num_steps, seconds = self._step - window.first_step, now - window.start
        if not num_steps:
            return {}
        rate = num_steps * self._batch_size / max(seconds, 1e-9)
        speeds = {"sequences_per_second": rate}
        if self._tokens_per_example is not None:
            speeds["tokens_per_second"] = rate * self._tokens_per_example
        if self._flops_per_example is not None and self._peak_flops is not None:
            flops = rate * self._flops_per_example
            speeds["model_flop_utilization"] = flops / self._peak_flops
        if "input_wait" in self.last_step_logs:
            speeds["input_wait"] = window.waited / num_steps
            speeds["input_wait_share"] = window.waited / max(seconds, 1e-9)
        return {f"speed/{name}": value for name, value in speeds.items()}

    def _write_line(self, now: float) -> None:
        window, rate = self._line_window, None
        if self._step > window.first_step:
            num_examples = (self._step - window.first_step) * self._batch_size
            rate = num_examples / max(now - window.start, 1e-9)
        logger.info(
            step_line(
                self.last_step_logs,
                step=self._step,
                num_train_steps=self._num_train_steps,
                sequences_per_second=rate,
                batch_size=self._batch_size,
            )
        )
        self._line_window = _Window(self._step, now)

    def on_epoch_end(self, epoch, logs=None):
        evaluation = {
            name.removeprefix("val_"): float(value)
            for name, value in (logs or {}).items()
            if name.startswith("val_") and name.removeprefix("val_") not in _NOT_DRAWN
        }
        if not evaluation:
            return
        self.last_evaluation = evaluation
        tagged = {scalar_tag(name): value for name, value in evaluation.items()}
        write_scalars(self._eval_writer, tagged, self._step)
        logger.info("evaluation at step %d  %s", self._step, metrics_text(evaluation))

    def on_train_end(self, logs=None):
        self._train_writer.close()
        self._eval_writer.close()


@dataclasses.dataclass
class _Window:
    """Steps whose speed is being measured."""

    first_step: int
    """The last step before them."""
    start: float
    waited: float = 0.0
    """Seconds in which they waited for data."""


def is_logged(previous_step: int, step: int, *, every_steps: int) -> bool:
    """Whether an execution from `previous_step` to `step` is written.

    It is if it is step 1, or if it reached or passed a multiple of `every_steps`.
    """
    return step == 1 or step // every_steps > previous_step // every_steps


def scalar_tag(name: str) -> str:
    """TensorBoard's tag of a number of a step or of an evaluation.

    What stands before the slash is a section of its page, in the order of the alphabet.
    """
    if name.endswith("loss"):
        return f"loss/{name}"
    if name.endswith("accuracy"):
        return f"accuracy/{name}"
    section = "optimizer" if name in _OPTIMIZER_SCALARS else "metrics"
    return f"{section}/{name}"


_OPTIMIZER_SCALARS = ("learning_rate", "gradient_norm", "loss_scale", "skipped_steps")

# Summed up in `speed/`, and what only workers tell each other.
_NOT_DRAWN = ("input_wait", "stop_requested")


def open_event_writer(directory: Path, step: int) -> tf.summary.SummaryWriter:
    """Opens a new event file of a run that goes on after `step`.

    A killed run may have written events of steps beyond its last checkpoint. They come
    again, so they are taken out of its files: TensorBoard forgets them by itself only
    in part, and other readers not at all.
    """
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        if any(_step_of(record) > step for record in _read_records(path)):
            _keep_events_until(path, step)
    return tf.summary.create_file_writer(str(directory))


def _keep_events_until(path: Path, step: int) -> None:
    # Not a name that TensorBoard takes for an event file.
    temporary = path.with_name(".partial.events")
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for record in _read_records(path):
            if _step_of(record) <= step:
                writer.write(record)
    os.replace(temporary, path)


def _read_records(path: Path) -> Iterator[bytes]:
    """The records of an event file, up to one that a killed run left unfinished."""
    # In batches, because a long run has a million of them.
    records = tf.data.TFRecordDataset(str(path)).ignore_errors().batch(64)
    for batch in records.as_numpy_iterator():
        yield from batch


def _step_of(record: bytes) -> int:
    return tf.compat.v1.Event.FromString(record).step


def measure_peak_flops(dtype: str) -> float:
    """Operations per second of a large matrix product on one device, at its best.

    The device is the first accelerator, or the processor with all its cores. What a
    maker's data sheet says is higher; this is what a program can have.

    Args:
        dtype: of the factors, `"float32"` or `"bfloat16"` for instance.
    """
    accelerators = [
        device
        for kind in ("TPU", "GPU")
        for device in tf.config.list_logical_devices(kind)
    ]
    device = (accelerators or tf.config.list_logical_devices("CPU"))[0]
    size = 8192 if accelerators else 1024
    with tf.device(device.name):
        # With this deviation the products neither grow nor vanish.
        factor = tf.random.stateless_normal([size, size], (0, 1), stddev=size**-0.5)
        factor = tf.cast(factor, dtype)

        @tf.function
        def multiply(num_products):
            product = factor
            for _ in tf.range(num_products):
                product = tf.matmul(product, factor)
            return product[0, 0]

        return 2 * size**3 * _best_rate(lambda n: multiply(tf.constant(n)).numpy())


def _best_rate(run: Callable[[int], object], *, seconds: float = 0.4) -> float:
    """The highest number of runs per second that was seen within `seconds`."""
    run(1)
    rate, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        run(8)
        rate = max(rate, 8 / (time.monotonic() - start))
    return rate


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
        parts.append(f"{sequences_per_second:.0f} seq/s")
        parts.append(f"{progress.duration(math.ceil(seconds))} left")
    return "  ".join(parts)
