"""A data card for TensorBoard, without TensorFlow.

An event file is a TFRecord file of `Event` messages, which `tensorboard` defines.
"""

# protobuf makes the classes of events when it is imported.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras import files
from bert_keras.data import tfrecords
from bert_keras.errors import InputError


def write_card(
    directory: str | Path,
    *,
    histograms: Mapping[str, np.ndarray],
    texts: Mapping[str, str],
) -> str:
    """Writes everything into one event file, at step 0.

    Args:
        directory: for TensorBoard's `--logdir`; created if missing.
        histograms: by tag, the number of occurrences of each value from 0.
        texts: by tag, Markdown.

    Returns:
        The file's path.

    Raises:
        InputError: `tensorboard` is not installed.
    """
    try:
        # Not at the top: workers have no TensorBoard.
        from tensorboard.compat.proto import event_pb2
    except ImportError:
        raise InputError(
            "--tensorboard needs the package tensorboard: pip install tensorboard"
        ) from None
    events = [event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")]
    for tag, counts in histograms.items():
        value = _value(events, event_pb2, tag=tag, plugin="histograms")
        _fill_histogram(value.tensor, counts)
    for tag, text in texts.items():
        value = _value(events, event_pb2, tag=tag, plugin="text")
        _fill_text(value.tensor, text)
    files.make_directory(directory)
    # TensorBoard recognises an event file by "tfevents" in its name.
    path = files.join(directory, f"events.out.tfevents.{int(time.time())}.data-card")
    framed = [tfrecords.frame(event.SerializeToString()) for event in events]
    files.write_atomically(path, b"".join(framed))
    return path


def _value(events: list[Any], event_pb2: Any, *, tag: str, plugin: str) -> Any:
    event = event_pb2.Event(wall_time=events[0].wall_time, step=0)
    value = event.summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.data_class = _DATA_CLASS_TENSOR
    events.append(event)
    return value


# Numbers of tensorflow/core/framework/types.proto and summary.proto.
_DT_DOUBLE, _DT_STRING = 2, 7
_DATA_CLASS_TENSOR = 2


def _fill_histogram(tensor: Any, counts: np.ndarray) -> None:
    """`(buckets, 3)`: left edge, right edge, count; one bucket for each value."""
    left = np.arange(len(counts))
    buckets = np.stack([left - 0.5, left + 0.5, counts], axis=1)
    tensor.dtype = _DT_DOUBLE
    for size in buckets.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = buckets.astype("<f8").tobytes()


def _fill_text(tensor: Any, text: str) -> None:
    tensor.dtype = _DT_STRING
    tensor.string_val.append(text.encode())
