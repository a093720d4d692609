"""Every command of README.md, run in order on small text."""

import bz2
import json
import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from bert_keras import cli, verbs

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

SHORTER = {
    "pretrain": "--set num_train_steps=3 --set optimizer.warmup_steps=1 "
    "--set global_batch_size=4",
    "finetune": "--set num_train_epochs=1 --set max_seq_length=16 "
    "--set span.max_query_length=8",
}
"""What makes a command of days one of seconds."""

BOOK = """*** START OF THE PROJECT GUTENBERG EBOOK OF WINTER ***

CHAPTER I.

The road to the village was covered with snow, and nobody had come along it for
three days. In the evening the old man lit his lamp. He waited for a letter.

On the fourth day the post came after all. It had taken the longer way, over the
bridge, and the horse was tired.

*** END OF THE PROJECT GUTENBERG EBOOK OF WINTER ***
"""


def run_blocks() -> list[str]:
    """The commands of the blocks that are marked to be run."""
    blocks = re.findall(r"<!-- run -->\n```\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def own_text(directory: Path) -> None:
    """The files that the README's commands name."""
    (directory / "dumps").mkdir()
    (directory / "books").mkdir()
    articles = (resources.files("bert_keras") / "demo_articles.xml").read_bytes()
    dump = directory / "dumps/demo-pages-articles.xml.bz2"
    dump.write_bytes(bz2.compress(articles))
    (directory / "books/winter.txt").write_text(BOOK)
    rows = [
        f"the {thing} was {how}" for thing in ("road", "lamp") for how in ("a", "b")
    ]
    labelled = "".join(f"{row}\t{row[-1]}\n" for row in rows)
    for name in ("train", "dev"):
        (directory / f"{name}.tsv").write_text("text\tlabel\n" + labelled)
    (directory / "new.tsv").write_text("text\n" + "\n".join(rows) + "\n")
    (directory / "names").mkdir()
    for name in ("train", "dev"):
        tags = "the O\nroad O\nto O\nWinter B-LOC\n\nWinter B-LOC\n"
        (directory / "names" / f"{name}.txt").write_text(tags)
    question = {
        "id": "1",
        "question": "what was covered",
        "answers": [{"text": "road", "answer_start": 4}],
    }
    paragraph = {"context": "the road was covered with snow", "qas": [question]}
    questions = {"version": "1.1", "data": [{"paragraphs": [paragraph]}]}
    (directory / "questions.json").write_text(json.dumps(questions))
    (directory / "endings.csv").write_text(
        "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        "the horse was tired,it,slept,sang,wrote,snowed,0\n"
    )
    (directory / "glue/RTE").mkdir(parents=True)
    pairs = ["index\tsentence1\tsentence2", "0\tit snowed\tthere was snow"]
    for name, last in (("train", "\tlabel"), ("dev", "\tlabel"), ("test", "")):
        label = "\tentailment" if last else ""
        lines = f"{pairs[0]}{last}\n{pairs[1]}{label}\n"
        (directory / f"glue/RTE/{name}.tsv").write_text(lines)


def test_commands_on_your_own_text(tmp_path, monkeypatch, capsys):
    own_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = []
    for line in run_blocks():
        program, *arguments = shlex.split(line)
        if program == "tensorboard":
            check_tensorboard(arguments)
            continue
        assert program == "bert-keras"
        arguments += shlex.split(SHORTER.get(arguments[0], ""))
        assert cli.main(arguments) == 0, capsys.readouterr().err
        found.append(arguments[0])
    assert found == [
        *("corpus", "vocab", "examples", "inspect", "inspect"),
        *("pretrain", "report", "fill-mask"),
        *("finetune", "evaluate", "predict", "export"),
        *("finetune", "predict", "finetune", "predict"),
        *("finetune", "finetune", "predict"),
        *("convert", "finetune", "export"),
    ]
    printed = capsys.readouterr().out
    assert "the capital of france is [MASK]." in printed
    assert "num_examples\t4" in printed
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert len(lines) == 5
    assert (tmp_path / "exported/1/saved_model.pb").is_file()
    assert (tmp_path / "names.txt").read_text().startswith("the O")
    assert (tmp_path / "answers/predictions.json").is_file()
    assert (tmp_path / "submission/RTE.tsv").read_text().startswith("index\tpred")


def check_tensorboard(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", "--inspect", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "runs/mini/logs/train" in done.stdout
    assert "tensor\n   first_step           1" in done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "install", "lint", "test-slow"])
def test_targets_of_make(target):
    command = ["make", "--dry-run", target]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_mistake_that_is_shown(capsys):
    shown = re.search(r"\$ bert-keras (pretrain --set .*)\n(.*)\n", README)
    assert cli.main(shlex.split(shown[1])) == 2
    assert capsys.readouterr().err == shown[2] + "\n"


def test_other_commands_are_understood():
    """Blocks that are not run, because they need a cluster or days."""
    commands = re.findall(r"^bert-keras [a-z-]+ .*$", README, re.MULTILINE)
    assert len(commands) >= len(run_blocks())
    for line in commands:
        arguments, _ = verbs.split_at_dashes(shlex.split(line)[1:])
        assert verbs.build_parser().parse_args(arguments).verb == arguments[0]


def test_the_tree_is_that_of_the_repository():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", README, re.DOTALL)[1]
    names = set(re.findall(r"[\w.]+\.py|\w+/", tree))
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    modules = {
        Path(name).name if Path(name).name != "__init__.py" else ""
        for name in listed.stdout.split()
        if re.match(r"(bert_keras|pipelines|tpu)/.*\.py$", name)
    } - {""}
    packages = {"wikitext/", "checkpoints/", "tasks/", "engine/", "sources/", "report/"}
    packages |= {"export/", "sweep/"}
    assert modules - names == {"lines.py", "markup.py", "templates.py"}
    assert {n for n in names if n.endswith(".py")} <= modules
    assert packages <= names
