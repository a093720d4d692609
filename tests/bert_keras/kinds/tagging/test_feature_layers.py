"""Taggers on the layers of a frozen encoder: the feature-based approach."""

import functools
import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import native, weights
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.core.settings import features as feature_settings
from bert_keras.data import features, tokenization
from bert_keras.inference import forward
from bert_keras.inference.features import writing
from bert_keras.kinds import registry
from bert_keras.kinds.tagging import ner_windows
from bert_keras.labelled import tokenized
from bert_keras.model import heads
from tests import make

WORDS = ("in", "at", "and", "paris", "rome", "york", "new", "anna", "be", "##n")
TAGS = {"paris": "B-LOC", "rome": "B-LOC", "anna": "B-PER", "ben": "B-PER"}
TAGS["new"] = "B-LOC"
CONFIG = architecture.BertConfig(
    vocab_size=len(features.SPECIAL_TOKENS) + len(WORDS),
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
    hidden_dropout_prob=0.5,
)
LABELS, UNITS = ("O", "B-LOC", "I-LOC"), 5
POSITIONS = np.int32([[1, 3, 4, 6], [2, 5, 0, 0], [1, 0, 0, 0]])


def build(feature_layers, **options):
    task = tasks.Task(
        kind="tagging",
        labels=LABELS,
        bilstm_units=UNITS,
        num_bilstm_layers=2,
        feature_layers=feature_layers,
    )
    return registry.build_network(CONFIG, task, seed=1, **options)


@pytest.fixture(scope="module", params=["weighted_sum_all", "concat_last_four"])
def network(request, randomize):
    network = build(request.param, dropout_prob=0.2)
    randomize(network, stddev=0.5)
    return network


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    labels = random.integers(0, len(LABELS), POSITIONS.shape)
    ids = random.integers(5, CONFIG.vocab_size, (3, 8))
    return {
        "input_ids": np.int32(ids),
        "word_positions": POSITIONS,
        "label_ids": np.int32(np.where(POSITIONS > 0, labels, -1)),
        "dropout_seeds": np.arange(3, dtype="int32"),
    }


def vectors_of(network, batch, layers):
    """`(batch_size, num_words, num_layers, hidden_size)`, by NumPy."""
    outputs = network.encoder(batch, return_all_layers=True)["encoder_outputs"]
    rows = np.arange(3)[:, None]
    return np.stack([np.array(outputs[n])[rows, POSITIONS] for n in layers], axis=2)


def test_layers_of_each_row_of_the_table():
    rows = {
        "embeddings": (0,),
        "second_to_last": (11,),
        "last": (12,),
        "weighted_sum_last_four": (9, 10, 11, 12),
        "concat_last_four": (9, 10, 11, 12),
        "weighted_sum_all": tuple(range(1, 13)),
    }
    assert {n: tasks.feature_layer_numbers(n, 12) for n in rows} == rows
    for name, num_layers in (("concat_last_four", 3), ("second_to_last", 1)):
        message = f"{name} needs more layers than the {num_layers} of the encoder"
        with pytest.raises(InputError, match=message):
            tasks.feature_layer_numbers(name, num_layers)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_logits_and_loss_equal_pytorchs_parts(network, batch):
    torch = pytest.importorskip("torch")
    head, lengths = network.head, (POSITIONS > 0).sum(axis=1)
    vectors = torch.tensor(vectors_of(network, batch, (1, 2, 3, 4)))
    if head.mix is None:
        words = vectors.flatten(2)
    else:
        shares = torch.tensor(head.mix.scores.numpy()).softmax(0)
        words = head.mix.scale.numpy() * (vectors * shares[:, None]).sum(2)
    lstm = torch.nn.LSTM(
        words.shape[-1], UNITS, num_layers=2, bidirectional=True, batch_first=True
    )
    state = {}
    for number, layer in enumerate(head.bilstms):
        for suffix, direction in zip(("", "_reverse"), layer.directions, strict=True):
            cell, end = direction.cell, f"l{number}{suffix}"
            state[f"weight_ih_{end}"] = torch.tensor(cell.kernel.numpy().T)
            state[f"weight_hh_{end}"] = torch.tensor(cell.recurrent_kernel.numpy().T)
            state[f"bias_ih_{end}"] = torch.tensor(cell.bias.numpy())
            state[f"bias_hh_{end}"] = torch.zeros(4 * UNITS)
    lstm.load_state_dict(state)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        words, torch.tensor(lengths), batch_first=True
    )
    kernel, bias = (torch.tensor(w.numpy()) for w in head.classifier.weights)
    with torch.no_grad():
        outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], True)
        logits = outputs @ kernel + bias
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1),
            torch.tensor(batch["label_ids"]).flatten().long(),
            ignore_index=-1,
        )
    is_word, outputs = POSITIONS > 0, network(batch)
    actual = np.array(outputs["logits"])[is_word]
    assert np.std(actual) > 0.15
    np.testing.assert_allclose(actual, logits.numpy()[is_word], atol=1e-5)
    total, weight = network.loss_terms(batch, outputs)["loss"]
    assert float(weight) == float(network.loss_weights(batch)["loss"]) == 7
    assert float(total / weight) == pytest.approx(loss.item(), rel=1e-5)


