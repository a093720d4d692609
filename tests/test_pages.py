"""README.md, CONTRIBUTING.md and docs/: every command runs or is at least understood,
every link leads somewhere, the map is that of the repository."""

import argparse
import ast
import bz2
import json
import os
import re
import runpy
import shlex
import shutil
import string
import subprocess
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import keras
import pytest

from bert_keras.checkpoints import conversion
from bert_keras.commands import config_page, parser
from bert_keras.commands import main as cli
from bert_keras.core.settings import loading
from bert_keras.data import tokenization
from tests import conftest, make

REPOSITORY = Path(__file__).resolve().parents[1]

PAGES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for path in (
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
    )
}

RUN_ELSEWHERE = {
    "docs/paper.md": "tests/test_recipes.py",
    "docs/python.md": "tests/test_python_page.py",
}
"""Pages whose commands another test runs, with that test."""

PROGRAMS = (
    *("bert-keras", "make", "python", "pip", "hf", "git", "cd", ".", "tensorboard"),
    *("docker", "curl", "gcloud", "nvidia-smi", "df", "kill"),
)

SHORTER = {
    "pretrain": "--set num_train_steps=3 --set optimizer.warmup_steps=1 "
    "--set global_batch_size=4 --set num_eval_steps=2 --set optimizer.decay_steps=1",
    "finetune": "--set num_train_epochs=1 --set max_seq_length=16",
    "distill": "--set num_train_epochs=1 --set max_seq_length=16",
}
"""Settings that make a command of hours one of seconds."""

SMALLER = (
    "--set model.num_hidden_layers=1 --set model.hidden_size=16 "
    "--set model.num_attention_heads=2 --set model.intermediate_size=32"
)
"""A model for `pretrain` without `--init`."""

