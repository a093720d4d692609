"""The loop, with an engine that only counts."""

import os
import signal

import pytest

from bert_keras.core import stores
from bert_keras.core.errors import InputError, Stopped
from bert_keras.training import run
from bert_keras.training.step import stopping, watcher


class Unreadable(Exception):
    """The error of a store that does not give a batch."""


class Checkpoints:
    """Notes what is asked of a `CheckpointDirectory`."""

    def __init__(self, calls):
        self.step, self.calls, self.failure = 0, calls, None

    def restore_latest(self, state):
        return self.step

    def check(self):
        if self.failure:
            raise self.failure

    def wait(self):
        self.calls.append("written")

    def save(self, step, state, *, score, is_interim):
        self.step = step
        self.calls.append(f"{'interim' if is_interim else 'save'} {step}")


class Engine:
    errors = (Unreadable,)

    def __init__(self, world, *, is_alone=True):
        self.step, self.world, self.is_alone = 0, world, is_alone
        self.requests, self.differences = {}, []

    def state(self):
        return {}

    def make_steps(self, stream, schedule, *, before, after):
        while self.step < schedule:
            before(self.step)
            self.world.happens(f"step {self.step + 1}")
            # Travels with the gradients of this step.
            logs = {"loss": 1 / (self.step + 1), **self.requests}
            self.step += 1
            if after(self.step, logs):
                return

    def evaluate(self, evaluation, *, after_test_batch):
        for batch in range(2):
            self.world.happens(f"batch {batch} of {self.step}")
            after_test_batch(self.requests.get("stop_requested", 0) > 0)
        return {"loss": 0.5}

    def request(self, name, value=1.0):
        self.requests[name] = value

    def differing(self, values):
        return self.differences

    def checksums(self, state):
        return {"weights": [1, 2]}


class Stream:
    def __init__(self, world, step):
        self.world = world
        world.calls.append(f"open {step}")

    def close(self):
        self.world.calls.append("close")


class World:
    """A run of two stretches, of 8 and 4 steps, and what happens in it."""

    def __init__(
        self, *, is_alone=True, data=(), minutes=None, restored=0, unfinished=None
    ):
        self.calls, self.surprises = [], {}
        self.engine = Engine(self, is_alone=is_alone)
        self.engine.step = restored
        self.checkpoints = Checkpoints(self.calls)
        self.checkpoints.step = restored
        minutes = minutes or {}
        self.job = job = run.Job("run", strategy=None, is_chief=True, paths={})
        job.engine, job.state, job.checkpoints = self.engine, {}, self.checkpoints
        job.unfinished = unfinished or (lambda loop: [])
        job.begin = lambda: self.calls.append("begin")
        job.stretches, job.data = [self.stretch(8), self.stretch(12)], data
        job.events = [
            run.Event(
                name="save",
                what=run.Loop.save_as_due,
                every_steps=4,
                every_minutes=minutes.get("save"),
                is_long=False,
            ),
            run.Event(
                name="evaluate",
                what=lambda loop: loop.evaluate(None),
                every_steps=6,
                every_minutes=minutes.get("evaluate"),
            ),
            run.Event(
                name="draw",
                what=lambda loop: self.happens(f"draw {loop.step}"),
                every_steps=12,
                at_end=False,
                every_minutes=minutes.get("draw"),
            ),
        ]

    def stretch(self, last_step):
        class Watch(watcher.Watcher):
            def evaluated(_, step, metrics):
                self.calls.append(f"evaluated {step}")

            def close(_):
                self.calls.append(f"leave {last_step}")

        return run.Stretch(
            last_step=last_step,
            enter=lambda loop: self.calls.append(f"enter {last_step}"),
            watch=lambda loop: [Watch()],
            stream_from=lambda step: Stream(self, step),
            schedule_to=lambda step: step,
        )

    def happens(self, what):
        self.calls.append(what)
        if what in self.surprises:
            self.surprises.pop(what)()

    def live(self):
        with stopping.StopSignal() as stop_signal:
            loop = run.Loop(self.job, stop_signal)
            loop.resume()
            loop.train()
        return loop


def steps(first, last):
    return [f"step {step}" for step in range(first, last + 1)]


def evaluation(step):
    return [f"batch 0 of {step}", f"batch 1 of {step}", f"evaluated {step}"]


WHOLE = [
    *("begin", "enter 8", "open 0", *steps(1, 4), "save 4"),
    *(*steps(5, 6), *evaluation(6), *steps(7, 8), "save 8", *evaluation(8)),
    *("close", "leave 8", "enter 12", "open 8", *steps(9, 12), "save 12"),
    *(*evaluation(12), "close", "leave 12", "written"),
]


def test_events_come_in_their_order():
    """Batches go on from event to event; each stretch has its own."""
    world = World()
    loop = world.live()
    assert world.calls == WHOLE
    assert loop.train_logs == {"loss": 1 / 12}


def test_what_was_interrupted_is_done_first():
    """At the end of a stretch within that stretch, whose steps are made."""
    world = World(restored=8, unfinished=lambda loop: ["evaluate", "draw"])
    world.live()
    at_8 = ["enter 8", *evaluation(8), "draw 8", "leave 8"]
    assert world.calls == at_8 + WHOLE[WHOLE.index("enter 12") :]