weighted = pytest.mark.parametrize("network", ["weighted_sum_all"], indirect=True)


@weighted
def test_free_shapes_and_padding_change_no_word(network, batch):
    """Where shapes are free, the loop ends with the longest sentence."""
    padded = batch | {"word_positions": np.pad(POSITIONS, [(0, 0), (0, 3)])}
    del padded["label_ids"]
    spec = {k: tf.TensorSpec([None] * v.ndim, v.dtype) for k, v in padded.items()}
    free = tf.function(lambda x: network(x)["logits"], input_signature=[spec])
    dropping = functools.partial(network, training=True)
    for logits, expected in (
        (free(padded), network(batch)["logits"]),
        (dropping(padded)["logits"], dropping(batch)["logits"]),
    ):
        assert logits.shape == (3, 7, 3)
        np.testing.assert_allclose(logits[:, :4], expected, atol=1e-6)
        assert not np.any(logits[:, 4:])


def test_the_head_alone_drops_and_learns(network, batch):
    head, seeds = network.head, batch["dropout_seeds"]
    mask = np.int32(POSITIONS > 0)
    # The encoder's dropout is 0.5, yet its vectors are those without any.
    states = vectors_of(network, batch, (1, 2, 3, 4))
    if head.mix is None:
        states = states.reshape(*mask.shape, -1)
    else:
        states = head.mix(states)
    states = head.dropouts[0](head.bilstms[0](states, mask), seeds, training=True)
    states = head.dropouts[1](head.bilstms[1](states, mask), seeds, training=True)
    expected = np.array(head.classifier(states))
    with tf.GradientTape() as tape:
        outputs = network(batch, training=True)
        loss = network.loss_terms(batch, outputs)["loss"][0]
    expected = expected * mask[..., None]
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-5)
    trained = network.trainable_variables
    assert len(trained) == (16 if head.mix else 14)
    assert all(np.any(gradient) for gradient in tape.gradient(loss, trained))
    assert not network.encoder.trainable_variables


@weighted
def test_vectors_that_are_given_replace_the_encoder(network, batch):
    expected = network(batch, training=True)["logits"]
    known = batch | {"word_vectors": network.word_vectors(batch)}
    known["input_ids"] = np.zeros_like(batch["input_ids"])
    np.testing.assert_array_equal(network(known, training=True)["logits"], expected)


