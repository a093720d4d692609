"""From a dump to an exported model, every file on `gs://`, through a store that fails.

Beam makes the data and TensorFlow trains on it; both meet one store. What comes out has
the bytes of what comes out on a disk.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

STORE = "gs://bert-bucket/whole"
FAULTS = ("503", "429", "cut", "slow")

CONFIG = """
model:
  num_hidden_layers: 1
  hidden_size: 16
  num_attention_heads: 2
  intermediate_size: 32
  max_position_embeddings: 64
optimizer: {warmup_steps: 2}
global_batch_size: 8
num_train_steps: 30
save_checkpoint_steps: 5
draw_steps: 1000
precision: float32
"""
LABELLED = "text\tlabel\n" + "".join(
    f"the {word} came over the river\t{label}\n"
    for word, label in (("horse", "a"), ("letter", "b"), ("bridge", "a")) * 8
)

COMMAND = [sys.executable, "-m", "bert_keras.commands.main"]
# Many verbs in one process: TensorFlow is loaded once.
ALL = """
import json, sys
from bert_keras.commands import main as cli
for words in json.loads(sys.argv[1]):
    if cli.main(words):
        sys.exit(f"failed: {words}")
"""


def run(words, environment, *, timeout=600):
    done = subprocess.run(
        [*map(str, words)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done


def run_all(commands, environment):
    return run([sys.executable, "-c", ALL, json.dumps(commands)], environment)


def pretrain(root: str) -> list[str]:
    return [
        *("pretrain", "--strategy", "cpu", "--config", f"{root}/config.yaml"),
        *("--examples", f"{root}/examples", "--output_dir", f"{root}/run"),
    ]


def after_pretraining(root: str) -> list[list[str]]:
    """Everything that is done with a run."""
    return [
        [
            *("finetune", "--task", "text", "--strategy", "cpu", "--init"),
            *(
                f"{root}/run",
                "--train",
                f"{root}/train.tsv",
                "--dev",
                f"{root}/dev.tsv",
            ),
            *("--set", "max_seq_length=16", "--set", "batch_size=4"),
            *("--set", "num_train_epochs=1", "--output_dir", f"{root}/tuned"),
        ],
        [
            *("predict", "--model", f"{root}/tuned", "--input", f"{root}/dev.tsv"),
            *("--output", f"{root}/answers.tsv"),
        ],
        ["evaluate", "--model", f"{root}/tuned", "--input", f"{root}/dev.tsv"],
        ["export", "--model", f"{root}/tuned", "--output", f"{root}/served/1"],
        [
            *("convert", "--input", f"{root}/run", "--to", "hugging_face"),
            *("--output", f"{root}/converted"),
        ],
        [
            *("convert", "--input", f"{root}/converted", "--to", "native"),
            *("--output", f"{root}/back"),
        ],
        ["report", f"{root}/tuned"],
        ["report", f"{root}/run", "--output", f"{root}/report"],
    ]


@pytest.fixture(scope="module")
def on_a_store(store_front, cloud, text, tmp_path_factory) -> Path:
    """The directory of the bucket that a whole way filled."""
    inputs = tmp_path_factory.mktemp("inputs")
    (inputs / "config.yaml").write_text(CONFIG)
    for name in ("train.tsv", "dev.tsv"):
        (inputs / name).write_text(LABELLED)
    cloud.upload(inputs, "whole")
    cloud.upload(text, "whole/text")
    root = cloud.bucket / "whole"
    store_front.fail(9, *FAULTS)
    launch = ["launch", "dataflow", "--project", "test-project", "--region", "test"]
    launch += ["--temp_location", "gs://bert-bucket/tmp", "--"]
    corpus = ["corpus", "--wikipedia", f"{STORE}/text/dump.xml.bz2"]
    corpus += ["--jsonl", f"{STORE}/text/lines.jsonl", "--output", f"{STORE}/corpus"]
    endpoint = ["--", "--dataflow_endpoint", cloud.dataflow_endpoint]
    run([*COMMAND, *launch, *corpus, *endpoint], store_front.data)
    vocab = ["vocab", "--corpus", f"{STORE}/corpus", "--vocab_size", "500"]
    examples = ["examples", "--corpus", f"{STORE}/corpus", "--max_seq_length", "32"]
    examples += ["--vocab", f"{STORE}/vocab.txt", "--output", f"{STORE}/examples"]
    card = ["inspect", f"{STORE}/examples", "--stats"]
    commands = [
        [*vocab, "--output", f"{STORE}/vocab.txt"],
        [*examples, "--num_shards", "3"],
        [*card, "--json", f"{STORE}/card.json"],
    ]
    run_all(commands, store_front.data)
    kill_after(root / "run/checkpoints/step-0000000005.npz", store_front)
    assert not (root / "run/results.json").exists()
    # One that is cut off can only be a hidden one.
    run([*COMMAND, *pretrain(STORE)], store_front.training)
    run_all(after_pretraining(STORE), store_front.training)
    store_front.fail(0)
    return root


def kill_after(checkpoint: Path, store_front) -> None:
    """Kills a pre-training, in the way of `kill -9`, when it has written a file."""
    process = subprocess.Popen(
        [*COMMAND, *pretrain(STORE)],
        env={**os.environ, **store_front.training},
        stderr=subprocess.PIPE,
    )
    while not checkpoint.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def on_a_disk(on_a_store, tmp_path_factory) -> Path:
    """The same, of the same examples, without interruption on a disk."""
    root = tmp_path_factory.mktemp("disk")
    for name in ("config.yaml", "train.tsv", "dev.tsv"):
        (root / name).write_bytes((on_a_store / name).read_bytes())
    (root / "examples").mkdir()
    # The stand-in keeps an empty folder of what was deleted.
    for path in filter(Path.is_file, (on_a_store / "examples").iterdir()):
        (root / "examples" / path.name).write_bytes(path.read_bytes())
    run_all([pretrain(str(root)), *after_pretraining(str(root))], {})
    return root


def arrays(path: Path) -> dict[str, bytes]:
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.__setitem__(name, np.asarray(item).tobytes())
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    return found


@pytest.mark.slow
class TestTheWholeWay:
    def test_the_same_bytes(self, on_a_store, on_a_disk):
        same = ["answers.tsv", "converted/model.safetensors", "converted/config.json"]
        same += ["tuned/dev_answers.jsonl"]
        same += ["served/1/variables/variables.index", "run/vocab.txt"]
        same += [f"run/checkpoints/step-00000000{step}.npz" for step in ("25", "30")]
        for name in same:
            found, wanted = (root / name for root in (on_a_store, on_a_disk))
            assert found.read_bytes() == wanted.read_bytes(), name
        for name in ("run", "tuned", "back"):
            found, wanted = (
                arrays(root / name / "model.weights.h5")
                for root in (on_a_store, on_a_disk)
            )
            assert found and found == wanted, name

    def test_the_same_files(self, on_a_store, on_a_disk):
        for name in ("run", "tuned", "served", "converted", "back", "report"):
            found, wanted = (
                {
                    path.relative_to(root).as_posix().partition(".tfevents.")[0]
                    for path in (root / name).rglob("*")
                    if path.is_file()
                }
                for root in (on_a_store, on_a_disk)
            )
            assert found == wanted, name
        # A heartbeat's file and what was half sent are gone.
        left = {path.name for path in on_a_store.rglob(".*") if path.is_file()}
        assert not left

    def test_the_card(self, on_a_store):
        card = json.loads((on_a_store / "card.json").read_text())
        assert card

    def test_curves_have_no_step_twice(self, on_a_store):
        from bert_keras.report import event_log

        log = event_log.read_log(on_a_store / "run/logs/train")
        (curve,) = (c for tag, c in log.scalars.items() if tag == "loss/loss")
        assert curve.steps.tolist() == [1, 10, 20, 30]

    def test_there_were_faults_of_each_kind(self, on_a_store, store_front):
        seen = {line.rpartition(" ")[2] for line in store_front.requests()}
        assert seen >= set(FAULTS)

    def test_no_path_was_mangled(self, on_a_store):
        assert not Path("gs:").exists()
        facts = json.loads((on_a_store / "tuned/results.json").read_text())
        assert facts["environment"]["init"] == f"{STORE}/run"


@pytest.mark.slow
def test_an_outage_of_a_minute(on_a_store, store_front):
    """While a pre-training runs, nothing answers for a minute: it goes on, and ends
    with the same bytes."""
    root = on_a_store.parent / "outage"
    words = [
        word.replace(f"{STORE}/run", "gs://bert-bucket/outage")
        for word in pretrain(STORE)
    ]
    process = subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, **store_front.training},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (root / "checkpoints/step-0000000005.npz").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    store_front.fail(1, "down")
    time.sleep(60)
    assert process.poll() is None
    store_front.fail(0)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert ": trying again for up to" in said
    for step in ("25", "30"):
        name = f"checkpoints/step-00000000{step}.npz"
        assert (root / name).read_bytes() == (on_a_store / "run" / name).read_bytes()
