"""What users get wrong: one line, exit code 2, nothing that looks finished."""

import bz2
import re
import shutil
import subprocess
import sys
from importlib import resources

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.settings import finetuning
from bert_keras.data import tokenization
from tests import make

DUMP = (resources.files("bert_keras") / "demo_articles.xml").read_bytes()


@pytest.fixture
def fails(tmp_path, capsys, monkeypatch):
    """Checks the one line on standard error of a command that fails."""
    monkeypatch.chdir(tmp_path)

    def check(message, *words):
        code = cli.main([str(word) for word in words])
        err = capsys.readouterr().err
        assert code == 2 and "Traceback" not in err, err
        last = err.splitlines()[-1]
        assert re.match(f"bert-keras {words[0]}: error: .*{message}", last), last
        for name in ("manifest.json", "results.json", "model.safetensors"):
            assert not (tmp_path / "out" / name).exists()

    return check


def test_a_corpus(fails, tmp_path):
    (tmp_path / "cut.bz2").write_bytes(bz2.compress(DUMP)[:-5000])
    message = r"cut.bz2: the compressed file ends in the middle \(truncated\); copy or"
    fails(message, *"corpus --output out --wikipedia cut.bz2".split())
    command = "corpus --output out --jsonl cut.bz2 -- --runner=FnApiRuner"
    fails("did you mean 'FnApiRunner'", *command.split())


def test_a_file_of_the_system_is_named(fails, tmp_path):
    """Whatever opens it: a fault of the disk is no fault of ours."""
    (tmp_path / "w.txt").mkdir()
    command = "extend-vocab --vocab w.txt --words w.txt --output out"
    fails("w.txt: .*Is a directory", *command.split())
    fails("expected a run directory", "report", tmp_path)


def test_a_full_disk(tmp_path):
    """A limit on the size of files fails writing in the same place."""
    texts = [f"Word{n} " * 40 + "\\n\\n" for n in range(400)]
    lines = [f'{{"id": {n}, "text": "{text}"}}' for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    command = f"{sys.executable} -m bert_keras corpus --jsonl a.jsonl --output out"
    failed = subprocess.run(
        ["bash", "-c", f"ulimit -f 4; exec {command}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert failed.returncode == 2 and "Traceback" not in failed.stderr, failed.stderr
    assert re.search(
        r"^bert-keras corpus: error: .*out/.*: cannot be written: File too large; "
        "make room, or choose another place, and run the same command again$",
        failed.stderr,
        re.MULTILINE,
    )
    assert not (tmp_path / "out/manifest.json").exists()
    for output in ("out", "whole"):
        words = ["corpus", "--jsonl", str(tmp_path / "a.jsonl")]
        assert cli.main([*words, "--output", str(tmp_path / output)]) == 0
    shards = sorted(path.name for path in (tmp_path / "out").glob("documents*"))
    assert shards
    for name in [*shards, "manifest.json"]:
        whole = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == whole


# === Pre-training ===


@pytest.mark.parametrize(
    ("is_damaged", "options", "message"),
    [
        (True, "", "examples-00000.*: sha256 .* the file was changed"),
        (
            False,
            "--set global_batch_size=10 --set gradient_accumulation_steps=4",
            "`global_batch_size` is 10, which 1 replica with "
            "`gradient_accumulation_steps` 4 cannot share equally: make it a multiple "
            "of 4",
        ),
        (False, "--workers here", "--workers needs --worker_index, 0 to 0"),
    ],
)
def test_pretraining(fails, tiny_examples, tmp_path, is_damaged, options, message):
    copied = shutil.copytree(tiny_examples, tmp_path / "examples")
    if is_damaged:
        shard = sorted(copied.glob("*.tfrecord"))[0]
        data = bytearray(shard.read_bytes())
        data[50] ^= 255
        shard.write_bytes(data)
    command = "pretrain --config bert_tiny --examples examples --output_dir out "
    fails(message, *(command + options).split())


def test_another_number_of_steps_is_another_run(fails, pretrained_run, tiny_examples):
    """The learning rate depends on it."""
    before = (pretrained_run / "results.json").read_text()
    command = ["pretrain", "--config", pretrained_run / "config.yaml"]
    command += ["--examples", tiny_examples, "--output_dir", pretrained_run]
    message = (
        "finished already, with another `num_train_steps`: to train its model further, "
        f"give `--init {pretrained_run}` and a new --output_dir"
    )
    fails(message, *command, "--set", "num_train_steps=20")
    assert (pretrained_run / "results.json").read_text() == before


# === Labelled text ===


def test_a_label_that_the_model_does_not_have(fails, tiny_vocab, tmp_path):
    vocabulary = tokenization.Vocabulary.load(tiny_vocab)
    task = {"kind": "classification", "labels": ("a", "b")}
    settings = finetuning.FinetuningConfig()
    make.make_run(tmp_path / "tuned", vocabulary, settings=settings, **task)
    (tmp_path / "x.tsv").write_text("text\tlabel\nba\tc\n")
    command = "evaluate --model tuned --input x.tsv"
    fails(r"line 2: .*'c'.*a, b", *command.split())