def test_a_batch_of_words_has_their_vectors():
    windows = tokenized.TokenizedTexts.join(([2, 5, 6, 3], [0] * 4) for _ in range(3))
    words = ner_windows.TokenizedWords(
        windows=windows,
        num_words=np.array([2, 1, 2]),
        positions=np.array([1, 2, 1, 1, 2]),
        whole_lengths=np.array([4, 4, 4]),
        has_places=True,
        vectors=np.arange(10, dtype=np.float32).reshape(5, 1, 2),
    )
    batch = words.batch(np.array([2, 1]))
    assert batch["word_vectors"][:, :, 0].tolist() == [
        [[6, 7], [8, 9]],
        [[4, 5], [0, 0]],
    ]
    assert batch["word_positions"].tolist() == [[1, 2, 0, 0], [1, 0, 0, 0]]


@weighted
def test_each_bilstms_output_is_dropped_by_itself(network):
    states = np.ones((1, 400, 2 * UNITS), "float32")
    first, second = (
        np.array(layer(states, np.array([3]), training=True)) == 0
        for layer in network.head.dropouts
    )
    assert np.mean(first) == pytest.approx(0.2, abs=0.03)
    assert np.mean(second) == pytest.approx(0.2, abs=0.03)
    # Not the same elements: both are dropped in a twenty-fifth of all.
    assert np.mean(first & second) == pytest.approx(0.04, abs=0.02)


def test_layers_weigh_the_same_at_first():
    mix = heads.LayerMix(4)
    mix.build()
    vectors = np.float32(np.arange(8).reshape(1, 1, 4, 2))
    np.testing.assert_allclose(mix(vectors), [[[3.0, 4.0]]])
    mix.scores.assign([0, 0, 50, 0])
    mix.scale.assign(2.0)
    np.testing.assert_allclose(mix(vectors), [[[8.0, 10.0]]])


@weighted
def test_mixed_precision_stays_near(network, batch):
    mixed = build(network.feature_layers, dtype="mixed_bfloat16")
    mixed.set_weights(network.get_weights())
    logits, expected = mixed(batch)["logits"], network(batch)["logits"]
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, expected, atol=0.3)


@weighted
def test_words_have_to_be_placed(network, batch):
    with pytest.raises(ValueError, match="needs `word_positions`, the place of each"):
        network({"input_ids": batch["input_ids"]})


