"""What users get wrong: one line, exit code 2, nothing that looks finished."""

import bz2
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from bert_keras.commands import main as cli
from bert_keras.core import manifest
from bert_keras.pipelines import documents, records
from tests.pipelines import example_messages

PAGE = "<page><title>A</title><ns>0</ns><id>1</id><revision><text>{}</text></revision>"


def error_of(command, capsys):
    """The one line on standard error of a command that fails."""
    code = cli.main([str(word) for word in command])
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert code == 2, err
    assert "Traceback" not in err
    assert last.startswith(f"bert-keras {command[0]}: error: ")
    return last


def assert_error(command, message, capsys):
    error = error_of(command, capsys)
    assert re.search(message, error), error


class TestCorpus:
    @pytest.fixture
    def check(self, tmp_path, capsys):
        def check(message, *options):
            output = tmp_path / "out"
            assert_error(["corpus", *options, "--output", output], message, capsys)
            assert not (output / "manifest.json").exists()

        return check

    def test_no_file_matches(self, check, tmp_path):
        pattern = tmp_path / "*.xml"
        check(
            f"--wikipedia: no file matches '{re.escape(str(pattern))}'",
            "--wikipedia",
            pattern,
        )

    def test_nothing_to_read(self, check):
        check(
            "nothing to read: give at least one of --wikipedia, --books, --sentences, "
            "--jsonl"
        )

    def test_not_xml(self, check, tmp_path):
        (tmp_path / "a.xml").write_text("Dear reader,\n\nthis is a letter.\n")
        check("a.xml: expected a MediaWiki export", "--wikipedia", tmp_path / "a.xml")

    def test_a_web_page(self, check, tmp_path):
        (tmp_path / "a.xml").write_text("<!DOCTYPE html><html><body>404</body></html>")
        check("a.xml: .*this is an HTML page", "--wikipedia", tmp_path / "a.xml")

    def test_a_truncated_bz2(self, check, tmp_path):
        dump = (resources.files("bert_keras") / "demo_articles.xml").read_bytes()
        (tmp_path / "a.xml.bz2").write_bytes(bz2.compress(dump)[:-5000])
        check(
            r"a.xml.bz2: the compressed file ends in the middle \(truncated\); copy or",
            "--wikipedia",
            tmp_path / "a.xml.bz2",
        )

    def test_an_empty_corpus(self, check, tmp_path):
        (tmp_path / "a.xml").write_text("<mediawiki></mediawiki>")
        check("no document in 0 items read", "--wikipedia", tmp_path / "a.xml")

    def test_too_many_bad_pages(self, check, tmp_path):
        good = PAGE.format("Running text of a page. " * 10) + "</page>"
        bad = "<page><title>B</title><ns>0</ns><id>2</id><b></page>"
        (tmp_path / "a.xml").write_text(f"<mediawiki>{good}{bad}</mediawiki>")
        check(
            r"1 of 2 items \(50.00%\) could not be read.*rejects.jsonl",
            "--wikipedia",
            tmp_path / "a.xml",
        )

    def test_a_place_that_cannot_be_written(self, tmp_path, capsys):
        (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "Some words."}\n')
        (tmp_path / "file").touch()
        command = ["corpus", "--jsonl", tmp_path / "a.jsonl"]
        assert_error(
            [*command, "--output", tmp_path / "file/out"],
            "file/out: cannot be made: Not a directory; choose another place",
            capsys,
        )

    def test_a_runner_that_is_misspelt(self, tmp_path, capsys):
        (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "Some words."}\n')
        command = [
            "corpus",
            "--jsonl",
            tmp_path / "a.jsonl",
            "--output",
            tmp_path / "o",
        ]
        for runner, message in [
            ("FnApiRuner", "got 'FnApiRuner'; did you mean 'FnApiRunner'"),
            ("DaskRunner", "DaskRunner is refused: .*drops what goes to the others"),
        ]:
            assert_error([*command, "--", f"--runner={runner}"], message, capsys)
            assert not (tmp_path / "o").exists()


