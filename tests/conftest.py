"""Fixtures that several test folders share, and the order and the bounds of a run."""

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bert_keras.core import files, manifest
from bert_keras.core.settings import architecture, pipelines
from bert_keras.data import features
from bert_keras.pipelines import examples, records
from bert_keras.pipelines.engine import engines

# torch's wheels for CUDA bring triton, which crashes the process where TensorFlow was
# loaded before it (tensorflow/tensorflow#124205).
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

REPOSITORY = Path(__file__).resolve().parents[1]

SECONDS = REPOSITORY / "tests" / "seconds.json"
"""Seconds that each file's fast tests took; `--record_seconds` writes them."""

NUM_PARTS = 7
"""Parts of the slow half, one for each day of the week."""

SILENCE_SECONDS = 1500
"""The longest time in which no worker finishes a test before the run is ended.

Above `faulthandler_timeout`, which ends a worker that hangs in a test.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=int, help="run one part of the slow half: 0 to 6")
    parser.addoption(
        "--record_seconds", action="store_true", help="write tests/seconds.json"
    )


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def part_of_files(num_tests: Mapping[str, int]) -> dict[str, int]:
    """Shares files out to parts: the largest first, to the part with the fewest."""
    totals = [0] * NUM_PARTS
    parts = {}
    for name in sorted(num_tests, key=lambda name: (-num_tests[name], name)):
        parts[name] = totals.index(min(totals))
        totals[parts[name]] += num_tests[name]
    return parts


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Puts long files first, and keeps one part of the slow half where asked to.

    A worker of xdist takes whole files, in the order of collection (the Makefile asks
    for it): with the long ones at the end, one worker would wait for the other.
    """
    seconds = json.loads(SECONDS.read_text())
    part = config.getoption("--part")
    if part is not None:
        parts = part_of_files(Counter(file_of(item.nodeid) for item in items))
        others = [item for item in items if parts[file_of(item.nodeid)] != part]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if parts[file_of(item.nodeid)] == part]
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


seconds_by_file: dict[str, float] = defaultdict(float)
"""Of the run that is under way."""


def watch(config: pytest.Config) -> None:
    """Ends this process, which only waits for workers, if nothing more comes."""
    if config.pluginmanager.has_plugin("dsession"):
        faulthandler.dump_traceback_later(SILENCE_SECONDS, exit=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    watch(session.config)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds_by_file[file_of(report.nodeid)] += report.duration
    if node := getattr(report, "node", None):
        watch(node.config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.pluginmanager.has_plugin("dsession"):
        faulthandler.cancel_dump_traceback_later()
    is_to_record = session.config.getoption("--record_seconds")
    if is_to_record and "PYTEST_XDIST_WORKER" not in os.environ:
        # Files of this run, and those of runs before that are still there.
        seconds = json.loads(SECONDS.read_text()) | seconds_by_file
        rounded = {
            name: round(s)
            for name, s in sorted(seconds.items())
            if round(s) and (SECONDS.parent / name).exists()
        }
        SECONDS.write_text(json.dumps(rounded, indent=1) + "\n")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Memory:
    """The memory of this process when it was last emptied.

    Looking at all objects takes 0.2 seconds: after each of 300 files, a minute.
    """

    most_growth = 40_000_000
    emptied = 0

    @classmethod
    def empty(cls) -> None:
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        cls.emptied = resident_bytes()


@pytest.fixture(scope="module", autouse=True)
def empty_memory() -> Iterator[None]:
    """Frees what the networks of a test file hold, and gives it back to the system.

    Keras and TensorFlow keep graphs and kernels for the life of a process: after 4,000
    tests they were 9 GB.
    """
    if "tensorflow" not in sys.modules:
        yield
    else:
        from bert_keras.model import recomputation

        # Of the models that tests load themselves.
        with recomputation.custom_gradients_end():
            yield
        sys.modules["keras"].backend.clear_session(free_memory=False)
    if resident_bytes() > Memory.emptied + Memory.most_growth:
        Memory.empty()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # What was imported stays: no collection need look at it again.
    gc.freeze()


class MadeOnce:
    """Directories that a whole run of the tests makes once, for all its workers.

    The first worker that needs one makes it, others that need it meanwhile wait. They
    are there to be read: at its end each worker looks whether those that it used are
    still as they were made.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._used: dict[Path, str] = {}

    def directory(self, name: str, make: Callable[[Path], object]) -> Path:
        """Makes the directory unless it is there.

        Args:
            name: of the directory, the same in all workers.
            make: a function that fills an empty directory.

        Returns:
            The directory: not to be changed.
        """
        directory = self._root / name
        digest = self._root / f"{name}.sha256"
        with (self._root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not digest.exists():
                # What is there is of a maker that failed or was killed.
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                make(directory)
                digest.write_text(sha256_of_tree(directory))
            self._used[directory] = digest.read_text()
        return directory

    def changed(self) -> list[str]:
        """Names of the directories used that are not as they were made."""
        return [
            directory.name
            for directory, digest in self._used.items()
            if sha256_of_tree(directory) != digest
        ]


def sha256_of_tree(directory: Path) -> str:
    """Digest of all names and contents below a directory."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(f"{path.relative_to(directory)}\0{path.is_dir()}\0".encode())
        if path.is_file():
            digest.update(files.sha256(path).encode())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Iterator[MadeOnce]:
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Each worker has a folder of its own in that of the run.
        base = base.parent
    root = base / "made_once"
    root.mkdir(exist_ok=True)
    made = MadeOnce(root)
    yield made
    assert not made.changed(), "a test changed what others read; copy it first"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data sets beside the repository, if it is there."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data sets in ../shared/data, which are not here")
    return folder


TINY = architecture.BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=32,
)
"""Sizes of which no two that could be confused are equal."""

