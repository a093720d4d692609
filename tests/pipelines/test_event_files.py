"""Event files: TensorBoard's own reader finds what was written."""

import sys

import numpy as np
import pytest

from bert_keras.errors import InputError
from pipelines import event_files


def test_tensorboard_reads_histograms_and_text(tmp_path, monkeypatch):
    # What makes TensorBoard go without TensorFlow, which takes long to load.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", sys)
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    util = pytest.importorskip("tensorboard.util.tensor_util")
    event_files.write_card(
        tmp_path / "new" / "card",
        histograms={"examples/tokens": np.array([0, 3, 0, 2])},
        texts={"data_card": "# Card\n\nMünchen"},
    )
    found = accumulators.EventAccumulator(str(tmp_path / "new" / "card"))
    found.Reload()
    assert sorted(found.Tags()["tensors"]) == ["data_card", "examples/tokens"]
    (histogram,) = found.Tensors("examples/tokens")
    assert util.make_ndarray(histogram.tensor_proto).tolist() == [
        [-0.5, 0.5, 0],
        [0.5, 1.5, 3],
        [1.5, 2.5, 0],
        [2.5, 3.5, 2],
    ]
    (text,) = found.Tensors("data_card")
    assert util.make_ndarray(text.tensor_proto).item().decode() == "# Card\n\nMünchen"
    plugins = {
        tag: found.SummaryMetadata(tag).plugin_data.plugin_name
        for tag in ("examples/tokens", "data_card")
    }
    assert plugins == {"examples/tokens": "histograms", "data_card": "text"}


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(InputError, match="needs the package tensorboard: pip install"):
        event_files.write_card(tmp_path / "card", histograms={}, texts={})
    assert list(tmp_path.iterdir()) == []
