"""Minimal pairs in a pre-training: the same figures as `score`, curves, a report."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.core.settings import pretraining, strict
from bert_keras.inference import fill_mask
from bert_keras.report import scalar_log, writing
from bert_keras.scoring import minimal_pairs, pairs_curve, scored_files
from bert_keras.training import pretrain
from tests import conftest

GROUPS = "groups/minimal_pairs_accuracy/"
PAIRS = {"order": ("ba be bi {}", "bi ba {} be"), "length": ("do {}", "{} do da di")}


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    rows = [
        f"{good.format(word)}\t{bad.format(word)}\t{group}\n"
        for group, (good, bad) in PAIRS.items()
        for word in conftest.WORDS[:12]
    ]
    path.write_text("good\tbad\tgroup\n" + "".join(rows))
    return str(path)


def expected_of(model, path):
    tally = minimal_pairs.Tally()
    score = scored_files.load_scorer(model)
    for pair in minimal_pairs.score_pairs(score, minimal_pairs.read_pairs(path)):
        tally.add(pair)
    groups = {f"{GROUPS}{g.name}": g.share for g in tally.groups()}
    return {"minimal_pairs_accuracy": tally.mean().share, **groups}


def curve_of(model, path, *, strategy=None):
    """Returns the curve of a file of pairs, and the network of a run."""
    checkpoint, trained = fill_mask.load_pretrainer(model)
    strategy = strategy or tf.distribute.get_strategy()
    sizes = checkpoint.bert_config, checkpoint.tokenizer
    return pairs_curve.PairsCurve(str(path), *sizes, strategy=strategy), trained


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_the_figures_of_score(pretrained_run, pairs_file, num_replicas):
    devices = [f"/cpu:{number}" for number in range(num_replicas)]
    # Collectives of one process are of one group size, and tests use several.
    exchange = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=exchange)
    curve, trained = curve_of(pretrained_run, pairs_file, strategy=strategy)
    expected = expected_of(pretrained_run, pairs_file)
    assert 0 < expected["minimal_pairs_accuracy"] < 1
    assert curve(trained.weights) == pytest.approx(expected)
    # The weights of another time.
    for variable in trained.weights:
        variable.assign(variable * 0)
    assert curve(trained.weights)[f"{GROUPS}order"] == 0.5


def test_a_large_file_is_sampled_and_checked(pretrained_run, tmp_path, monkeypatch):
    path = tmp_path / "pairs.tsv"
    rows = "".join(f"{w} be\tbe {w}\t{n % 4}\n" for n, w in enumerate(conftest.WORDS))
    path.write_text("good\tbad\tgroup\n" + rows)
    for num_pairs in (8, 4):
        monkeypatch.setattr(pairs_curve, "NUM_PAIRS", num_pairs)
        curve, trained = curve_of(pretrained_run, path)
        _, *shares = curve(trained.weights).values()
        # Each of the four groups has a quarter of the pairs, and a tie is one half.
        steps = np.array(shares) * num_pairs / 2
        assert set(steps) <= {*range(num_pairs // 2 + 1)}
    monkeypatch.setattr(pairs_curve, "NUM_PAIRS", 3)
    with pytest.raises(InputError, match="pairs.tsv: 4 groups, .* at most 3; name"):
        curve_of(pretrained_run, path)
    # Pairs without groups have one curve.
    path.write_text("good\tbad\nba be\tbe ba\nbi bo\tbo bi\n")
    curve, trained = curve_of(pretrained_run, path)
    assert list(curve(trained.weights)) == ["minimal_pairs_accuracy"]
    path.write_text("good\tbad\nba\t" + "be " * 31 + "\n")
    with pytest.raises(InputError, match="pairs.tsv: a sentence of 33 tokens"):
        curve_of(pretrained_run, path)


def test_a_pretraining_has_curves_and_a_picture(
    tiny_examples, pairs_file, tmp_path, caplog
):
    settings = conftest.PRETRAINING | {
        **{"num_train_steps": 4, "save_checkpoint_steps": 2},
        "minimal_pairs": pairs_file,
    }
    with caplog.at_level(logging.INFO):
        pretrain.pretrain(
            strict.build_config(pretraining.PretrainingConfig, settings),
            [tiny_examples],
            tmp_path / "run",
            strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
        )
    curves = scalar_log.read_log(tmp_path / "run/logs/eval").scalars
    groups = [f"{GROUPS}{name}" for name in ("order", "length")]
    tags = ["accuracy/minimal_pairs_accuracy", *groups]
    assert {tag for tag in curves if "minimal" in tag} == set(tags)
    expected = expected_of(tmp_path / "run", pairs_file)
    for tag in tags:
        assert list(curves[tag].steps) == [2, 4]
        last = curves[tag].values[-1]
        assert last == pytest.approx(expected[tag.removeprefix("accuracy/")])
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "step 4  minimal" in line]
    assert line.split("  ")[1:] == [
        f"minimal_pairs_accuracy {expected['minimal_pairs_accuracy']:.4f}"
    ]
    page = writing.write_report(tmp_path / "run")
    assert (page / "minimal_pairs_by_group.png").read_bytes()[:4] == b"\x89PNG"
    whole, groups = (page / "report.md").read_text().split("## Minimal pairs by group")
    assert "order" not in whole and "| minimal_pairs_accuracy |" in whole
    assert f"| order | {expected[f'{GROUPS}order']:.4f} | 4 |" in groups