def run(*words, cwd, file_blocks="unlimited"):
    """A command in a shell whose files cannot grow beyond some kilobytes."""
    command = shlex.join(
        [sys.executable, "-m", "bert_keras.commands.main", *map(str, words)]
    )
    return subprocess.run(
        ["bash", "-c", f"ulimit -f {file_blocks}; exec {command}"],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )


def test_a_pipe_is_refused_at_once(tmp_path):
    """As `--books <(command)`, which could be read only once."""
    os.mkfifo(tmp_path / "book")
    found = run("corpus", "--books", "book", "--output", "out", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr == (
        "bert-keras corpus: error: book: expected a file, found a pipe: write the "
        "data to a file first\n"
    )


def test_a_file_of_the_system_is_named(tmp_path, capsys):
    """Whatever opens it: a fault of the disk is no fault of ours."""
    (tmp_path / "words.txt").mkdir()
    command = ["extend-vocab", "--vocab", tmp_path / "words.txt"]
    command += ["--words", tmp_path / "words.txt", "--output", tmp_path / "out"]
    assert_error(command, "words.txt: .*Is a directory", capsys)


class TestDirtyText:
    """What real collections hold: it is counted, and the rest is used."""

    def corpus(self, tmp_path, *words):
        output = tmp_path / "out"
        command = ["corpus", *words, "--output", output]
        command += ["--set", "min_document_words=1", "--max_bad_fraction", "0.5"]
        assert cli.main([str(word) for word in command]) == 0
        made = manifest.read_manifest(output, kind="documents", verb="corpus")
        return made.counters, {
            document["id"].split(":")[0]: document["paragraphs"]
            for shard in made.shards
            for document in documents.read_shard(output / shard.name)
        }

    def test_nul_bytes_and_surrogates(self, tmp_path):
        lines = [
            '{"id": "nul", "text": "Nul \\u0000 is here."}',
            '{"id": "half", "text": "Half a \\ud83d character."}',
            '{"id": "\\ud83d", "text": "Its id is no text."}',
            '{"id": "good", "text": "Some words."}',
            '{"id": "two", "text": "Second in order."}',
            '{"id": "one", "text": "First in order."}',
        ]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        counters, found = self.corpus(tmp_path, "--jsonl", tmp_path / "a.jsonl")
        assert found == {
            "good": [["Some words."]],
            "two": [["Second in order."]],
            "one": [["First in order."]],
        }
        assert counters["rejected/not plain text"] == 3
        rejects = (tmp_path / "out/rejects.jsonl").read_text().splitlines()
        assert [json.loads(line)["reason"] for line in rejects] == [
            "not plain text: it holds NUL characters",
            "not plain text: it holds lone surrogates",
            "not plain text: it holds lone surrogates",
        ]

    def test_a_book_in_latin_1(self, tmp_path):
        (tmp_path / "a.txt").write_bytes("Él llegó à Tours.\n".encode("latin-1"))
        counters, found = self.corpus(tmp_path, "--books", tmp_path / "a.txt")
        assert found["a.txt"] == [["Él llegó à Tours."]]
        assert counters["encoding/cp1252"] == 1

    def test_a_full_disk(self, tmp_path):
        """A limit on the size of files fails writing in the same place."""
        texts = [f"Word{n} " * 40 + "\\n\\n" for n in range(400)]
        lines = [f'{{"id": {n}, "text": "{text}"}}' for n, text in enumerate(texts)]
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        command = ["corpus", "--jsonl", "a.jsonl", "--output", "out"]
        failed = run(*command, cwd=tmp_path, file_blocks=4)
        assert failed.returncode == 2, failed.stderr
        assert re.search(
            r"^bert-keras corpus: error: .*out/.*: cannot be written: File too large; "
            "make room, or choose another place; the same command then continues where "
            "it stopped$",
            failed.stderr,
            re.MULTILINE,
        )
        assert "Traceback" not in failed.stderr
        assert not (tmp_path / "out/manifest.json").exists()
        assert run(*command, cwd=tmp_path).returncode == 0
        assert run(*command[:-1], "whole", cwd=tmp_path).returncode == 0
        shards = sorted(path.name for path in (tmp_path / "out").glob("documents*"))
        assert shards
        for name in [*shards, "manifest.json"]:
            whole = (tmp_path / "whole" / name).read_bytes()
            assert (tmp_path / "out" / name).read_bytes() == whole


class TestVocabulary:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: text.replace("[SEP]\n", ""), r"\[SEP\]"),
            (lambda text: text + "ba\n", "'ba'.*(line|twice|duplicate)"),
            (lambda text: "", "empty"),
        ],
    )
    def test_a_bad_vocabulary(self, change, message, tiny_vocab, tmp_path, capsys):
        vocab = tmp_path / "vocab.txt"
        vocab.write_text(change(tiny_vocab.read_text()))
        command = ["examples", "--corpus", tmp_path, "--vocab", vocab]
        assert_error([*command, "--output", tmp_path / "out"], message, capsys)
        assert not (tmp_path / "out").exists()

    def test_an_unfinished_corpus(self, tmp_path, capsys):
        command = ["vocab", "--corpus", tmp_path, "--output", tmp_path / "vocab.txt"]
        assert_error(command, "not a finished output of `bert-keras corpus`", capsys)
        assert not (tmp_path / "vocab.txt").exists()