WORDS = tuple(f"{a}{b}" for a in "bdgklmnprst" for b in ("a", "e", "i", "o"))


def write_documents(
    directory: Path, texts: list[dict | bytes], *, num_shards: int = 1
) -> Path:
    """Writes a finished directory of documents, as `bert-keras corpus` does.

    Bytes are a damaged line.
    """
    directory.mkdir()
    lines = [t if isinstance(t, bytes) else json.dumps(t).encode() for t in texts]
    shards = [
        records.write_hashed(
            directory / f"documents-{number:05d}-of-{num_shards:05d}.jsonl.gz",
            (line + b"\n" for line in lines[number::num_shards]),
            level=4,
        )
        for number in range(num_shards)
    ]
    sources = [t.get("source", "") for t in texts if isinstance(t, dict)]
    counters = {"documents": len(texts), **Counter(f"documents/{s}" for s in sources)}
    made = manifest.Manifest(
        kind="documents", shards=tuple(shards), config={}, counters=counters
    )
    manifest.write_manifest(directory, made)
    return directory


@pytest.fixture(scope="session")
def tiny_vocab(made_once) -> Path:
    """A `vocab.txt` of the special tokens and 44 short words."""

    def make(directory: Path) -> None:
        lines = "\n".join([*features.SPECIAL_TOKENS, *WORDS]) + "\n"
        (directory / "vocab.txt").write_text(lines)

    return made_once.directory("vocab", make) / "vocab.txt"


@pytest.fixture(scope="session")
def tiny_examples(made_once, tiny_vocab) -> Path:
    """Examples of 32 tokens in 3 shards, made by the pipeline from 60 documents.

    Each sentence counts up through the words from where the last one ended, so that
    both tasks can be learnt. The documents are in `corpus`, beside the examples.
    """

    def make(directory: Path) -> None:
        write_documents(directory / "corpus", counting_documents())
        examples.build_examples(
            directory / "corpus",
            tiny_vocab,
            directory / "examples",
            config=pipelines.ExamplesConfig(max_seq_length=32, dupe_factor=2),
            do_lower_case=True,
            num_shards=3,
            engine=engines.make_engine(),
        )

    return made_once.directory("examples", make) / "examples"


PRETRAINING = {
    "model": {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "hidden_act": "gelu_tanh",
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
    "global_batch_size": 8,
    "num_train_steps": 12,
    "save_checkpoint_steps": 5,
    # Pictures take as long as the steps: test_panels.py has them.
    "draw_steps": 1000,
    "shuffle_buffer_size": 100,
    "precision": "float32",
}
"""Settings of `pretrained_run`."""


@pytest.fixture(scope="session")
def pretrained_run(made_once, tiny_examples) -> Path:
    """A finished pre-training of 12 steps, with checkpoints after 5, 10 and 12."""
    # TensorFlow takes ten seconds: tests of the data alone do without.
    from tests import make

    def pretrain(directory: Path) -> None:
        make.pretrain([tiny_examples], directory / "run")

    return made_once.directory("pretrained", pretrain) / "run"


def counting_documents() -> list[dict]:
    choose = random.Random(0)
    texts = []
    for number in range(60):
        start = choose.randrange(len(WORDS))
        sentences = []
        for _ in range(12):
            length = choose.randint(4, 9)
            ids = [(start + i) % len(WORDS) for i in range(length)]
            sentences.append(" ".join(WORDS[i] for i in ids))
            start += length
        document = {"id": f"d{number}", "source": "t", "title": ""}
        texts.append({**document, "paragraphs": [sentences]})
    return texts


def run_python(*words: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, which must succeed.

    Our packages are on its path; `environment` adds variables, and the other options
    are those of `subprocess.run`.
    """
    environment = {"PYTHONPATH": str(REPOSITORY), **options.pop("environment", {})}
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done


@pytest.fixture(scope="session")
def start(tmp_path_factory) -> Iterator[Callable[..., int]]:
    """Starts programs that listen on a port, and ends them after the tests."""
    running: list[subprocess.Popen] = []

    def start_one(command, *, environment=None, port=None) -> int:
        port = port or free_port()
        folder = tmp_path_factory.mktemp("log")
        with open(folder / "output", "wb") as log:
            process = subprocess.Popen(
                [str(port) if word == "PORT" else str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        running.append(process)
        for _ in range(600):
            assert process.poll() is None, (folder / "output").read_text()
            try:
                socket.create_connection(("localhost", port), timeout=1).close()
                return port
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((folder / "output").read_text())

    yield start_one
    for process in running:
        # With the workers that it has started.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as listening:
        return listening.getsockname()[1]
