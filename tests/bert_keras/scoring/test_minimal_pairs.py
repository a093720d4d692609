import gzip
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from bert_keras.core.errors import InputError
from bert_keras.pages import drawing
from bert_keras.scoring import minimal_pairs, scored_files
from bert_keras.scoring.minimal_pairs import MinimalPair, ScoredPair, Tally
from bert_keras.scoring.scorer import SentenceScore

BLIMP = Path(__file__).parents[4] / "shared" / "data" / "blimp" / "pairs.jsonl.gz"


def sentence(*log_probs, pieces=None):
    pieces = pieces or tuple("abcdefgh"[: len(log_probs)])
    return SentenceScore("a b", pieces, np.array(log_probs, "f4"), 2)


def scored(good, bad, group="g"):
    return ScoredPair(MinimalPair("a b", "a c", group), good, bad)


def test_sums_and_means():
    score = sentence(-1.0, -2.5, -0.5, pieces=("a", "##b", "[UNK]"))
    assert score.as_json() == {
        "text": "a b",
        "total": -4.0,
        "per_piece": -4 / 3,
        "per_word": -2.0,
        "num_words": 2,
        "num_unknown": 1,
        "pieces": ["a", "##b", "[UNK]"],
        "log_probs": [-1.0, -2.5, -0.5],
    }


@pytest.mark.parametrize(
    ("good", "bad", "right"),
    [
        ([-1.0, -1.0], [-1.0, -1.5], 1.0),
        ([-1.0, -1.5], [-1.0, -1.0], 0.0),
        # By sums: the mean of the bad one is larger.
        ([-3.0], [-2.0, -2.0], 1.0),
        ([-1.0, -2.0], [-2.0, -1.0], 0.5),
        # What float32 rounds away is no difference.
        ([-40.0, -1.0], [-40.0, np.nextafter(np.float32(-1), np.float32(0))], 0.5),
        ([-40.0, -1.0], [-40.0, -0.999], 0.0),
    ],
)
def test_the_larger_sum_is_right_and_a_tie_one_half(good, bad, right):
    assert scored(sentence(*good), sentence(*bad)).right == right


def test_a_model_with_constant_answers_has_one_half():
    tally, constant = Tally(), sentence(*[-math.log(8192)] * 3)
    for number in range(20):
        tally.add(scored(constant, constant, group=str(number % 5)))
    shares = [group.share for group in (tally.mean(), *tally.groups())]
    assert (shares, tally.num_ties) == ([0.5] * 6, 20)


def test_what_lengths_alone_give():
    """Uniform pieces: the shorter sentence of a pair has the larger sum."""
    tally = Tally()
    for good, bad in ((2, 3), (2, 2), (3, 2), (1, 4)):
        tally.add(scored(sentence(*[-1] * good), sentence(*[-1] * bad)))
    (group,) = tally.groups()
    assert group.by_length == group.share == (1 + 0.5 + 0 + 1) / 4


def tally_of(**counts: tuple[int, int]) -> Tally:
    """Numbers of right pairs and of all pairs, by group."""
    tally, ends = Tally(), (sentence(-1.0), sentence(-2.0))
    for group, (num_right, number) in counts.items():
        for n in range(number):
            tally.add(scored(*(ends if n < num_right else ends[::-1]), group))
    return tally


@pytest.mark.parametrize(("right", "number"), [(0, 1), (7, 10), (10, 10), (1, 90)])
def test_the_interval_of_a_group_is_scipys(right, number):
    (group,) = tally_of(g=(right, number)).groups()
    expected = scipy.stats.binomtest(right, number).proportion_ci(method="wilson")
    assert (group.low, group.high) == pytest.approx(tuple(expected), abs=1e-5)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_the_interval_of_the_mean_covers_as_often_as_it_says(share):
    draw, covered = np.random.default_rng(1), 0
    for _ in range(400):
        right = draw.binomial(20, share, size=4)
        mean = tally_of(**{f"g{n}": (int(r), 20) for n, r in enumerate(right)}).mean()
        assert 0 <= mean.low <= mean.share <= mean.high <= 1
        covered += mean.low <= share <= mean.high
    assert 0.93 <= covered / 400 <= 0.99


