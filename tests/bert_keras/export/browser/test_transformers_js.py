"""Directories for transformers.js, read by other programs than a browser."""

import functools
import itertools
import json
import re
import resource
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import scipy.special

from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.export.browser import transformers_js
from bert_keras.inference import finetuned
from tests import make
from tests.bert_keras.export.browser import hostile
from tests.bert_keras.export.browser.conftest import VOCABULARY

PAGE = resources.files("bert_keras.export.browser")


def test_the_directory_is_the_one_that_the_library_reads(exported):
    run, page = exported("pairs")
    names = {str(p.relative_to(page)) for p in page.rglob("*") if p.is_file()}
    assert names == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"),
        *("onnx/model.onnx", "onnx/model_quantized.onnx"),
        *("index.html", "answers.js", "package.json"),
    }
    config = json.loads((page / "config.json").read_text())
    facts = config.pop("bert_keras")
    sizes = {k: config.pop(k) for k in [*config] if isinstance(config[k], int | float)}
    assert sizes["num_hidden_layers"] == 1 and sizes["vocab_size"] == len(VOCABULARY)
    assert config == {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "problem_type": "single_label_classification",
        "id2label": {"0": "good", "1": "bad"},
        "label2id": {"good": 0, "bad": 1},
    }
    assert facts.pop("characters") == transformers_js.character_classes()
    assert facts == {
        "name": "run",
        "kind": "classification",
        "has_text_pair": True,
        "pooling": "mean",
        "normalize": False,
        "max_seq_length": 24,
        "do_lower_case": True,
        "long_texts": "head_tail",
        "window_stride": facts["window_stride"],
    }
    tokenizer = json.loads((page / "tokenizer_config.json").read_text())
    expected = {"tokenizer_class": "BertTokenizer", "model_max_length": 24}
    assert tokenizer.items() >= {**expected, "mask_token": "[MASK]"}.items()
    with pytest.raises(InputError, match=r"an export for serving \(onnx/\*.onnx\)"):
        conversion.read(page)


INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
OUTPUTS = {
    "classes": {"logits": 2},
    "several_labels": {"logits": 2},
    "rating": {"logits": 2},
    "tags": {"logits": 3},
    "spans": {"start_logits": 2, "end_logits": 2},
    "vectors": {"last_hidden_state": 3},
    "encoder": {"last_hidden_state": 3},
    "ranking": {"logits": 2},
    "words": {"logits": 3},
}
FAST = ("words",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in OUTPUTS],
)
def test_the_names_are_those_of_the_library(name, exported):
    import onnxruntime

    _, page = exported(name)
    sizes = []
    for file in ("model.onnx", "model_quantized.onnx"):
        path = page / "onnx" / file
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [x.name for x in session.get_inputs()] == INPUTS
        assert {x.type for x in session.get_inputs()} == {"tensor(int64)"}
        outputs = {x.name: len(x.shape) for x in session.get_outputs()}
        assert outputs == OUTPUTS[name]
        if "last_hidden_state" in outputs:
            ids = np.array([[2, 8, 9, 3, 0, 0]], np.int64)
            rows = (ids, np.int64(ids > 0), 0 * ids)
            [vectors] = session.run(None, dict(zip(INPUTS, rows, strict=True)))
            assert vectors[0, :4].all() and not vectors[0, 4:].any()
        sizes.append(path.stat().st_size)
    assert sizes[1] < sizes[0]


