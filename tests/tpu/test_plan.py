"""`bert-keras plan` against calculations by hand and the batches of training."""

import json
import re
import shlex
import types
from pathlib import Path

import numpy as np
import pytest

from bert_keras.commands import main as cli
from bert_keras.core.settings import finetuning, loading, pretraining
from bert_keras.model import flops

REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = "snow road letter lamp horse bridge river winter".split()


def planned(arguments: str, capsys) -> dict:
    assert cli.main(["plan", "--json", *arguments.split()]) == 0
    return json.loads(capsys.readouterr().out)


# By hand: the sums are written out in the recipes, "Cost: ... hours at 100 TFLOP/s".


@pytest.mark.parametrize("recipe", ["bert_base", "bert_large"])
def test_hand_calculation_of_a_pre_training(recipe, capsys):
    text = loading.recipe_text(recipe).replace("\n# ", " ")
    eflop, hours = re.search(r"= ([\d.]+) EFLOP: (\d+) hours at 100", text).groups()
    options = "--teraflops 100 --price_per_hour 9.6 --set num_eval_steps=1"
    found = planned(f"--config {recipe} {options}", capsys)
    trained = sum(stage["training_flops"] for stage in found["stages"])
    assert trained / 1e18 == pytest.approx(float(eflop), rel=3e-3)
    # One batch of evaluation every 1,000 steps is a three-thousandth.
    assert found["hours"] == pytest.approx(float(hours), rel=1e-2)
    assert found["dollars"] == pytest.approx(found["hours"] * 9.6)
    steps = [stage["num_steps"] for stage in found["stages"]]
    assert steps == [900_000, 100_000]


def test_sequences_per_second_give_the_hours(capsys):
    """With one rate the second phase is slower by its FLOPs, with two by its own."""
    base = "--config bert_base --set num_eval_steps=1 --sequences_per_second"
    one, two = planned(f"{base} 800", capsys), planned(f"{base} 800 100", capsys)
    first, second = ([s["hours"] for s in found["stages"]] for found in (one, two))
    assert first[0] == pytest.approx(230_400_000 / 800 / 3600, rel=1e-3)
    assert first[1] == pytest.approx(25_600_000 / 800 / 3600 * 301 / 69.9, rel=2e-2)
    assert second[0] == first[0]
    assert second[1] == pytest.approx(25_600_000 / 100 / 3600, rel=1e-3)


# Fine-tuning: the lengths of a file.


