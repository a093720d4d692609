"""`tf_model.h5`: transformers with TensorFlow as the judge, hostile and damaged files.

`tests/data/tf_model` is written by `benchmarks/upstream/tf_model.py`: a directory of
each class, shards, and a file of transformers 2, with the outputs for a batch. The
files of the tokenizer are shared.
"""

import json
import logging
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import bert_keras
from bert_keras.checkpoints import conversion, weights
from bert_keras.checkpoints.formats import hugging_face, hugging_face_tensorflow
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

DATA = Path(__file__).resolve().parents[3] / "data/tf_model"
TOKENIZER = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
# As the batch was made from them.
PAIRS = (("the film was good",), ("a bad, unaffordable film!", "the cast was fine"))
PAIRS += (("Was Anna in Paris?", "Anna was in Berlin."),)

NO_POOLER = {"encoder/pooler"}
MASKED_LM = (["masked_lm_logits"], {"encoder/pooler", "next_sentence_head/classifier"})
MODELS = {
    "TFBertModel": (["sequence_output", "pooled_output"], set()),
    "TFBertForPreTraining": (["masked_lm_logits", "next_sentence_logits"], set()),
    "TFBertForMaskedLM": MASKED_LM,
    "TFBertLMHeadModel": MASKED_LM,
    "TFBertForNextSentencePrediction": (
        ["next_sentence_logits"],
        {"masked_lm_head", "masked_lm_head/transform", "masked_lm_head/layer_norm"},
    ),
    "TFBertForSequenceClassification": (["logits"], set()),
    "TFBertForMultipleChoice": (["logits"], set()),
    "TFBertForTokenClassification": (["logits"], NO_POOLER),
    "TFBertForQuestionAnswering": (["start_logits", "end_logits"], NO_POOLER),
    "sharded": (["masked_lm_logits", "next_sentence_logits"], set()),
    # All classes had a pooler.
    "version_2": (["logits"], set()),
}
"""By directory: the names of its outputs here, and the layers that it lacks."""


def copied(name, directory):
    """A directory of a model with its tokenizer."""
    shutil.copytree(DATA / name, directory)
    for file in TOKENIZER:
        shutil.copy(DATA / file, directory)
    return directory


@pytest.fixture
def classifier(tmp_path):
    return copied("TFBertForSequenceClassification", tmp_path / "model")


@pytest.mark.parametrize("name", MODELS)
def test_their_outputs_are_ours(name):
    checkpoint = hugging_face.read(DATA / name)
    inputs = np.load(DATA / "inputs.npz")
    names = ("input_ids", "input_mask", "segment_ids")
    features = dict(zip(names, inputs.values(), strict=True))
    if checkpoint.task.kind == "choice":
        features = {n: np.stack([v, v[::-1]], axis=1) for n, v in features.items()}
    else:
        positions = np.arange(20, dtype="int32")
        features["masked_lm_positions"] = np.tile(positions, (3, 1))
    network = registry.build_network(checkpoint.bert_config, checkpoint.task)
    lacking = weights.assign(network, checkpoint.arrays)
    ours = network(features, training=False)
    outputs, layers = MODELS[name]
    assert {path.rpartition("/")[0] for path in lacking} == layers
    assert not checkpoint.unused
    theirs = np.load(DATA / name / "outputs.npz").values()
    for output, expected in zip(outputs, theirs, strict=True):
        actual = np.reshape(ours[output], expected.shape)
        np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=output)


def test_a_classifier_answers_texts(classifier):
    """Also from its tokenizer on, with labels and logits of theirs."""
    theirs = np.load(classifier / "outputs.npz")["arr_0"]
    model = bert_keras.load(classifier)
    for pair, ids, logits in zip(
        PAIRS, np.load(DATA / "inputs.npz")["input_ids"], theirs, strict=True
    ):
        # The outputs are for 20 tokens, of which a mask leaves those of the text.
        (record,) = model.predict([pair if len(pair) > 1 else pair[0]])
        pieces = [model.tokenizer.tokenize(text) for text in pair]
        assert len(ids.nonzero()[0]) == 1 + sum(len(part) + 1 for part in pieces)
        exponents = np.exp(logits - logits.max())
        np.testing.assert_allclose(
            [record.probabilities[label] for label in ("bad", "fine", "good")],
            exponents / exponents.sum(),
            atol=1e-6,
        )


PRINTED = """\
read a hugging_face checkpoint, classification
wrote 25 weights, 3,939 parameters, as {}
read back: same weights; outputs on a fixed batch differ by 0 at most"""


def test_conversion_to_run_and_safetensors(classifier, tmp_path):
    """A model of TensorFlow becomes one of PyTorch in the same format."""
    arrays = conversion.read(classifier).arrays
    for form in ("native", "hugging_face"):
        done = conversion.convert(classifier, tmp_path / form, to=form)
        lines = "\n".join(conversion.describe(done, to=form))
        assert lines == PRINTED.format(form)
        making.assert_same_arrays(conversion.read(tmp_path / form).arrays, arrays)
    assert not (tmp_path / "hugging_face/tf_model.h5").exists()
    message = "is in the format 'hugging_face' already"
    with pytest.raises(InputError, match=message):
        conversion.convert(tmp_path / form, tmp_path / "again", to="hugging_face")


