"""The loop, with an engine of plain numbers."""

import json
import logging
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_keras.checkpoints import training_state
from bert_keras.core import files, ownership, stores
from bert_keras.core.errors import InputError, Stopped
from bert_keras.training import run
from tests.bert_keras.training import plain_engine


class World:
    """A run of two stretches, of 8 and 4 steps, and what happens in it."""

    def __init__(self, directory, *, is_alone=True, **options):
        self.calls, self.surprises = [], {}
        self.engine = plain_engine.PlainEngine(self.happens, is_alone=is_alone)
        self.job = plain_engine.PlainJob(directory, self.engine, **options)

    def happens(self, what):
        self.calls.append(what)
        if what in self.surprises:
            self.surprises.pop(what)()

    def live(self):
        return run.run(self.job)


def steps(first, last):
    return [f"step {step}" for step in range(first, last + 1)]


def evaluation(step):
    return [f"batch 0 of {step}", f"batch 1 of {step}", f"evaluated {step}"]


WHOLE = [
    *("self-check", "begin 0", "enter 8", "open 0", *steps(1, 4), "save 4"),
    *(*steps(5, 6), *evaluation(6), *steps(7, 8), "save 8", *evaluation(8)),
    *("close", "leave 8", "enter 12", "open 8", *steps(9, 12), "save 12"),
    *(*evaluation(12), "close", "leave 12"),
]


def terminate():
    signal.raise_signal(signal.SIGTERM)


def test_events_come_in_their_order(tmp_path, caplog):
    """Batches go on from event to event; each stretch has its own."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    world = World(tmp_path / "run")
    results = world.live()
    assert world.calls == WHOLE
    assert results["steps"] == 12
    assert results["environment"]["devices"] == "1 plain number"
    # A second call leaves a finished run as it is.
    again = World(tmp_path / "run")
    assert again.live() == results
    assert again.calls == [] and "finished already, at step 12" in caplog.text


def test_a_directory_has_one_writer(tmp_path):
    """The second is refused before it does anything."""
    world = World(tmp_path / "run")
    with ownership.owned(tmp_path / "run"):
        with pytest.raises(InputError, match="run: in use by process .* wait for its"):
            world.live()
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".owner"]
    assert world.calls == []


def test_what_was_interrupted_is_done_first(tmp_path):
    """At the end of a stretch within that stretch, whose steps are made."""
    world = World(tmp_path / "run")
    world.surprises["batch 1 of 8"] = terminate
    with pytest.raises(Stopped):
        world.live()
    world = World(tmp_path / "run")
    world.live()
    at_8 = ["self-check", "begin 8", "enter 8", *evaluation(8), "leave 8"]
    assert world.calls == at_8 + WHOLE[WHOLE.index("enter 12") :]


def test_a_training_that_ends_early(tmp_path):
    """So does the run that resumes it before its results are written."""
    world = World(tmp_path / "run")
    world.job.ends_early_at = 8
    world.surprises["leave 8"] = terminate
    with pytest.raises(Stopped):
        world.live()
    assert world.calls == WHOLE[: WHOLE.index("leave 8") + 1]
    world = World(tmp_path / "run")
    world.job.ends_early_at = 8
    assert world.live()["steps"] == 8
    assert world.calls == ["self-check", "begin 8"]


@pytest.mark.parametrize(
    ("moment", "where", "calls", "saved"),
    [
        # Nothing is lost: at once.
        ("step 1", "", ["step 1"], []),
        ("step 5", "", ["step 5"], [4]),
        ("batch 0 of 8", "", ["batch 0 of 8"], [4, 8]),
        # After the step; what is due and short is done.
        ("step 2", " at step 2", ["step 2"], [2]),
        ("step 4", " at step 4", ["step 4", "save 4"], [4]),
        ("step 8", " at step 8", ["step 8", "save 8"], [4, 8]),
        # In an evaluation of a step that was not saved.
        ("batch 0 of 6", " at step 6", ["batch 0 of 6"], [4, 6]),
    ],
)
def test_a_signal(moment, where, calls, saved, tmp_path):
    world = World(tmp_path / "run")
    world.surprises[moment] = terminate
    message = f"^stopped by SIGTERM{where}; run the same command again to resume$"
    with pytest.raises(Stopped, match=message) as end:
        world.live()
    assert end.value.exit_code == 128 + signal.SIGTERM
    before = WHOLE[: WHOLE.index(moment)]
    assert world.calls == [*before, *calls, "close"]
    assert saved_steps(tmp_path / "run") == saved
    World(tmp_path / "run").live()
    World(tmp_path / "whole").live()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def saved_steps(directory):
    names = files.list_directory(directory / "checkpoints")
    return sorted(int(name[5:15]) for name in names if name.startswith("step-"))


def contents(directory):
    """All files of a finished run but for what tells of its process."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
    del found["environment.json"]
    return found


