"""Quantised exports and what they lose."""

import functools
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_keras import export
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import formats
from bert_keras.export.quantized import quantizing
from bert_keras.inference import finetuned
from tests import make

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *LETTERS))
BERT_CONFIG = architecture.BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=64,
)


def write_table(path: Path, labels: list[str]) -> Path:
    rows = [
        f"{' '.join(np.roll(list(LETTERS), i)[: 1 + i % 20])}\t{label}\n"
        for i, label in enumerate(labels)
    ]
    path.write_text("text\tlabel\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    return tmp_path_factory.mktemp("quantized")


@pytest.fixture(scope="module")
def made(folder, randomize) -> Path:
    """A run with random weights."""
    return make.make_run(
        folder / "run",
        VOCABULARY,
        settings=finetuning.FinetuningConfig(max_seq_length=32),
        bert_config=BERT_CONFIG,
        change=lambda network: randomize(network, stddev=0.2),
        **{"kind": "classification", "labels": ("x", "y"), "has_text_pair": False},
    )


@pytest.fixture(scope="module")
def dev(folder, made) -> Path:
    """Texts with the answers that the model itself gives: its score is 100."""
    texts = write_table(folder / "texts.tsv", ["x", "y"] * 20)
    model = finetuned.FinetunedModel.load(made)
    given = model.answer(model.read(texts, has_labels=True)).records()
    return write_table(folder / "dev.tsv", [record.prediction for record in given])


@pytest.fixture(scope="module", autouse=True)
def written_once():
    """Converts the run once for each format, which takes most of an export."""
    contents = {}

    def write_or_copy(to, write, model, path):
        if to not in contents:
            write(model, path)
            contents[to] = path.read_bytes()
        path.write_bytes(contents[to])

    with pytest.MonkeyPatch.context() as patch:
        for to, form in formats.ID_FORMATS.items():
            copy = functools.partial(write_or_copy, to, form.write)
            patch.setitem(formats.ID_FORMATS, to, form._replace(write=copy))
        yield


WAYS = [
    ("onnx", True),
    pytest.param(("onnx", False), marks=pytest.mark.slow),
    pytest.param(("litert", False), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=WAYS, ids=str)
def exported(request, folder, made, dev) -> tuple[str, Path]:
    """The format, and an int8 file in it."""
    to, reduce_range = request.param
    if to == "litert":
        pytest.importorskip("ai_edge_quantizer")
    output = folder / f"{to}_{reduce_range}"
    options = {"to": to, "quantize": "int8", "reduce_range": reduce_range}
    export.export_model(made, output, **options, dev=dev, max_drop=100)
    return to, output / formats.ID_FORMATS[to].file_name


def float32_tables(path: Path) -> list[tuple[int, ...]]:
    if path.suffix == ".onnx":
        import onnx

        return [
            tuple(tensor.dims)
            for tensor in onnx.load(path).graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
        ]
    from ai_edge_litert import interpreter

    return [
        tuple(tensor["shape"].tolist())
        for tensor in interpreter.Interpreter(str(path)).get_tensor_details()
        if tensor["dtype"] == np.float32
    ]


def test_products_have_no_weights_in_float32(exported):
    to, path = exported
    # Biases and scales are left, of 256 numbers at most, and tables that nothing is
    # multiplied by: ONNX cuts that of positions, LiteRT's quantiser knows no lookup.
    large = [shape for shape in float32_tables(path) if np.prod(shape) > 256]
    expected = {"onnx": [(64, 64)], "litert": [(len(VOCABULARY), 64), (64, 64)]}
    assert sorted(large) == sorted(expected[to])
    assert not path.stat().st_mode & 0o111
    others = ("vocab.txt", "tokenizer_config.json", "labels.txt", "quantization.json")
    assert {other.name for other in path.parent.iterdir()} == {path.name, *others}


def test_the_verdict_is_what_the_files_do(exported, made, dev):
    to, path = exported
    verdict = json.loads(path.with_name("quantization.json").read_text())
    model = finetuned.FinetunedModel.load(made)
    data = model.read(dev, has_labels=True)
    inputs = data.encode(model.task, model.tokenizer, model.settings)
    right = [record.prediction for record in model.answer(data).records()]
    # The longest first, in batches of 32, whose activations share their scales.
    order = np.argsort(-inputs.lengths, kind="stable")
    run = formats.ID_FORMATS[to].load(path)
    assert (verdict["metric"], verdict["examples"]) == ("accuracy", 40)
    assert verdict["score"]["float32"] == 100
    probabilities = []
    for name, size in (("quantised", 32), ("one_at_a_time", 1)):
        logits = np.zeros((40, 2), np.float32)
        for first in range(0, 40, size):
            rows = order[first : first + size]
            batch = inputs.batch(rows)
            ids = {n: batch[n] for n in ("input_ids", "input_mask", "segment_ids")}
            logits[rows] = run(ids)["logits"]
        answers = [("x", "y")[best] for best in logits.argmax(-1)]
        changed = sum(a != b for a, b in zip(answers, right, strict=True))
        assert verdict["changed_answers"][name] == changed
        assert verdict["score"][name] == pytest.approx(100 * (1 - changed / 40))
        probabilities.append(scipy.special.softmax(logits, axis=-1))
    # LiteRT has a scale for each row.
    difference = np.abs(probabilities[0] - probabilities[1]).max()
    assert difference > 1e-3 if to == "onnx" else difference < 1e-5
    size = path.stat().st_size
    assert size == verdict["bytes"]["quantised"] < verdict["bytes"]["float32"] / 2
    assert set(verdict["latency_ms"]) == {"1", "32"}
    assert all(ms > 0 for row in verdict["latency_ms"].values() for ms in row.values())


def test_a_reduced_range(exported):
    """Sums of products of 8 and 7 bits fit into 16, where 8 and 8 would overflow."""
    to, path = exported
    if to == "litert":
        pytest.skip("LiteRT has no such option")
    import onnx

    largest = max(
        np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()
        for tensor in onnx.load(path).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    )
    verdict = json.loads(path.with_name("quantization.json").read_text())
    assert (
        (largest == 64) == verdict["reduce_range"] == path.parent.name.endswith("True")
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_saved_model_in_half_precision(made, dev, tmp_path, precision):
    options = {"quantize": precision, "dev": dev, "max_drop": 100}
    found = export.export_model(made, tmp_path / "small", **options)
    loaded = tf.saved_model.load(str(tmp_path / "small"))
    dtypes = {
        (variable.shape.rank, variable.dtype.name)
        for variable in loaded.signatures["serving_default"].variables
    }
    # Normalisation is in float32, and biases of products are not.
    assert dtypes == {(2, precision), (1, precision), (1, "float32")}
    files = [path for path in (tmp_path / "small").rglob("*") if path.is_file()]
    beside = ("README.md", "quantization.json")
    size = sum(path.stat().st_size for path in files if path.name not in beside)
    assert found["bytes"]["quantised"] == size < found["bytes"]["float32"]


def test_a_large_drop_leaves_nothing(made, dev, tmp_path, monkeypatch, capsys):
    sizes = []

    def ruin(path, *, reduce_range):
        import onnx

        sizes.append(path.stat().st_size)
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            if tensor.name.endswith("word_embeddings.embeddings"):
                values = onnx.numpy_helper.to_array(tensor)[::-1] * 9
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        for node in model.graph.node:
            # Swaps what the two classes get.
            node.output[:] = [n if n != "logits" else "turned" for n in node.output]
        model.graph.node.append(onnx.helper.make_node("Neg", ["turned"], ["logits"]))
        onnx.save(model, path)

    monkeypatch.setattr(quantizing, "quantize_onnx", ruin)
    output = tmp_path / "new"
    arguments = ["export", "--model", str(made), "--output", str(output)]
    arguments += ["--to", "onnx", "--quantize", "int8", "--dev", str(dev)]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert "points of accuracy" in error
    assert "more than --max_drop 0.5: nothing was written" in error
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*arguments, "--max_drop", "100"]) == 0
    printed = capsys.readouterr().out
    assert re.search("\n  one at a time +0.00\n", printed)
    assert (
        "\nanswers changed, of 40: 40 in batches of 32, 40 one at a time\n" in printed
    )
    verdict = json.loads((output / "quantization.json").read_text())
    assert verdict["bytes"]["float32"] == sizes[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "saved_model", "quantize": "int8"}, "such export, but --to onnx --qua"),
        ({"to": "onnx", "quantize": "int8", "dev": None}, "needs --dev FILE"),
        ({"to": "onnx", "quantize": "int8", "embedding": "mean"}, "not for --embeddin"),
        ({"to": "onnx", "quantize": "int8", "max_drop": -1}, "from 0 to 100 points"),
        ({"to": "onnx"}, "are for --quantize"),
        ({"dev": None, "reduce_range": True}, "--reduce_range are for --quantize"),
        (
            {"to": "litert", "quantize": "int8", "reduce_range": True},
            "--reduce_range is for --to onnx --quantize int8, got --to litert --quant",
        ),
    ],
)
def test_options_that_do_not_go_together(made, dev, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        export.export_model(made, tmp_path / "new", **{"dev": dev, **options})


def test_the_training_file_is_no_dev_file(made, dev, tmp_path):
    digest = hashlib.sha256(dev.read_bytes()).hexdigest()
    (made / "inputs.json").write_text(json.dumps({"train_sha256": digest}))
    try:
        with pytest.raises(InputError, match="was trained on this very file"):
            export.export_model(
                made, tmp_path / "new", to="onnx", quantize="int8", dev=dev
            )
    finally:
        (made / "inputs.json").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "name"),
    [("onnx", "onnxruntime.quantization"), ("litert", "ai_edge_quantizer")],
)
def test_a_quantiser_that_is_missing(made, dev, tmp_path, monkeypatch, to, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"quantiser .*pip install '.\[{to}\]' -c"):
        export.export_model(made, tmp_path / "new", to=to, quantize="int8", dev=dev)
