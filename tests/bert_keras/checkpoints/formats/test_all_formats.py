"""Laws of all formats: round trips, and faults that are the same in each."""

import json
import shutil

import pytest

from bert_keras.checkpoints import conversion, weights
from bert_keras.checkpoints.formats import keras_hub
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from tests.bert_keras.checkpoints.formats import making

POOLER = ("encoder/pooler/",)
HEADS = ("masked_lm_head/", "next_sentence_head/", "head/")
ENCODER = making.TASKS["encoder"]
NUMBERED = tasks.Task(kind="classification", labels=("0", "1", "2"))

# By format and kind: the task that is read back, and prefixes of weights left out.
# Else everything is there.
OTHERWISE = {
    "google": {
        "classification": (NUMBERED, ()),
        "multi_label": (tasks.Task(kind="classification", labels=("0", "1")), ()),
        "tagging": (NUMBERED, ()),
        "choice": (making.TASKS["regression"], ()),
        "embedding": (ENCODER, ()),
    },
    "model_garden": {
        "classification": (NUMBERED, ()),
        "multi_label": (tasks.Task(kind="classification", labels=("0", "1")), ()),
        "tagging": (tasks.Task(kind="tagging", labels=("0", "1", "2")), ()),
        "choice": (ENCODER, HEADS),
        "embedding": (ENCODER, ()),
    },
    "hugging_face": {
        "tagging": (making.TASKS["tagging"], POOLER),
        "span": (making.TASKS["span"], POOLER),
        "embedding": (ENCODER, ()),
    },
    "keras_hub": {
        kind: (ENCODER, HEADS)
        for kind in ("pretraining", "tagging", "span", "choice", "embedding")
    },
}
FORMATS = [*OTHERWISE]
CASES = [(form, kind) for form in FORMATS for kind in making.TASKS]
CASES += [("sentence_transformers", "embedding"), ("native", "tagging")]
CASES += [
    pytest.param("native", kind, marks=pytest.mark.slow)
    for kind in making.TASKS
    if kind != "tagging"
]


