"""The run of the tests itself: it ends, whatever happens, and shares what it makes."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

REPOSITORY = conftest.REPOSITORY
LOST = {
    # After a second: pytest-xdist ends with status 3 while it sends tests to a worker.
    "killed": "time.sleep(1); os.kill(os.getpid(), 9)",
    "hanging": "time.sleep(100)",
    "silent": "faulthandler.cancel_dump_traceback_later(); time.sleep(100)",
}
"""Ways in which a worker does not finish a test."""

WATCHED = """
from tests import conftest
conftest.SILENCE_SECONDS = 4
pytest_sessionstart = conftest.pytest_sessionstart
pytest_runtest_logreport = conftest.pytest_runtest_logreport
pytest_sessionfinish = conftest.pytest_sessionfinish
"""


def command_of_make() -> list[str]:
    """The command that `make test` runs, with two workers."""
    makefile = (REPOSITORY / "Makefile").read_text()
    line = re.search(r"^test:.*\n\t\$\(BIN\)/python (.+)$", makefile, re.MULTILINE)[1]
    arguments = shlex.split(line)
    arguments[arguments.index("--numprocesses") + 1] = "2"
    return [sys.executable, *arguments]


@pytest.mark.parametrize(
    "way", ["killed", "hanging", pytest.param("silent", marks=pytest.mark.slow)]
)
def test_a_lost_worker_ends_the_run_red(tmp_path, way):
    for number in range(6):
        lost = LOST[way] if number == 2 else "pass"
        (tmp_path / f"test_{number}.py").write_text(
            "import faulthandler, os, time\n"
            "def test_a(): pass\n"
            f"def test_b(): {lost}\n"
            "def test_c(): pass\n"
        )
    if way == "silent":
        (tmp_path / "conftest.py").write_text(WATCHED)
    done = subprocess.run(
        [
            *command_of_make(),
            *(f"--rootdir={tmp_path}", "-p", "no:cacheprovider"),
            *("-o", "faulthandler_timeout=2"),
            *("-o", "faulthandler_exit_on_timeout=true", str(tmp_path)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    if way == "silent":
        assert "Timeout (0:00:04)!" in done.stderr
    else:
        assert "crashed while running 'test_2.py::test_b'" in done.stdout
        assert "1 failed" in done.stdout


def test_a_hanging_test_ends_its_process(pytestconfig):
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
    seconds = float(pytestconfig.getini("faulthandler_timeout"))
    assert 0 < seconds < conftest.SILENCE_SECONDS


def test_long_files_come_first(request):
    seconds = json.loads(conftest.SECONDS.read_text())
    names = [conftest.file_of(item.nodeid) for item in request.session.items]
    durations = [seconds.get(name, 0) for name in names]
    assert durations == sorted(durations, reverse=True)


def test_parts_have_each_file_once_and_as_many_tests():
    num_tests = {"a": 9, "b": 8, "c": 5, "d": 4, "e": 3, "f": 2, "g": 1, "h": 10}
    parts = {"h": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 6}
    assert conftest.part_of_files(num_tests) == parts


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").write_text("c"),
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / "empty").rmdir(),
        lambda folder: (folder / "a").rename(folder / "empty/a"),
    ],
)
def test_a_change_of_what_is_made_once_is_noticed(tmp_path, change):
    def make(directory: Path) -> None:
        (directory / "a").write_text("b")
        (directory / "empty").mkdir()

    def fail(directory: Path) -> None:
        (directory / "half").mkdir()
        raise KeyError

    once = conftest.MadeOnce(tmp_path)
    with pytest.raises(KeyError):
        once.directory("x", fail)
    folder = once.directory("x", make)
    assert not (folder / "half").exists() and once.changed() == []
    change(conftest.MadeOnce(tmp_path).directory("x", fail))
    assert once.changed() == ["x"]
