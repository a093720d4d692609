"""Vectors of words in files, compared with those of transformers."""

import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from bert_keras.checkpoints import conversion, native, weights
from bert_keras.checkpoints.formats import hugging_face
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.data import features, tokenization
from bert_keras.inference import forward
from bert_keras.inference.features import word_inputs, writing
from bert_keras.kinds import registry
from bert_keras.model import encoder
from tests.bert_keras.checkpoints.formats import making

pytestmark = pytest.mark.usefixtures("eagerly")

TOKENS = (
    *features.SPECIAL_TOKENS,
    *("a", "cat", "sat", "on", "the", "mat", "un", "##believ", "##able", ","),
)
SIZES = {"num_hidden_layers": 3, "max_position_embeddings": 16}
CONFIG = making.CONFIG.model_copy(update={**SIZES, "vocab_size": len(TOKENS)})
TEXT = """A cat sat, on the unbelievable mat
unbelievable

the cat , zzz unbelievable cat
sat
"""
COLUMNS = """-DOCSTART- O

the O
unbelievable O
cat O

Sat, O
on O

-DOCSTART- O

mat O
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run directory of an encoder with random weights."""
    directory = tmp_path_factory.mktemp("model")
    vocabulary = tokenization.Vocabulary(TOKENS)
    checkpoint = making.make_checkpoint(
        "encoder", bert_config=CONFIG, vocabulary=vocabulary
    )
    native.write(checkpoint, directory)
    return directory


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inputs")
    (directory / "plain.txt").write_text(TEXT)
    (directory / "eng.train").write_text(COLUMNS)
    return directory


@pytest.fixture(scope="module")
def plain(model, inputs, tmp_path_factory):
    """The words of the plain text, of all layers."""
    directory = tmp_path_factory.mktemp("plain") / "features"
    write(model, inputs / "plain.txt", directory, layers=range(4), pooling="mean")
    return read_vectors(directory)


def write(model, input_path, directory, *, max_seq_length=None, **options):
    settings = feature_settings.FeaturesConfig(max_seq_length=max_seq_length)
    writing.write(model, input_path, directory, settings=settings, **options)


class Vectors(NamedTuple):
    """A finished directory of NumPy arrays."""

    facts: dict[str, Any]
    layers: dict[int, np.ndarray]
    examples: list[dict[str, Any]]

    @property
    def stacked(self):
        return np.stack([self.layers[n] for n in self.facts["layers"]], axis=1)

    def rows_of(self, example):
        return self.stacked[example["first_row"] :][: len(example["words"])]


def read_vectors(directory):
    facts = json.loads((directory / "features.json").read_text())
    layers = {n: np.load(directory / f"layer_{n}.npy") for n in facts["layers"]}
    lines = (directory / "index.jsonl").read_text().splitlines()
    return Vectors(facts, layers, [json.loads(line) for line in lines])


# === Equality with the layers' outputs ===


@pytest.fixture(
    scope="module",
    params=[
        "ours",
        pytest.param(
            "transformers",
            marks=[
                pytest.mark.slow,
                pytest.mark.reference,
                pytest.mark.filterwarnings("ignore"),
            ],
        ),
    ],
)
def hidden_states(request, model, tmp_path_factory):
    """From tokens to what the layers give for each."""
    checkpoint = conversion.read(model)
    if request.param == "ours":
        network = registry.build_network(CONFIG, checkpoint.task)
        weights.assign(network, checkpoint.arrays)

        def compute(ids):
            outputs = network({"input_ids": ids}, return_all_layers=True)
            outputs = outputs["encoder_outputs"]
            return np.stack(outputs, axis=2)[0]

    else:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        directory = tmp_path_factory.mktemp("hugging_face")
        hugging_face.write(checkpoint, directory)
        reference = transformers.BertModel.from_pretrained(directory).eval()

        def compute(ids):
            with torch.no_grad():
                outputs = reference(torch.tensor(ids), output_hidden_states=True)
            # The embeddings' output and that of each layer.
            return torch.stack(outputs.hidden_states, dim=2)[0].numpy()

    return lambda tokens: compute(np.int32([[TOKENS.index(x) for x in tokens]]))


PIECES = [
    ["a", "cat", "sat", ",", "on", "the", "un ##believ ##able", "mat"],
    ["un ##believ ##able"],
    [],
    ["the", "cat", ",", "[UNK]", "un ##believ ##able", "cat"],
    ["sat"],
]


def test_words_of_texts_equal_hidden_states(plain, hidden_states):
    for example, words in zip(plain.examples, PIECES, strict=True):
        counts = [len(word.split()) for word in words]
        states = hidden_states(["[CLS]", *" ".join(words).split(), "[SEP]"])[1:-1]
        parts = np.split(states, np.cumsum(counts)[:-1]) if words else []
        rows = plain.rows_of(example)
        assert len(rows) == len(words)
        for row, part in zip(rows, parts, strict=True):
            np.testing.assert_allclose(row, part.mean(axis=0), atol=1e-5)
    assert np.std(plain.stacked, axis=(0, 2)).min() > 0.2


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_words_of_tagged_text_equal_hidden_states(
    pooling, model, inputs, hidden_states, tmp_path
):
    options = {"layers": (-1, 0), "pooling": pooling, "form": "tagging"}
    write(model, inputs / "eng.train", tmp_path / "made", **options)
    found = read_vectors(tmp_path / "made")
    document = "[CLS] the un ##believ ##able cat sat , on [SEP]".split()
    states = hidden_states(document)[:, [3, 0]]
    other = hidden_states(["[CLS]", "mat", "[SEP]"])[:, [3, 0]]
    words = [states[1:2], states[2:5], states[5:6], states[6:8], states[8:9]]
    words.append(other[1:2])
    expected = [w[0] if pooling == "first" else w.mean(axis=0) for w in words]
    np.testing.assert_allclose(found.stacked, expected, atol=1e-5)
    assert [example["words"] for example in found.examples] == [
        ["the", "unbelievable", "cat"],
        ["Sat,", "on"],
        ["mat"],
    ]
    assert [example["first_row"] for example in found.examples] == [0, 3, 5]


