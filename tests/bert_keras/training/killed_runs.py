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

from bert_keras.checkpoints.containers import npz_files
from bert_keras.core.settings import finetuning, loading, pretraining
from bert_keras.training import pretrain
from tests import make


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DieAfterStep(keras.callbacks.Callback):
    """Some time after a step: in a later one, in an evaluation, or wherever it is."""

    def __init__(self, step: int, seconds: float):
        super().__init__()
        self._step = step
        self._seconds = seconds

    def on_train_batch_end(self, batch, logs=None):
        if (
            int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            == self._step
        ):
            threading.Thread(target=self._die, daemon=True).start()

    def _die(self) -> None:
        time.sleep(self._seconds)
        die()


def die_after_step(*, step: int, seconds: float) -> None:
    fit = keras.Model.fit

    def fit_and_die(self, *args, callbacks, **options):
        callbacks = [*callbacks, DieAfterStep(step, seconds)]
        return fit(self, *args, callbacks=callbacks, **options)

    keras.Model.fit = fit_and_die


def die_writing_slowly(*, step: int, seconds: float, seconds_per_array: float) -> None:
    """Some time after the first array of a checkpoint of a step, or of a later one, on
    a slow disk."""
    write_arrays = npz_files.write_arrays

    def write_slowly(path, arrays):
        def slow_arrays():
            for index, array in enumerate(arrays):
                if index == 1:
                    threading.Thread(target=wait_and_die, daemon=True).start()
                yield array
                time.sleep(seconds_per_array)

        is_due = int(path.stem.removeprefix("step-")) >= step
        write_arrays(path, slow_arrays() if is_due else arrays)

    def wait_and_die():
        time.sleep(seconds)
        die()

    npz_files.write_arrays = write_slowly


def die_renaming(*, step: int, is_renamed: bool) -> None:
    """Just before a checkpoint gets its name, or just after."""
    replace = os.replace

    def replace_and_die(source, target):
        is_due = os.path.basename(target) == f"step-{step:010}.npz"
        if is_due and not is_renamed:
            die()
        replace(source, target)
        if is_due:
            die()

    os.replace = replace_and_die


DEATHS = {
    "after_step": die_after_step,
    "writing_slowly": die_writing_slowly,
    "renaming": die_renaming,
}


def run(*, verb, death, **order) -> None:
    if death is not None:
        kind, moment = death
        DEATHS[kind](**moment)
    {"pretrain": run_pretraining, "finetune": run_finetuning}[verb](**order)


def run_finetuning(*, settings, **paths) -> None:
    make.finetune(
        loading.load(finetuning.FinetuningConfig, settings),
        from_scratch=False,
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
        **paths,
    )


def run_pretraining(*, settings, examples, output_dir, num_replicas) -> None:
    devices = [f"/cpu:{index}" for index in range(num_replicas)]
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in devices],
    )
    strategy = tf.distribute.OneDeviceStrategy(devices[0])
    if num_replicas > 1:
        strategy = tf.distribute.MirroredStrategy(devices)
    settings = loading.load(pretraining.PretrainingConfig, settings)
    pretrain.pretrain(settings, examples, output_dir, strategy=strategy)


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