@pytest.mark.parametrize("name", ["TFBertForMaskedLM", "TFBertForTokenClassification"])
def test_safetensors_of_tensorflow_classes(name, tmp_path, caplog):
    """As `save_pretrained(..., safe_serialization=True)` of version 4 names them."""
    numpy = pytest.importorskip("safetensors.numpy")
    directory, arrays = copied(name, tmp_path / "model"), {}

    def add(path, item):
        if isinstance(item, h5py.Dataset):
            arrays[re.sub("^.*/tf_bert_[a-z_]+/", "", path)] = item[()]

    with h5py.File(directory / "tf_model.h5") as file:
        file.visititems(add)
    expected = hugging_face.read(directory).arrays
    (directory / "tf_model.h5").unlink()
    numpy.save_file(arrays, directory / "model.safetensors", {"format": "tf"})
    making.assert_same_arrays(hugging_face.read(directory).arrays, expected)
    conversion.convert(directory, tmp_path / "new", to="hugging_face")
    making.assert_same_arrays(hugging_face.read(tmp_path / "new").arrays, expected)
    assert not hugging_face.reads_tensorflow(tmp_path / "new")
    if name == "TFBertForTokenClassification":
        # Nothing needs the pooler that it lacks.
        assert bert_keras.load(directory).task.kind == "tagging"
        assert not [text for text in caplog.messages if "initialized" in text]


def test_the_class_without_a_name(tmp_path):
    directory = copied("TFBertForMultipleChoice", tmp_path / "model")
    making.change_json(directory / "config.json", without=("architectures",))
    assert hugging_face.read(directory).task.kind == "choice"
    making.change_json(directory / "config.json", architectures=["TFBertModel"])
    checkpoint = hugging_face.read(directory)
    assert checkpoint.task.kind == "encoder"
    assert set(checkpoint.unused.values()) == {"a BertModel has no such head"}


def test_answers_need_the_tokenizer(classifier):
    for name in TOKENIZER:
        (classifier / name).unlink()
    with pytest.raises(InputError, match="model: has no tokenizer: put its vocab.txt"):
        finetuned.FinetunedModel.load(classifier)


def test_one_of_several_files_is_read(classifier, caplog):
    caplog.set_level(logging.INFO)
    expected = conversion.read(classifier).arrays
    assert not caplog.records
    (classifier / "pytorch_model.bin").write_bytes(b"a pickle")
    making.assert_same_arrays(conversion.read(classifier).arrays, expected)
    assert caplog.messages[-1].endswith("reads tf_model.h5, not pytorch_model.bin")
    other = making.make_checkpoint("encoder")
    hugging_face.write(other, classifier)
    making.assert_same_arrays(hugging_face.read(classifier).arrays, other.arrays)
    message = "reads model.safetensors, not tf_model.h5 or pytorch_model.bin"
    assert caplog.messages[-1] == f"{classifier}: {message}"


def test_from_a_store(classifier, memory_store):
    for path in classifier.iterdir():
        files.write_atomically(f"{memory_store}/{path.name}", path.read_bytes())
    assert conversion.recognize(memory_store) == "hugging_face"
    expected = conversion.read(classifier).arrays
    making.assert_same_arrays(conversion.read(memory_store).arrays, expected)


# Other models, hostile and damaged files.

KERNEL = "bert/tf_bert_for_pre_training/bert/pooler/dense/kernel:0"
COPY = "mlm___cls/tf_bert_for_pre_training/bert/embeddings/word_embeddings/weight:0"
ELSEWHERE = "pooler/dense/kernel:0' is a link to elsewhere, expected the data"
NOT_PLAIN = "pooler/dense/kernel:0' is compressed, or kept in another file: expec"


