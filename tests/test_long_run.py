"""The benchmark of a long run, on a training that only pretends."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "benchmarks/long_run.py"
spec = importlib.util.spec_from_file_location("long_run", PATH)
long_run = importlib.util.module_from_spec(spec)
sys.modules["long_run"] = long_run
spec.loader.exec_module(long_run)

LOG = """\
checking 64 shards of examples_128
resuming after step 150 from runs/tiny/checkpoints/step-0000000150.npz
step 151/300  loss 7.600  masked_lm_accuracy 0.045  lr 5e-05
evaluation at step 200  loss 7.6  masked_lm_accuracy 0.0465
step 232/300  loss 7.665  masked_lm_accuracy 0.046  lr 2.3e-05  100 seq/s  0:00:22 left
step 24"""


def test_log_lines_are_read():
    assert (long_run.last_step(LOG), long_run.resumed_step(LOG)) == (232, 150)
    assert (long_run.last_step(""), long_run.resumed_step("")) == (0, 0)


def samples(values, *, attempt=1, step=1, begin=0.0):
    return [
        long_run.Sample(begin + 10 * number, attempt, step, megabytes)
        for number, megabytes in enumerate(values)
    ]


def test_memory_is_compared_within_a_process_and_a_phase():
    warm_up = [10.0, 2000.0]
    # One odd sample in a third changes no median.
    first = samples([*warm_up, 100, 100, 500, 110, 110, 110, 104, 1, 104])
    second = samples([*warm_up, *[50] * 9], attempt=2, begin=200, step=8)
    third = samples([*warm_up, *[90] * 3, *[1] * 3, *[60] * 3], attempt=2, step=11)
    short = samples([*warm_up, *[70] * 8], attempt=3, step=11)
    found = long_run.memory_growth(
        [*first, *second, *third, *short], phase_ends=(10,), warm_up_seconds=20
    )
    assert found == [
        long_run.Growth(1, 1, 80.0, 100, 104),
        long_run.Growth(2, 1, 80.0, 50, 50),
        long_run.Growth(2, 2, 80.0, 90, 60),
    ]
    assert [growth.share for growth in found] == pytest.approx([0.04, 0, -1 / 3])
    assert long_run.memory_text(found).endswith("Not flat within 5%: at most -33.3%.")
    assert long_run.memory_text(found[:2]).endswith("Flat within 5%: at most +4.0%.")
    assert "| 1 | 1 | 1 | 100 | 104 | +4.0% |" in long_run.memory_text(found)
    assert long_run.memory_text([]) == "No stretch was long enough to tell."


def test_the_memory_of_a_whole_tree_is_counted(tmp_path):
    program = """
import subprocess, sys, time
child = None
if sys.argv[1] == "parent":
    child = subprocess.Popen([sys.executable, __file__, "child"])
kept = b"x" * 50_000_000
time.sleep(60)
"""
    (tmp_path / "program.py").write_text(program)
    process = subprocess.Popen([sys.executable, tmp_path / "program.py", "parent"])
    try:
        deadline = time.monotonic() + 20
        while long_run.tree_megabytes(process.pid) < 100:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert long_run.tree_megabytes(process.pid) < 200
    finally:
        process.kill()
        process.wait()


def test_the_interruptions_as_a_table():
    attempts = [
        long_run.Attempt(begin=100, end=3800, last_step=2345, ended_by="SIGKILL"),
        long_run.Attempt(
            begin=0, end=61, resumed_step=2000, last_step=3000, ended_by="SIGTERM"
        ),
        long_run.Attempt(
            begin=0, end=5, resumed_step=3001, last_step=4000, ended_by="the end"
        ),
    ]
    assert long_run.attempts_table(attempts).splitlines()[2:] == [
        "| 1 | 0 | 2,345 | 1:01:40 | SIGKILL | 345 |",
        "| 2 | 2,000 | 3,000 | 0:01:01 | SIGTERM | 0 |",
        "| 3 | 3,001 | 4,000 | 0:00:05 | the end |  |",
    ]


def test_the_evaluation_stands_beside_the_guess():
    results = {
        "eval": {"masked_lm_loss": 2.0, "next_sentence_accuracy": 0.75},
        "eval_baseline": {"commonest_token": "the", "masked_lm_loss": 6.0},
    }
    assert long_run.evaluation_table(results).splitlines()[2:] == [
        "| masked_lm_loss | 2.0000 | 6.0000 |",
        "| next_sentence_accuracy | 0.7500 |  |",
        "| masked_lm_perplexity | 7.39 | 403.43 |",
        "",
        "The commonest masked token is `the`.",
    ]


# Makes a step in 10 ms, saves every tenth, and answers SIGTERM as the training does.
TRAINING = """
import pathlib, signal, sys, time
saved = pathlib.Path(sys.argv[1])
step = int(saved.read_text()) if saved.exists() else 0
if step:
    print(f"resuming after step {step} from {saved}", flush=True)

