"""Presets of KerasHub: its own code reads ours, and ours reads its presets."""

import functools
import itertools
import json
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import keras_hub
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

WORDS = ("the", "cafe", "caf", "##e", "re", "##sume", "!", ",", "[", "]", "mask", "CAF")
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS, "漢", "字"))
TINY = making.CONFIG.model_copy(update={"vocab_size": len(VOCABULARY)})
THEIR_SIZES = {
    "vocabulary_size": len(VOCABULARY),
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_sequence_length": 32,
}
TEXT = "The Café, the Résumé! CAFE [MASK] 漢字 the"


make_checkpoint = functools.partial(
    making.make_checkpoint, bert_config=TINY, vocabulary=VOCABULARY
)


def encoder_only(arrays):
    return {k: arrays[k] for k in arrays if k.startswith("encoder/")}


@pytest.fixture
def preset(tmp_path) -> Path:
    """A preset that we wrote."""
    directory = tmp_path / "preset"
    directory.mkdir()
    keras_hub.write(make_checkpoint(), directory)
    return directory


@pytest.fixture(scope="module")
def hub():
    """KerasHub, where it is installed."""
    return pytest.importorskip("keras_hub")


@pytest.fixture(scope="module")
def backbone(hub, randomize):
    backbone = hub.models.BertBackbone(**THEIR_SIZES)
    randomize(backbone)
    return backbone


@pytest.fixture(scope="module")
def their_preset(hub, backbone, tmp_path_factory):
    """A function that saves the backbone alone, or in a task of theirs."""

    def save(name):
        directory = tmp_path_factory.mktemp("theirs") / name
        models = hub.models
        tokenizer = models.BertTokenizer(list(VOCABULARY.tokens), lowercase=True)
        if name == "backbone":
            tokenizer.save_to_preset(directory)
        if name == "masked_lm":
            preprocessor = models.BertMaskedLMPreprocessor(tokenizer)
            models.BertMaskedLM(backbone, preprocessor).save_to_preset(directory)
        elif name == "classifier":
            preprocessor = models.BertTextClassifierPreprocessor(tokenizer)
            model = models.BertTextClassifier(backbone, 3, preprocessor)
            model.save_to_preset(directory)
        else:
            options = {"max_shard_size": 1e-5} if name == "sharded" else {}
            backbone.save_to_preset(directory, **options)
        return directory

    return save


def outputs(backbone, checkpoint, batch):
    """Of a backbone of theirs and a network of ours: sequence, then pooled."""
    network = registry.build_network(TINY, tasks.Task(kind="encoder"))
    weights.assign(network, checkpoint.arrays)
    theirs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
    }
    both = backbone(theirs, training=False), network(batch, training=False)
    names = ("sequence_output", "pooled_output")
    return [[keras.ops.convert_to_numpy(b[name]) for name in names] for b in both]


@pytest.mark.reference
@pytest.mark.parametrize(
    "name",
    [
        "backbone",
        pytest.param("masked_lm", marks=pytest.mark.slow),
        pytest.param("classifier", marks=pytest.mark.slow),
    ],
)
def test_their_presets_give_their_outputs(their_preset, backbone, make_batch, name):
    preset = their_preset(name)
    checkpoint = keras_hub.read(preset)
    weights.check(checkpoint, path=preset)
    assert keras_hub.recognizes(preset)
    task, length = tasks.Task(kind="encoder"), None
    if name == "classifier":
        task, length = registry.numbered_task("classification", 3), 512
    expected = (TINY, task, length, VOCABULARY, True)
    assert expected == (
        *(checkpoint.bert_config, checkpoint.task, checkpoint.max_seq_length),
        *(checkpoint.vocabulary, checkpoint.do_lower_case),
    )
    reasons = {
        "classifier": {"optimizer slot"},
        "masked_lm": {"optimizer slot", keras_hub.OTHER_HEAD},
    }
    assert set(checkpoint.unused.values()) == reasons.get(name, set())
    theirs, ours = outputs(backbone, checkpoint, make_batch(TINY))
    for expected, found in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


