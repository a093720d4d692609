"""After a loss of power, the same command ends with the right bits or names the file.

Each command is recorded once; then it is given again on every state in which the disk
may have been left (`disk.states`).
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from tests import conftest
from tests.power_loss import disk, server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
IS_OF_A_PROCESS = (".owner", "logs", "environment.json")
"""Names whose content tells of processes and times."""

COMMANDS = {
    "corpus": "corpus --jsonl {inputs}/texts.jsonl --output {tree}/corpus",
    "vocab": "vocab --corpus {inputs}/corpus --output {tree}/vocab.txt "
    "--vocab_size 240",
    "examples": "examples --corpus {inputs}/corpus --vocab {inputs}/vocab.txt "
    "--output {tree}/examples --max_seq_length 32 --num_shards 2",
    "pretrain": "pretrain --examples {examples} --output_dir {tree}/run "
    "--strategy cpu --config {inputs}/pretrain.yaml",
    "finetune": "finetune --train {inputs}/train.tsv --dev {inputs}/dev.tsv "
    "--init {pretrained} --output_dir {tree}/run --strategy cpu "
    "--set max_seq_length=32 --set batch_size=8 --set num_train_epochs=2 "
    "--set save_checkpoint_steps=3",
    "export": "export --model {pretrained} --output {tree}/exported --embedding mean",
}
EVERY = {"pretrain": 12, "finetune": 12}
"""Of the hundred states of a training, every twelfth: each takes ten seconds."""


@pytest.fixture(scope="module")
def places(tmp_path_factory, tiny_vocab, tiny_examples, pretrained_run):
    inputs = tmp_path_factory.mktemp("inputs")
    shutil.copytree(tiny_examples.parent / "corpus", inputs / "corpus")
    shutil.copy(tiny_vocab, inputs)
    paragraphs = [d["paragraphs"][0] for d in conftest.counting_documents()]
    lines = [{"id": str(n), "text": ". ".join(p)} for n, p in enumerate(paragraphs)]
    texts = "".join(json.dumps(line) + "\n" for line in lines)
    (inputs / "texts.jsonl").write_text(texts)
    settings = {**conftest.PRETRAINING, "num_eval_steps": 2}
    (inputs / "pretrain.yaml").write_text(json.dumps(settings))
    for name, count in (("train", 48), ("dev", 16)):
        rows = [f"{p[0]}\t{n % 2}" for n, p in enumerate(paragraphs[:count])]
        (inputs / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return {
        "inputs": inputs,
        "examples": tiny_examples,
        "pretrained": pretrained_run,
        # The paths of inputs and outputs are the same each time.
        "place": tmp_path_factory.mktemp("place"),
    }


@pytest.fixture(scope="module")
def give():
    """A function that gives a command; returns its exit code and what it said."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([server.__name__, "bert_keras.lab.demo"])
    # A process for each command.
    options = {"mp_context": context, "max_tasks_per_child": 1}
    with futures.ProcessPoolExecutor(1, **options) as pool:
        yield lambda words: pool.submit(server.run, words).result()


def record(words, tree: Path, records: Path) -> None:
    records.mkdir()
    tree.mkdir()
    recorder = os.pathsep.join([str(HERE / "site"), str(HERE.parents[1])])
    more = {"PYTHONPATH": recorder, "RECORDED_TREE": str(tree), "RECORDS": str(records)}
    command = [sys.executable, "-m", "bert_keras", *words]
    subprocess.run(command, env={**os.environ, **more}, check=True, capture_output=True)


def contents(tree: Path) -> dict[str, bytes]:
    """Returns the bytes of all files but those that tell of processes and times."""
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
        and not set(path.relative_to(tree).parts) & set(IS_OF_A_PROCESS)
    }


def outcomes(verb, places, give, records) -> Iterator[str]:
    """Yields a line for each state after which the command did not end well."""
    tree = places["place"] / verb
    words = COMMANDS[verb].format(**places, tree=tree).split()
    record(words, tree, records)
    expected = contents(tree)
    states = [*enumerate(disk.states(records))]
    for number, state in states[:: EVERY.get(verb, 1)]:
        shutil.rmtree(tree)
        state.write(tree)
        code, said = give(words)
        after = contents(tree)
        if code == 0 or "exists already" in said:
            differing = after.keys() ^ expected.keys()
            # TensorFlow writes a SavedModel with other bytes each time.
            if code != 0 or verb != "export":
                common = after.keys() & expected.keys()
                differing |= {k for k in common if after[k] != expected[k]}
            if differing:
                yield f"{number} {state.moment}: {sorted(differing)}: {said[-300:]}"
        elif not any(str(tree / name) in said for name in state.damaged):
            yield f"{number} {state.moment}: {code}: {said[-600:]}"


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_command_goes_on_after_a_loss_of_power(verb, places, give, tmp_path):
    faults = [*outcomes(verb, places, give, tmp_path / "records")]
    assert not faults, "\n".join(faults)
