import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import native, weights
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, strict
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from bert_keras.lab.feature_based import configuration, layer_vectors, taggers

WORDS = ("in", "at", "and", "paris", "rome", "york", "new", "anna", "ben")
TAGS = {"paris": "B-LOC", "rome": "B-LOC", "anna": "B-PER", "ben": "B-PER"}
CONFIG = config.BertConfig(
    vocab_size=len(features.SPECIAL_TOKENS) + len(WORDS),
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)
SMALL = {
    "num_restarts": 1,
    "bilstm_units": 8,
    "batch_size": 8,
    "num_train_epochs": 15,
    "learning_rate": 0.03,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    task = config.Task(kind="encoder")
    network = registry.build_network(CONFIG, task, seed=1)
    directory = tmp_path_factory.mktemp("model") / "native"
    directory.mkdir()
    checkpoint = weights.Checkpoint(
        bert_config=CONFIG,
        task=task,
        arrays=weights.from_network(network),
        vocabulary=tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS)),
        do_lower_case=True,
    )
    native.write(checkpoint, directory)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Names whose tags follow from the words, and after `new` a second word of one."""
    directory = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name, count in (("train", 60), ("dev", 20)):
        lines = []
        for _ in range(count):
            words = random.choice(WORDS, size=random.integers(1, 7)).tolist()
            for previous, word in zip(["", *words], words, strict=False):
                tag = TAGS.get(word, "O")
                if word == "york":
                    tag = "I-LOC" if previous == "new" else "O"
                if word == "new":
                    tag = "B-LOC"
                lines.append(f"{word} {tag}\n")
            lines.append("\n")
        (directory / f"{name}.conll").write_text("".join(lines))
    return directory


def run(model, data, directory, **settings):
    return taggers.run_probes(
        strict.build_config(configuration.ProbeConfig, SMALL | settings),
        model=model,
        train=data / "train.conll",
        dev=data / "dev.conll",
        output_dir=directory,
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )


def test_layers_of_each_representation():
    names = taggers.PAPER_DEV_F1
    found = {name: taggers.layers_of(name, 12, path="x") for name in names}
    assert found == {
        "embeddings": (0,),
        "second_to_last": (11,),
        "last": (12,),
        "weighted_sum_last_four": (9, 10, 11, 12),
        "concat_last_four": (9, 10, 11, 12),
        "weighted_sum_all": tuple(range(1, 13)),
    }
    defaults = configuration.ProbeConfig()
    assert defaults.representations == tuple(taggers.PAPER_DEV_F1)
    for name, num_layers in (("concat_last_four", 3), ("second_to_last", 1)):
        message = f"x: the encoder has {num_layers} layers, too few for {name}: leave"
        with pytest.raises(InputError, match=message):
            taggers.layers_of(name, num_layers, path="x")


def test_a_batch_of_word_vectors():
    vectors = taggers.WordVectors(
        layers=[np.arange(8.0).reshape(4, 2), -np.arange(8.0).reshape(4, 2)],
        lengths=np.array([1, 3]),
        label_ids=np.array([5, 6, 7, 8]),
    )
    batch = vectors.batch(np.array([1, 0]))
    assert batch["input_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["label_ids"].tolist() == [[6, 7, 8], [5, -1, -1]]
    zeros = [[0, 0], [0, 0]]
    assert batch["vectors"].tolist() == [
        [[[2, 3], [-2, -3]], [[4, 5], [-4, -5]], [[6, 7], [-6, -7]]],
        [[[0, 1], [0, -1]], zeros, zeros],
    ]
    assert {name: str(array.dtype) for name, array in batch.items()} == {
        "vectors": "float32",
        "input_mask": "int32",
        "label_ids": "int32",
    }


def test_the_table():
    results = {
        "representations": {
            "embeddings": {"layers": [0], "taggers": [{"f1": 0.9}, {"f1": 0.91}]},
            "concat_last_four": {"layers": [9, 10, 11, 12], "taggers": [{"f1": 0.96}]},
        }
    }
    assert taggers.table(results) == (
        "| representation | F1, mean | deviation | best | taggers | paper, BASE |\n"
        "|---|---|---|---|---|---|\n"
        "| embeddings | 90.50 | 0.71 | 91.00 | 2 | 91.0 |\n"
        "| concat last four | 96.00 |  | 96.00 | 1 | 96.1 |\n"
    )
    plain = {"representations": {"last": {"taggers": [{"accuracy": 0.5}]}}}
    assert taggers.table(plain) == (
        "| representation | accuracy, mean | deviation | best | taggers | paper, "
        "BASE |\n"
        "|---|---|---|---|---|---|\n"
        "| last | 50.00 |  | 50.00 | 1 |  |\n"
    )


@pytest.mark.slow
def test_trains_goes_on_and_scores(model, data, tmp_path, monkeypatch):
    directory = tmp_path / "run"
    score, num_scored = taggers.ner.scores, []

    def breaks_off(*arguments):
        num_scored.append(1)
        if len(num_scored) == 2:
            raise KeyboardInterrupt
        return score(*arguments)

    chosen = ("embeddings", "weighted_sum_all")
    with monkeypatch.context() as patched:
        patched.setattr(taggers.ner, "scores", breaks_off)
        with pytest.raises(KeyboardInterrupt):
            run(model, data, directory, representations=chosen)
    kept = {p.name: p.read_bytes() for p in (directory / "taggers").iterdir()}
    assert kept.keys() == {"embeddings-0.json"}
    assert (directory / "features/train/index.jsonl").is_file()
    with monkeypatch.context() as patched:
        # What there is is not made again.
        patched.setattr(layer_vectors, "write", None)
        results = run(model, data, directory, representations=chosen)
    for name, content in kept.items():
        assert (directory / "taggers" / name).read_bytes() == content
    assert not (directory / "features").exists()

    found = results["representations"]
    assert list(found) == list(chosen)
    assert set(results["labels"]) == {"O", "B-LOC", "B-PER", "I-LOC", "I-PER"}
    assert [part["layers"] for part in found.values()] == [[0], [1, 2, 3, 4]]
    (embeddings,), (weighted,) = (part["taggers"] for part in found.values())
    for scores in (embeddings, weighted):
        assert scores["steps"] == 120
        assert scores["f1"] > 0.9
    assert embeddings["loss"] != weighted["loss"]
    shares = weighted["layer_weights"]
    assert sum(shares) == pytest.approx(1) and len(set(shares)) == 4
    assert "layer_weights" not in embeddings
    assert json.loads((directory / "results.json").read_text()) == results
    environment = results["environment"]
    assert environment["devices"] == "1 CPU (OneDeviceStrategy)"
    assert environment["model"] == str(model)
    table = (directory / "table.md").read_text()
    assert table == taggers.table(results)

    # A finished run is left as it is, and another one refused.
    assert run(model, data, directory, representations=chosen) == results
    with pytest.raises(InputError, match="begun by another run, with bilstm_units=8"):
        run(model, data, directory, representations=chosen, bilstm_units=9)


@pytest.mark.slow
def test_interrupted_taggers_end_with_the_same_bits(model, data, tmp_path, monkeypatch):
    """In the middle of the second tagger's training."""
    changes = {"representations": ("last",), "num_restarts": 2, "num_train_epochs": 1}
    fit, num_steps = keras.Model.fit, []

    def fit_and_die(self, *args, callbacks, **options):
        class Die(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                num_steps.append(1)
                if len(num_steps) == 14:
                    raise KeyboardInterrupt

        return fit(self, *args, callbacks=[*callbacks, Die()], **options)

    with monkeypatch.context() as patched:
        patched.setattr(keras.Model, "fit", fit_and_die)
        with pytest.raises(KeyboardInterrupt):
            run(model, data, tmp_path / "run", **changes)
    assert len(list((tmp_path / "run/taggers").iterdir())) == 1
    found, whole = (
        run(model, data, tmp_path / name, **changes) for name in ("run", "whole")
    )
    for results in (found, whole):
        for scores in results["representations"]["last"]["taggers"]:
            assert scores.pop("seconds") >= 0
    assert found == whole


@pytest.mark.slow
def test_fixed_lengths_give_what_lengths_as_they_come_give(model, data, tmp_path):
    changes = {"representations": ("last",), "num_train_epochs": 1}
    fixed, free = (
        run(model, data, tmp_path / name, lengths=lengths, **changes)
        for name, lengths in (("fixed", (3,)), ("free", ()))
    )
    found, wanted = (
        results["representations"]["last"]["taggers"][0] for results in (fixed, free)
    )
    assert found["steps"] == wanted["steps"] == 8
    assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert found["loss"] < 1.5


def test_lengths_of_batches(data):
    labelled = taggers._Data(data / "train.conll", data / "dev.conll")
    assert labelled.ladder(None) == labelled.ladder(()) == ()
    # The longest sentence has six words.
    assert labelled.ladder((3, 6, 9)) == (3, 6)
    tpu = object.__new__(tf.distribute.TPUStrategy)
    assert taggers._resolved(configuration.ProbeConfig(), tpu).lengths == (16, 32, 64)
    given = configuration.ProbeConfig(lengths=(8,))
    assert taggers._resolved(given, tpu).lengths == (8,)
    with pytest.raises(InputError, match="a TPU needs batches of fixed shapes, got"):
        taggers._resolved(configuration.ProbeConfig(lengths=()), tpu)


@pytest.mark.slow
def test_on_the_command_line(model, data, tmp_path, capsys):
    settings = {"num_restarts": 2, "bilstm_units": 2, "num_train_epochs": 0.1}
    overrides = [f"--set={key}={value}" for key, value in settings.items()]
    files = ["--train", data / "train.conll", "--dev", data / "dev.conll"]
    arguments = ["--model", model, *files, "--output_dir", tmp_path / "run"]
    arguments += [*overrides, "--set", "representations=[last]", "--strategy", "cpu"]
    assert cli.main(["probe", *map(str, arguments)]) == 0
    assert capsys.readouterr().out == (tmp_path / "run/table.md").read_text()
    results = json.loads((tmp_path / "run/results.json").read_text())
    one, another = results["representations"]["last"]["taggers"]
    assert one["loss"] != another["loss"]


def test_all_is_checked_before_anything_is_made(model, data, tmp_path):
    (tmp_path / "other.conll").write_text("paris B-RIVER\n")
    with pytest.raises(InputError, match="tag 'B-RIVER' was not in the training data"):
        taggers.run_probes(
            configuration.ProbeConfig(),
            model=model,
            train=data / "train.conll",
            dev=tmp_path / "other.conll",
            output_dir=tmp_path / "run",
            strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="`representations.0`.* got 'lst'"):
        run(model, data, tmp_path / "run", representations=["lst"])