def test_a_run_that_is_over_makes_no_step():
    def end(loop):
        loop.is_over = True
        return []

    world = World(restored=4, unfinished=end)
    world.live()
    assert world.calls == ["written"]


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("moment", "where", "calls"),
    [
        # Nothing is lost: at once.
        ("step 1", "", ["step 1"]),
        ("step 5", "", ["step 5"]),
        ("batch 0 of 8", "", ["batch 0 of 8"]),
        # After the step; what is due and short is done.
        ("step 2", " at step 2", ["step 2", "interim 2"]),
        ("step 4", " at step 4", ["step 4", "save 4"]),
        ("step 8", " at step 8", ["step 8", "save 8"]),
        # In an evaluation of a step that was not saved.
        ("batch 0 of 6", " at step 6", ["batch 0 of 6", "interim 6"]),
    ],
)
def test_a_signal(moment, where, calls):
    world = World()
    world.surprises[moment] = terminate
    with pytest.raises(Stopped, match=f"stopped by SIGTERM{where}; give") as end:
        world.live()
    assert end.value.exit_code == 128 + signal.SIGTERM
    before = WHOLE[: WHOLE.index(moment)]
    assert [c for c in world.calls if c not in ("close", "written")] == [
        *(c for c in before if c not in ("close", "written")),
        *calls,
    ]
    assert world.calls[-2:] == ["written", "close"]


def test_a_signal_after_the_last_step_is_too_late():
    """Seconds from its end, a run ends well."""
    world = World()
    wait = world.checkpoints.wait
    world.checkpoints.wait = lambda: (terminate(), wait())
    world.engine.is_alone = False
    world.live()
    assert world.calls == WHOLE


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ({"save": 1}, ["interim 3", "save 4", "interim 7", "save 8", "interim 11"]),
        (
            {"draw": 1},
            ["draw 3", "save 4", "draw 6", "save 8", "draw 9", "save 12", "draw 12"],
        ),
    ],
)
def test_events_come_after_some_minutes(minutes, expected, monkeypatch):
    """The clock begins again with each one, whatever it was due for."""
    world = World(minutes=minutes)
    monkeypatch.setattr(stopping.time, "monotonic", lambda: world.engine.step * 20.0)
    world.live()
    kinds = ("save", "interim", "draw")
    calls = [call for call in world.calls if call.split()[0] in kinds]
    assert calls[: len(expected)] == expected


def test_workers_act_together(monkeypatch):
    """A request travels with the next step, and ends when it is carried out."""
    world = World(is_alone=False, minutes={"evaluate": 1})
    monkeypatch.setattr(stopping.time, "monotonic", lambda: world.engine.step * 25.0)
    world.live()
    evaluated = [c for c in world.calls if c.startswith("evaluated")]
    assert evaluated == [f"evaluated {step}" for step in (4, 6, 8, 12)]
    world = World(is_alone=False)
    world.surprises["step 5"] = terminate
    with pytest.raises(Stopped, match="at step 6; give"):
        world.live()
    # Not the evaluation, which the resumed run makes.
    assert world.calls[-4:] == ["step 6", "interim 6", "written", "close"]
    world = World(is_alone=False)
    world.surprises["batch 0 of 6"] = terminate
    with pytest.raises(Stopped, match="at step 6; give"):
        world.live()


def test_workers_that_differ():
    for is_alone in (True, False):
        loop = World(is_alone=is_alone)
        loop.engine.differences = ["weights"]
        under_way = run.Loop(loop.job, stopping.StopSignal())
        if is_alone:
            run.compare_workers(under_way)
            continue
        message = "step 0: the workers' states differ in 1 variables, the first is wei"
        with pytest.raises(InputError, match=message):
            run.compare_workers(under_way)
        with pytest.raises(InputError, match="found different checkpoints, this one"):
            under_way.resume()


def test_a_checkpoint_that_could_not_be_written_ends_the_run():
    world = World()

    def fail():
        world.checkpoints.failure = InputError("the disk is full")

    world.surprises["step 6"] = fail
    with pytest.raises(InputError, match="the disk is full"):
        world.live()
    assert world.calls[-2:] == ["step 6", "close"]


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    seconds = []
    monkeypatch.setattr(stores.time, "sleep", seconds.append)
    monkeypatch.setattr(stores, "is_transient", lambda error: True)
    return seconds


@pytest.mark.parametrize("moment", ["step 3", "step 9", "batch 1 of 6"])
def test_data_that_do_not_come_for_a_while(moment, waits):
    """The run goes on in memory: batches are opened again at the step reached."""
    world = World(data=["ram://bucket/examples"])

    def fail():
        raise Unreadable("no answer from ram://bucket/examples/1")

    world.surprises[moment] = fail
    world.live()
    at = WHOLE.index(moment)
    number = int(moment.split()[-1])
    first = (
        [WHOLE[at], "close", f"open {number - 1}"]
        if "step" in moment
        else ["batch 1 of 6", "close", "batch 0 of 6"]
    )
    rest = WHOLE[at:]
    if "batch" in moment:
        rest.insert(rest.index("step 7"), "open 6")
    assert world.calls == WHOLE[:at] + first + rest
    assert len(waits) >= 1


def test_other_errors_end_the_run(waits):
    for data, text in (((), "ram://x"), (["ram://x"], "a device is broken")):
        world = World(data=data)

        def fail(text=text):
            raise Unreadable(text)

        world.surprises["step 3"] = fail
        with pytest.raises(Unreadable, match=text):
            world.live()
    assert waits == []
