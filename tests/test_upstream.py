"""Stock Keras has the faults that we mend, and we do not.

If a test fails on a new version of Keras because stock Keras is right there, its
mending can go: see benchmarks/upstream/README.md.
"""

import json
from pathlib import Path

import pytest

from tests import conftest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "upstream"
ALL_RIGHT = {"fit": "works"}
RIGHT = {
    "sparse_gradients": {"first step / learning rate": 1.0, "right": 1.0},
    "clipping_per_replica": {"length of the step": 1.0, "right": 1.0},
    "loss_scale_of_one_replica": {
        "weights are finite": True,
        "scale / scale before": 0.5,
        "right": 0.5,
    },
    "phantom_step": {"steps": 7, "right": 7, "mean of ones": 1.0},
    "weighted_loss_per_replica": {"step": [-0.667, -0.333], "right": [-0.667, -0.333]},
    "dropout_alike": {"kept alike": pytest.approx(0.5, abs=0.2), "right": 0.5},
    "data_read_twice": {"times read": 1, "right": 1},
    "iterators_left": {"iterators left": 0, "right": 0},
    "gradients_kept": {"is kept": False},
    "exclusions_not_saved": {"bias": 1.0, "by a copy": 1.0},
    "lamb_decay": {"weight": 0.9, "right": 0.9},
    "backup_restarts_epoch": {"sum of all batches": 78.0, "right": 78.0},
    "multi_worker_fit": ALL_RIGHT,
    "gradient_accumulation": ALL_RIGHT,
    "jit_compile": ALL_RIGHT,
    "steps_per_execution": ALL_RIGHT,
}
WRONG = {
    "sparse_gradients": {"first step / learning rate": 1.732},
    "clipping_per_replica": {"length of the step": 1.414},
    "loss_scale_of_one_replica": {
        "weights are finite": False,
        "scale / scale before": 1.0,
    },
    "phantom_step": {"steps": 8, "mean of ones": 0.875},
    "weighted_loss_per_replica": {"step": [-0.5, -0.5]},
    "dropout_alike": {"kept alike": 1.0},
    "data_read_twice": {"times read": 2},
    "iterators_left": {"iterators left": 2},
    "gradients_kept": {"is kept": True},
    "exclusions_not_saved": {"by a copy": 0.9},
    "lamb_decay": {"weight": 0.999},
    "backup_restarts_epoch": {"sum of all batches": 99.0},
}
FAILS = {
    "multi_worker_fit": "ValueError: Attempt to convert a value (PerReplica",
    "gradient_accumulation": "`merge_call` called while defining",
    "jit_compile": "tfvariable_on_a_different_device",
    "steps_per_execution": "feed a value for placeholder",
}


@pytest.fixture(scope="module")
def results():
    done = conftest.run_python(
        *("-W", "ignore", FOLDER / "run.py", *RIGHT),
        environment={"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=900,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_ours_is_right_and_stock_keras_is_not(results, name):
    assert results[f"{name} ours"] == RIGHT[name]
    stock = results[f"{name} stock"]
    if name in FAILS:
        assert FAILS[name] in stock["fit"]
    else:
        assert {key: stock[key] for key in WRONG[name]} == WRONG[name]


def test_every_script_is_tested_and_described():
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"slope", "stock", "run"}
    # It writes tests/data/tf_model, with packages of its own.
    scripts.remove("tf_model")
    assert scripts == set(RIGHT) == WRONG.keys() | FAILS.keys()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.py`" in readme for name in scripts)
