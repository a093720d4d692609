"""From a dump to an exported model, every file on `gs://`, through a store that fails.

Beam makes the data and TensorFlow trains on it; both meet one store. What comes out has
the bytes of what comes out on a disk.
"""

import json
import re
import shutil
import signal
import time
import urllib.parse
from pathlib import Path

import pytest

from bert_keras.checkpoints.containers import keras_files
from tests.bert_keras.training import test_workers
from tests.engines import programs

pytestmark = pytest.mark.slow

STORE = "gs://bert-bucket/whole"

CONFIG = """
model:
  num_hidden_layers: 1
  hidden_size: 16
  num_attention_heads: 2
  intermediate_size: 32
  max_position_embeddings: 64
  hidden_act: gelu_tanh
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
PAIRS = ["index\tsentence1\tsentence2\tlabel"] + [
    f"{number}\tthe horse\tthe river\t{'not_' * (number % 2)}entailment"
    for number in range(12)
]
FILES = {
    "config.yaml": CONFIG,
    **{f"{name}.tsv": LABELLED for name in ("train", "dev")},
    "dev.conll": "the O\nriver B-LOC\n\n" * 5,
    **{f"glue/RTE/{name}.tsv": "\n".join(PAIRS) + "\n" for name in ("train", "dev")},
    "glue/RTE/test.tsv": "".join(line.rpartition("\t")[0] + "\n" for line in PAIRS),
}
FORMATS = {
    "google": ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"],
    "model_garden": ["bert_model.ckpt-1.data-00000-of-00001", "vocab.txt"],
    "keras_hub": ["config.json", "assets/tokenizer/vocabulary.txt"],
    "hugging_face": ["config.json", "model.safetensors"],
}
"""Third-party formats, and files of theirs."""


def pretrain(root: str, run: str, more: str = "") -> str:
    return (
        f"pretrain --strategy cpu --config {root}/config.yaml "
        f"--examples {root}/examples --output_dir {run} {more}"
    )


def after_pretraining(root: str) -> list[str]:
    """Everything that is done with a run."""
    settings = "--set max_seq_length=16 --set batch_size=4 --set num_train_epochs=1"
    tuning = f"finetune --strategy cpu {settings}"
    text = f"{tuning} --task text --train {root}/train.tsv --dev {root}/dev.tsv"
    words = [f"{text} --init {root}/run --output_dir {root}/tuned"]
    for name in FORMATS:
        there = f"{root}/{name}"
        # TensorFlow's are named by a prefix, too.
        back = f"{there}/bert_model.ckpt" if name == "google" else there
        words += [
            f"convert --input {root}/run --to {name} --output {there}",
            f"convert --input {back} --to native --output {root}/back_{name}",
            f"{text} --init {there} --output_dir {root}/tuned_{name}",
        ]
    return [
        *words,
        f"predict --model {root}/tuned --input {root}/dev.tsv "
        f"--output {root}/answers.tsv",
        f"evaluate --model {root}/tuned --input {root}/dev.tsv",
        f"export --model {root}/tuned --output {root}/served/1",
        f"report {root}/tuned",
        f"report {root}/run --output {root}/report",
        f"features --model {root}/run --layers 0 -1 --input {root}/dev.conll "
        f"--form tagging --output {root}/vectors",
        pretrain(
            root,
            f"{root}/profiled",
            "--set profile_steps=[2,3] --set num_train_steps=4",
        ),
        f"{tuning} --task RTE --data {root}/glue --init {root}/run "
        f"--output_dir {root}/rte",
        f"predict --model {root}/rte --data {root}/glue --output {root}/submission",
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A directory with all files but those that the commands make."""
    root = tmp_path_factory.mktemp("inputs") / "whole"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


@pytest.fixture(scope="module")
def on_a_store(store_front, cloud, text, inputs) -> Path:
    """The directory of the bucket that a whole way filled."""
    cloud.upload(inputs, "whole")
    cloud.upload(inputs / "glue/RTE", "whole/glue/RTE")
    cloud.upload(text, "whole/text")
    root = cloud.bucket / "whole"
    store_front.fail(9, *programs.FAULTS)
    programs.check(
        "launch dataflow --project test-project --region test "
        "--temp_location gs://bert-bucket/tmp -- "
        f"corpus --wikipedia {STORE}/text/dump.xml.bz2 "
        f"--jsonl {STORE}/text/lines.jsonl --output {STORE}/corpus "
        f"-- --dataflow_endpoint {cloud.dataflow_endpoint}",
        store_front.data,
    )
    programs.check_all(
        [
            f"vocab --corpus {STORE}/corpus --vocab_size 500 "
            f"--output {STORE}/vocab.txt",
            f"examples --corpus {STORE}/corpus --vocab {STORE}/vocab.txt "
            f"--max_seq_length 32 --num_shards 3 --output {STORE}/examples",
            f"inspect {STORE}/examples --stats --json {STORE}/card.json",
        ],
        store_front.data,
    )
    # Killed when it has written its first checkpoint, and run again, and again.
    command = pretrain(STORE, f"{STORE}/run")
    with programs.start(command, store_front.training) as process:
        programs.wait_for(process, root / "run/checkpoints/step-0000000005.safetensors")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (root / "run/results.json").exists()
    for message in (
        f"checking sizes of 3 shards of {STORE}/examples",
        f"{STORE}/run: finished already, at step 30",
    ):
        assert message in programs.check(command, store_front.training)
    programs.check_all(after_pretraining(STORE), store_front.training)
    store_front.fail(0)
    return root