def test_what_others_make_of_it_is_our_answer(exported):
    """The files alone: `tokenizers` makes the ids, ONNX Runtime the logits."""
    tokenizers = pytest.importorskip("tokenizers")
    import onnxruntime

    run, page = exported("pairs")
    pairs = [("the cat sat", "a dog!"), ("Café 日本", "x"), ("a\u200bb", "1,000 no")]
    tokenizer = tokenizers.Tokenizer.from_file(str(page / "tokenizer.json"))
    model = finetuned.FinetunedModel.load(run, precision="float32")
    session = onnxruntime.InferenceSession(page / "onnx/model.onnx")
    for pair, record in zip(pairs, model.predict(pairs), strict=True):
        found = tokenizer.encode(*pair)
        columns = (found.ids, found.attention_mask, found.type_ids)
        ids = {k: np.array([v], np.int64) for k, v in zip(INPUTS, columns, strict=True)}
        probabilities = scipy.special.softmax(session.run(["logits"], ids)[0][0])
        expected = [*record.probabilities.values()]
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_matrices_are_rounded_in_blocks(tmp_path):
    """Each to 255 numbers of its own; small matrices and vectors stay as they are."""
    onnx = pytest.importorskip("onnx")
    import onnxruntime

    rng = np.random.default_rng(0)
    sizes = {"kernel": (128, 30), "odd": (40, 30), "x.embeddings": (64, 30)}
    sizes |= {"small": (31, 33), "bias": (2000,)}
    arrays = {name: np.float32(rng.normal(0, 2, size)) for name, size in sizes.items()}
    arrays["kernel"][7, 5], arrays["odd"][:, 3] = 90, 0
    infos, nodes, tensors = [], [], []
    for name, array in arrays.items():
        infos.append(onnx.helper.make_tensor_value_info(f"{name}/out", 1, array.shape))
        nodes.append(onnx.helper.make_node("Identity", [name], [f"{name}/out"]))
        tensors.append(onnx.numpy_helper.from_array(array, name))
    graph = onnx.helper.make_graph(nodes, "matrices", [], infos, tensors)
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    exact, small = tmp_path / "exact.onnx", tmp_path / "small.onnx"
    onnx.save(model, exact)
    transformers_js.write_small(exact, small)
    num_rounded = sum(arrays[name].size for name in ("kernel", "odd", "x.embeddings"))
    assert exact.stat().st_size - small.stat().st_size > 2.4 * num_rounded
    outputs = onnxruntime.InferenceSession(small).run(None, {})
    found = dict(zip(arrays, outputs, strict=True))
    blocks = [
        (found[name][part], arrays[name][part])
        for name, part in (
            *(("kernel", np.s_[i : i + 64, j]) for i in (0, 64) for j in range(30)),
            *(("odd", np.s_[:, j]) for j in range(30)),
            *(("x.embeddings", np.s_[i]) for i in range(64)),
        )
    ]
    for actual, expected in blocks:
        most = np.abs(expected).max()
        error = np.abs(actual - expected)
        assert error.max() <= most / 254 + 1e-5
        assert error[np.abs(expected).argmax()] < 1e-5
    assert any((actual != expected).any() for actual, expected in blocks)
    for name in ("small", "bias"):
        assert (found[name] == arrays[name]).all()


def test_classes_of_characters_are_the_tokenizers():
    """Half of a pair is in no class. No other plane has characters."""
    points = itertools.chain(range(0x32000), range(0xE0000, 0xE1000))
    every = "".join(map(chr, points))
    classes = transformers_js.character_classes()
    found = {name: {*re.findall(pattern, every)} for name, pattern in classes.items()}
    assert found["dropped"] == {c for c in every if tokenization.is_dropped(c)}
    cjk = {c for c in every if tokenization.is_cjk(c)}
    assert found["alone"] == cjk | {c for c in every if tokenization.is_punctuation(c)}
    # No letter is left of a mark; but those of an enclosing mark (Me) are kept.
    assert {tokenization.strip_accents(c) for c in found["marks"]} == {""}
    assert tokenization.strip_accents("\u0488") not in found["marks"]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_hostile_texts_have_our_ids(do_lower_case):
    """In another reader of the file; in the library's own: test_in_node.py. A capital
    sigma at the end of a word is another letter to each of the two."""
    tokenizers = pytest.importorskip("tokenizers")
    ours = tokenization.Tokenizer(VOCABULARY, do_lower_case=do_lower_case)
    theirs = tokenizers.Tokenizer.from_str(
        json.dumps(transformers_js.describe_tokenizer(ours))
    )
    texts = hostile.strings(7, 3000, list(VOCABULARY.tokens[5:]), special=0)
    texts = [x for x in texts if not re.search("[\ud800-\udfffΣ]", x)]
    found = {
        x: theirs.encode(x, add_special_tokens=False).ids
        for x in texts
        if not any(token in x for token in hostile.SPECIAL)
    }
    assert len(found) > 2000
    assert found == {x: ours.encode(x) for x in found}


