"""Event files of TensorBoard, written so that a resumed run has no step twice."""

import os
from pathlib import Path

import tensorflow as tf

from bert_keras.data import tfrecords
from bert_keras.report import event_log


def open_writer(directory: Path, step: int) -> tf.summary.SummaryWriter:
    """Opens a new event file for a run that goes on after `step`.

    A killed run may have written events of steps beyond its last checkpoint. These
    steps come again, so their first events are removed: TensorBoard itself drops only
    some of them, and other readers none.
    """
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        if any(_step_of(record) > step for record in event_log.read_records(path)):
            _keep_events_until(path, step)
    return tf.summary.create_file_writer(str(directory))


def _keep_events_until(path: Path, step: int) -> None:
    # TensorBoard does not take this name for an event file.
    temporary = path.with_name(".partial.events")
    with open(temporary, "wb") as file:
        for record in event_log.read_records(path):
            if _step_of(record) <= step:
                file.write(tfrecords.frame(record))
    os.replace(temporary, path)


def _step_of(record: bytes) -> int:
    return tf.compat.v1.Event.FromString(record).step


def write_scalars(
    writer: tf.summary.SummaryWriter, scalars: dict[str, float], step: int
) -> None:
    """Writes numbers by tag and flushes them, so that they are visible at once."""
    with writer.as_default(step):
        for name, value in scalars.items():
            tf.summary.scalar(name, value)
    writer.flush()
