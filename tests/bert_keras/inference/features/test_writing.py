"""Vectors of words in files, compared with those of transformers."""

import contextlib
import json
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion, native, weights
from bert_keras.checkpoints.formats import hugging_face
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture
from bert_keras.core.settings import features as feature_settings
from bert_keras.data import features, tokenization
from bert_keras.inference import forward
from bert_keras.inference.features import vector_files, word_inputs, writing
from bert_keras.kinds import registry
from bert_keras.kinds.tagging import ner, ner_windows
from bert_keras.model import encoder
from tests.bert_keras.checkpoints.formats import making

TOKENS = (
    *features.SPECIAL_TOKENS,
    *("a", "cat", "sat", "on", "the", "mat", "un", "##believ", "##able", ","),
)
CONFIG = architecture.BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
)
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


@pytest.fixture(scope="module", autouse=True)
def eagerly():
    """A few batches of a tiny network: a trace would take longer."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


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
    (directory / "pairs.tsv").write_text(
        "text\ttext_pair\nA cat\tthe unbelievable mat\nsat\tcat\n"
    )
    return directory


@pytest.fixture(scope="module")
def plain(model, inputs, tmp_path_factory):
    """The pieces of the plain text, of all layers."""
    directory = tmp_path_factory.mktemp("plain") / "features"
    write(model, inputs / "plain.txt", directory, layers=range(4), pooling="none")
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
        (rows,) = (example[name] for name in ("words", "pieces") if name in example)
        return self.stacked[example["first_row"] :][: len(rows)]


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
    """From tokens and segments to what the layers give for each token."""
    checkpoint = conversion.read(model)
    if request.param == "ours":
        network = registry.build_network(CONFIG, checkpoint.task)
        weights.assign(network, checkpoint.arrays)

        def compute(ids, segments):
            batch = {"input_ids": ids, "segment_ids": segments}
            outputs = network(batch, return_all_layers=True)["encoder_outputs"]
            return np.stack(outputs, axis=2)[0]

    else:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        directory = tmp_path_factory.mktemp("hugging_face")
        hugging_face.write(checkpoint, directory)
        reference = transformers.BertModel.from_pretrained(directory).eval()

        def compute(ids, segments):
            ids, segments = torch.tensor(ids), torch.tensor(segments)
            with torch.no_grad():
                outputs = reference(
                    input_ids=ids, token_type_ids=segments, output_hidden_states=True
                )
            # The embeddings' output and that of each layer.
            return torch.stack(outputs.hidden_states, dim=2)[0].numpy()

    def of_tokens(tokens, segments=None):
        ids = np.int32([[TOKENS.index(token) for token in tokens]])
        segments = np.zeros_like(ids) if segments is None else np.int32([segments])
        return compute(ids, segments)

    return of_tokens


def test_pieces_of_texts_equal_hidden_states(plain, hidden_states):
    assert [example["pieces"] for example in plain.examples] == [
        "a cat sat , on the un ##believ ##able mat".split(),
        "un ##believ ##able".split(),
        [],
        "the cat , [UNK] un ##believ ##able cat".split(),
        ["sat"],
    ]
    for example in plain.examples:
        states = hidden_states(["[CLS]", *example["pieces"], "[SEP]"])
        np.testing.assert_allclose(plain.rows_of(example), states[1:-1], atol=1e-5)
    assert np.std(plain.stacked, axis=(0, 2)).min() > 0.3


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


def test_pairs_equal_hidden_states_from_a_foreign_checkpoint(
    model, inputs, hidden_states, tmp_path
):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    hugging_face.write(conversion.read(model), foreign)
    write(foreign, inputs / "pairs.tsv", tmp_path / "made")
    found = read_vectors(tmp_path / "made")
    tokens = "[CLS] a cat [SEP] the un ##believ ##able mat [SEP]".split()
    states = hidden_states(tokens, [0] * 4 + [1] * 6)[:, 3:]
    example = found.examples[0]
    np.testing.assert_allclose(
        found.rows_of(example), states[[1, 2, 4, 5, 8]], atol=1e-5
    )
    assert example["segment_ids"] == [0, 0, 1, 1, 1]
    assert found.facts["form"] == "text"


def test_a_long_sentence_has_vectors_of_several_inputs(
    model, hidden_states, tmp_path, monkeypatch
):
    # Its vectors come one input at a time.
    monkeypatch.setattr(writing, "BYTES_AT_A_TIME", 1)
    words = ["cat", "unbelievable", "mat"] * 5
    (tmp_path / "long.conll").write_text("".join(f"{w} O\n" for w in words))
    write(model, tmp_path / "long.conll", tmp_path / "made", form="tagging")
    found = read_vectors(tmp_path / "made")
    tokenized = ner_windows.tokenize(
        ner.read(tmp_path / "long.conll", has_tags=False),
        tokenization.Tokenizer(tokenization.Vocabulary(TOKENS), do_lower_case=True),
        max_seq_length=16,
    )
    assert len(tokenized.lengths) > 2
    expected, positions = [], iter(tokenized.positions)
    for number in range(len(tokenized.lengths)):
        ids = tokenized.batch(np.array([number]))["input_ids"][0]
        states = hidden_states([TOKENS[i] for i in ids])[:, 3]
        for _ in range(tokenized.num_words[number]):
            expected.append(states[next(positions)])
    assert len(expected) == 15
    np.testing.assert_allclose(found.layers[3], expected, atol=1e-5)


# === What is written ===


def test_facts_and_index(plain, inputs, model):
    facts = plain.facts
    assert {key: value for key, value in facts.items() if "sha256" not in key} == {
        "layers": [0, 1, 2, 3],
        "hidden_size": 8,
        "form": "lines",
        "max_seq_length": 16,
        "pooling": "none",
        "document_context": True,
        "num_examples": 5,
        "num_rows": 22,
        "num_cut": 0,
    }
    assert all(len(facts[key]) == 64 for key in ("input_sha256", "model_sha256"))
    assert plain.examples[3] == {
        "line": 4,
        "pieces": "the cat , [UNK] un ##believ ##able cat".split(),
        "word_ids": [0, 1, 2, 3, 4, 4, 4, 5],
        "starts": [0, 4, 8, 10, 14, 16, 22, 27],
        "ends": [3, 7, 9, 13, 16, 22, 26, 30],
        "first_row": 13,
    }
    for array in plain.layers.values():
        assert array.shape == (22, 8) and array.dtype == "float32"


def test_records_hold_the_same(plain, tmp_path):
    """Also when the vectors of an example come in parts."""
    examples = [{**example} for example in plain.examples]
    for example in examples:
        del example["first_row"]
    with contextlib.ExitStack() as stack:
        writer = vector_files.RecordWriter(
            tmp_path, stack, layers=range(4), hidden_size=8
        )
        writer.describe(examples[:3])
        writer.add(plain.stacked[:2])
        writer.add(plain.stacked[2:13])
        writer.describe(examples[3:])
        writer.add(plain.stacked[13:])
        writer.finish()
    records = tf.data.TFRecordDataset(str(tmp_path / "features.tfrecord"))
    for stored, example in zip(
        records.as_numpy_iterator(), plain.examples, strict=True
    ):
        record = tf.train.Example.FromString(stored)
        assert stored == record.SerializeToString(deterministic=True)
        record = record.features.feature
        pieces = [piece.decode() for piece in record["pieces"].bytes_list.value]
        assert pieces == example["pieces"]
        for name in ("word_ids", "starts", "ends"):
            assert list(record[name].int64_list.value) == example[name]
        assert list(record["line"].int64_list.value) == [example["line"]]
        vectors = [record[f"layer_{n}"].float_list.value for n in range(4)]
        found = np.array(vectors, "float32").reshape(4, -1, 8).transpose(1, 0, 2)
        np.testing.assert_array_equal(found, plain.rows_of(example))


@pytest.mark.parametrize(
    "to", ["numpy", pytest.param("tfrecord", marks=pytest.mark.slow)]
)
def test_small_pieces_of_work_give_the_same(
    to, plain, model, inputs, tmp_path, monkeypatch
):
    """One example at a time, one input at a time, and vectors of a row at a time."""
    monkeypatch.setattr(word_inputs, "_EXAMPLES_AT_A_TIME", 2)
    monkeypatch.setattr(forward, "TOKENS_PER_BATCH", 1)
    monkeypatch.setattr(writing, "BYTES_AT_A_TIME", 1)
    options = {"layers": range(4), "pooling": "none", "to": to}
    write(model, inputs / "plain.txt", tmp_path / "made", **options)
    if to == "numpy":
        found = read_vectors(tmp_path / "made")
        assert (found.facts, found.examples) == (plain.facts, plain.examples)
        np.testing.assert_allclose(found.stacked, plain.stacked, atol=1e-6)
    else:
        assert {path.name for path in (tmp_path / "made").iterdir()} == {
            "features.json",
            "features.tfrecord",
        }
        facts = json.loads((tmp_path / "made/features.json").read_text())
        assert facts == plain.facts
        records = tf.data.TFRecordDataset(str(tmp_path / "made/features.tfrecord"))
        last = tf.train.Example.FromString(list(records)[-1].numpy()).features.feature
        vector = np.array(last["layer_3"].float_list.value)
        np.testing.assert_allclose(vector, plain.layers[3][-1], atol=1e-6)


def test_on_the_command_line(model, plain, tmp_path, capsys, caplog):
    """With a text that is too long, at the end."""
    (tmp_path / "in.txt").write_text(TEXT + "cat " * 20)
    arguments = ["--model", model, "--input", tmp_path / "in.txt"]
    arguments += ["--output", tmp_path / "made", "--layers", "0", "-1"]
    assert cli.main(["features", *map(str, arguments), "--pooling", "none"]) == 0
    warning = "1 texts are longer than 16 tokens: there are no vectors for their ends"
    assert warning in caplog.text
    found = read_vectors(tmp_path / "made")
    assert found.facts["layers"] == [0, 3]
    assert found.facts["num_cut"] == 1
    assert len(found.examples[-1]["pieces"]) == 14
    expected = plain.stacked[:, [0, 3]]
    np.testing.assert_allclose(found.stacked[:-14], expected, atol=1e-6)
    wrong = [*map(str, arguments[:-4]), str(tmp_path / "x"), "--set", "colums.text=a"]
    assert cli.main(["features", *wrong]) == 2
    assert "no key 'colums'; did you mean 'columns'" in capsys.readouterr().err


# === When it fails ===


def test_what_is_broken_off_leaves_nothing(model, inputs, tmp_path, monkeypatch):
    def fails(self, vectors):
        raise RuntimeError("broken off")

    monkeypatch.setattr(vector_files.NumpyWriter, "add", fails)
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
        ({"to": "numpi"}, "--to is one of numpy, tfrecord, got 'numpi'; did you mean"),
        ({"pooling": "last"}, "--pooling is one of first, mean, none, got 'last'"),
        ({"form": "columns"}, "--form is one of lines, text, tagging, got 'columns'"),
        ({"layers": (4,)}, "there is no layer 4: 0 are the embeddings, 1 to 3"),
        ({"max_seq_length": 17}, "is 17, but .* takes 16 tokens at most"),
    ],
)
def test_what_cannot_be_is_refused(options, message, model, inputs, tmp_path):
    with pytest.raises(InputError, match=message):
        write(model, inputs / "plain.txt", tmp_path / "made", **options)
    assert list(tmp_path.iterdir()) == []


def test_halves_of_characters_are_no_text(model, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "cat \\ud800 \\u00e9"}\n')
    with pytest.raises(InputError, match="line 1: half of a surrogate pair"):
        write(model, tmp_path / "in.jsonl", tmp_path / "made")


def test_an_output_that_exists_is_left_alone(model, inputs, tmp_path):
    (tmp_path / "file").write_text("x")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="exists already; choose another"):
            write(model, inputs / "plain.txt", taken)