@pytest.fixture(scope="module")
def on_a_disk(on_a_store, inputs, tmp_path_factory) -> Path:
    """The same, of the same examples, without interruption on a disk."""
    root = shutil.copytree(inputs, tmp_path_factory.mktemp("disk") / "whole")
    (root / "examples").mkdir()
    # The stand-in keeps an empty folder of what was deleted.
    for path in filter(Path.is_file, (on_a_store / "examples").iterdir()):
        (root / "examples" / path.name).write_bytes(path.read_bytes())
    words = [pretrain(str(root), f"{root}/run"), *after_pretraining(str(root))]
    programs.check_all(words, {})
    return root


class TestTheWholeWay:
    def test_the_same_bytes(self, on_a_store, on_a_disk):
        tuned = ("tuned", *(f"tuned_{name}" for name in FORMATS))
        backs = (f"back_{name}" for name in FORMATS)
        programs.assert_same_bytes(
            on_a_store,
            on_a_disk,
            *("answers.tsv", "submission/RTE.tsv", "run/vocab.txt"),
            *(f"run/checkpoints/step-00000000{step}.safetensors" for step in (25, 30)),
            *(f"{run}/model.safetensors" for run in ("run", *tuned, *backs)),
            *(f"{run}/dev_answers.jsonl" for run in tuned),
            *(f"{name}/{file}" for name in FORMATS for file in FORMATS[name]),
            *(f"vectors/layer_{number}.npy" for number in (0, 1)),
            *(f"vectors/{name}" for name in ("index.jsonl", "features.json")),
            "served/1/variables/variables.index",
        )
        # Keras's own file has the time in it.
        first, second = (
            keras_files.WeightsFile(root / "keras_hub/model.weights.h5")
            for root in (on_a_store, on_a_disk)
        )
        assert first.shapes and first.shapes == second.shapes
        for name in first.shapes:
            assert first.read(name).tobytes() == second.read(name).tobytes(), name

    def test_the_same_files(self, on_a_store, on_a_disk):
        for name in ("run", "tuned", "served", "report", "profiled", *FORMATS):
            found, expected = (
                programs.names_below(root / name) for root in (on_a_store, on_a_disk)
            )
            assert found == expected, name
            if name == "profiled":
                assert "logs/train/plugins/profile/*.pb*" in found
        # A heartbeat's file and what was half sent are gone.
        left = {path.name for path in on_a_store.rglob(".*") if path.is_file()}
        assert left == {".vocab.txt.inputs.json"}

    def test_what_is_in_them(self, on_a_store):
        from bert_keras.report import scalar_log

        assert json.loads((on_a_store / "card.json").read_text())
        facts = json.loads((on_a_store / "tuned/environment.json").read_text())
        assert facts["environment"]["init"] == f"{STORE}/run"
        assert not Path("gs:").exists()
        # No step twice.
        log = scalar_log.read_log(on_a_store / "run/logs/train")
        (curve,) = (c for tag, c in log.scalars.items() if tag == "loss/loss")
        assert curve.steps.tolist() == [1, 10, 20, 30]

    def test_what_the_store_was_asked(self, on_a_store, store_front):
        """Through faults of each kind, and for the shards, which are not copied."""
        requests = store_front.requests()
        assert {line.rpartition(" ")[2] for line in requests} >= set(programs.FAULTS)
        names = {
            urllib.parse.unquote(line.split()[1].split("?")[0]).rpartition("/")[2]
            for line in requests
            if line.startswith("GET /bert-bucket/")
        }
        assert {p.name for p in (on_a_store / "examples").glob("*.tfrec*")} <= names


