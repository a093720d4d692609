"""What users get wrong: one line, exit code 2, nothing that looks finished."""

import bz2
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from bert_keras.commands import main as cli
from bert_keras.core import manifest
from bert_keras.core.settings import finetuning
from bert_keras.data import tokenization
from bert_keras.pipelines import documents, records
from tests import make
from tests.pipelines import example_messages

PAGE = "<page><title>A</title><ns>0</ns><id>{}</id>{}</page>"
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


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", "", "nothing to read: give at least one of --wikipedia, --books, --sen"),
        (b"", "--wikipedia none", "--wikipedia: no file matches 'none'"),
        (b"Dear reader,\n\n", "--wikipedia file", "file: expected a MediaWiki export"),
        (b"<!DOCTYPE html><html>", "--wikipedia file", "file: .*this is an HTML page"),
        (
            bz2.compress(DUMP)[:-5000],
            "--wikipedia file.bz2",
            r"file.bz2: the compressed file ends in the middle \(truncated\); copy or",
        ),
        (b"<mediawiki></mediawiki>", "--wikipedia file", "no document in 0 items read"),
        (
            (
                "<mediawiki>"
                + PAGE.format(1, f"<revision><text>{'A word. ' * 25}</text></revision>")
                + PAGE.format(2, "<b>")
                + "</mediawiki>"
            ).encode(),
            "--wikipedia file",
            r"1 of 2 items \(50.00%\) could not be read.*rejects.jsonl",
        ),
        (b"", "--jsonl file --output file/out", "file/out: cannot be made: Not a dir"),
        (b"", "--jsonl file -- --runner=FnApiRuner", "did you mean 'FnApiRunner'"),
        # As `--books <(command)`, which could be read only once.
        (b"", "--books pipe", "pipe: expected a file, found a pipe: write the data to"),
    ],
)
def test_a_corpus(fails, tmp_path, content, options, message):
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "file.bz2"):
        (tmp_path / name).write_bytes(content)
    fails(message, "corpus", "--output", "out", *options.split())


def test_a_file_of_the_system_is_named(fails, tmp_path):
    """Whatever opens it: a fault of the disk is no fault of ours."""
    (tmp_path / "w.txt").mkdir()
    command = "extend-vocab --vocab w.txt --words w.txt --output out"
    fails("w.txt: .*Is a directory", *command.split())
    fails("expected a run directory", "report", tmp_path)


def corpus_of(tmp_path, *words):
    """Counters and documents of a corpus: what is bad is counted, the rest used."""
    output = tmp_path / "out"
    command = ["corpus", *words, "--output", output]
    command += ["--set", "min_document_words=1", "--max_bad_fraction", "0.5"]
    assert cli.main([str(word) for word in command]) == 0
    made = manifest.read_manifest(output, kind="documents")
    return made.counters, {
        document["id"].split(":")[0]: document["paragraphs"]
        for shard in made.shards
        for document in documents.read_shard(output / shard.name)
    }


def test_nul_bytes_surrogates_and_latin_1(tmp_path):
    lines = [
        '{"id": "nul", "text": "Nul \\u0000 is here."}',
        '{"id": "half", "text": "Half a \\ud83d character."}',
        '{"id": "\\ud83d", "text": "Its id is no text."}',
        '{"id": "good", "text": "Some words."}',
        '{"id": "two", "text": "Second in order."}',
        '{"id": "one", "text": "First in order."}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_bytes("Él llegó à Tours.\n".encode("latin-1"))
    inputs = ("--jsonl", tmp_path / "a.jsonl", "--books", tmp_path / "a.txt")
    counters, found = corpus_of(tmp_path, *inputs, "--encoding", "latin-1")
    assert found == {
        "good": [["Some words."]],
        "two": [["Second in order."]],
        "one": [["First in order."]],
        "a.txt": [["Él llegó à Tours."]],
    }
    assert counters["rejected/not plain text"] == 3
    assert counters["encoding/iso8859-1"] == 1
    rejects = (tmp_path / "out/rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in rejects] == [
        "not plain text: it holds NUL characters",
        "not plain text: it holds lone surrogates",
        "not plain text: it holds lone surrogates",
    ]


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("[SEP]\n", ""), r"\[SEP\]"),
        (lambda text: text + "ba\n", "'ba'.*(line|twice|duplicate)"),
        (lambda text: "", "empty"),
    ],
)
def test_a_bad_vocabulary(fails, change, message, tiny_vocab, tmp_path):
    (tmp_path / "v.txt").write_text(change(tiny_vocab.read_text()))
    fails(message, *"examples --corpus . --vocab v.txt --output out".split())
    assert not (tmp_path / "out").exists()


def test_an_unfinished_corpus(fails, tmp_path):
    command = "vocab --corpus . --output vocab.txt"
    fails("not a finished output of `bert-keras corpus`", *command.split())
    assert not (tmp_path / "vocab.txt").exists()


