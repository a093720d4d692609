import pickle
import re
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pytest

from bert_keras.pipelines.engine import runner_options, runners, steps


def test_heartbeats_add_up(tmp_path):
    (tmp_path / "another process").write_text("7")
    original = steps.Heartbeat(str(tmp_path))
    for _ in range(3):
        copy = pickle.loads(pickle.dumps(original))
        copy.add(5)
    copy.flush()
    assert steps.sum_of_heartbeats(tmp_path) == 7 + 5 * 3


def test_what_fails_in_a_worker_is_raised():
    def build(pipeline, heartbeat):
        _ = pipeline | beam.Create([0]) | beam.Map(lambda x: 1 / x)

    with pytest.raises(Exception, match="division by zero"):
        runners.run(build, options=runner_options.parse(), title="test", num_bytes=1)


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_job():
    """Beam would wait for ever."""
    program = Path(__file__).with_name("dying_worker.py")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        r"a worker process died \(.* return code 137\), perhaps for want of memory: "
        r"use fewer --workers\n",
        done.stdout,
    )