def save(step):
    pathlib.Path(f"{saved}.new").write_text(str(step))
    pathlib.Path(f"{saved}.new").rename(saved)

is_asked = []
signal.signal(signal.SIGTERM, lambda *_: is_asked.append(1))
while step < 300 and not is_asked:
    time.sleep(0.01)
    step += 1
    print(f"step {step}/300  loss 1.000", flush=True)
    if step % 10 == 0 or is_asked:
        save(step)
save(step)
sys.exit(int(sys.argv[2]) if is_asked else 0)
"""


def training(tmp_path, exit_code=143):
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    return [sys.executable, str(program), str(tmp_path / "saved"), str(exit_code)]


@pytest.fixture(autouse=True)
def fast_samples(monkeypatch):
    monkeypatch.setattr(long_run, "SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr(long_run, "POLL_SECONDS", 0.05)


@pytest.mark.slow
def test_a_run_is_killed_terminated_and_finished(tmp_path):
    work, command = tmp_path / "work", training(tmp_path)
    plan = {"kill_at": 25, "terminate_at": 150}
    run = long_run.LongRun(work, command, **plan)
    run.complete()
    first, second, third = run.attempts
    endings = [attempt.ended_by for attempt in run.attempts]
    assert endings == ["SIGKILL", "SIGTERM", "the end"]
    assert 25 <= first.last_step < 150 <= second.last_step < third.last_step == 300
    # Between logging a step and saving it there is a moment in which it may be killed.
    assert second.resumed_step % 10 == 0
    assert 0 <= first.last_step - second.resumed_step <= 10
    assert third.resumed_step == second.last_step
    found = run.samples
    assert [s.attempt for s in found] == sorted(s.attempt for s in found)
    assert {s.attempt for s in found} == {1, 2, 3}
    # Python alone takes so much; a process that has just begun, less.
    assert 5 < max(s.megabytes for s in found) < 100
    assert min(s.megabytes for s in found) > 0
    # The same command again has nothing left to do.
    again = long_run.LongRun(work, command, **plan)
    again.complete()
    assert again.attempts == run.attempts


@pytest.mark.slow
def test_a_run_that_was_broken_off_goes_on(tmp_path):
    work, command = tmp_path / "work", training(tmp_path)
    plan = {"kill_at": 25, "terminate_at": 150}
    run = long_run.LongRun(work, command, **plan)
    # As this script leaves it when it is killed in the first attempt.
    state = {
        "command": command,
        "plan": {"SIGKILL": 25, "SIGTERM": 150},
        "attempts": [{"begin": 1000.0}],
    }
    (work / "state.json").write_text(json.dumps(state))
    with open(work / "memory.csv", "a") as file:
        file.write("10.0,1,20,300.5\r\n12.5,1,22,301.5\r\n20.0,1")
    (tmp_path / "saved").write_text("20")
    run = long_run.LongRun(work, command, **plan)
    broken = run.attempts[0]
    assert (broken.ended_by, broken.last_step) == ("the end of this script", 22)
    assert broken.seconds == 12.5
    assert run.samples == [(10.0, 1, 20, 300.5), (12.5, 1, 22, 301.5)]
    run.complete()
    endings = [attempt.ended_by for attempt in run.attempts[1:]]
    assert endings == ["SIGKILL", "SIGTERM", "the end"]
    assert run.attempts[1].resumed_step == 20


@pytest.mark.slow
def test_what_was_not_planned_ends_it(tmp_path):
    plan = {"kill_at": 10, "terminate_at": 90}
    run = long_run.LongRun(tmp_path / "a", training(tmp_path, 3), **plan)
    with pytest.raises(
        SystemExit, match="exit code 3 after SIGTERM, expected 143: see"
    ):
        run.complete()
    assert run.attempts[-1].ended_by == "exit code 3"
    (tmp_path / "saved").unlink()
    plan = {"kill_at": 400, "terminate_at": 500}
    run = long_run.LongRun(tmp_path / "b", training(tmp_path), **plan)
    with pytest.raises(SystemExit, match="ended before SIGKILL was due: set it earl"):
        run.complete()
    with pytest.raises(SystemExit, match="holds another run; choose another --work"):
        long_run.LongRun(tmp_path / "b", training(tmp_path), kill_at=1, terminate_at=2)