# === A run ===


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    task = tasks.Task(kind="encoder")
    directory = tmp_path_factory.mktemp("model")
    checkpoint = weights.Checkpoint(
        bert_config=CONFIG,
        task=task,
        arrays=weights.from_network(registry.build_network(CONFIG, task, seed=1)),
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
    words = [*WORDS[:-2], "ben"]
    for name, count in (("train", 60), ("dev", 20)):
        lines = []
        for _ in range(count):
            chosen = random.choice(words, size=random.integers(1, 7)).tolist()
            for previous, word in itertools.pairwise(["", *chosen]):
                tag = TAGS.get(word, "O")
                if (previous, word) == ("new", "york"):
                    tag = "I-LOC"
                lines.append(f"{word} {tag}\n")
            lines.append("\n")
        (directory / f"{name}.conll").write_text("".join(lines))
    return directory


CPU = tf.distribute.OneDeviceStrategy("/cpu:0")


def tune(model, data, directory, strategy=CPU, **changes):
    settings = {
        "task": "tagging",
        "feature_layers": "weighted_sum_all",
        "num_bilstm_layers": 2,
        "bilstm_units": 8,
        "batch_size": 8,
        "max_seq_length": 32,
        "num_train_epochs": 15,
        "learning_rate": 0.03,
    }
    return make.finetune(
        finetuning.FinetuningConfig(**settings | changes),
        init=model,
        from_scratch=False,
        train=data / "train.conll",
        dev=[data / "dev.conll"],
        output_dir=directory,
        strategy=strategy,
    )


@pytest.fixture(scope="module")
def tuned(model, data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tuned") / "run"
    return directory, tune(model, data, directory)


@pytest.mark.slow
def test_a_run_learns_with_the_encoder_as_it_was(tuned, model):
    """The encoder runs once over the training file, see `TokenizedWords`."""
    directory, results = tuned
    assert results["eval"]["f1"] > 0.9
    before, after = (native.read(path).arrays for path in (model, directory))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    shares = np.exp(after["head/mix/scores"])
    assert len(set(shares)) == 4
    task = native.read(directory).task
    assert (task.feature_layers, task.num_bilstm_layers) == ("weighted_sum_all", 2)


@pytest.mark.slow
def test_a_run_is_evaluated_and_asked(tuned, data, tmp_path, capsys):
    directory, results = tuned
    arguments = ["--model", str(directory), "--input", str(data / "dev.conll")]
    assert cli.main(["evaluate", *arguments]) == 0
    assert f"{results['eval']['f1']:.4f}"[:5] in capsys.readouterr().out
    output = tmp_path / "answers.txt"
    assert cli.main(["predict", *arguments, "--output", str(output)]) == 0
    predicted = [line.split()[-1] for line in output.read_text().splitlines() if line]
    kept = (directory / "dev_answers.jsonl").read_text().splitlines()
    assert predicted == [t for line in kept for t in json.loads(line)["prediction"]]
    ids = make.served(directory).encode(tf.constant(["new york", "rome"]))
    assert ids["word_positions"].numpy().tolist() == [[1, 2, 0, 0], [1, 0, 0, 0]]


@pytest.mark.slow
def test_fixed_lengths_and_two_replicas_give_what_free_ones_and_one_give(
    model, data, tmp_path
):
    """Shares of a batch have longest sentences of different lengths."""
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    losses = [
        tune(model, data, tmp_path / str(n), num_train_epochs=1, **changes)["eval"][
            "loss"
        ]
        for n, changes in enumerate(({}, {"lengths": (8, 16)}, {"strategy": two}))
    ]
    assert losses == pytest.approx(losses[:1] * 3, abs=1e-5)


def test_a_disk_without_room_for_the_vectors(monkeypatch):
    usage = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    message = r"expected 0.0 GB of free disk for the vectors, got 0.0 GB: name a folder"
    with pytest.raises(InputError, match=message):
        forward._zeros_on_disk((2, 3), np.float32)


@pytest.mark.slow
def test_vectors_are_those_of_features(model, data, tmp_path):
    """`features` writes what the head of a run reads."""
    writing.write(
        *(model, data / "dev.conll", tmp_path / "vectors"),
        settings=feature_settings.FeaturesConfig(max_seq_length=32),
        layers=(1, 4),
        form="tagging",
    )
    written = [np.load(tmp_path / f"vectors/layer_{n}.npy") for n in (1, 4)]
    settings = finetuning.FinetuningConfig(task="tagging", max_seq_length=32)
    kind = registry.labelled("tagging")
    checkpoint = native.read(model)
    examples = kind.read(data / "dev.conll", settings)
    task = examples.describe().model_copy(update={"feature_layers": "last"})
    tokenizer = tokenization.Tokenizer(checkpoint.vocabulary, do_lower_case=True)
    inputs = examples.encode(task, tokenizer, settings)
    network = registry.build_network(CONFIG, task)
    weights.assign(network, checkpoint.arrays)
    rows = np.arange(len(inputs.lengths))
    batch = inputs.batch(rows)
    network.layer_numbers = (1, 4)
    places = inputs.places(rows)
    actual = np.array(network.word_vectors(batch))[places.index]
    for number, expected in enumerate(written):
        np.testing.assert_allclose(actual[:, number], expected[places.ids], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bilstm_units": 0}, "`num_bilstm_layers` 2 needs `bilstm_units`, got 0"),
        (
            {"feature_layers": "concat_last_four"},
            "concat_last_four needs more layers than the 3 of the encoder",
        ),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    small = CONFIG.model_copy(update={"num_hidden_layers": 3})
    values = {"task": "tagging", "feature_layers": "last", "num_bilstm_layers": 2}
    with pytest.raises(ValueError, match=message):
        make.check_settings(
            finetuning.FinetuningConfig(**values | {"bilstm_units": 8} | changes),
            tasks.Task(kind="tagging"),
            small,
        )