REFUSALS = [
    ({"kind": "choice"}, {}, "transformers.js has no pipeline for choice; take onnx"),
    (
        {"kind": "tagging", "labels": ("O", "B"), "feature_layers": "last"},
        {},
        "the head reads `feature_layers`, which transformers.js does not have",
    ),
    ({"kind": "encoder"}, {}, "an encoder without a head, which answers nothing"),
    ({"kind": "encoder"}, {"embedding": "tokens"}, "the cls or the mean of the last"),
    ({"kind": "encoder"}, {"embedding": "pooled"}, "the cls or the mean of the last"),
    (
        {"kind": "encoder"},
        {"embedding": "mean", "layers": [-2]},
        "vectors are the cls or the mean of the last layer",
    ),
    ({"kind": "encoder"}, {"quantize": "int8"}, "--quantize needs --dev"),
    ({"kind": "encoder"}, {"quantize": "int8", "dev": "x"}, "there is no such export"),
    ({"kind": "pretraining"}, {"top_k": 3}, "--top_k is for the guesses"),
]


@pytest.fixture(scope="module")
def bare_run(tmp_path_factory) -> Callable[[str], Path]:
    """A function from a task, in JSON, to a run with new weights."""
    folder = tmp_path_factory.mktemp("bare")

    @functools.cache
    def write(task: str) -> Path:
        task = json.loads(task)
        return make.make_run(folder / task["kind"], VOCABULARY, **task)

    return write


@pytest.mark.parametrize(("task", "options", "message"), REFUSALS)
def test_what_no_page_can_ask_is_refused(task, options, message, bare_run, tmp_path):
    pytest.importorskip("tf2onnx")
    run, page = bare_run(json.dumps(task)), tmp_path / "page"
    with pytest.raises(InputError, match=message) as failure:
        export.export_model(run, page, to="transformers_js", **options)
    assert "\n" not in str(failure.value)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_leaves_nothing(bare_run, tmp_path):
    """A limit on the size of files fails writing in the same place."""
    pytest.importorskip("tf2onnx")
    run = bare_run('{"kind": "pretraining"}')
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, most))
    try:
        with pytest.raises(OSError):
            export.export_model(run, tmp_path / "page", to="transformers_js")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not list(tmp_path.iterdir())


def luminance(colour: str) -> float:
    """Relative luminance of `#rgb` or `#rrggbb`, by WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares
    ]
    return sum(map(float.__mul__, linear, (0.2126, 0.7152, 0.0722)))


def test_the_page_can_be_read():
    """Text has a contrast of 4.5, and bars and borders of 3: WCAG AA."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{([^}]*)\}", page)
    assert len(blocks) == 2  # light and dark
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#\w+)", block))
        for front, back, least in (
            *(("text", back, 4.5) for back in ("back", "card", "mark")),
            *(("quiet", back, 4.5) for back in ("back", "card")),
            *(("bad", back, 4.5) for back in ("back", "card")),
            *(("bar", "track", 3), ("line", "card", 3), ("line", "back", 3)),
        ):
            low, high = sorted(luminance(colours[name]) for name in (front, back))
            assert (high + 0.05) / (low + 0.05) >= least, (front, back)


def test_the_page_loads_nothing_from_elsewhere():
    for name in ("index.html", "answers.js"):
        text = (PAGE / name).read_text(encoding="utf-8")
        assert {*re.findall(r"\bhttps?://[\w.:]*", text)} <= {"http://localhost:8000"}
        assert "innerHTML" not in text
    assert "default-src 'self'" in (PAGE / "index.html").read_text(encoding="utf-8")
    package = json.loads((PAGE / "package.json").read_text())
    assert re.search(
        r"@huggingface/transformers@\d+\.\d+\.\d+ ", package["scripts"]["library"]
    )
