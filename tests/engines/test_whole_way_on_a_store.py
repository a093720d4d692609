"""From a dump to an exported model, every file on `gs://`, through a store that fails.

Beam makes the data and TensorFlow trains on it; both meet one store. What comes out has
the bytes of what comes out on a disk.
"""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.engines import programs

STORE = "gs://bert-bucket/whole"

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


def pretrain(root: str, run: str) -> str:
    return (
        f"pretrain --strategy cpu --config {root}/config.yaml "
        f"--examples {root}/examples --output_dir {run}"
    )


def after_pretraining(root: str) -> list[str]:
    """Everything that is done with a run."""
    return [
        f"finetune --task text --strategy cpu --init {root}/run "
        f"--train {root}/train.tsv --dev {root}/dev.tsv --set max_seq_length=16 "
        f"--set batch_size=4 --set num_train_epochs=1 --output_dir {root}/tuned",
        f"predict --model {root}/tuned --input {root}/dev.tsv "
        f"--output {root}/answers.tsv",
        f"evaluate --model {root}/tuned --input {root}/dev.tsv",
        f"export --model {root}/tuned --output {root}/served/1",
        f"convert --input {root}/run --to hugging_face --output {root}/converted",
        f"convert --input {root}/converted --to native --output {root}/back",
        f"report {root}/tuned",
        f"report {root}/run --output {root}/report",
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
    # Killed when it has written its first checkpoint, and run again.
    command = pretrain(STORE, f"{STORE}/run")
    with programs.start(command, store_front.training) as process:
        programs.wait_for(process, root / "run/checkpoints/step-0000000005.safetensors")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (root / "run/results.json").exists()
    programs.check(command, store_front.training)
    programs.check_all(after_pretraining(STORE), store_front.training)
    store_front.fail(0)
    return root


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
    words = [pretrain(str(root), f"{root}/run"), *after_pretraining(str(root))]
    programs.check_all(words, {})
    return root


@pytest.mark.slow
class TestTheWholeWay:
    def test_the_same_bytes(self, on_a_store, on_a_disk):
        programs.assert_same_bytes(
            on_a_store,
            on_a_disk,
            *("answers.tsv", "converted/model.safetensors", "converted/config.json"),
            *("tuned/dev_answers.jsonl", "served/1/variables/variables.index"),
            *(
                f"run/checkpoints/step-00000000{step}.safetensors"
                for step in ("25", "30")
            ),
            *(f"{name}/model.safetensors" for name in ("run", "tuned", "back")),
            "run/vocab.txt",
        )

    def test_the_same_files(self, on_a_store, on_a_disk):
        for name in ("run", "tuned", "served", "converted", "back", "report"):
            found, expected = (
                programs.names_below(root / name) for root in (on_a_store, on_a_disk)
            )
            assert found == expected, name
        # A heartbeat's file and what was half sent are gone.
        left = {path.name for path in on_a_store.rglob(".*") if path.is_file()}
        assert left == {".vocab.txt.inputs.json"}

    def test_what_is_in_them(self, on_a_store):
        from bert_keras.report import scalar_log

        assert json.loads((on_a_store / "card.json").read_text())
        facts = json.loads((on_a_store / "tuned/results.json").read_text())
        assert facts["environment"]["init"] == f"{STORE}/run"
        assert not Path("gs:").exists()
        # No step twice.
        log = scalar_log.read_log(on_a_store / "run/logs/train")
        (curve,) = (c for tag, c in log.scalars.items() if tag == "loss/loss")
        assert curve.steps.tolist() == [1, 10, 20, 30]

    def test_there_were_faults_of_each_kind(self, on_a_store, store_front):
        seen = {line.rpartition(" ")[2] for line in store_front.requests()}
        assert seen >= set(programs.FAULTS)


@pytest.mark.slow
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
