"""The life cycle of a model, in minutes, on text that is already on the machine.

The text is the docstrings of the installed packages, read without importing anything.
The stages are the commands that a user would type, each in its own process.
"""

import ast
import hashlib
import importlib.util
import itertools
import json
import logging
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, manifest, ownership, progress, requirements
from bert_keras.core.errors import InputError, Stopped

logger = logging.getLogger(__name__)

LIBRARIES = ("apache_beam", "keras", "numpy", "scipy", "sklearn", "tensorflow")
ROWS_PER_LIBRARY = {"train": 50, "dev": 100, "test": 100}
"""Labelled paragraphs: few to tune on, so that the gain of pre-training shows."""
COMPARED = "compared"

_NAMES_A_LIBRARY = re.compile(
    r"tensorflow|keras|numpy|beam|scipy|sklearn|scikit|\b(tf|np|ps|sp)\b", re.IGNORECASE
)

SENTENCES = (
    "returns a [MASK] with the same shape as the input.",
    "if the argument is not an [MASK], an error is raised.",
    "the learning [MASK] of the optimizer.",
)
PARAGRAPHS = (
    "Draws samples from a multivariate normal distribution.",
    "Groups the elements of a collection by key and by window.",
    "Fit the estimator to the training data and return the fitted object itself.",
)


_LABELLED = (
    "--task text --config demo_finetune --train {0}/text/train.tsv "
    "--dev {0}/text/dev.tsv"
)
COMMANDS = {
    "corpus --wikipedia {0}/text/articles.xml --jsonl {0}/text/docs.jsonl "
    "--output {0}/corpus": f"corpus/{manifest.MANIFEST_NAME}",
    "vocab --corpus {0}/corpus --vocab_size 8000 --output {0}/vocab.txt": "vocab.txt",
    "examples --corpus {0}/corpus --vocab {0}/vocab.txt --max_seq_length 64 "
    "--set dupe_factor=2 --output {0}/examples": f"examples/{manifest.MANIFEST_NAME}",
    "inspect {0}/examples --limit 1": None,
    "pretrain --config demo --examples {0}/examples "
    "--output_dir {0}/runs/pretrained": None,
    "fill-mask --model {0}/runs/pretrained {1} {2} {3}": None,
    f"finetune {_LABELLED} --init {{0}}/runs/pretrained "
    "--output_dir {0}/runs/tuned": None,
    "evaluate --model {0}/runs/tuned --input {0}/text/test.tsv": None,
    "export --model {0}/runs/tuned --output {0}/exported/1": "exported/1",
    f"compare {_LABELLED} --models {{0}}/runs/pretrained --from_scratch "
    f"--fractions 0.3 1 --jobs 2 --output_dir {{0}}/{COMPARED}": None,
}
"""Commands and their outputs: {0} is the directory, {1} and so on are `SENTENCES`. A
command whose output exists is skipped; `None`: it looks at its own output."""


class Document(NamedTuple):
    id: str
    library: str
    paragraphs: tuple[str, ...]


@ownership.owns(
    "output_dir", after=lambda given: files.check_is_local(given["output_dir"], "demo")
)
def run(output_dir: str | Path) -> None:
    """Runs the demo and prints its table; an interrupted demo resumes."""
    directory, start = Path(output_dir), time.monotonic()
    text, exported = directory / "text", directory / "exported" / "1"
    if not text.exists():
        ours = {ownership.OWNER_NAME, ".text.partial"}
        if set(files.list_directory(directory)) - ours:
            raise InputError(
                f"{directory}: has other files than a demo's: choose another directory"
            )
        with files.new_directory(text) as partial:
            write_texts(partial)
    for line, output in COMMANDS.items():
        if output is None or not (directory / output).exists():
            _run_command([part.format(directory, *SENTENCES) for part in line.split()])
    answers = _ask_saved_model(exported, PARAGRAPHS)
    print(f"\nThe SavedModel in {exported} on raw strings:")
    for paragraph, answer in zip(PARAGRAPHS, answers, strict=True):
        print(f"  {answer:12} {paragraph}")
    minutes = (time.monotonic() - start) / 60
    print("\n" + "\n".join(table(directory)))
    print(f"\n{minutes:.1f} minutes. Curves: tensorboard --logdir {directory / 'runs'}")


def _run_command(words: Sequence[str]) -> None:
    print(f"\n$ bert-keras {shlex.join(words)}", flush=True)
    process = subprocess.run(
        [sys.executable, "-P", "-m", "bert_keras.commands.main", *words]
    )
    if process.returncode > 128:
        raise Stopped(
            f"`bert-keras {words[0]}` was stopped; run the same command again "
            "to resume",
            signal_number=process.returncode - 128,
        )
    if process.returncode:
        raise InputError(f"`bert-keras {words[0]}` failed for the reason above")


def table(directory: Path) -> Iterator[str]:
    """Yields the last lines: accuracies of all models and of the baselines."""
    pretrained = run_directory.read_results(directory / "runs" / "pretrained") or {}
    metric, baseline = "masked_lm_accuracy", pretrained["eval_baseline"]
    token = baseline["commonest_token"]
    compared = files.read_json(directory / COMPARED / "sweep.json")
    points = [
        (f"which library, {point['point']['model']}", point["mean"], point["deviation"])
        for point in (*compared["baselines"], *compared["points"])
        if point["point"]["train_fraction"] == 1
    ]
    rows = [
        ("masked LM, pretrained", pretrained["eval"][metric], None),
        (f"masked LM, always {token!r}", baseline[metric], None),
        *sorted(points, key=lambda row: -row[1]),
    ]
    width = max(len(name) for name, *_ in rows)
    yield "held-out accuracy, mean and deviation"
    yield "-" * (width + 16)
    for name, mean, deviation in rows:
        several = "" if deviation is None else f" ± {deviation:.1%}"
        yield f"{name:{width}}  {mean:6.1%}{several}"