TEXTS = ["the Café.", "un café, the Résumé! " * 9, "漢字 the"]
LABELS = {
    "classification": ("no", "so so", "übel"),
    "multi_label": ("b", "a"),
    "regression": None,
}


def make_classifier(kind):
    task = tasks.Task(kind=kind, labels=LABELS[kind])
    return make_checkpoint(task=task, max_seq_length=12)


def our_logits(checkpoint, texts) -> np.ndarray:
    """Of texts, or of pairs of texts."""
    is_pair = {"has_text_pair": isinstance(texts[0], tuple)}
    task = checkpoint.task.model_copy(update=is_pair)
    model = finetuned.FinetunedModel.from_checkpoint(checkpoint, "x")
    data = registry.labelled(task.kind).from_python(texts, task)
    return model.answer(data).logits.reshape(len(texts), -1)


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELS)
def test_their_classifier_answers_as_ours(hub, tmp_path, kind):
    """Strings in; long ones and pairs are cut alike."""
    checkpoint = make_classifier(kind)
    assert keras_hub.write(checkpoint, tmp_path) == {}
    theirs = hub.models.BertTextClassifier.from_preset(str(tmp_path))
    lengths = itertools.product((1, 4, 5, 12), repeat=2)
    pairs = [("the café", "un"), ("the", "résumé the")]
    pairs += [("the " * first, "! " * second) for first, second in lengths]
    columns = tuple(list(column) for column in zip(*pairs, strict=True))
    for texts, inputs in ((TEXTS, TEXTS), (pairs, columns)):
        expected = our_logits(checkpoint, texts)
        assert np.ptp(expected, axis=0).min() > 0.01
        if kind == "multi_label":
            expected = 1 / (1 + np.exp(-expected))
        np.testing.assert_allclose(theirs.predict(inputs), expected, rtol=0, atol=1e-5)


@pytest.mark.reference
def test_the_files_of_a_classifier_are_theirs(hub, tmp_path):
    checkpoint = make_classifier("classification")
    (tmp_path / "ours").mkdir()
    keras_hub.write(checkpoint, tmp_path / "ours")
    theirs = hub.models.BertTextClassifier.from_preset(str(tmp_path / "ours"))
    theirs.save_to_preset(tmp_path / "theirs")
    names = {path.name for path in (tmp_path / "ours").iterdir()}
    assert names == {path.name for path in (tmp_path / "theirs").iterdir()} | {
        "labels.txt"
    }
    for name in ("config.json", "tokenizer.json", "task.json", "preprocessor.json"):
        found, expected = (
            json.loads((tmp_path / owner / name).read_text())
            for owner in ("ours", "theirs")
        )
        # Settings of tokenizers that came after the format.
        for values in (found, expected):
            config_of_all = values["config"].get("preprocessor", values)["config"]
            settings = config_of_all.get("tokenizer", values)["config"]
            for key in ("config_file", "special_tokens", "special_tokens_in_strings"):
                settings.pop(key, None)
        assert found == expected
    (tmp_path / "ours/labels.txt").unlink()
    assert keras_hub.read(tmp_path / "ours").max_seq_length == 12
    again = keras_hub.read(tmp_path / "theirs")
    assert again.task == registry.numbered_task("classification", 3)
    making.assert_same_arrays(again.arrays, checkpoint.arrays)


