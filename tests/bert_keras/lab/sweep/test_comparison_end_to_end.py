"""A comparison that really trains, from the command line."""

import json
import logging
import random

import pytest

from bert_keras.commands import main as cli
from tests.bert_keras.lab.sweep.test_sweep_end_to_end import (
    FILLER,
    WORDS,
    make_init,
    write_opinions,
)

pytestmark = pytest.mark.slow


def test_a_comparison_of_real_models(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    make_init(tmp_path / "init")
    write_opinions(tmp_path / "train.tsv", num_rows=300, seed=1)
    write_opinions(tmp_path / "dev.tsv", num_rows=60, seed=2)
    arguments = [
        *("compare", "--task", "text", "--train", "train.tsv", "--dev", "dev.tsv"),
        *("--models", "init", "--fractions", "1", "--seeds", "1", "--from_scratch"),
        *("--output_dir", "out", "--set", "max_seq_length=24", "--jobs", "2"),
        *("--set", "learning_rate=5e-3", "--set", "num_train_epochs=6"),
    ]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    said = capsys.readouterr().out.splitlines()
    facts = json.loads((tmp_path / "out/comparison.json").read_text())
    assert facts["said"] == said
    names = ["commonest answer", "TF-IDF, linear", "init", "init, random"]
    assert [contender["name"] for contender in facts["contenders"]] == names
    for contender in facts["contenders"]:
        (run,) = contender["runs"]
        assert (run["num_train_examples"], run["train_fraction"]) == (300, 1)
    run = "out/runs/model=init,train_fraction=1,seed=12345/results.json"
    results = json.loads((tmp_path / run).read_text())
    assert facts["contenders"][2]["runs"][0]["score"] == results["eval"]["accuracy"]
    assert (tmp_path / "out/scores.png").read_bytes().startswith(b"\x89PNG")
    assert (
        "![accuracy against labels](scores.png)"
        in (tmp_path / "out/report.md").read_text()
    )
    # Given again, it makes nothing anew.
    with caplog.at_level(logging.INFO):
        assert cli.main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == said
    assert "2 runs, 2 finished already" in caplog.text


def write_sentences(path, *, num_sentences: int, seed: int) -> None:
    """Columns of words and tags: entities are the telling words."""
    generator = random.Random(seed)
    lines = []
    for _ in range(num_sentences):
        for word in generator.choices([*FILLER, *WORDS["good"]], k=5):
            lines.append(f"{word} {'B-X' if word in WORDS['good'] else 'O'}")
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


def test_a_comparison_of_taggers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_init(tmp_path / "init")
    write_sentences(tmp_path / "train.txt", num_sentences=60, seed=1)
    write_sentences(tmp_path / "dev.txt", num_sentences=30, seed=2)
    arguments = [
        *("compare", "--task", "tagging", "--train", "train.txt", "--dev", "dev.txt"),
        *("--models", "init", "--fractions", "0.5", "--seeds", "1"),
        *("--output_dir", "out", "--set", "max_seq_length=24"),
    ]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    facts = json.loads((tmp_path / "out/comparison.json").read_text())
    assert facts["metric"] == "f1"
    scores = {c["name"]: c["runs"][0]["score"] for c in facts["contenders"]}
    assert [*scores] == ["commonest answer", "each word's tag", "init"]
    assert (scores["commonest answer"], scores["each word's tag"]) == (0, 1)
    assert [run["num_train_examples"] for run in facts["contenders"][2]["runs"]] == [30]
    assert facts["rankings"][0]["best"] == "each word's tag"
