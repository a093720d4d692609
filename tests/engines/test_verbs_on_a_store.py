"""Features, profiles and third-party checkpoints, every file on `gs://`.

The same commands with paths on a store and on a disk, in one process; the store fails
now and then. What comes out has the same bytes.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints.containers import keras_files
from tests.engines import programs

STORE = "gs://bert-bucket/verbs"
FORMATS = ("google", "model_garden", "keras_hub")


def tagged(words: list[str], *, count: int) -> str:
    random = np.random.default_rng(count)
    sentences = random.choice(words, (count, 5)).tolist()
    return "\n".join(
        "".join(f"{word} {'B-LOC' if word < 'h' else 'O'}\n" for word in sentence)
        for sentence in sentences
    )


def labelled(words: list[str]) -> str:
    rows = (f"{a} {b}\t{'yes' if a < b else 'no'}\n" for a in words for b in words[:3])
    return "text\tlabel\n" + "".join(rows)


def commands(root: str) -> list[str]:
    """Everything but the data's own verbs, on one place."""
    tuning = "--strategy cpu --set num_train_epochs=1 --set max_seq_length=16"
    features = f"features --model {root}/run --layers 0 -1"
    words = []
    for name in FORMATS:
        there = f"{root}/{name}"
        # TensorFlow's are named by a prefix, too.
        back = f"{there}/bert_model.ckpt" if name == "google" else there
        words += [
            f"convert --input {root}/run --to {name} --output {there}",
            f"convert --input {back} --to native --output {root}/back/{name}",
            f"finetune --task text {tuning} --train {root}/train.tsv "
            f"--dev {root}/dev.tsv --init {there} --output_dir {root}/tuned/{name}",
        ]
    return [
        *words,
        f"{features} --input {root}/dev.conll --form tagging --output {root}/vectors",
        f"pretrain --strategy cpu --config {root}/run/config.yaml "
        f"--examples {root}/examples --set profile_steps=[2,3] "
        f"--set num_train_steps=4 --output_dir {root}/profiled",
        f"finetune --task RTE {tuning} --data {root}/glue --init {root}/run "
        f"--output_dir {root}/rte",
        f"predict --model {root}/rte --data {root}/glue --output {root}/submission",
    ]


@pytest.fixture(scope="module")
def inputs(pretrained_run, tiny_examples, tiny_vocab, tmp_path_factory) -> Path:
    """A directory with all that the commands read."""
    root = tmp_path_factory.mktemp("inputs")
    words = tiny_vocab.read_text().split()[5:]
    (root / "dev.conll").write_text(tagged(words, count=10))
    for name in ("train.tsv", "dev.tsv"):
        (root / name).write_text(labelled(words))
    (root / "texts.txt").write_text("\n".join(" ".join(words[:n]) for n in (3, 7, 5)))
    (root / "glue/RTE").mkdir(parents=True)
    for name in ("train", "dev", "test"):
        labels = [["not_entailment"], ["entailment"]] if name != "test" else [[], []]
        rows = [[str(n), "ba be", "bi bo", *labels[n % 2]] for n in range(12)]
        header = ["index", "sentence1", "sentence2", *(["label"] if labels[0] else [])]
        lines = ("\t".join(row) + "\n" for row in (header, *rows))
        (root / f"glue/RTE/{name}.tsv").write_text("".join(lines))
    for name, source in (("run", pretrained_run), ("examples", tiny_examples)):
        (root / name).mkdir()
        for path in source.iterdir():
            if path.is_file():
                (root / name / path.name).write_bytes(path.read_bytes())
    return root


@pytest.fixture(scope="module")
def on_a_store(store_front, cloud, inputs) -> Path:
    """The directory of the bucket after all commands; those on disk are in `inputs`."""
    for name in ("", "run", "examples", "glue/RTE"):
        cloud.upload(inputs / name, f"verbs/{name}".rstrip("/"))
    store_front.fail(11, *programs.FAULTS)
    programs.check_all([*commands(str(inputs)), *commands(STORE)], store_front.training)
    store_front.fail(0)
    return cloud.bucket / "verbs"


