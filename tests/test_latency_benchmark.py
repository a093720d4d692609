"""The benchmark of the speed of answers: its page, and figures that are kept."""

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    benchmark = importlib.import_module("latency")
finally:
    sys.path.remove(str(FOLDER))


def test_the_page_has_all_figures():
    latency = {name: {"1": 10.4, "32": 99.6} for name in benchmark.CONTENDERS}
    texts = {"vectors, float32": [30.0, 12.0, 32]}
    lines = benchmark.page(latency, texts, 2000).splitlines()
    assert [line for line in lines if line.endswith("| 10 | 100 |")] == [
        f"| {name} | 10 | 100 |" for name in benchmark.CONTENDERS
    ]
    last = (
        "| vectors, float32 | 30 | 12 (sentence-transformers, batches of 32) | 2.50 |"
    )
    assert lines[-1] == last
    assert any(line.startswith("2,000 texts, ") for line in lines)


def test_figures_are_measured_once(tmp_path):
    path = tmp_path / "figures.json"
    assert benchmark.once(path, lambda: {"a": 1}) == {"a": 1}
    assert benchmark.once(path, lambda: {"a": 2}) == {"a": 1}
