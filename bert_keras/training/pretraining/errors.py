"""Errors of a pre-training in words: of its records, the devices' memory, the disks."""

import errno
import re
from collections.abc import Sequence

import tensorflow as tf

from bert_keras.core import files, stores
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.training.pretraining import phases

_DOES_NOT_ANSWER = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a disk that may pass, unlike those of a name or a permission."""


def in_words(
    error: Exception,
    *,
    output_dir: files.Path,
    planned: Sequence[phases.Phase],
    phase: phases.Phase,
    num_replicas: int,
) -> Exception | None:
    """Returns what people are told of an error of a phase; `None`: the error itself."""
    if isinstance(error, OSError):
        kind = Unavailable if error.errno in _DOES_NOT_ANSWER else InputError
        return kind(
            f"{error.filename or output_dir}: {error.strerror or error}; run the same "
            "command again when its disk answers"
        )
    if not isinstance(error, tf.errors.OpError):
        return None
    text = str(error)
    # XLA's own errors have another type.
    is_memory = isinstance(error, tf.errors.ResourceExhaustedError)
    if is_memory or "RESOURCE_EXHAUSTED" in text:
        num_rows, num_parts = phase.batch_size // num_replicas, phase.num_parts
        more = [n for n in range(num_parts + 1, num_rows + 1) if num_rows % n == 0]
        way_out = (
            f"set `gradient_accumulation_steps` (here {num_parts}) to {more[0]}"
            if more
            else "set `recompute` to layers, or take more devices, shorter examples or "
            "a smaller model"
        )
        return InputError(
            f"a device has no memory for {num_rows // num_parts} examples of "
            f"{phase.examples.max_seq_length} tokens at once: {way_out} and run the "
            "same command again"
        )
    # Without an assertion of ours, TensorFlow's last line is the cause.
    cause = text.strip().splitlines()[-1]
    if stores.is_transient(error) and re.search(r"\w+://", text):
        return Unavailable(
            f"{cause[:300]}; run the same command again when the store answers"
        )
    # Errors of the input pipeline come through the iterator.
    is_argument = isinstance(error, tf.errors.InvalidArgumentError)
    of_data = is_argument and "GetNext" in text
    if not of_data and not isinstance(error, tf.errors.DataLossError):
        return None
    if assertion := re.search(r"assertion failed: \[(.*?)\]", text):
        cause = assertion[1]
    directories = ", ".join(phase.directory for phase in planned)
    return InputError(f"{directories}: {cause[:300]}; make the examples again")
