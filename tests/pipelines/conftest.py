"""What the tests of several pipelines share."""

import pytest

from bert_keras.pipelines.engine import passes


@pytest.fixture
def in_process(monkeypatch):
    """Runs passes in this process: starting theirs takes most of a small job's time."""

    def run(waiting, *_):
        for one in waiting:
            passes._do(one)

    monkeypatch.setattr(passes, "_supervise", run)
