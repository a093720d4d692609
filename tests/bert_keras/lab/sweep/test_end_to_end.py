"""Sweeps and comparisons that really train, from the command line."""

import json
import logging
import statistics
from pathlib import Path

import pytest

from bert_keras.commands import main as cli
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    opinions,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_finetune_tasks import tagged_file

pytestmark = pytest.mark.slow

SETTINGS = ["--set", "max_seq_length=24", "--set", "num_train_epochs=6"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current directory, with an encoder and labelled files."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    make_init(tmp_path / "init", BERT_CONFIG)
    for name, num_rows, seed in (("train", 400, 1), ("dev", 80, 2)):
        # Of good opinions there are more.
        rows = [
            row for n, row in enumerate(opinions(num_rows, seed=seed)) if n % 4 != 1
        ]
        write_tsv(tmp_path / f"{name}.tsv", rows)
    return tmp_path


def printed_by(command: str, capsys) -> list[str]:
    assert cli.main([*command.split(), *SETTINGS]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def test_a_sweep_of_real_runs(folder, capsys):
    (folder / "grid.yaml").write_text(
        "grid: {learning_rate: [5e-3, 1e-9]}\nmetric: accuracy\n"
    )
    command = (
        "sweep --sweep grid.yaml --task text --init init --train train.tsv "
        "--dev dev.tsv --output_dir out --jobs 2"
    )
    printed = printed_by(command, capsys)
    assert printed[0].startswith("| learning_rate | n | mean |")
    assert printed[-1].startswith("Chosen: learning_rate=0.005,seed=12345, accuracy ")
    header, *lines = (folder / "out/results.tsv").read_text().splitlines()
    names = header.split("\t")
    good, bad = (dict(zip(names, line.split("\t"), strict=True)) for line in lines)
    assert (good["state"], bad["state"]) == ("finished", "majority")
    assert float(good["accuracy"]) > 0.95
    for row in (good, bad):
        results = json.loads((folder / "out" / row["run"] / "results.json").read_text())
        assert {n: float(row[n]) for n in results["eval"]} == results["eval"]
    # The finished sweep is left as it is, and the best run serves.
    assert printed_by(command, capsys) == printed
    assert cli.main("evaluate --model out/best --input dev.tsv".split()) == 0
    assert f"accuracy\t{float(good['accuracy']):.4f}\n" in capsys.readouterr().out


def test_folds_of_real_runs(folder, capsys):
    command = "sweep --folds 3 --task text --init init --jobs 2 --train train.tsv"
    settings = " --output_dir out --set learning_rate=5e-3"
    printed = printed_by(command + settings, capsys)
    paths = folder.glob("out/runs/*/results.json")
    results = [json.loads(path.read_text()) for path in paths]
    assert sum(r["num_eval_examples"] for r in results) == 300
    mean = statistics.fmean(r["eval"]["accuracy"] for r in results)
    assert f"| **3** | **{mean:.4f}** |" in printed[2]


def test_a_comparison_of_real_models(folder, capsys, caplog):
    command = (
        "compare --task text --train train.tsv --dev dev.tsv --models init "
        "--fractions 1 --seeds 1 --from_scratch --output_dir out --jobs 2 "
        "--set learning_rate=5e-3"
    )
    sentences = printed_by(command, capsys)
    facts = json.loads((folder / "out/sweep.json").read_text())
    assert facts["conclusions"] == sentences
    points = [*facts["baselines"], *facts["points"]]
    names = ["most common answer", "TF-IDF, linear", "init", "init, random"]
    assert [point["point"]["model"] for point in points] == names
    for point in points:
        (run,) = point["runs"]
        assert run["num_train_examples"] == 300
        results = json.loads((folder / "out" / run["run"] / "results.json").read_text())
        assert run["score"] == results["eval"]["accuracy"]
    assert (folder / "out/scores.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out/report.md").read_text()
    assert "![accuracy of each run](scores.png)" in page
    # The same command again makes no run.
    with caplog.at_level(logging.INFO):
        assert printed_by(command, capsys) == sentences
    assert "2 runs, 2 finished already" in caplog.text


def test_a_comparison_of_taggers(folder, capsys):
    tagged_file(folder / "train.txt", 60, seed=1)
    tagged_file(folder / "dev.txt", 30, seed=2)
    command = (
        "compare --task tagging --train train.txt --dev dev.txt --models init "
        "--fractions 0.5 --seeds 1 --output_dir out"
    )
    printed_by(command, capsys)
    facts = json.loads((folder / "out/sweep.json").read_text())
    assert facts["metric"] == "f1"
    points = [*facts["baselines"], *facts["points"]]
    scores = {point["point"]["model"]: point["mean"] for point in points}
    assert [*scores] == ["most common answer", "each word's tag", "init"]
    assert (scores["most common answer"], scores["each word's tag"]) == (0, 1)
    assert [run["num_train_examples"] for run in points[2]["runs"]] == [30]
    assert facts["differences"][0]["best"] == ["each word's tag"]
