"""The signatures of an export, in memory, for many clients at once."""

import queue
import re
import threading
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.export import formats
from bert_keras.kinds import served

ROWS_AT_ONCE, MAX_WAITING = 32, 256
"""A computation begins with fewer rows than this; so many requests may wait."""


class _Request(NamedTuple):
    group: tuple[Any, ...]
    """The signature, and what else requests that are computed together share."""
    columns: list[np.ndarray]
    future: "futures.Future[dict[str, np.ndarray]]"


class Answerer:
    """A model, and the thread that owns it."""

    def __init__(self, model: served.ServedModel):
        self.model, self.signatures = model, model.signatures()
        self.functions = formats.signatures_of(model)
        self._waiting: queue.Queue[_Request] = queue.Queue(MAX_WAITING)
        threading.Thread(target=self._work, daemon=True).start()

    def submit(
        self, signature: str, columns: list[np.ndarray]
    ) -> "futures.Future[dict[str, np.ndarray]]":
        """Returns the future outputs of a signature. Raises `queue.Full`."""
        future = futures.Future()
        alone = None if self.signatures[signature].is_by_row else future
        group = (signature, alone, *(column.shape[1:] for column in columns))
        self._waiting.put_nowait(_Request(group, columns, future))
        return future

    def _work(self) -> None:
        while True:
            requests, num_rows = [], 0
            # All that came during the last computation, or else the next that comes.
            while not requests or (num_rows < ROWS_AT_ONCE and self._waiting.qsize()):
                requests.append(self._waiting.get())
                num_rows += len(requests[-1].columns[0])
            groups: dict[tuple[Any, ...], list[_Request]] = {}
            for request in requests:
                # A request whose client has gone is cancelled, and not computed.
                if request.future.set_running_or_notify_cancel():
                    groups.setdefault(request.group, []).append(request)
            for (signature, *_), group in groups.items():
                self._answer(signature, group)

    def _answer(self, signature: str, requests: list[_Request]) -> None:
        first, *others = requests
        columns = zip(*(request.columns for request in requests), strict=True)
        dtypes = [spec.dtype for spec in self.signatures[signature].inputs]
        try:
            inputs = map(tf.constant, map(np.concatenate, columns), dtypes)
            outputs = served.as_arrays(self.functions[signature](*inputs))
        except Exception as error:
            if others:  # The fault of one request is not that of the others.
                for request in requests:
                    self._answer(signature, [request])
                return
            # The sentence of `input_checks`, without names and lines of operations.
            match = re.search(r"assertion failed: \[(.*?)\](.*)", str(error))
            reason = InputError(match[1] + match[2]) if match else error
            first.future.set_exception(reason)
            return
        begin, count = 0, self.model.column_count
        for request in requests:
            end = begin + len(request.columns[0])
            own = {name: values[begin:end] for name, values in outputs.items()}
            begin = end
            if count and signature == served.STRINGS:
                # As wide as the answers to this request alone.
                width = max(1, own[count].max(initial=0))
                own = {k: v[:, :width] if v.ndim > 1 else v for k, v in own.items()}
            request.future.set_result(own)
