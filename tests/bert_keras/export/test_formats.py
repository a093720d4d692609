"""Exports of pre-trained models and of encoders, and the forms that take ids."""

import collections
import json
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import conversion, run_directory, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    choices,
    finetuning,
    pretraining,
    tasks,
)
from bert_keras.data import tokenization
from bert_keras.export import formats, writing
from bert_keras.inference import fill_mask, finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.vectors import served_embeddings
from bert_keras.labelled import tokenized
from tests import make
from tests.bert_keras.export.conftest import VOCABULARY

BERT_CONFIG = architecture.BertConfig(
    vocab_size=len(VOCABULARY) + 3,  # rows above the vocabulary are never an answer
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
)
TEXTS = [
    "",
    "the cat",
    "Café ΣΑΣ日本 \u200d\ufffd🙂 no [mask] [MASK",
    "a" * 300,
    "the cat sat, " * 20,
]
MASKED_TEXTS = [
    "the [MASK] sat.",
    "[MASK]",
    "[MASK][MASK] Ca[MASK]é,[MASK]",
    "ΑΣ[MASK]Σ 日[MASK]本 [mask] [[MASK]] \u0301",
    "a " * 20 + "[MASK]",
]


def make_run(
    directory: Path, randomize, *, bert_config=BERT_CONFIG, stddev=0.5, **options
) -> Path:
    """A finished run with random weights."""
    return make.make_run(
        directory,
        VOCABULARY,
        bert_config=bert_config,
        change=lambda network: randomize(network, stddev=stddev),
        **options,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("forms")


@pytest.fixture(scope="module")
def pretrained(folder, randomize) -> Path:
    """A pre-training without next sentences, whose pooler was not trained."""
    settings = pretraining.PretrainingConfig(
        next_sentence=False, precision="mixed_bfloat16"
    )
    task = {"kind": "pretraining", "settings": settings}
    return make_run(folder / "pretrained", randomize, **task)


@pytest.fixture(scope="module")
def tagger(folder, randomize) -> Path:
    return make_run(folder / "tagger", randomize, kind="tagging", labels=("O", "B"))


@pytest.fixture(scope="module")
def encoder(folder, randomize) -> Path:
    return make_run(folder / "encoder", randomize, kind="encoder")


@pytest.fixture(scope="module")
def bilstm(folder, randomize) -> Path:
    task = {"kind": "tagging", "labels": ("O", "B"), "bilstm_units": 4}
    return make_run(folder / "bilstm", randomize, **task)


@pytest.fixture(scope="module")
def filler(pretrained, folder):
    """The signatures of a SavedModel that fills masks."""
    export.export_model(pretrained, folder / "filler", top_k=3)
    return tf.saved_model.load(str(folder / "filler")).signatures


def tokenize(texts: list[str], *, max_seq_length: int = 24) -> dict[str, np.ndarray]:
    """Padded ids, in Python."""
    tokenizer = tokenization.Tokenizer(VOCABULARY, do_lower_case=True)
    pairs = [(value, None) for value in texts]
    made = tokenized.tokenize(pairs, tokenizer, max_seq_length=max_seq_length)
    return made.batch(np.arange(len(pairs)))


def outputs_of(run: Path, kind: str, ids, **options):
    """What a network with the weights of a run makes of ids."""
    checkpoint = conversion.read_with_tokenizer(run)
    task = tasks.Task(kind=kind, labels=checkpoint.task.labels)
    network = registry.build_network(checkpoint.bert_config, task)
    weights.assign(network, checkpoint.arrays)
    return network(ids, training=False, **options)


# Masks


@pytest.mark.slow
def test_masks_are_filled_as_the_command_does(pretrained, filler):
    answers = filler["serving_default"](text=tf.constant(MASKED_TEXTS))
    fill = fill_mask.FillMask(pretrained)
    wanted = [fill(masked, top_k=3) for masked in MASKED_TEXTS]
    counts = [1, 1, 4, 3, 1]
    assert [len(masks) for masks in wanted] == counts
    assert answers["num_masks"].numpy().tolist() == counts
    tokens = answers["tokens"].numpy()
    assert tokens.shape == (5, 4, 3)
    for row, masks in enumerate(wanted):
        found = [[token.decode() for token in best] for best in tokens[row]]
        padding = [["", "", ""]] * (4 - len(masks))
        assert found == [[g.token for g in mask] for mask in masks] + padding
        probabilities = answers["probabilities"][row].numpy()
        np.testing.assert_allclose(
            probabilities[: len(masks)],
            [[guess.probability for guess in mask] for mask in masks],
            rtol=1e-4,
        )
        assert not probabilities[len(masks) :].any()
    assert answers["masked_lm_positions"].numpy().tolist() == [
        [2, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 2, 5, 8],
        [3, 6, 12, 0],
        [21, 0, 0, 0],
    ]
    assert len(set(tokens[..., 0].ravel())) > 2  # or this test would see little
    # The first mask of a long text stays, the last one does not.
    cut = ["nothing", "", "a " * 40 + "[MASK]", "[MASK] " + "a " * 40]
    for texts, counts in ((cut, [0, 0, 0, 1]), (["nothing"], [0]), ([], [])):
        answers = filler["serving_default"](text=tf.constant(texts, tf.string))
        assert answers["num_masks"].numpy().tolist() == counts
        assert answers["tokens"].shape == (len(texts), 1, 3)
    (mask,) = fill("[MASK] " + "a " * 21, top_k=3)
    probabilities = filler["serving_default"](text=tf.constant(cut))["probabilities"]
    expected = [guess.probability for guess in mask]
    np.testing.assert_allclose(probabilities[3, 0], expected, rtol=1e-4)


@pytest.mark.slow
def test_signatures_of_masks(filler):
    shapes = {
        "num_masks": ((None,), tf.int32),
        "masked_lm_positions": ((None, None), tf.int32),
        "tokens": ((None, None, 3), tf.string),
        "probabilities": ((None, None, 3), tf.float32),
    }
    for signature in filler.values():
        outputs = signature.structured_outputs
        found = {name: (tuple(s.shape), s.dtype) for name, s in outputs.items()}
        assert found == shapes
    assert list(filler["serving_default"].structured_input_signature[1]) == ["text"]
    ids = tokenize(["the c"])
    ids["input_ids"][0, 2] = VOCABULARY.mask_id
    tensors = {name: tf.constant(values) for name, values in ids.items()}
    from_ids = filler["ids"](**tensors, masked_lm_positions=tf.constant([[2]]))
    from_text = filler["serving_default"](text=tf.constant(["the [MASK]"]))
    for name, values in from_text.items():
        if values.dtype == tf.float32:
            np.testing.assert_allclose(from_ids[name], values, atol=1e-6)
        else:
            np.testing.assert_array_equal(from_ids[name], values)


# Vectors


def means(vectors: np.ndarray, ids) -> np.ndarray:
    """Of the vectors of each text's tokens."""
    lengths = ids["input_mask"].sum(axis=1)
    pairs = zip(vectors, lengths, strict=True)
    return np.stack([row[:length].mean(axis=0) for row, length in pairs])


def test_vectors_are_those_of_the_encoder(encoder):
    ids = tokenize(TEXTS)
    encoded = outputs_of(encoder, "encoder", ids, return_all_layers=True)
    layers = [layer.numpy() for layer in encoded["encoder_outputs"]]
    assert len(layers) == 3
    all_of_them = np.concatenate(layers, axis=-1)
    expected = {
        "cls": all_of_them[:, 0],
        "pooled": encoded["pooled_output"],
        "mean": means(all_of_them, ids),
        "tokens": all_of_them,
    }
    trained = writing.load(encoder, embedding="pooled").trained
    for kind in typing.get_args(choices.Embedding):
        chosen = (-1,) if kind == "pooled" else (0, 1, -1)
        model = served_embeddings.Embeddings(trained, kind=kind, layers=chosen)
        graph_ids = model.encode(tf.constant(TEXTS))
        answers = model.present(graph_ids, model.compute(graph_ids))
        vectors = answers.pop("token_embeddings" if kind == "tokens" else "embedding")
        np.testing.assert_allclose(vectors, expected[kind], rtol=1e-4, atol=1e-5)
        assert list(answers) == (["tokens"] if kind == "tokens" else [])
        if kind == "tokens":
            tokens = [
                [token.decode() for token in r] for r in answers["tokens"].numpy()
            ]
            assert tokens[:2] == [
                ["[CLS]", "[SEP]", *[""] * 22],
                ["[CLS]", "the", "c", "##a", "##t", "[SEP]", *[""] * 18],
            ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", typing.get_args(choices.Embedding))
@pytest.mark.parametrize("long_texts", ["head_tail", "windows_mean"])
def test_an_exported_encoder(kind, long_texts, encoder, tmp_path):
    """An export asks Python for the same vectors."""
    if kind == "tokens" and long_texts == "windows_mean":
        pytest.skip("tokens have no windows")
    export.export_model(encoder, tmp_path / "1", embedding=kind, long_texts=long_texts)
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    vectors = serve(text=tf.constant(TEXTS[:3] + [""] * 2))
    [name] = vectors.keys() - {"tokens"}
    alone = serve(text=tf.constant(TEXTS[1:2]))[name][0]
    np.testing.assert_allclose(alone, vectors[name][1, : len(alone)], atol=1e-5)
    if kind != "tokens":
        assert serve(text=tf.constant([], tf.string))["embedding"].shape == (0, 16)


# Files that take ids


@pytest.mark.slow
def test_a_litert_file_of_a_pretraining(pretrained, tmp_path):
    """Those of tuned models: test_every_kind.py."""
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    export.export_model(pretrained, tmp_path / "1", to="litert")
    beside = files_of(tmp_path / "1")
    assert beside["tokenizer_config.json"]["model_max_length"] == 24
    interpreter = interpreters.Interpreter(str(tmp_path / "1/model.tflite"))
    check_pretrained(interpreter.get_signature_runner(), pretrained)


OF_TOKENS = dict.fromkeys(
    ("input_ids", "input_mask", "segment_ids"), ["batch_size", "sequence_length"]
)


def check_onnx(
    path: Path, run: Path, check, *, axes: dict, num_norms: int, num_gelus: int
) -> None:
    onnx, onnxruntime = map(pytest.importorskip, ("onnx", "onnxruntime"))
    session = onnxruntime.InferenceSession(str(path))
    assert {value.name: value.shape for value in session.get_inputs()} == axes
    names = [value.name for value in session.get_outputs()]
    check(lambda **ids: dict(zip(names, session.run(None, ids), strict=True)), run)
    nodes = onnx.load(path).graph.node
    kinds = collections.Counter(node.op_type for node in nodes)
    assert (kinds["LayerNormalization"], kinds["Erf"]) == (num_norms, num_gelus)
    assert not kinds.keys() & {"GlobalAveragePool", "ReduceMean", "Reciprocal"}


def test_an_onnx_file(classifier, onnx_model):
    assert files_of(onnx_model) == {
        "vocab.txt": (classifier / "vocab.txt").read_text(),
        "tokenizer_config.json": {"do_lower_case": True, "model_max_length": 20},
        "labels.txt": "übel\ngood\n",
    }
    # Of a layer and the embeddings.
    norms = {"num_norms": 3, "num_gelus": 1}
    path = onnx_model / "model.onnx"
    check_onnx(path, classifier, check_classifier, axes=OF_TOKENS, **norms)


@pytest.mark.slow
def test_an_onnx_file_of_a_pretraining(pretrained, tmp_path):
    pytest.importorskip("tf2onnx")
    export.export_model(pretrained, tmp_path / "1", to="onnx")
    axes = OF_TOKENS | {"masked_lm_positions": ["batch_size", "num_positions"]}
    # Of two layers, the embeddings, and the head of masked words.
    norms = {"num_norms": 6, "num_gelus": 3}
    path = tmp_path / "1/model.onnx"
    check_onnx(path, pretrained, check_pretrained, axes=axes, **norms)


@pytest.mark.slow
@pytest.mark.parametrize("form", typing.get_args(choices.ExportForm))
def test_a_model_of_the_size_of_bert_base(form, randomize, tmp_path):
    if form in ("onnx", "transformers_js"):
        pytest.importorskip("tf2onnx")
    options = {"bert_config": architecture.BertConfig(), "stddev": 0.04}
    base = make_run(tmp_path / "base", randomize, kind="pretraining", **options)
    # Which compares the answers before the directory is there.
    export.export_model(base, tmp_path / "exported", to=form)
    files = [path for path in (tmp_path / "exported").rglob("*") if path.is_file()]
    # The one in 8 bits beside it is a quarter.
    files = [path for path in files if not path.stem.endswith("_quantized")]
    num_bytes = sum(path.stat().st_size for path in files)
    network = registry.build_network(
        architecture.BertConfig(), tasks.Task(kind="pretraining")
    )
    unused = ("pooler", "next_sentence")
    assert num_bytes > 4 * sum(
        np.prod(weight.shape, dtype=int)
        for weight in network.weights
        if not any(part in weight.path for part in unused)
    )
    # LiteRT's converter writes word embeddings twice: rows to look up, and transposed.
    twice = network.encoder.word_embeddings if form == "litert" else np.empty(0)
    num_values = network.count_params() + np.prod(twice.shape, dtype=int)
    assert num_bytes < 4.05 * num_values


def files_of(directory: Path) -> dict:
    """The files beside a model and its card."""
    return {
        path.name: json.loads(path.read_text())
        if path.suffix == ".json"
        else path.read_text(encoding="utf-8")
        for path in directory.iterdir()
        if path.name not in ("model.onnx", "model.tflite", "README.md")
    }


def test_decisions_of_several_labels_are_those_of_the_run(folder, randomize):
    """A caller of the file needs the length and the thresholds that lie beside it."""
    labels = ("übel", "so so", "good")
    settings = finetuning.FinetuningConfig(multi_label=True, max_seq_length=12)
    task = {"kind": "multi_label", "labels": labels, "settings": settings}
    run = make_run(folder / "several", randomize, **task)
    records = finetuned.FinetunedModel.load(run).predict(TEXTS)
    shares = np.array([[r.probabilities[name] for name in labels] for r in records])
    chosen = dict(zip(labels, shares.mean(axis=0).tolist(), strict=True))
    run_directory.write_results(run, {"steps": 0, "thresholds": chosen})
    export.export_model(run, folder / "file", to="litert")
    beside = files_of(folder / "file")
    decisions = beside.pop("decisions.json")
    assert beside == {
        "vocab.txt": (run / "vocab.txt").read_text(),
        "tokenizer_config.json": {"do_lower_case": True, "model_max_length": 12},
        "labels.txt": "übel\nso so\ngood\n",
    }
    assert decisions["thresholds"] == pytest.approx(chosen)
    thresholds = [decisions["thresholds"][name] for name in labels]
    ids = tokenize(TEXTS, max_seq_length=12)
    logits = formats.load_litert(folder / "file/model.tflite")(ids)["logits"]
    holds = 1 / (1 + np.exp(-logits)) >= thresholds
    records = finetuned.FinetunedModel.load(run).predict(TEXTS)
    predictions = [record.prediction for record in records]
    assert [tuple(np.array(labels)[row]) for row in holds] == predictions
    assert len({*predictions}) > 2


def check_classifier(run, classifier: Path) -> None:
    for texts in (TEXTS, TEXTS[1:2]):
        ids = tokenize(texts, max_seq_length=20)
        ids["segment_ids"][:, 3:] = ids["input_mask"][:, 3:]
        ((name, logits),) = run(**ids).items()
        assert (name, logits.dtype) == ("logits", np.float32)
        expected = outputs_of(classifier, "classification", ids)["logits"]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def check_pretrained(run, pretrained: Path) -> None:
    ids = tokenize(["the cat sat", "a", "日 " * 9])
    ids["masked_lm_positions"] = np.array([[2, 4], [1, 0], [9, 3]], "int32")
    ((name, logits),) = run(**ids).items()
    expected = outputs_of(pretrained, "pretraining", ids)[name]
    assert (name, expected.shape[:2]) == ("masked_lm_logits", (3, 2))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("to", "module"), [("onnx", "tf2onnx"), ("litert", "ai_edge_litert.interpreter")]
)
def test_a_format_says_what_to_install(pretrained, tmp_path, monkeypatch, to, module):
    monkeypatch.setitem(sys.modules, module, None)
    message = (
        rf"--to {to} needs the package {module} .*: run `pip install '.\[{to}\]' -c con"
    )
    with pytest.raises(InputError, match=message):
        export.export_model(pretrained, tmp_path / "new", to=to)


def test_a_file_that_answers_otherwise_is_not_kept(tagger, tmp_path, monkeypatch):
    models = []

    def write(model, path):
        models.append(model)

    def load(path):
        numbers = formats.numbers_of(models[0])
        return lambda ids: {name: v + 1e-3 for name, v in numbers(ids).items()}

    fake = formats.IdFormat("model.tflite", (), write, load)
    monkeypatch.setitem(formats.ID_FORMATS, "litert", fake)
    with pytest.raises(RuntimeError, match="differently, by up to 0.001 in embedding"):
        export.export_model(tagger, tmp_path / "new", to="litert", embedding="cls")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("pretrained", {"layers": (0,)}, "--layers is for --embedding cls, mean"),
        ("pretrained", {"embedding": "pooled", "layers": (0,)}, "--layers is for"),
        ("pretrained", {"top_k": 0}, "--top_k is 1 or more, got 0"),
        ("pretrained", {"top_k": 2, "to": "litert"}, "--top_k is for the guesses of"),
        ("classifier", {"top_k": 2}, "--top_k is for the guesses of a pre-trained"),
        (
            "bilstm",
            {"to": "litert"},
            "its head has a BiLSTM, which LiteRT does not hav",
        ),
        ("encoder", {}, "an encoder without a head, which answers nothing: --embed"),
        (
            *("tagger", {"embedding": "mean", "layers": (3,)}),
            "tagger: there is no layer 3: 0 are the embeddings, 1 to 2 the layers, -1 ",
        ),
        (
            *("pretrained", {"embedding": "pooled"}),
            "pretrained: a pooled vector needs encoder/pooler/kernel, encoder/pooler/",
        ),
    ],
)
def test_what_cannot_be_exported(run, options, message, request, tmp_path):
    with pytest.raises(InputError, match=message):
        export.export_model(request.getfixturevalue(run), tmp_path / "new", **options)
    assert list(tmp_path.iterdir()) == []