def write_texts(directory: Path) -> None:
    """Writes the demo's raw text: an unlabelled corpus and labelled paragraphs.

    One docstring in ten is not in the corpus and gives labelled paragraphs, for each
    file from docstrings of its own. Paragraphs that name a library are skipped, because
    the question is which library they are about.
    """
    directory.mkdir(parents=True, exist_ok=True)
    articles = resources.files("bert_keras") / "demo_articles.xml"
    (directory / "articles.xml").write_bytes(articles.read_bytes())
    documents = list(read_docstrings(LIBRARIES))
    shares: dict[str, list[Document]] = {"docs": [], "train": [], "dev": [], "test": []}
    # By a hash of their text: 3 % each for training and dev, 4 % for the test.
    parts = ["train"] * 3 + ["dev"] * 3 + ["test"] * 4 + ["docs"] * 90
    for document in documents:
        digest = hashlib.sha256(document.id.encode()).hexdigest()
        shares[parts[int(digest, 16) % 100]].append(document)
    with open(directory / "docs.jsonl", "w", encoding="utf-8") as file:
        for document in shares["docs"]:
            text = "\n\n".join(document.paragraphs)
            line = {"id": document.id, "text": text, "source": "docstrings"}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    known = {p for document in shares["docs"] for p in document.paragraphs}
    for name, count in ROWS_PER_LIBRARY.items():
        # Equally many paragraphs of each library, in turn.
        paragraphs = {library: [] for library in LIBRARIES}
        for document in sorted(shares[name], key=lambda d: d.id.rpartition(":")[2]):
            for paragraph in document.paragraphs:
                if not _NAMES_A_LIBRARY.search(paragraph) and paragraph not in known:
                    known.add(paragraph)
                    paragraphs[document.library].append(paragraph)
        rows = itertools.islice(zip(*paragraphs.values(), strict=False), count)
        lines = [
            f"{text}\t{label}\n"
            for texts in rows
            for text, label in zip(texts, paragraphs, strict=True)
        ]
        path = directory / f"{name}.tsv"
        path.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    logger.info("%d docstrings written to %s", len(documents), directory)


def read_docstrings(libraries: Iterable[str]) -> Iterator[Document]:
    """Reads the docstrings of installed packages, each distinct text once."""
    # 1. The Python files of each package in order, without its tests.
    sources = []
    for library in libraries:
        spec = importlib.util.find_spec(library)
        if spec is None or spec.origin is None:
            raise InputError(
                f"the demo reads the documentation of {library}, which is not "
                f"installed: {requirements.INSTALL_TRAIN}"
            )
        root = Path(spec.origin).parent
        # TensorFlow carries an old copy of Keras, which would have two labels.
        skipped = re.compile(r"test|keras" if library == "tensorflow" else r"test")
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
        sources += [(library, root / n) for n in names if not skipped.search(n)]
    # 2. Their docstrings.
    seen, done = set(), 0
    with progress.Progress(
        "docstrings", total=len(sources), unit="files", read=lambda: done
    ):
        for done, (library, path) in enumerate(sources):  # noqa: B007
            for docstring in docstrings(path.read_bytes()):
                paragraphs = tuple(prose(docstring))
                digest = hashlib.sha256("\n".join(paragraphs).encode()).hexdigest()
                if len(" ".join(paragraphs)) < 150 or digest in seen:
                    continue
                seen.add(digest)
                yield Document(f"{library}:{digest[:16]}", library, paragraphs)


def docstrings(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
    yield from filter(None, map(ast.get_docstring, nodes))


_ROLE = re.compile(r":[\w:]+:`~?([^`<]*)[^`]*`")
_LINK = re.compile(r"<?https?://\S+|`_+")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_NOT_PROSE = re.compile(r">>>|\.\. |[|+=#*-]{3}|@|import |Copyright|Licen[sc]e")
_WORD = re.compile(r"[A-Za-z]{2,}")


def prose(docstring: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring that are sentences, not code or tables."""
    docstring = _LINK.sub("", _ROLE.sub(r"\1", _FENCE.sub("\n\n", docstring)))
    for block in re.split(r"\n\s*\n", docstring):
        paragraph = " ".join(block.replace("`", "").split())
        words = _WORD.findall(paragraph)
        num_letters, num_signs = len("".join(words)), len(paragraph.replace(" ", ""))
        is_text = len(words) >= 8 and num_letters >= 0.65 * num_signs
        if is_text and not _NOT_PROSE.search(paragraph):
            yield paragraph


def _ask_saved_model(directory: Path, texts: Sequence[str]) -> list[str]:
    """Asks the SavedModel in a process that does not import this package."""
    program = (
        "import json, sys, tensorflow as tf, tensorflow_text\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "serve = model.signatures['serving_default']\n"
        "labels = serve(text=tf.constant(sys.argv[2:]))['label'].numpy()\n"
        "print(json.dumps([label.decode() for label in labels]))\n"
    )
    command = [sys.executable, "-P", "-c", program, str(directory.resolve()), *texts]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise InputError(f"{directory}: cannot be loaded: {process.stderr[-500:]}")
    return json.loads(process.stdout.splitlines()[-1])
