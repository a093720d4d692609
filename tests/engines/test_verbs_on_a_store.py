"""Features, profiles and third-party checkpoints, every file on `gs://`.

The same commands with paths on a store and on a disk, in one process; the store fails
now and then. What comes out has the same bytes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints.containers import keras_files

STORE = "gs://bert-bucket/verbs"
FAULTS = ("503", "429", "cut", "slow")
FORMATS = ("google", "model_garden", "keras_hub")

# Loading TensorFlow takes ten seconds: it is loaded once.
ALL = """
import json, sys
from bert_keras.commands import main as cli
for words in json.loads(sys.argv[1]):
    if cli.main(words):
        sys.exit(f"failed: {words}")
"""


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


def commands(root: str) -> list[list[str]]:
    """Everything but the data's own verbs, on one place."""
    tuning = ["--set", "num_train_epochs=1", "--set", "max_seq_length=16"]
    features = ["features", "--model", f"{root}/run", "--layers", "0", "-1"]
    texts = ["--train", f"{root}/train.tsv", "--dev", f"{root}/dev.tsv"]
    found = []
    for name in FORMATS:
        there = f"{root}/{name}"
        # TensorFlow's are named by a prefix, too.
        back = f"{there}/bert_model.ckpt" if name == "google" else there
        found += [
            ["convert", "--input", f"{root}/run", "--to", name, "--output", there],
            [
                *("convert", "--input", back, "--to", "native"),
                *("--output", f"{root}/back/{name}"),
            ],
            [
                *("finetune", "--task", "text", "--strategy", "cpu", *texts, *tuning),
                *("--init", there, "--output_dir", f"{root}/tuned/{name}"),
            ],
        ]
    found += [
        [
            *(*features, "--input", f"{root}/dev.conll", "--form", "tagging"),
            *("--output", f"{root}/vectors"),
        ],
        [
            *(*features, "--input", f"{root}/texts.txt", "--to", "tfrecord"),
            *("--output", f"{root}/records"),
        ],
        [
            *("pretrain", "--strategy", "cpu", "--config", f"{root}/run/config.yaml"),
            *("--examples", f"{root}/examples", "--set", "profile_steps=[2,3]"),
            *("--set", "num_train_steps=4", "--output_dir", f"{root}/profiled"),
        ],
    ]
    data = ["--data", f"{root}/glue"]
    found += [
        [
            *("finetune", "--task", "RTE", "--strategy", "cpu", *data, *tuning),
            *("--init", f"{root}/run", "--output_dir", f"{root}/rte"),
        ],
        ["predict", "--model", f"{root}/rte", *data, "--output", f"{root}/submission"],
    ]
    return found


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
    for folder in (*map(inputs.joinpath, ("", "run", "examples", "glue/RTE")),):
        cloud.upload(folder, f"verbs/{folder.relative_to(inputs)}".rstrip("/."))
    store_front.fail(11, *FAULTS)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            ALL,
            json.dumps([*commands(str(inputs)), *commands(STORE)]),
        ],
        env={**os.environ, **store_front.training},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert not done.returncode, done.stderr
    store_front.fail(0)
    return cloud.bucket / "verbs"


def assert_same(found: Path, wanted: Path, *names: str) -> None:
    for name in names:
        assert (found / name).read_bytes() == (wanted / name).read_bytes(), name


def assert_same_weights(found: Path, wanted: Path) -> None:
    """Keras's own file has the time in it."""
    first, second = (keras_files.WeightsFile(path) for path in (found, wanted))
    assert first.shapes() and first.shapes() == second.shapes()
    for name in first.shapes():
        assert first.read(name).tobytes() == second.read(name).tobytes(), name


def names_below(directory: Path) -> set[str]:
    """Names of files, those of events and profiles without time and process."""
    names = (path.relative_to(directory) for path in directory.rglob("*"))
    return {
        f"{name.parent.parent}/*{name.suffix}*"
        if "profile" in name.parts
        else name.as_posix().partition(".tfevents.")[0]
        for name in names
        if (directory / name).is_file()
    }


@pytest.mark.slow
class TestTheSameAsOnADisk:
    @pytest.mark.parametrize("name", FORMATS)
    def test_checkpoints_written_and_read_back(self, name, on_a_store, inputs):
        written = {
            "google": ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"],
            "model_garden": ["bert_model.ckpt-1.data-00000-of-00001", "vocab.txt"],
            "keras_hub": ["config.json", "assets/tokenizer/vocabulary.txt"],
        }
        assert names_below(on_a_store / name) == names_below(inputs / name)
        assert_same(on_a_store / name, inputs / name, *written[name])
        if name == "keras_hub":
            files = (root / name / "model.weights.h5" for root in (on_a_store, inputs))
            assert_same_weights(*files)
        weights = (
            root / "back" / name / "model.weights.h5" for root in (on_a_store, inputs)
        )
        assert_same_weights(*weights)

    @pytest.mark.parametrize("name", FORMATS)
    def test_fine_tuning_from_one(self, name, on_a_store, inputs):
        found, wanted = (root / "tuned" / name for root in (on_a_store, inputs))
        assert_same(found, wanted, "dev_answers.jsonl")
        assert_same_weights(found / "model.weights.h5", wanted / "model.weights.h5")

    def test_features(self, on_a_store, inputs):
        names = ("layer_0.npy", "layer_1.npy", "index.jsonl", "features.json")
        assert_same(on_a_store / "vectors", inputs / "vectors", *names)
        names = ("features.tfrecord", "features.json")
        assert_same(on_a_store / "records", inputs / "records", *names)

    def test_a_profile(self, on_a_store, inputs):
        found, wanted = (
            names_below(root / "profiled") for root in (on_a_store, inputs)
        )
        assert "logs/train/plugins/profile/*.pb*" in found
        assert found == wanted

    def test_a_folder_of_glue(self, on_a_store, inputs):
        assert_same(on_a_store / "submission", inputs / "submission", "RTE.tsv")

    def test_nothing_is_left_half_sent(self, on_a_store, store_front):
        assert not [path for path in on_a_store.rglob(".*") if path.is_file()]
        seen = {line.rpartition(" ")[2] for line in store_front.requests()}
        assert seen >= set(FAULTS)


def doctor(environment) -> dict[str, dict[str, str]]:
    """Findings about a directory of the bucket, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "bert_keras", "doctor", "--json", "--path", STORE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
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
