"""The benchmark of the fast recipe: what it says of the run of two hours."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    def module_of(name):
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.delitem(sys.modules, "compute", raising=False)
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return module_of


@pytest.fixture
def fast(load):
    return load("fast")


def test_the_run_of_two_hours_is_that_of_its_page(fast):
    """2:06:11 in all, 42 minutes of it at 512 tokens, 1.85 of two cores busy."""
    costs, accuracies = fast.long_run_curve()
    assert len(costs) == len(accuracies) == len(fast.LONG_RUN_STEPS)
    change, end = fast.LONG_RUN_STEPS.index(15_750), fast.LONG_RUN_STEPS.index(17_500)
    assert costs[end] == pytest.approx(1.85 * 7571)
    assert costs[change] == pytest.approx(1.85 * (7571 - 42.4 * 60), rel=0.001)
    assert (accuracies[change], accuracies[end]) == (28.9, 22.2)
    assert costs == sorted(costs)


def test_a_table(fast):
    ends = {"masked_lm_accuracy": 0.3, "masked_lm_loss": 4.0}
    run = fast.Run(
        seed=2,
        samples=[fast.compute.Sample(9.0, 1), fast.compute.Sample(2400.4, 4000)],
        points={},
        end={"128": ends, "512": {**ends, "masked_lm_accuracy": 0.31}},
    )
    assert fast.table([run]).splitlines()[2:] == [
        "| two hours | about 14,006 | 17,500 | 28.9 % at step 15,750 | | 22.2 % | 5.025"
        " |",
        "| `bert_mini_fast`, seed 2 | 2,400 | 4,000 | 30.0 % | 4.000 | 31.0 % | 4.000"
        " |",
    ]


def test_phases_are_those_of_the_recipe(fast):
    from bert_keras import config, config_files

    found = config_files.load(config.PretrainingConfig, "bert_mini_fast")
    assert len(found.phases) == len(fast.PHASES)
    assert {*fast.PHASES, *fast.SCORED} <= set(fast.LENGTHS)


def test_phases_of_a_run_end_where_training_ends_them(fast, tmp_path):
    fractions = "phases: [{fraction: 0.7}, {fraction: 0.2}, {fraction: 0.1}]"
    (tmp_path / "config.yaml").write_text(fractions)
    assert fast.phase_ends(tmp_path, 3400) == [2380, 3060, 3400]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("as they were initialised", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("repeated", [0, 1, 2, 3, 4, 2, 3, 1, 2, 3]),
        ("repeated, every second time backwards", [0, 1, 2, 3, 3, 2, 1, 1, 2, 3]),
        (
            "stretched",
            [0, 4 / 9, 8 / 9, 4 / 3, 16 / 9, 20 / 9, 8 / 3, 28 / 9, 32 / 9, 4],
        ),
        # What these are is tested with `position_growth`.
        ("extrapolated, 95 % of the variance, 1 rows", None),
    ],
)
def test_tables_of_longer_positions(load, way, expected):
    table = np.arange(10.0)[:, None] * np.ones(3)
    found = load("longer_positions").ways()[way](table.copy(), 5)
    assert found.shape == table.shape
    if expected is None:
        np.testing.assert_array_equal(found[:4], table[:4])
        assert not np.array_equal(found[4:], table[4:])
    else:
        np.testing.assert_allclose(found, np.outer(expected, np.ones(3)))