def test_a_signal_after_the_last_step_is_too_late(tmp_path):
    """Seconds from its end, a run ends well."""
    world = World(tmp_path / "run", is_alone=False)
    world.surprises["leave 12"] = terminate
    world.live()
    assert world.calls == WHOLE


@pytest.mark.parametrize("moment", ["batch 0 of 6", "batch 0 of 8", "step 7"])
def test_a_signal_does_not_hide_that_nothing_was_saved(moment, tmp_path, monkeypatch):
    """The disk is full when the state is written: in the evaluation or before it."""
    world = World(tmp_path / "run")

    save = training_state.save_state

    def fail(path, *arguments, **options):
        if saved_steps(tmp_path / "run"):
            raise InputError(f"{Path(path).name}: cannot be written: No space left")
        save(path, *arguments, **options)

    monkeypatch.setattr(training_state, "save_state", fail)
    world.surprises[moment] = terminate
    step = 8 if moment == "batch 0 of 8" else int(moment.split()[-1])
    where = "" if step == 8 else f" at step {step}"
    message = (
        f"^stopped by SIGTERM{where}; its last checkpoint was not written, so the run "
        f"resumes from the one before it: step-{step:010}.*: cannot be written: No spa"
    )
    with pytest.raises(InputError, match=message):
        world.live()
    assert saved_steps(tmp_path / "run") == [4]


def test_a_checkpoint_that_could_not_be_written_ends_the_run(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise InputError("the disk is full")

    monkeypatch.setattr(training_state, "save_state", fail)
    world = World(tmp_path / "run")
    with pytest.raises(InputError, match="^the disk is full$"):
        world.live()
    assert world.calls[-1] == "close" and "evaluated 8" not in world.calls


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("save", ["3", "4", "7", "8", "11"]), ("draw", ["3", "6", "9", "12"])],
)
def test_events_come_after_some_minutes(kind, expected, tmp_path, monkeypatch):
    """The clock begins again with each one, whatever it was due for. The checkpoint
    that only the clock asked for does not stay."""
    world = World(tmp_path / "run", minutes={kind: 1})
    monkeypatch.setattr(run.time, "monotonic", lambda: world.engine.step * 20.0)
    world.live()
    found = [call.split()[1] for call in world.calls if call.split()[0] == kind]
    assert found[: len(expected)] == expected
    assert set(saved_steps(tmp_path / "run")) <= {4, 8, 12}


def test_workers_act_together(tmp_path, monkeypatch):
    """A request travels with the next step, and ends when it is carried out."""
    world = World(tmp_path / "clock", is_alone=False, minutes={"evaluate": 1})
    with monkeypatch.context() as patch:
        patch.setattr(run.time, "monotonic", lambda: world.engine.step * 25.0)
        world.live()
    evaluated = [c for c in world.calls if c.startswith("evaluated")]
    assert evaluated == [f"evaluated {step}" for step in (4, 6, 8, 12)]
    for moment in ("step 5", "batch 0 of 6"):
        world = World(tmp_path / moment, is_alone=False)
        world.surprises[moment] = terminate
        with pytest.raises(Stopped, match="at step 6; run"):
            world.live()
        # Not the evaluation, or not all of it: the resumed run makes it.
        assert "evaluated 6" not in world.calls
        assert saved_steps(tmp_path / moment) == [4, 6]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("seed", "workers differ in 1 things: seed is 1 on this one: start all of t"),
        ("checkpoint", "found different checkpoints, this one that of step 0: give"),
        ("weight", "step 4: the workers' states differ in 1 variables, the first is w"),
    ],
)
def test_workers_that_differ(name, message, tmp_path):
    world = World(tmp_path / "run", is_alone=False)
    world.engine.differences = [name]
    build = world.job.build

    def compare_before_saving():
        build()
        compare = run.Event(name="compare", what=run.compare_workers, every_steps=[4])
        world.job.events.insert(0, compare)

    world.job.build = compare_before_saving
    with pytest.raises(InputError, match=message):
        world.live()
    if name == "weight":
        World(tmp_path / "run").live()