BOOK = """*** START OF THE PROJECT GUTENBERG EBOOK OF WINTER ***

CHAPTER I.

The road to village {0} was covered with snow, and nobody had come along it for
{0} days. In the evening the old man lit his lamp. He waited for a letter.

On day {0} the post came after all. It had taken the longer way, over {0}
bridges, and the horse was tired.

*** END OF THE PROJECT GUTENBERG EBOOK OF WINTER ***
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    mark: str | None
    """`run`, `not run: REASON`, or none."""
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if is_command(line)]


def is_command(line: str) -> bool:
    return line.split(" ")[0] in PROGRAMS


def blocks(page: str) -> list[Block]:
    found = re.findall(
        r"^ *(?:<!-- (.*?) -->\n *)?```(\w*)\n(.*?)^ *```$",
        PAGES[page],
        re.DOTALL | re.MULTILINE,
    )
    return [
        Block(mark or None, language, joined(textwrap.dedent(text)))
        for mark, language, text in found
    ]


def joined(text: str) -> str:
    """Puts commands on one line that go on after a backslash."""
    return re.sub(r" *\\\n *", " ", text)


# === What the commands name ===


def write_inputs(directory: Path) -> None:
    """Writes the files of a user that the pages' commands read."""
    rows = [
        f"the {thing} was {how}" for thing in ("road", "lamp") for how in ("a", "b")
    ]
    document = {"id": "1", "text": "The ward was full. " * 12}
    blimp = [
        {"sentence_good": row, "sentence_bad": f"{row} a", "UID": row[-1]}
        for row in rows
    ]
    question = {
        "id": "1",
        "question": "what was covered",
        "answers": [{"text": "road", "answer_start": 4}],
    }
    paragraph = {"context": "the road was covered with snow", "qas": [question]}
    questions = {"version": "1.1", "data": [{"paragraphs": [paragraph]}]}
    labelled = table("text label", *(f"{row}\t{row[-1]}" for row in rows))
    tags = "the O\nroad O\nto O\nWinter B-LOC\n\nWinter B-LOC\n"
    tagged = [
        {"words": ["the", "road", "to", "Winter"], "tags": ["O", "O", "O", "B-LOC"]},
        {"words": ["Winter", "was", "a"], "tags": ["B-LOC", "O", "O"]},
    ]
    pair = "0\tit snowed\tthere was snow"
    rte = "index sentence1 sentence2"
    texts = {
        **{f"books/winter_{number}.txt": BOOK.format(number) for number in range(40)},
        "reports.jsonl": json.dumps(document) + "\n",
        "words.txt": "lamp\n",
        **dict.fromkeys(("train.tsv", "dev.tsv"), labelled),
        "moods.tsv": table(
            *("text label", "the road was a\ta,b", "the lamp was\t"),
            "the lamp was b\tb",
        ),
        **dict.fromkeys(("new.txt", "passages.txt"), "\n".join(rows) + "\n"),
        "new.tsv": table("text", *rows),
        "minimal_pairs.tsv": table(
            "good bad group", *(f"{row}\t{row[:-4]}\tis" for row in rows)
        ),
        "blimp.jsonl": "\n".join(map(json.dumps, blimp)) + "\n",
        "pairs.tsv": table(
            "text text_pair", *(f"{row}\twhat is {row[4:]}" for row in rows)
        ),
        "right.tsv": table(
            "question positive", *(f"what is {row[4:]}\t{row}" for row in rows)
        ),
        "candidates.tsv": table(
            "question passage relevance",
            *(
                f"{row[:8]}\t{passage}\t{int(row == passage)}"
                for row in rows
                for passage in rows
            ),
        ),
        **dict.fromkeys(("names/train.txt", "names/dev.txt"), tags),
        **dict.fromkeys(
            ("names/train.jsonl", "names/dev.jsonl"),
            "".join(f"{json.dumps(sentence)}\n" for sentence in tagged),
        ),
        "questions.json": json.dumps(questions),
        "endings.csv": "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
        "the horse was tired,it,slept,sang,wrote,snowed,0\n",
        **dict.fromkeys(
            ("glue/RTE/train.tsv", "glue/RTE/dev.tsv"),
            table(f"{rte} label", f"{pair}\tentailment"),
        ),
        "glue/RTE/test.tsv": table(rte, pair),
    }
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    write_dump(directory)
    write_published_model(directory / "bert", kind="encoder")
    write_published_model(directory / "bert-base-uncased", kind="pretraining")
    # A model of three labels that `save_pretrained` of a TensorFlow class wrote.
    theirs = REPOSITORY / "tests/data/tf_model"
    (directory / "old_model").mkdir()
    for name in ("config.json", "tf_model.h5"):
        path = theirs / "TFBertForSequenceClassification" / name
        shutil.copy(path, directory / "old_model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(theirs / name, directory / "old_model")


def write_dump(directory: Path) -> None:
    (directory / "dumps").mkdir()
    articles = (resources.files("bert_keras") / "demo_articles.xml").read_bytes()
    dump = directory / "dumps/demo-pages-articles.xml.bz2"
    dump.write_bytes(bz2.compress(articles))


def table(columns: str, *rows: str) -> str:
    """A file of tab-separated rows, with names of columns."""
    return "\n".join([columns.replace(" ", "\t"), *rows, ""])


def write_published_model(directory: Path, **task: Any) -> None:
    """Writes a model of one layer, in the four files that the README downloads."""
    special = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = string.ascii_lowercase
    parts = (f"##{letter}" for letter in letters)
    vocabulary = tokenization.Vocabulary((*special, *letters, *parts, "the", "was"))
    sizes = make.small_config(len(vocabulary), max_position_embeddings=128)
    run = directory.with_name("run of bert")
    make.make_run(run, vocabulary, bert_config=sizes, **task)
    conversion.convert(run, directory, to="hugging_face")
    shutil.rmtree(run)


# === What is run ===


class Reader:
    """Someone who follows the pages one after the other.

    Each page is followed in a directory of its own, which has the inputs and what the
    README's commands made. A command that an earlier page has word for word is not run
    again: what it made is linked.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.made: dict[tuple[str, ...], Path] = {}
        """Output by command."""
        self.of_readme: dict[str, Path] = {}
        """Output of the README's commands by name."""

    def follow(self, page: str, monkeypatch: pytest.MonkeyPatch) -> Path:
        here = self.directory / Path(page).stem
        here.mkdir()
        write_inputs(here)
        monkeypatch.chdir(here)
        marked = [block for block in blocks(page) if block.mark == "run"]
        own = {
            output_of(line)
            for block in marked
            for line in block.commands
            if not block.language
        }
        for name, path in self.of_readme.items():
            if name not in own:
                self._link(here / name, path)
        for block in marked:
            if block.language == "python":
                exec(compile(block.text, page, "exec"), {})
            for line in block.commands if not block.language else ():
                self._run(line, here)
        if page == "README.md":
            self.of_readme = {n: here / n for n in own if n is not None}
        return here

    def _run(self, line: str, here: Path) -> None:
        name = output_of(line)
        program, *arguments = words = shlex.split(line)
        if tuple(words) in self.made:
            self._link(here / name, self.made[tuple(words)])
            return
        if program == "tensorboard":
            check_tensorboard(arguments)
            return
        assert program == "bert-keras"
        assert cli.main(shortened(arguments)) == 0, line
        keras.utils.clear_session()
        if name is not None:
            self.made[tuple(words)] = here / name

    @staticmethod
    def _link(name: Path, target: Path) -> None:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.symlink_to(target)


def output_of(line: str) -> str | None:
    """The file or directory that a command makes."""
    arguments = shlex.split(line)
    for option in ("--output", "--output_dir"):
        if option in arguments:
            return arguments[arguments.index(option) + 1]
    return None


def shortened(arguments: list[str]) -> list[str]:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    more = SHORTER.get(arguments[0], "")
    if arguments[0] == "pretrain" and "--init" not in arguments:
        more += f" {SMALLER}"
    # A question of 64 pieces leaves no room in 16; other tasks refuse the setting.
    if any(re.match("span|squad", word, re.IGNORECASE) for word in arguments):
        more += " --set span.max_query_length=8" * (arguments[0] == "finetune")
    return [*arguments[:end], *shlex.split(more), *arguments[end:]]


def check_tensorboard(arguments: list[str]) -> None:
    done = conftest.run_python("-m", "tensorboard.main", "--inspect", *arguments)
    assert "runs/mini/logs/train" in done.stdout
    assert "tensor\n   first_step           1" in done.stdout


DOCS = tuple(page for page in PAGES if page.startswith("docs/"))


@pytest.mark.slow
def test_commands_of_all_pages(tmp_path, monkeypatch, capsys):
    reader = Reader(tmp_path)
    readme = reader.follow("README.md", monkeypatch)
    printed = capsys.readouterr().out
    assert "the old man lit his [MASK]." in printed
    assert re.search(r"^[ab] \{'a': 0\.", printed, re.MULTILINE)
    assert len((readme / "predictions.tsv").read_text().splitlines()) == 5
    assert (readme / "exported/mine/1/saved_model.pb").is_file()
    places = {page: reader.follow(page, monkeypatch) for page in DOCS}
    tasks = places["docs/tasks.md"]
    assert (tasks / "names.txt").read_text().startswith("the ")
    assert (tasks / "answers/predictions.json").is_file()
    assert (tasks / "submission/RTE.tsv").read_text().startswith("index\tpred")


# === What is understood ===


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_understood(page):
    text = joined(PAGES[page])
    lines = re.findall(r"^bert-keras [a-z-]+ .*$", text, re.MULTILINE)
    for line in lines:
        parsed = cli.build_parser().parse_command(shlex.split(line)[1:])
        check_settings(parsed)
        if parsed.verb == "launch":
            inner = cli.build_parser().parse_command(parsed.beam_arguments)
            assert inner.verb == "corpus"
            check_settings(inner)


def check_settings(parsed: argparse.Namespace) -> None:
    """Loads the configuration that a command names."""
    model = config_page.CONFIGURATIONS.get(parsed.verb)
    if parsed.verb in ("finetune", "distill", "sweep", "compare"):
        is_complete = parsed.verb != "distill"
        assert parser.finetuning_settings(parsed, are_complete=is_complete)
        if parsed.verb == "sweep":
            assert loading.load(model, parsed.sweep, parsed.sweep_set)
    elif model:
        assert loading.load(model, parsed.config, parsed.set)


def test_pages_that_are_run_elsewhere():
    for page, test in RUN_ELSEWHERE.items():
        assert page in (REPOSITORY / test).read_text(encoding="utf-8")


def test_the_front_page_stays_short():
    assert len(PAGES["README.md"].splitlines()) <= 190


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(RUN_ELSEWHERE)))
def test_every_block_of_commands_says_whether_it_runs(page):
    for block in blocks(page):
        if block.commands or block.language == "python":
            assert block.mark == "run" or re.fullmatch("not run: .+", block.mark or "")
        if block.mark == "run" and not block.language:
            assert all(map(is_command, block.text.splitlines()))
        if block.language == "python":
            ast.parse(block.text)