def assert_same_weights(found: Path, wanted: Path) -> None:
    """Keras's own file has the time in it."""
    first, second = (
        keras_files.WeightsFile(path / "model.weights.h5") for path in (found, wanted)
    )
    assert first.shapes() and first.shapes() == second.shapes()
    for name in first.shapes():
        assert first.read(name).tobytes() == second.read(name).tobytes(), name


@pytest.mark.slow
class TestTheSameAsOnADisk:
    @pytest.mark.parametrize("name", FORMATS)
    def test_checkpoints_written_and_read_back(self, name, on_a_store, inputs):
        names = {
            "google": ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"],
            "model_garden": ["bert_model.ckpt-1.data-00000-of-00001", "vocab.txt"],
            "keras_hub": ["config.json", "assets/tokenizer/vocabulary.txt"],
        }
        found, expected = on_a_store / name, inputs / name
        assert programs.names_below(found) == programs.names_below(expected)
        programs.assert_same_bytes(found, expected, *names[name])
        for path in (f"{run}/{name}/model.safetensors" for run in ("back", "tuned")):
            programs.assert_same_bytes(on_a_store, inputs, path)
        if name == "keras_hub":
            assert_same_weights(found, expected)

    def test_what_verbs_write(self, on_a_store, inputs):
        programs.assert_same_bytes(
            on_a_store,
            inputs,
            *(f"tuned/{name}/dev_answers.jsonl" for name in FORMATS),
            *(f"vectors/layer_{number}.npy" for number in (0, 1)),
            *(f"vectors/{name}" for name in ("index.jsonl", "features.json")),
            "submission/RTE.tsv",
        )

    def test_a_profile(self, on_a_store, inputs):
        found, expected = (
            programs.names_below(root / "profiled") for root in (on_a_store, inputs)
        )
        assert "logs/train/plugins/profile/*.pb*" in found
        assert found == expected

    def test_nothing_is_left_half_sent(self, on_a_store, store_front):
        assert not [path for path in on_a_store.rglob(".*") if path.is_file()]
        seen = {line.rpartition(" ")[2] for line in store_front.requests()}
        assert seen >= set(programs.FAULTS)


def doctor(environment) -> dict[str, dict[str, str]]:
    """Findings about a directory of the bucket, by name."""
    done = programs.run(f"doctor --json --path {STORE}", environment)
    found = {row["name"]: row for row in json.loads(done.stdout)}
    is_well = not any(row["state"] == "problem" for row in found.values())
    assert (done.returncode == 0) == is_well, done.stderr
    return found


@pytest.mark.slow
class TestDoctor:
    """TensorFlow finds its way to a store in places of its own."""

    DATA, TRAINING = f"rights {STORE}", f"reading of TensorFlow {STORE}"

    def test_both_may(self, store_front, cloud):
        found = doctor(store_front.training)
        assert found[self.DATA]["found"] == "write, list, read, delete"
        assert found[self.TRAINING]["found"] == "list"
        assert not list(cloud.bucket.rglob(".doctor*"))

    def test_one_may_not(self, store_front, tmp_path):
        """TensorFlow does not trust the store's certificate."""
        (tmp_path / "none.crt").write_text("")
        changed = {"CURL_CA_BUNDLE": str(tmp_path / "none.crt")}
        found = doctor(store_front.training | changed)
        assert found[self.DATA]["state"] == "ok"
        assert found[self.TRAINING]["state"] == "problem"
        assert found[self.TRAINING]["found"].startswith("cannot list: ")

    def test_neither_has_rights(self, store_front):
        store_front.fail(1, "403")
        try:
            found = doctor(store_front.training)
        finally:
            store_front.fail(0)
        for name in (self.DATA, self.TRAINING):
            assert found[name]["state"] == "problem"
            assert "--role=roles/storage.objectUser" in found[name]["fix"]