@pytest.mark.parametrize(
    ("activation", "num_classes", "kind"),
    [
        ("softmax", 3, "classification"),
        ("sigmoid", 3, "multi_label"),
        ("sigmoid", 1, "multi_label"),
        (None, 1, "regression"),
        ("relu", 3, None),
        ("softmax", 1, None),
    ],
)
def test_what_the_head_says_of_the_task(tmp_path, activation, num_classes, kind):
    checkpoint = make_checkpoint("classification")
    checkpoint.arrays["head/classifier/kernel"] = np.ones((16, num_classes), "f4")
    checkpoint.arrays["head/classifier/bias"] = np.ones(num_classes, "f4")
    keras_hub.write(checkpoint, tmp_path)
    making.change_json(tmp_path / "task.json", within="config", activation=activation)
    (tmp_path / "labels.txt").unlink()
    found = keras_hub.read(tmp_path)
    assert found.task.kind == (kind or "encoder")
    labels = tuple(map(str, range(num_classes)))
    assert found.task.labels == (None if kind in (None, "regression") else labels)
    why = "of a head that is not known here"
    assert set(found.unused.values()) == (set() if kind else {why})


def test_files_of_a_task_that_do_not_fit(tmp_path):
    keras_hub.write(make_checkpoint("classification"), tmp_path)
    labels = (tmp_path / "labels.txt").read_text()

    def refuses(message):
        with pytest.raises(InputError, match=message):
            keras_hub.read(tmp_path)

    (tmp_path / "labels.txt").write_text("no\nno\nyes\n")
    refuses("labels.txt: expected different labels, got ")
    (tmp_path / "labels.txt").write_text(f"{labels}more\n")
    refuses("labels.txt: expected 3 different labels, one a line, as many as `num_cl")
    making.change_json(tmp_path / "task.json", within="config", num_classes=4)
    refuses(r"'layers/dense/vars/0' has the shape \(16, 3\), but by the con")
    making.change_json(tmp_path / "task.json", within="config", num_classes="3")
    refuses("task.json: expected a number of classes, `num_classes`, found")
    making.change_json(tmp_path / "task.json", within="config", num_classes=3)
    with h5py.File(tmp_path / "task.weights.h5", "a") as file:
        del file["layers/dense/vars/1"]
    (tmp_path / "labels.txt").write_text(labels)
    refuses("task.weights.h5: expected a tensor 'layers/dense/vars/1'")


@pytest.mark.reference
def test_their_masked_lm_head_is_another_function(hub, backbone):
    """If this fails, KerasHub has mended it, and the head can go over."""
    head = hub.models.BertMaskedLM(backbone).masked_lm_head
    assert head.layer_norm_epsilon == 1e-5
    exact = keras.activations.gelu(1.0, approximate=False)
    assert head.intermediate_activation(1.0) == exact


@pytest.mark.reference
def test_our_preset_gives_our_outputs_there(hub, preset, make_batch):
    backbone = hub.models.BertBackbone.from_preset(str(preset))
    theirs, ours = outputs(backbone, make_checkpoint(), make_batch(TINY))
    for expected, found in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.reference
def test_a_bfloat16_preset_has_the_values_of_bfloat16(hub, tmp_path):
    backbone = hub.models.BertBackbone(**THEIR_SIZES, dtype="bfloat16")
    backbone.save_to_preset(tmp_path)
    arrays = keras_hub.read(tmp_path).arrays
    found = arrays["encoder/embeddings/word_embeddings"]
    expected = keras.ops.cast(backbone.token_embedding.embeddings, "float32")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.reference
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_their_tokenizer_gives_our_ids(hub, tmp_path, do_lower_case):
    keras_hub.write(make_checkpoint(do_lower_case=do_lower_case), tmp_path)
    theirs = hub.models.BertTokenizer.from_preset(str(tmp_path))
    ours = tokenization.Tokenizer(VOCABULARY, do_lower_case=do_lower_case)
    expected = ours.encode(TEXT)
    assert VOCABULARY.ids["漢"] in expected
    assert (VOCABULARY.ids["cafe"] in expected) == do_lower_case
    assert np.asarray(theirs(TEXT)).tolist() == expected


@pytest.mark.reference
def test_sharded_weights_are_refused(their_preset):
    preset = their_preset("sharded")
    assert keras_hub.recognizes(preset)
    with pytest.raises(InputError, match="with max_shard_size=None"):
        keras_hub.read(preset)