def test_errors_of_the_engine_are_told_in_its_words(tmp_path):
    world = World(tmp_path / "run")

    def fail():
        raise ZeroDivisionError("a device is gone")

    world.surprises["step 3"] = fail
    with pytest.raises(InputError, match="^in words: a device is gone$"):
        world.live()


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    seconds = []
    monkeypatch.setattr(stores.time, "sleep", seconds.append)
    monkeypatch.setattr(stores, "is_transient", lambda error: True)
    return seconds


@pytest.mark.parametrize("moment", ["step 3", "step 9", "batch 1 of 6"])
def test_data_that_do_not_come_for_a_while(moment, waits, tmp_path):
    """The run goes on in memory: batches are opened again at the step reached."""
    world = World(tmp_path / "run", data=["ram://bucket/examples"])

    def fail():
        raise plain_engine.Unreadable("no answer from ram://bucket/examples/1")

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
    World(tmp_path / "whole").live()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_other_errors_end_the_run(waits, tmp_path):
    for number, (data, text) in enumerate(
        [((), "ram://x"), (["ram://x"], "a device is broken")]
    ):
        world = World(tmp_path / str(number), data=data)

        def fail(text=text):
            raise plain_engine.Unreadable(text)

        world.surprises["step 3"] = fail
        with pytest.raises(plain_engine.Unreadable, match=text):
            world.live()
    assert waits == []


WITHOUT_TENSORFLOW = """
import sys
class Forbidden:
    def find_spec(name, *_):
        if name in ("tensorflow", "keras", "torch", "jax"):
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, Forbidden)
import os
from bert_keras.core import provenance
# A kill is no loss of power.
os.fsync, provenance.commit = lambda descriptor: None, lambda directory: None
from tests.bert_keras.training import plain_engine
plain_engine.main()
"""


@pytest.fixture(scope="module")
def live():
    """A function that gives a run a life in a process without TensorFlow."""
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:

        def live(**order) -> int:
            driver.stdin.write(json.dumps(order, default=str) + "\n")
            driver.stdin.flush()
            return int(driver.stdout.readline())

        yield live
        driver.stdin.close()


def test_killed_anywhere_and_never_killed(live, tmp_path):
    """At every moment of the engine, and before every rename and end of a write.

    No process of this test can import TensorFlow or Keras.
    """
    order = {"num_steps": 12}
    assert live(directory=tmp_path / "whole", **order) == 0
    whole = contents(tmp_path / "whole")
    deaths = [{"dies_at": moment} for moment in dict.fromkeys(WHOLE)]
    deaths += [
        {"dies_in": [name, number]}
        for name in ("fsync", "replace")
        for number in range(18)
    ]
    num_killed = 0
    for number, death in enumerate(deaths):
        directory = tmp_path / str(number)
        num_killed += live(directory=directory, **order, **death) == -signal.SIGKILL
        assert live(directory=directory, **order) == 0, death
        assert contents(directory) == whole, death
    assert num_killed > 60


def test_killed_again_and_again(live, tmp_path):
    """Signals and kills in turn: the bits of a run that nothing happened to."""
    choose, order = random.Random(1), {"num_steps": 240}
    assert live(directory=tmp_path / "whole", **order) == 0
    codes = []
    while not codes or codes[-1] != 0:
        newest = max(saved_steps(tmp_path / "run") or [0]) if codes else 0
        moment = f"step {newest + choose.randint(2, 12)}"
        if choose.random() < 0.3:
            moment = f"batch {choose.randrange(2)} of {(newest // 6 + 1) * 6}"
        death = choose.choice(
            [
                {"dies_at": moment},
                {"stops_at": moment},
                {"dies_in": ["replace", choose.randint(5, 12)]},
            ]
        )
        codes.append(live(directory=tmp_path / "run", **order, **death))
    assert len(codes) > 20 and {*codes} == {0, 143, -signal.SIGKILL}
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
