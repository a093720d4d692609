"""Whether inputs are noticed that are unlike those of the calibration."""

import collections
import json
import re

import numpy as np
import pytest
import scipy.stats

from bert_keras.core.settings import tasks
from bert_keras.labelled import drift


def measured(rng=None, size=400, *, mean=20.0, keys=None, **values):
    """Rows of a source: lengths with ties, many zeros, confidences near 1."""
    if rng is not None:
        values = {
            "pieces": rng.poisson(mean, size),
            "unknown": np.where(rng.random(size) < 0.8, 0, rng.random(size)),
            "confidence": rng.beta(8, 1, size),
        } | values
    arrays = {name: np.round(np.asarray(v, float), 4) for name, v in values.items()}
    size = len(next(iter(arrays.values())))
    return drift.Measured([*map(str, range(size))] if keys is None else keys, arrays)


def test_a_description_is_the_share_of_rows_at_quantiles():
    found = measured(pieces=range(1, 101), unknown=[0] * 99 + [0.5]).describe()
    assert found["pieces"].points == tuple((5 * n, n / 20) for n in range(1, 20))
    assert found["unknown"] == tasks.Distribution(num_rows=100, points=[(0, 0.99)])


def test_the_difference_is_that_of_kolmogorov_and_smirnov():
    """At the recorded values alone, so at most scipy's, and not much less."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        known, new = measured(rng), measured(rng, 300, mean=26)
        points = np.array(known.describe()["pieces"].points)
        shares = (new.values["pieces"][:, None] <= points[:, 0]).mean(axis=0)
        ours = np.abs(shares - points[:, 1]).max()
        whole = scipy.stats.ks_2samp(known.values["pieces"], new.values["pieces"])
        assert whole.statistic - 0.06 <= ours <= whole.statistic + 1e-12


@pytest.mark.parametrize(("first", "second"), [(400, 400), (1500, 30), (60, 2000)])
def test_false_alarms_are_rare(first, second):
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(1000):
        known = measured(rng, first).describe()
        alarms += bool(measured(rng, second).differences(known))
    assert alarms <= 10


def test_copies_are_no_evidence():
    rng = np.random.default_rng(2)
    known, few = measured(rng).describe(), measured(rng, 12)
    rows = rng.integers(0, 12, 1000)
    # Twelve texts a thousand times, of which each comes 83 times or so.
    copies = drift.Measured(
        [few.keys[row] for row in rows], {k: v[rows] for k, v in few.values.items()}
    )
    counts = collections.Counter(rows.tolist()).values()
    assert copies.num_rows == pytest.approx(1000**2 / sum(n * n for n in counts))
    assert copies.num_rows < 12 and copies.differences(known) == []
    # They are others than those before, and if they were no copies they would tell so.
    distinct = copies._replace(keys=[*map(str, range(1000))])
    assert distinct.differences(known) != []
    # Equal texts of a source that has them often are no alarm either.
    often = [str(n) if n % 3 else "yes" for n in range(1000)]
    alarms = 0
    for _ in range(200):
        known = measured(rng, 1000, keys=often).describe()
        alarms += bool(measured(rng, 1000, keys=often).differences(known))
    assert alarms == 0


def test_what_differs_is_said_by_the_shares_that_differ_most():
    rng = np.random.default_rng(3)
    known = measured(rng, 1000).describe()
    new = measured(rng, 200, mean=31, unknown=rng.random(200))
    texts = new.differences(known)
    for text, name, more in (
        (texts[0], "pieces", "longer in pieces"),
        (texts[1], "unknown", "more unknown pieces"),
    ):
        (value, before) = max(
            known[name].points,
            key=lambda p: abs((new.values[name] <= p[0]).mean() - p[1]),
        )
        shown = f"{value:g}" if name == "pieces" else f"{value:.1%}"
        now = (new.values[name] > value).mean()
        assert text == f"{more} ({now:.0%} above {shown}, there {1 - before:.0%})"
    less = measured(rng, 200, confidence=rng.beta(2, 1, 200))
    (text,) = less.differences(known)
    assert re.fullmatch(r"less sure answers \(\d+% above 0\.\d\d, there \d+%\)", text)
    some = measured(rng, 400, unknown=np.where(rng.random(400) < 0.6, 0, 0.3))
    (text,) = some.differences(known)
    assert text == "more unknown pieces (43% above 25.0%, there 15%)"
    (text,) = measured(rng, 1000, mean=14).differences(known)
    assert text.startswith("shorter in pieces (")


def test_few_rows_and_old_files_are_not_tested():
    rng = np.random.default_rng(4)
    known = measured(rng, 1000).describe()
    assert measured(rng, 19, mean=500).differences(known) == []
    assert measured(rng, 20, mean=500).differences(known) != []
    assert measured(rng, 900, mean=500).differences({}) == []
    few = measured(rng, 19).describe()
    assert measured(rng, 900, mean=500).differences(few) == []
    # Numbers have no confidence.
    numbers = measured(pieces=[500] * 100, unknown=[0] * 100)
    assert len(numbers.differences(known)) == 2


def test_a_description_survives_its_file():
    found = measured(np.random.default_rng(5)).describe()
    for one in found.values():
        text = json.dumps(one.model_dump(mode="json"))
        assert tasks.Distribution.model_validate_json(text) == one


@pytest.mark.parametrize("points", [[(5, 2)], [(5, 0.9), (1, 1)], [(1, 0.9), (5, 0.8)]])
def test_a_description_edited_by_hand_is_refused(points):
    with pytest.raises(ValueError, match="expected ascending values and shares, of 1"):
        tasks.Distribution(num_rows=1e6, points=points)