def test_the_table():
    tally = tally_of(agreement=(10, 10), islands=(1, 4))
    assert list(scored_files.table(tally)) == [
        "group               pairs   right   95 % interval",
        "agreement              10  100.0%   72.2% - 100.0%",
        "islands                 4   25.0%    4.6% -  69.9%",
        "mean of 2 groups       14   62.5%   36.7% -  82.8%",
    ]
    # Pairs without groups have one line.
    lines = scored_files.table(tally_of(**{"": (1, 1)}))
    assert [line.split()[0] for line in lines] == ["group", "all"]


ROWS = [
    {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps.", "UID": "verbs"},
    {"sentence_good": "A cat sleeps.", "sentence_bad": "A cat sleep.", "UID": "b"},
]


def test_files_of_blimp_and_tables_are_read(tmp_path):
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    (tmp_path / "x.tsv").write_text(
        "good\tbad\tgroup\nCats sleep.\tCats sleeps.\tverbs\n"
        "A cat sleeps.\tA cat sleep.\tb\n"
    )
    expected = [
        MinimalPair("Cats sleep.", "Cats sleeps.", "verbs"),
        MinimalPair("A cat sleeps.", "A cat sleep.", "b"),
    ]
    for name in ("x.jsonl", "x.tsv"):
        assert minimal_pairs.read_pairs(tmp_path / name) == expected
    by = minimal_pairs.read_pairs(tmp_path / "x.jsonl", group_by="sentence_bad")
    assert [pair.group for pair in by] == ["Cats sleeps.", "A cat sleep."]


@pytest.mark.parametrize(
    ("text", "group_by", "message"),
    [
        ("good\tworse\na\tb\n", None, "no column 'bad' or 'sentence_bad': good, worse"),
        ("good\tbad\na\tb\n", "kind", "no column 'kind' for groups: good, bad"),
        ("good\tbad\n", None, "x.tsv"),
        (
            "good\tsentence_good\tbad\na\tb\tc\n",
            None,
            "line 2: expected one of the columns 'good' and 'sentence_good', got both",
        ),
    ],
)
def test_bad_files_of_pairs(tmp_path, text, group_by, message):
    (tmp_path / "x.tsv").write_text(text)
    with pytest.raises(InputError, match=message):
        minimal_pairs.read_pairs(tmp_path / "x.tsv", group_by=group_by)


def test_a_sample_is_the_same_for_the_same_pairs_in_any_order():
    pairs = [MinimalPair(f"a {n}", f"b {n}", str(n % 3)) for n in range(60)]
    drawn = minimal_pairs.sample(pairs, 5, seed=1)
    assert [pair.group for pair in drawn] == [g for g in "012" for _ in range(5)]
    assert len(set(drawn)) == 15
    shuffled = random.Random(4).sample(pairs, 60)
    assert minimal_pairs.sample(shuffled, 5, seed=1) == drawn
    assert minimal_pairs.sample(pairs, 5, seed=2) != drawn
    assert sorted(minimal_pairs.sample(pairs, 100, seed=1)) == sorted(pairs)


@pytest.mark.skipif(not BLIMP.exists(), reason="needs the shared data")
def test_blimp_itself(tmp_path):
    path = tmp_path / "blimp.jsonl"
    path.write_bytes(gzip.decompress(BLIMP.read_bytes()))
    pairs = minimal_pairs.read_pairs(path)
    assert len(pairs) == 33_500
    assert len({pair.group for pair in pairs}) == 67


def test_the_picture_has_a_dot_for_each_group():
    counts = {f"group {number}": (number % 11, 10) for number in range(67)}
    tally = tally_of(**counts)
    picture = scored_files.draw_groups(tally, title="Minimal pairs")
    (plot,) = picture.axes
    values = plot.lines[0].get_xdata()
    assert list(values) == sorted((g.share for g in tally.groups()), reverse=True)
    labels = [label.get_text() for label in plot.get_yticklabels()]
    assert len(labels) == 67
    assert drawing.as_png(lambda: picture)[:4] == b"\x89PNG"
    assert plot.get_title() == "Minimal pairs"
    tally = tally_of(**counts, **{f"right {number}": (1, 1) for number in range(150)})
    (plot,) = scored_files.draw_groups(tally, title="Minimal pairs").axes
    assert plot.get_title() == "Minimal pairs: the 200 lowest of 217 groups"
    assert len(plot.lines[0].get_xdata()) == 200