def test_equal_checkpoints_give_equal_bytes(preset, tmp_path):
    (tmp_path / "again").mkdir()
    keras_hub.write(make_checkpoint(), tmp_path / "again")
    files = [path for path in preset.rglob("*") if path.is_file()]
    assert len(files) == 5
    for path in files:
        again = tmp_path / "again" / path.relative_to(preset)
        assert again.read_bytes() == path.read_bytes()
    arrays = encoder_only(make_checkpoint().arrays)
    assert json.loads((preset / "metadata.json").read_text()) == {
        "keras_version": keras.__version__,
        "parameter_count": sum(array.size for array in arrays.values()),
    }


def test_heads_are_left_out_with_reasons(tmp_path):
    checkpoint = make_checkpoint()
    checkpoint.arrays["head/classifier/kernel"] = np.zeros((16, 1), np.float32)
    reasons = {
        "masked_lm_head": "KerasHub's masked-LM head computes the exact GELU and a norm"
        " with epsilon 1e-5",
        "next_sentence_head": "KerasHub has no such head",
        "head": "KerasHub has a head for texts alone, and needs a vocabulary with it",
    }
    assert keras_hub.write(checkpoint, tmp_path) == {
        name: reasons[name.partition("/")[0]]
        for name in checkpoint.arrays
        if not name.startswith("encoder/")
    }


def test_a_missing_pooler_is_made_new(tmp_path):
    source = make_checkpoint(without=("encoder/pooler/",))
    keras_hub.write(source, tmp_path)
    found = keras_hub.read(tmp_path).arrays
    kernel = found["encoder/pooler/kernel"]
    assert 0.01 < kernel.std() < 0.03
    assert not found["encoder/pooler/bias"].any()
    making.assert_same_arrays(
        {name: found[name] for name in found if "/pooler/" not in name},
        encoder_only(source.arrays),
    )


def test_two_dropout_rates_become_one_with_a_warning(tmp_path, caplog):
    changed = TINY.model_copy(update={"attention_probs_dropout_prob": 0.3})
    keras_hub.write(make_checkpoint(bert_config=changed), tmp_path)
    assert "one dropout rate: wrote 0.1, that of attention was 0.3" in caplog.text
    assert keras_hub.read(tmp_path).bert_config == TINY


def test_a_preset_of_keras_nlp_is_read(preset):
    path = preset / "config.json"
    path.write_text(path.read_text().replace("keras_hub", "keras_nlp"))
    assert keras_hub.recognizes(preset)
    found = keras_hub.read(preset)
    making.assert_same_arrays(found.arrays, encoder_only(make_checkpoint().arrays))


def test_accents_that_are_treated_otherwise_are_told(preset, caplog):
    """KerasHub's own default: lower case with accents."""
    making.change_json(preset / "tokenizer.json", within="config", strip_accents=False)
    assert keras_hub.read(preset).do_lower_case is True
    assert "the tokenizer there keeps accents; here" in caplog.text


def test_other_arrays_are_named(preset):
    with h5py.File(preset / "model.weights.h5", "r+") as file:
        file["layers/adapter/vars/0"] = np.zeros(3, np.int64)
    assert keras_hub.read(preset).unused == {
        "layers/adapter/vars/0": "not part of BERT"
    }


def virtual_data(file, name):
    layout = h5py.VirtualLayout((16, 16), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "secret", (16, 16))
    file.create_virtual_dataset(name, layout)