@pytest.fixture
def texts(tmp_path) -> Path:
    """A file whose texts have 3, 4, 5, 12, 3 and 100 tokens, and its vocabulary."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    write_texts(tmp_path, [3, 4, 5, 12, 3, 100])
    return tmp_path


def write_texts(folder: Path, lengths) -> None:
    lines = [
        f"{number % 2}\t{' '.join(WORDS[n % 8] for n in range(2, length))}\n"
        for number, length in enumerate(lengths)
    ]
    (folder / "train.tsv").write_text("label\ttext\n" + "".join(lines))


def planned_stage(texts: Path, settings: str, capsys) -> dict:
    sets = " ".join(f"--set {value}" for value in f"task=text {settings}".split())
    files = f"--train {texts}/train.tsv --vocab {texts}/vocab.txt --model bert_tiny"
    (stage,) = planned(f"{sets} {files}", capsys)["stages"]
    return stage


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        # Rows and tokens of the batches of an epoch.
        ("batch_size=1", [(1, n) for n in (3, 4, 5, 12, 3, 100)]),
        ("batch_size=1 max_seq_length=64", [(1, n) for n in (3, 4, 5, 12, 3, 64)]),
        ("batch_size=6", [(6, 100)]),
        ("batch_size=1 length_multiple=8", [(1, n) for n in (8, 8, 8, 16, 8, 104)]),
        ("batch_size=4 lengths=[64,128]", [(4, 128), (4, 64)]),
    ],
)
def test_fine_tuning_is_counted_by_its_lengths(settings, rows, texts, capsys):
    stage = planned_stage(texts, f"{settings} num_train_epochs=3", capsys)
    assert stage["num_sequences"] == 18
    assert stage["num_tokens"] == 3 * sum(row * tokens for row, tokens in rows)
    model = loading.load(pretraining.PretrainingConfig, "bert_tiny", []).model
    assert stage["training_flops"] == 3 * sum(
        row * flops.encoder_flops_per_example(model.with_vocab_size(13), tokens)
        for row, tokens in rows
    )


@pytest.mark.parametrize("batches", ["shuffled", "by_length"])
def test_batches_are_those_of_training(batches, texts, capsys):
    from bert_keras.training.finetuning import learning

    lengths = np.random.default_rng(7).integers(3, 128, 1000)
    settings = finetuning.FinetuningConfig(task="text", batches=batches)
    trained = learning.Batches(
        inputs=types.SimpleNamespace(lengths=lengths),
        batch_size=settings.batch_size,
        by_length=batches == "by_length",
        seed=settings.seed,
    )
    write_texts(texts, lengths)
    stage = planned_stage(texts, f"batches={batches} num_train_epochs=1", capsys)
    num_tokens = sum(len(rows) * max(lengths[rows]) for rows in trained.epoch(0))
    assert (stage["num_steps"], stage["num_tokens"]) == (32, num_tokens)


# Parts


def test_disk_is_what_was_measured(capsys):
    """The figures of benchmarks/results/disk_and_rate.md and data.md."""

    def disk(length, words, more=""):
        arguments = f"--max_seq_length {length} --words {words} {more}"
        return planned(f"--config bert_base {arguments}", capsys)["disk_bytes"]

    sizes = disk(128, 13150099)
    assert sizes["examples of 128"] == pytest.approx(1_492_080_336, rel=0.01)
    assert sizes["documents"] == pytest.approx(30_386_785, rel=0.01)
    books = disk(512, 3663035)["examples of 512"]
    assert books == pytest.approx(395_117_591, rel=0.02)
    dynamic = disk(128, 13150099, "--masking dynamic")["examples of 128"]
    assert 20 < sizes["examples of 128"] / dynamic < 35
    whole = planned("--config bert_base --max_seq_length 128 --words 3.3e9", capsys)
    assert whole["core_hours"] == pytest.approx(7.3, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sequences_per_second 0", "expected rates above 0, got 0.0"),
        ("--teraflops nan", "expected rates above 0, got nan"),
        ("--sequences_per_second 1 2 3", "expected one rate, or 2, one for each phase"),
        ("--price_per_hour 3", "--price_per_hour needs the hours: give"),
        ("--price_per_hour nan --teraflops 1", "--price_per_hour: expected 0 or more"),
        ("--config glue_sst2", "these settings are of `finetune`: give its file, too"),
        ("--set modle=1", "no key 'modle'; did you mean 'model'"),
        ("--max_seq_length 0", "`max_seq_length`: input should be greater than"),
        ("--words -1", "--words: expected a number above 0, got -1"),
        ("--max_seq_length 128 256 512", "3 directories of examples, but `phases`"),
        ("--vocab v.txt", "--vocab is for fine-tuning: give --train or --data"),
        ("--train a.tsv", "--train and --data need the encoder's --vocab"),
        ("--train a.tsv --words 9", "are for pre-training"),
        ("--budget 1", "--budget chooses the run: give --teraflops, what"),
        (
            "--budget 1 --teraflops 1 --config bert_base --vocab v --masking static",
            "and leave out --config, --masking, --vocab",
        ),
        ("--budget 1 --teraflops 1 --set global_batch_size=8", "leave out --set"),
        ("--budget 0.01 --teraflops 0.1", "28 steps of the smallest model"),
        ("--cased", "--cased is for fine-tuning: give --train or --data"),
        ("--budget -1 --teraflops 0.1", "expected numbers above 0, got -1 and 0.1"),
        ("--budget -1 --teraflops -1", "expected numbers above 0, got -1 and -1"),
        ("--budget nan --teraflops 0.1", "expected numbers above 0, got nan and 0.1"),
        ("--budget 1 --teraflops inf", "expected numbers above 0, got 1 and inf"),
        ("--budget 1 --teraflops 1 --words 0", "--words: expected a number above 0"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert cli.main(["plan", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# The page: commands that are followed by what they print.
SHOWN = re.findall(
    r"^```\n(bert-keras [^\n]+)\n```\n\nIt prints:\n\n"
    r"(?:<!-- [^\n]* -->\n)?```(?:text)?\n(.*?)^```$",
    (REPOSITORY / "docs/tpu.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=["plan"])
def test_the_page_shows_what_is_printed(command, output, capsys):
    assert cli.main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output
