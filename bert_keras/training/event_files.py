"""Event files of TensorBoard, written so that a resumed run has no step twice."""

import os
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf


def open_writer(directory: Path, step: int) -> tf.summary.SummaryWriter:
    """Opens a new event file for a run that goes on after `step`.

    A killed run may have written events of steps beyond its last checkpoint. These
    steps come again, so their first events are removed: TensorBoard itself drops only
    some of them, and other readers none.
    """
    for path in sorted(Path(directory).glob("events.out.tfevents.*")):
        if any(_step_of(record) > step for record in _read_records(path)):
            _keep_events_until(path, step)
    return tf.summary.create_file_writer(str(directory))


def _keep_events_until(path: Path, step: int) -> None:
    # TensorBoard does not take this name for an event file.
    temporary = path.with_name(".partial.events")
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for record in _read_records(path):
            if _step_of(record) <= step:
                writer.write(record)
    os.replace(temporary, path)


def _read_records(path: Path) -> Iterator[bytes]:
    """Records of an event file, up to one that a killed run left unfinished."""
    # In batches, because a long run has a million of them.
    records = tf.data.TFRecordDataset(str(path)).ignore_errors().batch(64)
    for batch in records.as_numpy_iterator():
        yield from batch


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