# === Pre-training ===


def with_a_changed_byte(directory):
    shard = sorted(directory.glob("*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[50] ^= 255
    shard.write_bytes(data)


def rewrite(directory, name, change):
    """Changes a feature of every example; the manifest is right about the bytes."""
    made = manifest.read_manifest(directory, kind="examples")
    shards = []
    types = {"masked_lm_weights": np.float32}
    for shard in made.shards:
        path = directory / shard.name
        examples = [example_messages.decode(r) for r in records.read_records(path)]
        columns = {}
        for key in examples[0]:
            values = [example[key] for example in examples]
            values = [change(value) for value in values] if key == name else values
            columns[key] = np.array(values, types.get(key, np.int64))
        shards.append(records.write_shard(path, records.encode_examples(columns)))
    changed = made.model_copy(update={"shards": tuple(shards)})
    manifest.write_manifest(directory, changed)


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (
            lambda examples: (examples / "manifest.json").unlink(),
            "",
            "no manifest.json, so this is not a finished output",
        ),
        (with_a_changed_byte, "", "examples-00000.*: sha256 .* the file was changed"),
        (
            lambda examples: rewrite(examples, "input_ids", lambda x: [*x[:-1], 49]),
            "",
            "input_ids beyond the vocabulary of 49",
        ),
        (
            lambda examples: rewrite(
                examples, "masked_lm_positions", lambda x: 6 * [0]
            ),
            "",
            "hold 6 masked_lm_positions, manifest.json says 5",
        ),
        (None, "--vocab other.txt", "not the vocabulary that"),
        (
            None,
            "--set global_batch_size=10 --set gradient_accumulation_steps=4",
            "`global_batch_size` is 10, which 1 replica with "
            "`gradient_accumulation_steps` 4 cannot share equally: make it a multiple "
            "of 4",
        ),
        (None, "--examples examples a b", "3 directories of examples, but `phases` h"),
        (
            None,
            "--set phases=[{fraction:_0.9},{fraction:_0.2}]",
            "the fractions of `phases` must add up to 1, got 1.1",
        ),
        (None, "--worker_index 1", "--worker_index needs --workers HOST:PORT"),
        (None, "--workers here", "--workers needs --worker_index, 0 to 0"),
        (None, "--workers a:1,b:2 --worker_index 2", "a worker's index is 0 to 1 with"),
        (None, "--strategy multi_worker", "multi_worker needs --workers HOST:PORT"),
        (None, "--output_dir of_another_run", "begun by another run"),
        (None, "--output_dir of_something_else", "not empty and not made by this"),
    ],
)
def test_pretraining(
    fails, tiny_examples, tiny_vocab, tmp_path, damage, options, message
):
    copied = shutil.copytree(tiny_examples, tmp_path / "examples")
    if damage:
        damage(copied)
    (tmp_path / "other.txt").write_text(tiny_vocab.read_text() + "zebra\n")
    for name in ("of_another_run/inputs.json", "of_something_else/thesis.tex"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text('{"seed": 1}')
    command = "pretrain --config bert_tiny --examples examples --output_dir out"
    fails(
        message,
        *command.split(),
        *(word.replace("_0", " 0") for word in options.split()),
    )


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


@pytest.fixture(scope="module")
def model_dir(tiny_vocab, tmp_path_factory):
    vocabulary = tokenization.Vocabulary.load(tiny_vocab)
    directory = tmp_path_factory.mktemp("runs") / "tuned"
    task = {"kind": "classification", "labels": ("a", "b")}
    settings = finetuning.FinetuningConfig()
    return make.make_run(directory, vocabulary, settings=settings, **task)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("sentence\tlabel\nba\ta\n", "no column 'text'.*sentence"),
        ("text\tlabel\nba\ta\nbe\n", r"line 3: .*2 columns.*1"),
        ("text\tlabel\nba\tc\n", r"line 2: .*'c'.*a, b"),
        ("", "expected a first line with names of columns"),
    ],
)
def test_a_bad_file(fails, rows, message, model_dir, tmp_path):
    (tmp_path / "x.tsv").write_text(rows)
    fails(message, "evaluate", "--model", model_dir, "--input", "x.tsv")


def test_an_existing_output_is_kept(fails, model_dir, tmp_path):
    (tmp_path / "x.tsv").write_text("text\nba\n")
    command = ["predict", "--model", model_dir, "--input", "x.tsv"]
    fails("x.tsv: exists already", *command, "--output", "x.tsv")
    assert (tmp_path / "x.tsv").read_text() == "text\nba\n"


def test_a_model_of_the_wrong_kind(fails, model_dir):
    message = r"has no head for masked words \(it is a model for "
    fails(message, "fill-mask", "--model", model_dir, "a [MASK]")
