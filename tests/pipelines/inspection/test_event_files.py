"""Event files: TensorBoard's own reader finds what was written."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bert_keras.errors import InputError
from bert_keras.pipelines.inspection import event_files

# A process of its own: once TensorBoard goes without TensorFlow, TensorFlow in the same
# process can no longer use it.
READ = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util
found = event_accumulator.EventAccumulator(sys.argv[1]).Reload()
contents = {}
for tag in found.Tags()["tensors"]:
    (event,) = found.Tensors(tag)
    value = tensor_util.make_ndarray(event.tensor_proto)
    value = value.item().decode() if value.dtype == object else value.tolist()
    contents[tag] = [found.SummaryMetadata(tag).plugin_data.plugin_name, value]
assert "tensorflow" not in sys.modules
print(json.dumps(contents))
"""


def test_tensorboard_reads_histograms_and_text(tmp_path):
    pytest.importorskip("tensorboard")
    event_files.write_card(
        tmp_path / "new" / "card",
        histograms={"examples/tokens": np.array([0, 3, 0, 2])},
        texts={"data_card": "# Card\n\nMünchen"},
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ, tmp_path / "new" / "card"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == {
        "data_card": ["text", "# Card\n\nMünchen"],
        "examples/tokens": [
            "histograms",
            [[-0.5, 0.5, 0], [0.5, 1.5, 3], [1.5, 2.5, 0], [2.5, 3.5, 2]],
        ],
    }


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(InputError, match="needs the package tensorboard: pip install"):
        event_files.write_card(tmp_path / "card", histograms={}, texts={})
    assert list(tmp_path.iterdir()) == []
