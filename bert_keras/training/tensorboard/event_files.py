"""Event files of TensorBoard, and `scalars.jsonl` beside them.

A resumed run has no step twice in either.
"""

import atexit
import contextlib
import logging
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from bert_keras.core import files, stores
from bert_keras.core.errors import Unavailable
from bert_keras.data import tfrecords
from bert_keras.report import scalar_log

logger = logging.getLogger(__name__)

_SEND_SECONDS = 60.0
"""Time between two uploads of an event file to a store, besides those before a
checkpoint: an object cannot grow, so each upload sends the whole file."""

_MAX_SENT_BYTES = 16 << 20
"""Size from which an event file on a store is followed by a new one."""

_EVENT_FILES = "events.out.tfevents.*"

_PROCESS = uuid.uuid4().hex[:8]
"""Tells this process from others, which may have its number in another container."""


class EventWriter:
    """Writes a new event file of a run that continues after `step`.

    A killed run may have written events of steps beyond its last checkpoint. These
    steps come again, so their first events are removed: TensorBoard itself drops only
    some of them, and other readers none.

    For a store the files are local, and sent at times. One that has grown to
    `_MAX_SENT_BYTES` is sent for the last time, and the next one is begun: a long run
    does not send all of its history again and again.
    """

    def __init__(self, directory: Path, step: int):
        for path in sorted(directory.glob(_EVENT_FILES)):
            if any(_step_of(record) > step for record in read_records(path)):
                # TensorBoard does not take this name for an event file.
                temporary = path.with_name(".partial.events")
                with files.open_atomically(temporary) as file:
                    for record in read_records(path):
                        if _step_of(record) <= step:
                            file.write(tfrecords.frame(record))
                temporary.replace(path)
        self._directory = directory
        # Locks of the writer, for moments, and of requests to the store.
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._sent_at = time.monotonic()
        self._num_sent: dict[Path, int] = {}
        self._finished: set[Path] = set()
        self._local: Path | None = None
        if files.is_remote(directory):
            self._local = Path(tempfile.mkdtemp(prefix="bert_keras_events_"))
            self._delete = weakref.finalize(self, files.delete_tree, self._local)
            # The remaining events are sent first.
            self._delete.atexit = False
            _OF_STORES.add(self)
        self._writer = self._open()
        # Lines of steps that come again are dropped, and a line that a kill has cut
        # off: the log is written anew, whole or not at all, and then grows.
        lines = [x for x in scalar_log.read_lines(directory) if x["step"] <= step]
        self._log = (self._local or directory) / scalar_log.NAME
        files.make_directory(self._log.parent)
        text = "".join(files.to_json(line) + "\n" for line in lines)
        files.write_atomically(self._log, text.encode())
        # The phases of a run have a writer each.
        if not any(line.get("start") == _PROCESS for line in lines):
            self.add_line(step, {"start": _PROCESS})

    def _open(self) -> tf.summary.SummaryWriter:
        return tf.summary.create_file_writer(str(self._local or self._directory))

    def as_default(self, step: int) -> contextlib.AbstractContextManager:
        return self._writer.as_default(step)

    def add_line(self, step: int, values: Mapping[str, float | str]) -> None:
        """Adds a line to `scalars.jsonl`, which a killed process leaves readable."""
        line = {"step": step, "time": time.time(), **values}
        with self._log.open("a", encoding="utf-8") as file:
            file.write(files.to_json(line) + "\n")

    def write_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes numbers by tag and flushes them, so that they are visible at once."""
        with self.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self.add_line(step, {name: float(value) for name, value in scalars.items()})
        self.flush()

    def flush(self) -> None:
        """Makes what was written visible: at once, or on a store within a minute."""
        self._writer.flush()
        if self._local is None:
            return
        begun = set(self._local.glob(_EVENT_FILES)) - self._finished
        if sum(path.stat().st_size for path in begun) >= _MAX_SENT_BYTES:
            with self._lock:
                self._writer.close()
                self._finished |= begun
                self._writer = self._open()
        if time.monotonic() - self._sent_at > _SEND_SECONDS:
            self._sent_at = time.monotonic()
            # A store that does not answer must not hold the training up.
            threading.Thread(target=self._send_if_it_goes, daemon=True).start()

    def _send_if_it_goes(self) -> None:
        with contextlib.suppress(OSError, Unavailable):
            self.send()

    def send(self) -> None:
        """Sends new events to the store; raises `OSError` or `Unavailable`."""
        # The thread that writes checkpoints may send while this one is closed; the
        # lock lets it find the writer open, or closed and with nothing to flush.
        with self._lock:
            self._writer.flush()
        with self._sending:
            if self._local is None:
                return
            # Read before the sizes: a finished file grows no more.
            finished = set(self._finished)
            for local in sorted(self._local.iterdir()):
                size = local.stat().st_size
                if size > self._num_sent.get(local, 0):
                    stores.put(local, files.join(self._directory, local.name))
                self._num_sent[local] = size
                if local in finished:
                    local.unlink()
            self._sent_at = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._writer.close()
        self.send()
        self._forget()

    def _forget(self) -> None:
        with self._sending:
            if self._local is not None:
                self._delete()
                self._local = None
        _OF_STORES.discard(self)


_OF_STORES: weakref.WeakSet[EventWriter] = weakref.WeakSet()


@atexit.register
def _send_at_exit() -> None:
    # An interrupted run is not closed.
    for writer in list(_OF_STORES):
        writer._send_if_it_goes()
        writer._forget()


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of an event file, up to a damaged or unfinished one."""
    with files.open_to_read(path) as file:
        try:
            yield from tfrecords.read_frames(file)
        except tfrecords.DamagedRecord as error:
            if not error.is_cut:
                logger.warning(
                    "%s: damaged at byte %d, read up to there", path, error.offset
                )


def _step_of(record: bytes) -> int:
    return tf.compat.v1.Event.FromString(record).step