def test_an_outage_of_a_minute(on_a_store, store_front):
    """While a pre-training runs, nothing answers for a minute: it goes on, and ends
    with the same bytes."""
    root = on_a_store.parent / "outage"
    command = pretrain(STORE, "gs://bert-bucket/outage")
    with programs.start(command, store_front.training) as process:
        programs.wait_for(process, root / "checkpoints/step-0000000005.safetensors")
        store_front.fail(1, "down")
        time.sleep(60)
        assert process.poll() is None
        store_front.fail(0)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert ": trying again for up to" in said
    names = (f"checkpoints/step-00000000{step}.safetensors" for step in ("25", "30"))
    programs.assert_same_bytes(root, on_a_store / "run", *names)


def test_an_outage_while_two_workers_train(store_front, cloud, tiny_examples, tmp_path):
    """Both go on, and end with the bits of two workers on a disk."""
    changes = {"num_train_steps": 400, "save_checkpoint_steps": 100}
    run, disk = cloud.bucket / "shared/run", tmp_path / "disk"
    store_front.fail(11, *programs.FAULTS)
    processes = test_workers.start_workers(
        "pretrain",
        {"examples": cloud.upload(tiny_examples, "shared/examples")},
        "gs://bert-bucket/shared/run",
        folder=tmp_path,
        # Else they would speak to each other by way of the store's proxy.
        environment={**store_front.training, "no_proxy": "localhost,127.0.0.1"},
        **changes,
    )
    try:
        test_workers.wait_for_step(run, 100, processes)
        store_front.fail(1, "down")
        # TensorFlow alone would give up after one: the tests shorten its pauses.
        time.sleep(20)
        assert [process.poll() for process in processes] == [None, None]
    finally:
        store_front.fail(0)
        codes = test_workers.finish(processes, timeout=400)
    assert codes == [0, 0], test_workers.log_of(disk, 0)
    test_workers.run_both("pretrain", {"examples": tiny_examples}, disk, **changes)
    for step in (300, 400):
        name = f"checkpoints/step-{step:010}.safetensors"
        programs.assert_same_arrays(run / name, disk / name)


@pytest.mark.parametrize("kind", ["down", "silent"])
def test_sigterm_while_tensorflow_reads_from_a_store_that_does_not_answer(
    kind, store_front, cloud, tiny_examples, pretrained_run, tmp_path
):
    """Its retries go on for minutes, in which Python's handler is not called."""
    command = (
        f"pretrain --strategy cpu --config {pretrained_run}/config.yaml "
        f"--examples {cloud.upload(tiny_examples, 'examples')} "
        f"--set num_train_steps=100000 --output_dir {tmp_path}"
    )
    with programs.start(command, store_front.training) as process:
        try:
            programs.wait_for(
                process, tmp_path / "checkpoints/step-0000000020.safetensors"
            )
            store_front.fail(1, kind)
            time.sleep(5)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            store_front.fail(0)
            process.kill()
    assert process.returncode == 143, said
    *_, last = said.splitlines()
    assert re.match("bert-keras.*: stopped by SIGTERM.*; run the same command", last)


class TestDoctor:
    """TensorFlow finds its way to a store in places of its own."""

    DATA, TRAINING = f"rights {STORE}", f"reading of TensorFlow {STORE}"

    def doctor(self, environment) -> dict[str, dict[str, str]]:
        """Findings about a directory of the bucket, by name."""
        done = programs.run(f"doctor --json --path {STORE}", environment)
        found = {row["name"]: row for row in json.loads(done.stdout)}
        is_well = not any(row["state"] == "problem" for row in found.values())
        assert (done.returncode == 0) == is_well, done.stderr
        return found

    def test_both_may(self, store_front, cloud):
        found = self.doctor(store_front.training)
        assert found[self.DATA]["found"] == "write, list, read, delete"
        assert found[self.TRAINING]["found"] == "list"
        assert not list(cloud.bucket.rglob(".doctor*"))

    def test_one_may_not(self, store_front, tmp_path):
        """TensorFlow does not trust the store's certificate."""
        (tmp_path / "none.crt").write_text("")
        changed = {"CURL_CA_BUNDLE": str(tmp_path / "none.crt")}
        found = self.doctor(store_front.training | changed)
        assert found[self.DATA]["state"] == "ok"
        assert found[self.TRAINING]["state"] == "problem"
        assert found[self.TRAINING]["found"].startswith("cannot list: ")

    def test_neither_has_rights(self, store_front):
        store_front.fail(1, "403")
        try:
            found = self.doctor(store_front.training)
        finally:
            store_front.fail(0)
        for name in (self.DATA, self.TRAINING):
            assert found[name]["state"] == "problem"
            assert "--role=roles/storage.objectUser" in found[name]["fix"]
