"""A run whose engine trains one number: it needs no TensorFlow, and milliseconds.

`main` takes orders as lines of JSON, gives each run a life in a child of its own, and
answers with the exit code, or minus the signal that ended the life.
"""

import dataclasses
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import Stopped
from bert_keras.core.settings import architecture, strict, tasks
from bert_keras.data import tokenization
from bert_keras.training import run


class Unreadable(Exception):
    """The error of a store that does not give a batch."""


class Number:
    def __init__(self, value):
        self.value, self.shape, self.dtype = np.array(value), (), np.array(value).dtype

    def assign(self, value):
        self.value = np.array(value, self.dtype)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.value, dtype)


class PlainEngine:
    """Follows random numbers with a momentum; `happens` hears of all that it does."""

    errors, is_chief = (Unreadable,), True

    def __init__(self, happens=lambda what: None, *, is_alone=True):
        self.happens, self.is_alone = happens, is_alone
        self.steps, self.weight, self.momentum = Number(0), Number(1.0), Number(0.0)
        self.requests, self.differences = {}, []

    def describe(self):
        return "1 plain number"

    def self_check(self):
        self.happens("self-check")

    def differing(self, values):
        return [name for name in self.differences if name in values]

    def wait_for_all(self):
        pass

    def in_words(self, error):
        return f"in words: {error}" if isinstance(error, ArithmeticError) else None

    @property
    def step(self):
        return int(self.steps.value)

    def state(self):
        return {"steps": self.steps, "weight": self.weight, "momentum": self.momentum}

    def checksums(self):
        return {name: float(number.value) for name, number in self.state().items()}

    def make_steps(self, stream, last_step, *, before, after):
        while self.step < last_step:
            before(self.step)
            self.happens(f"step {self.step + 1}")
            gradient = self.weight.value - stream.batch(self.step)
            self.momentum.assign(0.9 * self.momentum.value + gradient)
            self.weight.assign(self.weight.value - 0.1 * self.momentum.value)
            # Requests travel with the sums of this step.
            logs = {"loss": float(gradient**2), **self.requests}
            self.steps.assign(self.step + 1)
            if after(self.step, logs):
                return

    def evaluate(self, evaluation, *, after_test_batch):
        for batch in range(2):
            self.happens(f"batch {batch} of {self.step}")
            after_test_batch(self.requests.get("stop_requested", 0) > 0)
        return {"loss": abs(float(self.weight.value))}

    def request(self, name, value=1.0):
        self.requests[name] = value

    def finish(self, run, results):
        files.write_json(run.directory / "weights.json", self.checksums())
        run_directory.write_results(run.directory, results)


@dataclasses.dataclass
class Stream:
    seed: int
    happens: object

    def batch(self, number):
        return random.Random(f"{self.seed} {number}").gauss()

    def close(self):
        self.happens("close")


class Settings(strict.StrictModel):
    seed: int = 1
    num_steps: int = 12


class Curve(run.Watcher):
    """A file of all losses, in which no step comes twice."""

    def __init__(self, job, loop, last_step):
        self.happens, self.last_step = job.engine.happens, last_step
        self.path = Path(job.run.directory) / "curve.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        # The last line may be unfinished.
        points = [json.loads(line) for line in lines if line.endswith("]")]
        redone = {"evaluation": "evaluate" in loop.due}
        points = [p for p in points if p[0] <= loop.step - redone.get(p[1], 0)]
        # A signal may come between any two lines here.
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{json.dumps(p)}\n" for p in points))
        new.rename(self.path)

    def write(self, *point):
        with self.path.open("a") as file:
            file.write(f"{json.dumps(point)}\n")

    def after_steps(self, step, logs):
        self.write(step, "train", logs["loss"])

    def evaluated(self, step, metrics):
        self.happens(f"evaluated {step}")
        self.write(step, "evaluation", metrics["loss"])

    def close(self):
        self.happens(f"leave {self.last_step}")


