"""Runs of training that kill themselves when told to, for `test_killed_runs.py`.

Takes orders as lines of JSON and answers each with a line: the exit code of the run, or
minus the signal that ended it. Each run is a process of its own, forked from this one
after the costly imports and before anything was computed.
"""

import json
import os
import signal
import sys
import threading
import time

import keras
import tensorflow as tf

from bert_keras.core.settings import finetuning, loading, pretraining
from bert_keras.training import pretrain
from tests import make


class DieAfterStep(keras.callbacks.Callback):
    """Some time after a step: in a later one, in an evaluation, or wherever it is."""

    def __init__(self, step: int, seconds: float):
        super().__init__()
        self._step, self._seconds = step, seconds

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self._step:
            threading.Thread(target=self._die, daemon=True).start()

    def _die(self) -> None:
        time.sleep(self._seconds)
        os.kill(os.getpid(), signal.SIGKILL)


def die_after_step(step: int, seconds: float) -> None:
    fit = keras.Model.fit

    def fit_and_die(self, *args, callbacks, **options):
        callbacks = [*callbacks, DieAfterStep(step, seconds)]
        return fit(self, *args, callbacks=callbacks, **options)

    keras.Model.fit = fit_and_die


def run(*, verb, settings, death, **order) -> None:
    if death is not None:
        die_after_step(*death)
    order["strategy"] = tf.distribute.OneDeviceStrategy("/cpu:0")
    if verb == "pretrain":
        examples = order.pop("examples")
        settings = loading.load(pretraining.PretrainingConfig, settings)
        pretrain.pretrain(settings, examples, **order)
    else:
        settings = loading.load(finetuning.FinetuningConfig, settings)
        make.finetune(settings, from_scratch=False, **order)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(**json.loads(line))
            sys.stderr.flush()
            # Without the end of the process that it was forked from.
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
