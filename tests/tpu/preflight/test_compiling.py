import configparser
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from bert_keras.core import chips
from bert_keras.core.errors import InputError
from bert_keras.tpu.preflight import compiling
from tests.tpu.preflight import test_preflight

REPOSITORY = Path(__file__).resolve().parents[3]
ONE, EIGHT = chips.parse_device("v5e-1"), chips.parse_device("v5e-8")

ANSWER = """\
import json, sys
request = json.loads(sys.stdin.readline())
open(request["hlo"], "w").write("%a = f32[10]{0} all-reduce(%b), to_apply=%c")
memory = {"argument": 5, "output": 7, "alias": 4, "temp": 100, "generated_code": 9}
print(json.dumps({"memory": memory, "flops": 1e9, "bytes": 2e9}))
"""


def step(device="v5e-1"):
    return test_preflight.plan(device, global_batch_size=32)[0]


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a program in the place of the one that libtpu's Python runs."""
    monkeypatch.setattr(compiling, "_TPU", tmp_path)

    def put(program):
        (tmp_path / "libtpu_compiler.py").write_text(program)
        return compiling._compile("module", step(), ONE, python=sys.executable)

    return put


def test_the_extra_has_the_versions_that_the_command_installs(tmp_path, monkeypatch):
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    lines = setup["options.extras_require"]["preflight"].splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins == [f"{name}=={v}" for name, v in compiling.PACKAGES.items()]
    monkeypatch.setattr(compiling.provenance, "installed_version", lambda _: None)
    with pytest.raises(InputError, match=f"-m venv .* install {' '.join(pins)}$"):
        compiling.find_compiler(tmp_path)


def test_answers_of_the_compiler(stand_in):
    found = stand_in(ANSWER)
    # What it returns in no variable's place is in the way like a temporary.
    assert (found.argument_bytes, found.temporary_bytes) == (5, 103)
    assert (found.code_bytes, found.flops, found.moved_bytes) == (9, 1e9, 2e9)
    assert (found.num_all_reduces, found.all_reduced_bytes) == (1, 40)


def test_each_part_of_a_batch_counts():
    """The compiler counts a loop's body once: of eight parts two."""
    made = compiling.Compiled(state_bytes=30.0, flops=200.0, moved_bytes=1080.0)
    eight = dataclasses.replace(step(), num_parts=8)
    found = compiling.scaled_to_all_parts(made, eight)
    # An update moves 80 bytes, once.
    assert (found.flops, found.moved_bytes) == (800, 80 + 4 * 1000)
    evaluation = dataclasses.replace(eight, purpose="evaluation")
    assert compiling.scaled_to_all_parts(made, evaluation).moved_bytes == 4320
    two = dataclasses.replace(step(), num_parts=2)
    assert compiling.scaled_to_all_parts(made, two) == made


def fails_with(message):
    """A compiler that answers with an error."""
    return f"import json; print(json.dumps({{'error': {message!r}}}))"


def test_a_program_that_is_too_large_or_refused(stand_in):
    (refused,) = stand_in(fails_with('loc("encoder/x"): no')).refused
    assert refused.scope == "encoder/x"
    message = "memory required for HLO temporaries (20G) exceeds available HBM (15G)"
    found = stand_in(fails_with(message))
    assert (found.is_too_large, found.temporary_bytes) == (True, 20 * 2**30)
    assert dataclasses.replace(found, state_bytes=2**30).memory == 21 * 2**30


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import os, sys; print('last', file=sys.stderr); os.kill(os.getpid(), 9)",
            "code -9 and without an answer .last",
        ),
        # It does not listen.
        ("import os; os._exit(3)", "code 3 and without an answer .no message"),
        (fails_with("something"), "does not compile for v5e-1: something"),
    ],
)
def test_a_compiler_that_fails(stand_in, program, message):
    with pytest.raises(InputError, match=message):
        stand_in(program)


def test_a_compiler_that_says_much(stand_in):
    """More than a pipe holds, on the way that is read last."""
    program = "import sys; print('x' * 1_000_000, file=sys.stderr)\n"
    assert stand_in(program + ANSWER).flops == 1e9


def test_results_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = compiling.cache_directory()
    assert directory == tmp_path / "bert-keras" / "preflight"
    path = directory / "results" / f"{compiling._key(step(), ONE)}.json"
    refused = compiling.steps.Refused(operation="a", scope="b", reason="c")
    made = compiling.Compiled(flops=1e9, refused=(refused,))
    compiling._save_result(path, dataclasses.asdict(made))
    # There is no compiler: it is not asked.
    assert compiling.compile_step(step(), ONE) == made
    path.write_text("{")
    with pytest.raises(InputError, match="in an environment of their own"):
        compiling.compile_step(step(), ONE)


def test_results_are_kept_by_all_that_they_depend_on(monkeypatch):
    longer = dataclasses.replace(step(), max_seq_length=64)
    keys = [(step(), ONE), (step("v5e-8"), EIGHT), (longer, ONE), (step(), ONE)]
    keys = [compiling._key(*parts) for parts in keys]
    assert keys[0] == keys[3]
    monkeypatch.setitem(compiling.PACKAGES, "libtpu", "0")
    keys.append(compiling._key(step(), ONE))
    monkeypatch.setattr(compiling, "_code_sha256", lambda: "other")
    keys.append(compiling._key(step(), ONE))
    assert len({*keys}) == 5


def test_a_full_disk_costs_the_next_time_only(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    compiling._save_result(tmp_path / "file" / "result.json", {})
    assert "not saved for the next time" in caplog.text


def test_topologies_as_jax_names_them():
    for name, topology, more in (
        ("v5e-1", "v5e:1x1", {"chips_per_host_bounds": [1, 1, 1]}),
        ("v6e-8", "v6e:2x4", {}),
        ("v4-8", "v4:2x2x1", {"chip_config_name": "megacore"}),
        ("v5p-16", "v5p:2x2x2", {}),
    ):
        words = compiling.topology_words(chips.parse_device(name))
        assert words == {"topology_name": topology, **more}


def test_the_compiler_ends_with_the_process_that_asked(tmp_path):
    folder = tmp_path / "request"
    folder.mkdir()
    code = f"""
import sys, threading, time
sys.path.insert(0, {str(REPOSITORY / "tpu/preflight")!r})
import libtpu_compiler
threading.Thread(
    target=libtpu_compiler.end_with_caller, args=[{str(folder)!r}], daemon=True
).start()
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(timeout=30) == 1
    assert not folder.exists()