class TestPretrain:
    @pytest.fixture
    def copied(self, tiny_examples, tmp_path):
        return shutil.copytree(tiny_examples, tmp_path / "examples")

    @pytest.fixture
    def check(self, tmp_path, capsys):
        def check(message, examples, *options):
            command = ["pretrain", "--config", "bert_tiny", "--examples", examples]
            command += ["--output_dir", tmp_path / "run", *options]
            assert_error(command, message, capsys)
            assert not (tmp_path / "run" / "results.json").exists()
            assert not (tmp_path / "run" / "model.weights.h5").exists()

        return check

    def test_examples_without_a_manifest(self, check, copied):
        (copied / "manifest.json").unlink()
        check("no manifest.json, so this is not a finished output", copied)

    def test_a_shard_that_was_changed(self, check, copied):
        shard = sorted(copied.glob("*.tfrecord"))[0]
        data = bytearray(shard.read_bytes())
        data[50] ^= 255
        shard.write_bytes(data)
        check(f"{shard.name}: sha256 .* the file was changed", copied)

    def test_another_vocabulary(self, check, copied, tiny_vocab, tmp_path):
        (tmp_path / "v.txt").write_text(tiny_vocab.read_text() + "zebra\n")
        check("not the vocabulary that", copied, "--vocab", tmp_path / "v.txt")

    def rewrite(self, directory, change):
        """Changes every example; the manifest is right about the new bytes."""
        made = manifest.read_manifest(directory, kind="examples", verb="examples")
        shards = []
        for shard in made.shards:
            path = directory / shard.name
            examples = [example_messages.decode(r) for r in records.read_records(path)]
            changed = [change(example) for example in examples]
            encoded = records.encode_examples(
                {
                    name: np.array(
                        [example[name] for example in changed],
                        np.float32 if name == "masked_lm_weights" else np.int64,
                    )
                    for name in changed[0]
                }
            )
            shards.append(records.write_shard(path, encoded))
        manifest.write_manifest(
            directory, made.model_copy(update={"shards": tuple(shards)})
        )

    def test_ids_beyond_the_vocabulary(self, check, copied):
        def beyond(example):
            return {**example, "input_ids": [*example["input_ids"][:-1], 49]}

        self.rewrite(copied, beyond)
        check("input_ids beyond the vocabulary of 49", copied)

    def test_more_predictions_than_promised(self, check, copied):
        def more(example):
            return {**example, "masked_lm_positions": [0] * 6}

        self.rewrite(copied, more)
        check("hold 6 masked_lm_positions, manifest.json says 5", copied)

    def test_a_directory_of_another_run(self, check, copied, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "inputs.json").write_text(json.dumps({"seed": 1}))
        check("begun by another run", copied)

    def test_a_directory_of_something_else(self, check, copied, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").touch()
        check("not empty and not made by this command", copied)

    def test_a_batch_that_cannot_be_shared(self, check, copied):
        check(
            "`global_batch_size` is 10, which 1 replica with "
            "`gradient_accumulation_steps` 4 cannot share equally: make it a multiple "
            "of 4",
            copied,
            *("--set", "global_batch_size=10"),
            *("--set", "gradient_accumulation_steps=4"),
        )

    def test_more_directories_than_phases(self, check, copied):
        check(
            "3 directories of examples, but `phases` has 2",
            copied,
            *("--examples", copied, copied, copied),
        )

    def test_phases_that_do_not_add_up(self, check, copied):
        option = "phases=[{fraction: 0.9}, {fraction: 0.2}]"
        message = "the fractions of `phases` must add up to 1, got 1.1"
        check(message, copied, "--set", option)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--worker_index", "1"), "--worker_index needs --workers HOST:PORT"),
            (("--workers", "here"), "--workers needs --worker_index, 0 to 0"),
            (
                ("--workers", "a:1,b:2", "--worker_index", "2"),
                "a worker's index is 0 to 1 with 2 workers, got 2",
            ),
            (("--strategy", "multi_worker"), "multi_worker needs --workers HOST:PORT"),
        ],
    )
    def test_workers_that_are_not_there(self, check, copied, options, message):
        check(message, copied, *options)