@pytest.fixture(scope="module", params=["native", *FORMATS])
def written_once(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    conversion.FORMATS[request.param].write(making.make_checkpoint(), directory)
    return request.param, directory


@pytest.fixture
def written(written_once, tmp_path):
    """A format, and the directory of a pre-trained model in it, to be changed."""
    form, directory = written_once
    return form, shutil.copytree(directory, tmp_path / "model")


@pytest.mark.parametrize(("form", "kind"), CASES)
def test_what_was_written_is_read_back(form, kind, tmp_path):
    source, module = making.make_checkpoint(kind), conversion.FORMATS[form]
    task, left_out = OTHERWISE.get(form, {}).get(kind, (source.task, ()))
    reasons = module.write(source, tmp_path)
    assert set(reasons) == {n for n in source.arrays if n.startswith(left_out)}
    assert conversion.recognize(tmp_path) == form
    result = module.read(tmp_path)
    weights.check(result, path=tmp_path)
    arrays = {n: a for n, a in source.arrays.items() if n not in reasons}
    making.assert_same_arrays(result.arrays, arrays)
    assert (result.task, result.bert_config) == (task, making.CONFIG)
    assert (result.vocabulary, result.do_lower_case) == (making.VOCABULARY, True)
    # Classifiers and the pre-trainer of Model Garden have poolers of their own.
    known = {"the head has a pooler of its own", "step counter"}
    assert set(result.unused.values()) <= (known if form == "model_garden" else set())


@pytest.mark.parametrize("form", FORMATS)
def test_layers_are_in_the_order_of_their_numbers(form, tmp_path):
    """The tenth, with a number of two digits, comes after the second."""
    deep = making.CONFIG.model_copy(update={"num_hidden_layers": 12})
    source = making.make_checkpoint("encoder", bert_config=deep)
    module = conversion.FORMATS[form]
    assert module.write(source, tmp_path) == {}
    result = module.read(tmp_path)
    assert result.bert_config == deep
    making.assert_same_arrays(result.arrays, source.arrays)


@pytest.mark.parametrize(
    ("form", "without", "kind"),
    [
        *(
            (form, without, "pretraining")
            for form in ("google", "model_garden")
            for without in (("next_",), ("next_", "encoder/pooler"))
        ),
        ("google", ("next_", "masked_lm"), "encoder"),
        ("google", ("next_", "masked_lm", "encoder/pooler"), "encoder"),
        ("model_garden", ("next_", "masked_lm", "encoder/pooler"), "encoder"),
    ],
)
def test_parts_that_are_not_there(form, without, kind, tmp_path):
    task = making.TASKS[kind if form == "model_garden" else "pretraining"]
    source = making.make_checkpoint(task=task, without=without)
    conversion.FORMATS[form].write(source, tmp_path)
    result = conversion.read(tmp_path)
    assert result.task == making.TASKS[kind]
    making.assert_same_arrays(result.arrays, source.arrays)


TASK = "the format does not name the task of a model: this one, for {}, is read back as"
LABELS = "the format has no names of labels: they are read back as numbers from 0,"
LENGTH = "the format has no longest input: cut texts at 20 tokens, as the run does;"
LOSSES = {
    ("google", "classification"): [LABELS, LENGTH],
    ("google", "tagging"): [TASK, LABELS, LENGTH],
    ("google", "regression"): [LENGTH],
    ("google", "pretraining"): [],
    ("model_garden", "tagging"): [LABELS, LENGTH],
    ("model_garden", "choice"): [LENGTH],
    ("hugging_face", "classification"): [],
    ("hugging_face", "span"): [],
    ("hugging_face", "ranking"): [TASK],
    ("hugging_face", "embedding"): [TASK],
    ("keras_hub", "multi_label"): [],
    ("keras_hub", "choice"): [LENGTH],
    ("sentence_transformers", "embedding"): [],
}


@pytest.mark.parametrize(("form", "kind"), LOSSES)
def test_what_a_format_cannot_say_is_told(form, kind, tmp_path):
    task = making.TASKS.get(kind, tasks.Task(kind="ranking", has_text_pair=True))
    length = None if kind == "pretraining" else 20
    source = making.make_checkpoint(task=task, max_seq_length=length)
    module = conversion.FORMATS[form]
    left_out = module.write(source, tmp_path)
    losses = conversion.list_losses(source, module.read(tmp_path), left_out)
    for loss, expected in zip(losses, LOSSES[form, kind], strict=True):
        assert loss.startswith(expected.format(kind))


@pytest.mark.parametrize("form", FORMATS)
def test_weights_need_no_vocabulary(form, tmp_path):
    module = conversion.FORMATS[form]
    module.write(making.make_checkpoint(vocabulary=None, do_lower_case=None), tmp_path)
    result = module.read(tmp_path)
    assert (result.vocabulary, result.do_lower_case) == (None, None)
    # Beside them, as errors ask for.
    making.VOCABULARY.save(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    result = module.read(tmp_path)
    assert (result.vocabulary, result.do_lower_case) == (making.VOCABULARY, False)


@pytest.mark.parametrize("form", ["hugging_face", "keras_hub", "sentence_transformers"])
def test_a_vocabulary_needs_a_casing(form, tmp_path):
    checkpoint = making.make_checkpoint("embedding", do_lower_case=None)
    with pytest.raises(InputError, match="does not say whether text is lower-cased"):
        conversion.FORMATS[form].write(checkpoint, tmp_path)
    assert list(tmp_path.iterdir()) == []


LAYERS = "has 2 layers, but by the configuration next to it {}: they do not belong"
SHAPE = r"tensor '.*' has the shape {}, but by the configuration next to it, it has {}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"num_hidden_layers": n}, LAYERS.format(n)) for n in (1, 3, 1000)),
        ({"num_hidden_layers": 10**12}, "less than or equal to 1000, got 10000000"),
        ({"hidden_size": 20}, SHAPE.format(r"\(40, 16\)", r"\(40, 20\)")),
        ({"intermediate_size": 32}, SHAPE.format(r"\(.*24.*\)", r"\(.*32.*\)")),
        ({"num_attention_heads": 3}, "must be a multiple of `num_attention_heads`"),
        ({"vocab_size": "many"}, "`vocab_size`: .* got 'many'"),
    ],
)
def test_another_configuration_is_refused(changes, message, written):
    form, directory = written
    is_here = (directory / "bert_config.json").is_file()
    path = directory / ("bert_config.json" if is_here else "config.json")
    values = json.loads(path.read_text())
    if form == "keras_hub":
        theirs = {ours: theirs for theirs, ours in keras_hub._KEYS.items()}
        values["config"] |= {theirs[key]: value for key, value in changes.items()}
    else:
        values |= changes
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=message) as error:
        conversion.read(directory)
    assert str(directory) in str(error.value)


@pytest.mark.parametrize("part", [0, 0.3, 0.999])
def test_a_cut_file_is_refused(part, written):
    form, directory = written
    names, message = {
        "google": ("*.data-*", "cut or missing"),
        # The index does not tell the length of the graph, which comes last.
        "model_garden": ("*.data-*", "cut or missing|cannot be read as a TensorFlow"),
        "hugging_face": ("*.safetensors", "cannot be read as safetensors"),
        "keras_hub": ("*.h5", "cannot be read as HDF5"),
        "native": ("*.safetensors", "cannot be read as safetensors"),
    }[form]
    (path,) = directory.glob(names)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError, match=message):
        conversion.read(directory)
