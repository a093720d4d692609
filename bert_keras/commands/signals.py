"""SIGTERM and Ctrl-C end a command, even where a silent store holds it up."""

import logging
import os
import signal
import threading
import time
from typing import NoReturn

from bert_keras.core import messages, stores
from bert_keras.core.errors import Stopped

_GRACE_SECONDS = 20.0
"""Time between a signal and the end of a process that a silent store holds up, without
`_ANSWER_SECONDS`: clouds give 30 in all."""
_ANSWER_SECONDS = 5.0
"""Time in which a store that is there answers."""


def end_this_process() -> None:
    """Makes SIGTERM and Ctrl-C end this process even if a store does not answer.

    Python's handlers wait for the call that the main thread is in, such as TensorFlow's
    read of a batch, which may take minutes. So a thread receives the signal, asks the
    stores, and ends the process, whose state may be in the middle of a step.
    """
    signal.signal(signal.SIGTERM, _stop)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A signal to a forked process is none to this one.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def _stop(*_: object) -> NoReturn:
    """Answers SIGTERM, unless a verb answers it itself; `main` words the message."""
    raise Stopped("")


def _watch(pipe: int) -> None:
    number = 0
    while number not in (signal.SIGTERM, signal.SIGINT):
        number = os.read(pipe, 1)[0]
    time.sleep(_GRACE_SECONDS)
    while stores.all_answer(seconds=_ANSWER_SECONDS):
        time.sleep(1)
    messages.print_final_error(
        f"bert-keras: stopped by {signal.Signals(number).name} while a store does not "
        "answer, and not saved",
        level=logging.WARNING,
    )
    os._exit(128 + number)
