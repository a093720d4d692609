"""A sweep that really trains, from the command line."""

import json
import random
from pathlib import Path

import pytest

from bert_keras.checkpoints import run_directory, run_weights
from bert_keras.commands import main as cli
from bert_keras.core.settings import config
from bert_keras.data import features, tokenization
from bert_keras.model import pretrainer

pytestmark = pytest.mark.slow

WORDS = {"good": ["fine", "great", "lovely"], "bad": ["dull", "awful", "weak"]}
FILLER = ["the", "film", "plot", "is", "so", "and", "a", "scene", "very", "with"]


def write_opinions(path: Path, *, num_rows: int, seed: int) -> None:
    """Sentences of which one word gives the label away."""
    rng = random.Random(seed)
    lines = ["text\tlabel"]
    for index in range(num_rows):
        label = ("good", "bad")[index % 3 == 0]
        words = rng.choices(FILLER, k=rng.randint(2, 9))
        words.insert(rng.randrange(len(words)), rng.choice(WORDS[label]))
        lines.append(f"{' '.join(words)}\t{label}")
    path.write_text("\n".join(lines) + "\n")


def make_init(directory: Path) -> None:
    vocabulary = tokenization.Vocabulary(
        (*features.SPECIAL_TOKENS, *WORDS["good"], *WORDS["bad"], *FILLER)
    )
    bert_config = config.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    run = run_directory.create_run(
        directory,
        config.PretrainingConfig(),
        task=config.Task(kind="pretraining"),
        bert_config=bert_config,
        vocabulary=vocabulary,
        do_lower_case=True,
        inputs={},
    )
    network = pretrainer.BertPretrainer(bert_config, seed=7)
    network.build()
    run_weights.finish_run(run, network, {"steps": 0})


def test_a_sweep_of_real_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_init(tmp_path / "init")
    write_opinions(tmp_path / "train.tsv", num_rows=300, seed=1)
    write_opinions(tmp_path / "dev.tsv", num_rows=60, seed=2)
    (tmp_path / "grid.yaml").write_text(
        "grid: {learning_rate: [5e-3, 1e-9]}\nmetric: accuracy\n"
    )
    arguments = [
        *("sweep", "--sweep", "grid.yaml", "--task", "text", "--init", "init"),
        *("--train", "train.tsv", "--dev", "dev.tsv", "--output_dir", "out"),
        *("--jobs", "2", "--set", "max_seq_length=24", "--set", "num_train_epochs=6"),
    ]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("| learning_rate | n | mean |")
    assert printed[-1].startswith("Chosen: learning_rate=0.005,seed=12345, accuracy ")
    header, good, bad = (tmp_path / "out/results.tsv").read_text().splitlines()
    good, bad = (
        dict(zip(header.split("\t"), row.split("\t"), strict=True))
        for row in (good, bad)
    )
    assert (good["state"], bad["state"]) == ("finished", "majority")
    assert float(good["accuracy"]) > 0.95
    for row in (good, bad):
        results = json.loads(
            (tmp_path / "out" / row["run"] / "results.json").read_text()
        )
        assert {n: float(row[n]) for n in results["eval"]} == results["eval"]
    # The finished sweep is left as it is, and the best run serves.
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "--model", "out/best", "--input", "dev.tsv"]) == 0
    assert f"accuracy\t{float(good['accuracy']):.4f}\n" in capsys.readouterr().out
