"""Expectations are those of the recorded page, and lines between its runs."""

import math
import re
from pathlib import Path

import pytest

from bert_keras.report import measured_runs
from bert_keras.report.measured_runs import RUNS

PAGE = Path(__file__).parents[3] / "benchmarks/results/strict_small.md"


def test_runs_are_those_of_the_page():
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("## By cost")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d.*) \|$", table, re.MULTILINE)
    found = [tuple(map(float, row.split(" | ")[1:])) for row in rows]
    millions = [run._replace(num_tokens=run.num_tokens / 1e6) for run in RUNS]
    assert found == millions
    entropy = re.search(r"entropy of ([\d.]+) nats", table)
    assert float(entropy[1]) == measured_runs.ENTROPY


@pytest.mark.parametrize("run", RUNS)
def test_a_measured_run_may_expect_its_own_scores(run):
    expected = measured_runs.expected_scores(run.petaflop)
    assert expected == pytest.approx((run.loss, run.minimal_pairs))


def test_between_and_beyond_runs():
    low, high = RUNS[-2:]
    ratio = high.petaflop / low.petaflop
    # In the middle, and as far again.
    for share in (0.5, 2):
        expected = [
            start + share * (end - start)
            for start, end in zip(low[2:], high[2:], strict=True)
        ]
        found = measured_runs.expected_scores(low.petaflop * ratio**share)
        assert found == pytest.approx(expected)
    for petaflop in (0.9 * RUNS[0].petaflop, 3.1 * high.petaflop, 0, math.nan):
        assert measured_runs.expected_scores(petaflop) is None


def test_the_band_has_the_measured_losses_in_it():
    for run in RUNS[1:]:
        low, high = measured_runs.usual_losses(
            run.num_tokens, entropy=measured_runs.ENTROPY
        )
        assert low < run.loss < high
    last = RUNS[-2].num_tokens
    bands = [
        measured_runs.usual_losses(factor * last, entropy=6.0) for factor in (1, 100)
    ]
    assert bands[0] == bands[1]
    assert measured_runs.usual_losses(1e6, entropy=6.0) is None