def virtual_data(file, name):
    layout = h5py.VirtualLayout((16, 16), "f4")
    layout[:] = h5py.VirtualSource("/tmp/other.h5", "secret", (16, 16))
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize(
    ("name", "put", "message"),
    [
        (KERNEL, h5py.SoftLink(f"/{COPY}"), ELSEWHERE),
        (KERNEL, h5py.ExternalLink("other.h5", "/secret"), ELSEWHERE),
        (KERNEL, virtual_data, NOT_PLAIN),
        (KERNEL, {"external": [("/etc/passwd", 0, 1024)]}, NOT_PLAIN),
        (KERNEL, {"compression": "gzip"}, NOT_PLAIN),
        (KERNEL, {"shape": (1 << 20, 1 << 18)}, r"claims more than its \d+ bytes"),
        (KERNEL, {"dtype": "i1"}, "'bert.pooler.dense.weight' holds int8, expected"),
        (KERNEL, {"dtype": h5py.string_dtype()}, "pooler.dense.weight' holds object"),
        (KERNEL, {"dtype": "V4"}, r"pooler.dense.weight' holds \|V4, expected one of"),
        (KERNEL, {"shape": None}, "cannot be read as HDF5"),
        (KERNEL, {"shape": (16, 15)}, r"has the shape \(15, 16\), but by the config"),
        (COPY, {"shape": (59, 16)}, "'bert/.*' and 'mlm.*' differ, but are one weig"),
        # Another model's names.
        ("bert", None, r"has 0 layers, but by the configuration next to it 2: they"),
    ],
)
def test_hostile_files_are_refused(name, put, message, tmp_path):
    directory = copied("TFBertForPreTraining", tmp_path / "model")
    with h5py.File(directory / "tf_model.h5", "r+") as file:
        del file[name]
        if isinstance(put, dict):
            file.create_dataset(name, **{"shape": (16, 16), "dtype": "f4", **put})
        elif callable(put):
            put(file, name)
        elif put is not None:
            file[name] = put
    with pytest.raises(InputError, match=message) as error:
        conversion.read(directory)
    assert str(error.value).startswith(str(directory))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "distilbert"}, "the model is of the type 'distilbert', no"),
        ({"is_decoder": True}, '"is_decoder" is True, only False is known here: such'),
        ({"architectures": ["TFBertFor"]}, r"\['TFBertFor'\], expected one of BertFor"),
        ({"num_hidden_layers": 2}, "tf_model.h5: has 1 layers, but by the configurat"),
    ],
)
def test_another_model_is_refused(changes, message, tmp_path):
    directory = copied("TFBertLMHeadModel", tmp_path / "model")
    making.change_json(directory / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        hugging_face.read(directory)


def test_shards_that_are_not_there(tmp_path):
    directory = copied("sharded", tmp_path / "model")
    index, second = directory / "tf_model.h5.index.json", "tf_model-00002-of-00002.h5"
    weight_map = json.loads(index.read_text())["weight_map"]
    bias = "tf_bert_for_pre_training_1/nsp___cls/seq_relationship/bias:0"
    assert weight_map[bias] == second
    for name, file, message in (
        (bias, f"../{second}", f"'../{second}' is not next to this index"),
        (bias, "model.safetensors", r"'model.safetensors' is no \*.h5 file"),
        (
            "m/bert/lost:0",
            second,
            "names 1 tensors that no shard holds, such as .bert.lost",
        ),
    ):
        making.change_json(index, weight_map={**weight_map, name: file})
        with pytest.raises(InputError, match=f"json: {message}"):
            hugging_face.read(directory)
    making.change_json(index, weight_map=weight_map)
    (directory / second).unlink()
    with pytest.raises(InputError, match=f"{second}: missing; tf_model.h5.index.json"):
        hugging_face.read(directory)


def damage(content, seed):
    """A file's bytes with one of five kinds of damage."""
    random, damaged = np.random.default_rng(seed), bytearray(content)
    begin = int(random.integers(len(content)))
    end = min(begin + int(2 ** random.uniform(0, 12)), len(content))
    if seed % 5 == 0:
        return content[:begin]
    if seed % 5 in (1, 2):
        damaged[begin:end] = (b"", b"\0", b"\xff")[seed % 5] * (end - begin)
        return bytes(damaged)
    # Bits anywhere, or where HDF5 has its own structures.
    places = [*range(len(content) - 64)]
    if seed % 5 == 4:
        places = [match.start() for match in re.finditer(b"TREE|SNOD|HEAP", content)]
    for place in random.choice(places, 3) + random.integers(64, size=3):
        damaged[place] ^= 1 << int(random.integers(8))
    return bytes(damaged)


def test_a_thousand_damaged_files(tmp_path):
    """Each is read, as numbers may be damaged, or refused in one line."""
    whole = DATA / "TFBertForPreTraining/tf_model.h5"
    with h5py.File(whole) as source, h5py.File(tmp_path / "small.h5", "w") as target:
        for name in ("nsp___cls", "mlm___cls/tf_bert_for_pre_training/mlm___cls"):
            source.copy(name, target, name=name)
    content, refused = (tmp_path / "small.h5").read_bytes(), []
    for seed in range(1000):
        # HDF5 would go on with a file of this name that is still open.
        path = tmp_path / f"{seed}.h5"
        path.write_bytes(damage(content, seed))
        try:
            file = hugging_face_tensorflow.open_h5(path)
            for name in file.layouts:
                file.read(name)
        except InputError as error:
            refused.append(seed)
            assert str(error).startswith(f"{path}: ")
            assert len(str(error).splitlines()) == 1
        path.unlink()
    # Without its end, no file is read.
    assert {*range(0, 1000, 5)} <= {*refused}
    assert 500 < len(refused) < 900