@pytest.fixture(scope="module")
def model_dir(pretrained_run, tmp_path_factory):
    """A tuned run."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "train.tsv").write_text("text\tlabel\nba be\ta\nka ke\tb\n")
    command = (
        f"finetune --task text --train {directory}/train.tsv --dev "
        f"{directory}/train.tsv --init {pretrained_run} --set max_seq_length=16 "
        f"--set num_train_epochs=1 --output_dir {directory}/tuned"
    )
    assert cli.main(command.split()) == 0
    return directory / "tuned"


class TestLabelledText:
    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("sentence\tlabel\nba\ta\n", "no column 'text'.*sentence"),
            ("text\tlabel\nba\ta\nbe\n", r"line 3: .*2 columns.*1"),
            ("text\tlabel\nba\tc\n", r"line 2: .*'c'.*a, b"),
            ("", "empty"),
        ],
    )
    def test_a_bad_file(self, rows, message, model_dir, tmp_path, capsys):
        (tmp_path / "x.tsv").write_text(rows)
        command = ["evaluate", "--model", model_dir, "--input", tmp_path / "x.tsv"]
        assert_error(command, message, capsys)

    def test_an_existing_output_is_kept(self, model_dir, tmp_path, capsys):
        (tmp_path / "x.tsv").write_text("text\nba\n")
        (tmp_path / "out.tsv").write_text("mine")
        command = ["predict", "--model", model_dir, "--input", tmp_path / "x.tsv"]
        command += ["--output", tmp_path / "out.tsv"]
        assert_error(command, "out.tsv: exists already", capsys)
        assert (tmp_path / "out.tsv").read_text() == "mine"

    def test_a_model_of_the_wrong_kind(self, model_dir, capsys):
        command = ["fill-mask", "--model", model_dir, "a [MASK]"]
        assert_error(command, "has no masked-LM head: no masked_lm_head", capsys)


def test_another_number_of_steps_is_another_run(pretrained_run, tiny_examples, capsys):
    """Below the step that was reached, or beyond: the learning rate depends on it."""
    command = ["pretrain", "--config", pretrained_run / "config.yaml"]
    command += ["--examples", tiny_examples, "--output_dir", pretrained_run]
    assert_error(
        [*command, "--set", "num_train_steps=7"],
        "begun by another run, with num_train_steps=12 where this one has 7",
        capsys,
    )
    results = json.loads((pretrained_run / "results.json").read_text())
    assert results["steps"] == 12


def test_a_report_of_something_else(tmp_path, capsys):
    assert_error(["report", tmp_path], "expected a run directory", capsys)