class PlainJob(run.Job):
    """Two stretches, the second of a third of the steps, and three kinds of events."""

    def __init__(self, directory, engine, *, settings=None, data=(), minutes=None):
        super().__init__(directory, engine=engine, paths={})
        self.settings, self.data = settings or Settings(), data
        self.minutes, self.ends_early_at = minutes or {}, None

    def prepare(self):
        self._create_run(
            self.settings,
            compared={},
            inputs={},
            changeable=(),
            task=tasks.Task(kind="pretraining"),
            bert_config=architecture.BertConfig(vocab_size=5),
            vocabulary=tokenization.Vocabulary(
                ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            ),
            do_lower_case=True,
        )

    def build(self):
        self.state = self.engine.state()
        self.checkpoints_to_keep = {"keep": 2, "keep_best": 1}
        num_steps = self.settings.num_steps
        self.stretches = [self.stretch(num_steps * 2 // 3), self.stretch(num_steps)]
        minutes = self.minutes
        self.events = [
            run.Event(
                name="save",
                what=self.save,
                every_steps=[4],
                every_minutes=minutes.get("save"),
            ),
            run.Event(
                name="evaluate",
                what=self.evaluate,
                every_steps=[6],
                every_minutes=minutes.get("evaluate"),
                is_done=lambda loop: loop.checkpoints.has_score(loop.step),
            ),
            run.Event(
                name="draw",
                what=self.draw,
                every_steps=[12],
                every_minutes=minutes.get("draw"),
                at_end=False,
                is_done=lambda loop: self.picture(loop).exists(),
            ),
        ]

    def stretch(self, last_step):
        def enter(loop):
            self.engine.happens(f"enter {last_step}")
            return [Curve(self, loop, last_step)]

        def stream_from(step):
            self.engine.happens(f"open {step}")
            return Stream(self.settings.seed, self.engine.happens)

        return run.Stretch(
            last_step=last_step,
            enter=enter,
            stream_from=stream_from,
        )

    def begin(self, loop):
        self.engine.happens(f"begin {loop.step}")

    def is_over(self, loop):
        return loop.step == self.ends_early_at

    def save(self, loop):
        loop.save()
        self.engine.happens(f"save {loop.step}")

    def evaluate(self, loop):
        metrics = loop.evaluate(None)
        loop.checkpoints.record_score(loop.step, metrics["loss"])

    def picture(self, loop):
        return Path(self.run.directory) / f"picture-{loop.step}.txt"

    def draw(self, loop):
        self.engine.happens(f"draw {loop.step}")
        # Whole or not at all: a kill in the thread of checkpoints may come meanwhile.
        picture = str(loop.engine.weight.value).encode()
        files.write_atomically(self.picture(loop), picture)

    def results(self, loop):
        return {"steps": loop.step, "best": f"{loop.checkpoints.scores()}"}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def live(directory, *, num_steps, dies_at=None, dies_in=None, stops_at=None):
    """Gives a run a life; it ends at a moment of the engine, in a system call, or well.

    `dies_in` is a call of `os` and how often it goes well before; a half-written file
    is left where the call is `fsync`.
    """
    moments = {dies_at: die, stops_at: lambda: signal.raise_signal(signal.SIGTERM)}
    if dies_in is not None:
        name, times_left = dies_in
        call = getattr(os, name)

        def call_or_die(*arguments, **options):
            nonlocal times_left
            times_left -= 1
            if times_left < 0:
                if name == "fsync":
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                die()
            return call(*arguments, **options)

        setattr(os, name, call_or_die)
    engine = PlainEngine(lambda what: moments.get(what, lambda: None)())
    run.run(PlainJob(directory, engine, settings=Settings(num_steps=num_steps)))


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                live(**json.loads(line))
            except Stopped as stopped:
                os._exit(stopped.exit_code)
            # Without the end of the process that it was forked from.
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