def test_the_mistake_that_is_shown(capsys):
    shown = re.search(r"\$ bert-keras (pretrain --set .*)\n(.*)\n", PAGES["README.md"])
    assert cli.main(shlex.split(shown[1])) == 2
    assert capsys.readouterr().err == shown[2] + "\n"


def test_targets_of_make():
    text = "\n".join(PAGES.values())
    for words in set(re.findall(r"^make [a-z-]+|`make [a-z-]+`", text, re.MULTILINE)):
        command = ["make", "--dry-run", words.strip("`").split()[1]]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# === Where links lead ===


def slug(heading: str) -> str:
    """GitHub's name of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_that_are_named_lead_somewhere(page):
    folders = "benchmarks|tests|docs|docker|bert_keras|pipelines|tpu"
    named = re.findall(rf"(?<![\w/-])((?:{folders})/[\w./-]*\w)", PAGES[page])
    assert not [name for name in named if not (REPOSITORY / name).exists()]
    folder = (REPOSITORY / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        path, _, anchor = link.partition("#")
        if re.match("https?:", link):
            continue
        target = Path(os.path.normpath(folder / path)) if path else REPOSITORY / page
        assert target.exists(), link
        if anchor:
            text = target.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in map(slug, headings), link


# === The drawing ===


def test_the_drawing_of_the_floors_is_that_of_the_test():
    """Every folder is above those that it imports."""
    house = runpy.run_path(str(REPOSITORY / "tests/test_architecture.py"))
    section = PAGES["CONTRIBUTING.md"].split("## The floors")[1]
    drawing = re.search(r"```\n(.*?)```", section, re.DOTALL)[1]
    floors = [re.findall(r"\w+", line[:36]) for line in drawing.splitlines()]
    above = {room: number for number, names in enumerate(floors) for room in names}
    for room, below in house["FLOORS"].items():
        assert above["commands"] < above[room]
        assert all(above[room] < above[name] for name in below.split()), room


def test_messages_that_are_explained_are_those_of_the_program():
    shown = re.findall(r"^Message: `(.*)`$", PAGES["docs/troubleshooting.md"], re.M)
    said = {
        node.value
        for name in ("bert_keras", "pipelines", "tpu")
        for path in (REPOSITORY / name).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(shown) >= 4
    assert not [text for text in shown if not any(text in other for other in said)]