# === What is written ===


def test_facts_and_index(plain, inputs, model):
    facts = plain.facts
    assert {key: value for key, value in facts.items() if "sha256" not in key} == {
        "layers": [0, 1, 2, 3],
        "hidden_size": 16,
        "form": "lines",
        "max_seq_length": 16,
        "pooling": "mean",
        "document_context": True,
        "num_examples": 5,
        "num_rows": 16,
    }
    assert all(len(facts[key]) == 64 for key in ("input_sha256", "model_sha256"))
    assert plain.examples[2:4] == [
        {"line": 3, "words": [], "starts": [], "ends": [], "first_row": 9},
        {
            "line": 4,
            "words": ["the", "cat", ",", "zzz", "unbelievable", "cat"],
            "starts": [0, 4, 8, 10, 14, 27],
            "ends": [3, 7, 9, 13, 26, 30],
            "first_row": 9,
        },
    ]
    for array in plain.layers.values():
        assert array.shape == (16, 16) and array.dtype == "float32"


def test_small_pieces_of_work_give_the_same(
    plain, model, inputs, tmp_path, monkeypatch
):
    """One text at a time, one input at a time, and vectors of a word at a time."""
    monkeypatch.setattr(word_inputs, "_SENTENCES_AT_A_TIME", 2)
    monkeypatch.setattr(forward, "TOKENS_PER_BATCH", 1)
    monkeypatch.setattr(writing, "BYTES_AT_A_TIME", 1)
    options = {"layers": range(4), "pooling": "mean"}
    write(model, inputs / "plain.txt", tmp_path / "made", **options)
    found = read_vectors(tmp_path / "made")
    assert (found.facts, found.examples) == (plain.facts, plain.examples)
    np.testing.assert_allclose(found.stacked, plain.stacked, atol=1e-6)


def test_on_the_command_line(model, plain, tmp_path, capsys):
    """With a text that takes several inputs, at the end; from a foreign checkpoint."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    hugging_face.write(conversion.read(model), foreign)
    (tmp_path / "in.txt").write_text(TEXT + "cat " * 20)
    arguments = ["--model", foreign, "--input", tmp_path / "in.txt"]
    arguments += ["--output", tmp_path / "made", "--layers", "0", "-1"]
    assert cli.main(["features", *map(str, arguments), "--pooling", "mean"]) == 0
    found = read_vectors(tmp_path / "made")
    assert found.facts["layers"] == [0, 3]
    assert found.examples[-1]["words"] == ["cat"] * 20
    expected = plain.stacked[:, [0, 3]]
    np.testing.assert_allclose(found.stacked[:-20], expected, atol=1e-6)
    wrong = [*map(str, arguments[:-4]), str(tmp_path / "x"), "--set", "colums.text=a"]
    assert cli.main(["features", *wrong]) == 2
    assert "no key 'colums'; did you mean 'columns'" in capsys.readouterr().err


# === When it fails ===


def test_what_is_broken_off_leaves_nothing(model, inputs, tmp_path, monkeypatch):
    def fails(self, vectors):
        raise RuntimeError("broken off")

    monkeypatch.setattr(word_inputs.PooledWords, "pool", fails)
    with pytest.raises(RuntimeError, match="broken off"):
        write(model, inputs / "plain.txt", tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_layers_are_counted_from_both_ends():
    assert encoder.resolve_layers((0, 1, -1, -2), 12, path="x") == (0, 1, 12, 11)
    assert encoder.resolve_layers((-13, 12), 12, path="x") == (0, 12)
    for layer in (13, -14):
        message = f"x: there is no layer {layer}: 0 are the embeddings, 1 to 12"
        with pytest.raises(InputError, match=message):
            encoder.resolve_layers((layer,), 12, path="x")
    with pytest.raises(InputError, match="layer 12 is asked for twice"):
        encoder.resolve_layers((12, -1), 12, path="x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (4,)}, "there is no layer 4: 0 are the embeddings, 1 to 3"),
        ({"max_seq_length": 17}, "is 17, but .* takes 16 tokens at most"),
    ],
)
def test_what_cannot_be_is_refused(options, message, model, inputs, tmp_path):
    with pytest.raises(InputError, match=message):
        write(model, inputs / "plain.txt", tmp_path / "made", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_is_left_alone(model, inputs, tmp_path):
    (tmp_path / "file").write_text("x")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="exists already; choose another"):
            write(model, inputs / "plain.txt", taken)