ELSEWHERE = "'layers/dense/vars/0' is a link to elsewhere"
NOT_PLAIN = "is compressed, or kept in another file"


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda f, n: f.update({n: h5py.SoftLink("/layers/dense/vars/1")}), ELSEWHERE),
        (lambda f, n: f.update({n: h5py.ExternalLink("other.h5", "/s")}), ELSEWHERE),
        (
            lambda f, n: f.update({"layers/more": h5py.ExternalLink("other.h5", "/")}),
            "'layers/more' is a link to elsewhere",
        ),
        (
            lambda f, n: f.create_dataset(
                n, (16, 16), "f4", external=[("/etc/hostname", 0, 1024)]
            ),
            NOT_PLAIN,
        ),
        (virtual_data, NOT_PLAIN),
        (
            lambda f, n: f.create_dataset(n, (16, 16), "f4", compression="gzip"),
            NOT_PLAIN,
        ),
        (lambda f, n: f.create_dataset(n, (1 << 40,), "f4"), r"more than its \d+ byt"),
        (
            lambda f, n: f.create_dataset(n, (16, 16), h5py.string_dtype()),
            "holds object, expected floating-point numbers",
        ),
        (
            lambda f, n: f.update({n: np.zeros((16, 16), np.int8)}),
            "dense/vars/0' holds int8, expected floating",
        ),
    ],
)
def test_dangerous_files_are_refused(preset, put, message):
    with h5py.File(preset / "model.weights.h5", "r+") as file:
        del file["layers/dense/vars/0"]
        put(file, "layers/dense/vars/0")
    with h5py.File(preset / "other.h5", "w") as other:
        other["secret"] = np.zeros((16, 16), np.float32)
    with pytest.raises(InputError, match=message):
        weights.check(keras_hub.read(preset), path=preset)


def test_a_file_with_flipped_bytes_is_read_or_refused(preset):
    """Never another error."""
    path = preset / "model.weights.h5"
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(20):
        damaged = bytearray(whole)
        for position in random.integers(len(whole), size=20):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        try:
            weights.check(keras_hub.read(preset), path=preset)
        except InputError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("config", "num_heads", None, "expected a key 'num_heads' in its `config`"),
        ("config", "activation", "relu", "a BertBackbone with 'activation', which is"),
        ("tokenizer", "suffix_indicator", "@@", "suffix_indicator is '@@', expected '"),
        ("tokenizer", "oov_token", "<unk>", "oov_token is '<unk>', expected"),
        ("tokenizer", "split", False, "split is False, expected True"),
        ("tokenizer", "lowercase", "yes", "`lowercase`: expected true or false"),
    ],
)
def test_settings_that_do_not_fit_are_refused(preset, name, key, value, message):
    changes = {"without": [key]} if value is None else {key: value}
    making.change_json(preset / f"{name}.json", within="config", **changes)
    with pytest.raises(InputError, match=message):
        keras_hub.read(preset)


def test_presets_of_other_models_are_refused(preset):
    tokenizer, backbone = preset / "tokenizer.json", preset / "config.json"
    tokenizer.write_text(tokenizer.read_text().replace("BertTok", "DebertaTok"))
    with pytest.raises(InputError, match="BertTokenizer, found 'DebertaTokenizer'"):
        keras_hub.read(preset)
    backbone.write_text(backbone.read_text().replace("BertBack", "RobertaBack"))
    assert keras_hub.recognizes(preset)
    with pytest.raises(InputError, match="KerasHub, found 'RobertaBackbone'"):
        keras_hub.read(preset)


def test_what_is_no_preset_is_not_recognized(preset, tmp_path):
    assert not keras_hub.recognizes(tmp_path / "missing")
    assert not keras_hub.recognizes(preset / "config.json")
    whole = (preset / "config.json").read_text()
    for text in ("", "[]", '{"model_type": "bert"}', '{"registered_name": 3}'):
        (preset / "config.json").write_text(text)
        assert not keras_hub.recognizes(preset)
    (preset / "config.json").write_text(whole)
    assert keras_hub.recognizes(preset)
    (preset / "model.weights.h5").unlink()
    assert not keras_hub.recognizes(preset)


def test_arrays_are_read_after_the_directory_got_its_name(preset, tmp_path):
    arrays = keras_hub.read(preset).arrays
    preset.rename(tmp_path / "renamed")
    making.assert_same_arrays(arrays, encoder_only(make_checkpoint().arrays))
