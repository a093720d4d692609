"""Adapters of peft, both ways, against the package itself."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from bert_keras.checkpoints import conversion, weights
from bert_keras.core.errors import InputError
from bert_keras.kinds import registry
from bert_keras.model import weight_shapes
from tests import make
from tests.bert_keras.checkpoints.formats import making

# transformers of itself.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

CLASSES = {
    "classification": ("BertForSequenceClassification", "SEQ_CLS"),
    "regression": ("BertForSequenceClassification", "SEQ_CLS"),
    "tagging": ("BertForTokenClassification", "TOKEN_CLS"),
    "span": ("BertForQuestionAnswering", "QUESTION_ANS"),
    "choice": ("BertForMultipleChoice", None),
    "embedding": ("BertModel", "FEATURE_EXTRACTION"),
}
IDS = np.random.default_rng(1).integers(5, 40, (2, 12), dtype="int32")


@pytest.fixture(scope="module")
def peft():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return pytest.importorskip("peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """An encoder in the two formats that both programs read."""
    folder = tmp_path_factory.mktemp("bases")
    run, theirs = folder / "run", folder / "theirs"
    # Larger than usual, so that changes are seen in the outputs.
    bert_config = making.CONFIG.model_copy(update={"initializer_range": 0.2})
    make.make_run(run, making.WORDS, bert_config=bert_config, kind="encoder")
    conversion.convert(run, theirs, to="hugging_face")
    return theirs


def ours(path, **options) -> np.ndarray:
    """Logits, or vectors of all tokens, of a checkpoint of any format."""
    checkpoint = conversion.read(path, **options)
    task = checkpoint.task
    if task.kind == "embedding":
        task = making.TASKS["encoder"]
    network = registry.build_network(checkpoint.bert_config, task, seed=0)
    weights.assign(network, checkpoint.arrays)
    ids = IDS[:, None] if task.kind == "choice" else IDS
    outputs = network({"input_ids": ids})
    if task.kind == "span":
        outputs = [outputs[f"{name}_logits"] for name in ("start", "end")]
        return np.stack([np.asarray(values) for values in outputs])
    return np.asarray(outputs.get("logits", outputs.get("sequence_output")))


def theirs(model, kind) -> np.ndarray:
    import torch

    ids = torch.tensor(IDS[:, None] if kind == "choice" else IDS, dtype=torch.int64)
    with torch.no_grad():
        outputs = model.eval()(input_ids=ids)
    if kind == "span":
        return np.stack([outputs.start_logits.numpy(), outputs.end_logits.numpy()])
    if kind == "embedding":
        return outputs.last_hidden_state.numpy()
    return outputs.logits.numpy()


def their_base(base, kind):
    import transformers

    name, _ = CLASSES[kind]
    has_size = kind in ("classification", "regression", "tagging")
    sizes = {"num_labels": making.TASKS[kind].num_labels} if has_size else {}
    return getattr(transformers, name).from_pretrained(base, **sizes)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"targets": ("output.dense", "key")}) for kind in CLASSES),
        ("classification", {"targets": tuple(weight_shapes.LORA_PLACES)}),
        ("classification", {"has_pooler": True}),
    ],
)
def test_peft_computes_what_we_computed(peft, kind, options, base, tmp_path):
    task = making.TASKS[kind].model_dump(exclude_unset=True)
    run = make.make_adapter(tmp_path / "run", base, **options, **task)
    conversion.convert(run, tmp_path / "peft", to="peft")
    # A key of theirs that is missing is a warning of theirs, and so an error here.
    model = peft.PeftModel.from_pretrained(their_base(base, kind), tmp_path / "peft")
    expected = theirs(model, kind)
    np.testing.assert_allclose(ours(run), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours(tmp_path / "peft"), expected, rtol=0, atol=1e-5)
    plain = theirs(their_base(base, kind), kind)
    assert np.abs(expected - plain).max() > 0.1


CHOICES = [(kind, ["classifier"] if kind == "choice" else None) for kind in CLASSES]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("kind", "saved"), [*CHOICES, ("classification", ["classifier", "pooler"])]
)
def test_we_compute_what_peft_computed(peft, kind, saved, base, tmp_path):
    """With changes in half of the layers, and an alpha of its own."""
    import torch

    torch.manual_seed(0)
    _, task_type = CLASSES[kind]
    targets = ["key", "attention.output.dense", "intermediate.dense"]
    config = peft.LoraConfig(
        task_type=task_type,
        r=3,
        lora_alpha=5,
        lora_dropout=0.1,
        target_modules=targets,
        layers_to_transform=[1],
        modules_to_save=saved,
    )
    model = peft.get_peft_model(their_base(base, kind), config)
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    expected = theirs(model, kind)
    model.save_pretrained(tmp_path / "peft")
    found = ours(tmp_path / "peft")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def written(base):
    """A directory of peft for three classes."""
    task = making.TASKS["classification"].model_dump(exclude_unset=True)
    run = make.make_adapter(base.with_name("tuned"), base, **task)
    conversion.convert(run, base.with_name("peft"), to="peft")
    return base.with_name("peft")


def test_what_is_written(written, base):
    assert sorted(path.name for path in written.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert json.loads((written / "adapter_config.json").read_text()) == {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "auto_mapping": {
            "base_model_class": "BertForSequenceClassification",
            "parent_library": "transformers.models.bert.modeling_bert",
        },
        "base_model_name_or_path": str(base),
        "r": 2,
        "lora_alpha": 3,
        "target_modules": ["query", "value"],
        "modules_to_save": ["classifier"],
        "bias": "none",
        "inference_mode": True,
    }
    tensors = safetensors.numpy.load_file(written / "adapter_model.safetensors")
    layer = "base_model.model.bert.encoder.layer"
    assert {name: array.shape for name, array in tensors.items()} == {
        **{
            f"{layer}.{index}.attention.self.{part}.lora_{name}.weight": shape
            for index in range(2)
            for part in ("query", "value")
            for name, shape in (("A", (2, 16)), ("B", (16, 2)))
        },
        "base_model.model.classifier.weight": (3, 16),
        "base_model.model.classifier.bias": (3,),
    }
    assert conversion.read(written).changes.adapter.targets == ("query", "value")


def test_a_copy_of_the_base_is_named_instead(written, base, tmp_path):
    run, copy = base.with_name("tuned"), base.with_name("run")
    done = conversion.convert(run, tmp_path / "peft", to="peft", base=copy)
    tensors = safetensors.numpy.load_file(written / "adapter_model.safetensors")
    sizes = (len(tensors), sum(array.size for array in tensors.values()))
    assert (done.num_weights, done.num_parameters) == sizes
    values = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert values["base_model_name_or_path"] == str(copy)
    np.testing.assert_array_equal(ours(tmp_path / "peft"), ours(written))


def test_an_adapter_of_a_tuned_base_has_its_labels_and_perhaps_its_head(
    written, base, tmp_path
):
    tuned, peft_dir = tmp_path / "tuned", shutil.copytree(written, tmp_path / "peft")
    conversion.convert(written, tuned, to="native")
    labels = {"labels": ["no", "so", "yes"]}
    making.change_json(tuned / "task.json", **labels)
    path, expected = peft_dir / "adapter_model.safetensors", ours(written)
    tensors = safetensors.numpy.load_file(path)
    for name in [name for name in tensors if "classifier" in name]:
        del tensors[name]
    safetensors.numpy.save_file(tensors, path)
    merged = conversion.read(peft_dir, base=tuned)
    assert merged.task.labels == ("no", "so", "yes")
    head = conversion.read(tuned).arrays["head/classifier/kernel"]
    np.testing.assert_array_equal(merged.arrays["head/classifier/kernel"], head)
    assert np.abs(ours(peft_dir, base=tuned) - expected).max() > 0.1


LAYER = "base_model.model.bert.encoder.layer.0.attention.self"
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
KNOWN = "is known here: such an adapter computes something else"
UNKNOWN = [
    (values, f'{CONFIG}: "{key}" is {value!r}, only {known} {KNOWN}')
    for values, known in (
        ({"use_dora": True}, "None"),
        ({"use_rslora": True}, "None"),
        ({"rank_pattern": {"query": 4}}, "None"),
        ({"alpha_pattern": {"query": 4}}, "None"),
        ({"lora_bias": True}, "None"),
        ({"fan_in_fan_out": True}, "None"),
        ({"of_next_year": {"a": 1}}, "None"),
        ({"bias": "lora_only"}, "'none'"),
        ({"peft_type": "LOHA"}, "'LORA'"),
        ({"init_lora_weights": "pissa"}, "True"),
    )
    for key, value in values.items()
]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *UNKNOWN,
        ({"r": "8"}, f'{CONFIG}: expected numbers "r" and "lora_alpha"'),
        (
            {"r": 3},
            f"{TENSORS}: tensor '{LAYER}.query.lora_A.weight' has the shape (2, 16), "
            "but by the configuration next to it, it has (3, 16): they do not belong "
            "together",
        ),
        (
            {"task_type": "CAUSAL_LM"},
            f"{CONFIG}: \"task_type\" is 'CAUSAL_LM', not one of a BERT here",
        ),
        (
            {"base_model_name_or_path": "bert-base-uncased"},
            ": its base cannot be read: bert-base-uncased: does not exist; if it is a "
            "model of the Hugging Face hub, download it first: hf download "
            "google-bert/bert-base-uncased --local-dir bert-base-uncased; put it back, "
            "or merge with a copy of it: bert-keras convert --input PATH --base COPY "
            "--to native --output NEW",
        ),
        (
            {"base_model_name_or_path": None},
            ": its base cannot be read: a base without a name: does not exist; put it "
            "back, or merge with a copy of it: bert-keras convert --input PATH --base "
            "COPY --to native --output NEW",
        ),
    ],
)
def test_configurations_that_are_refused(values, message, written, tmp_path):
    path = shutil.copytree(written, tmp_path / "peft")
    making.change_json(path / CONFIG, **values)
    with pytest.raises(InputError) as error:
        conversion.read(path)
    separator = "" if message.startswith(":") else "/"
    assert str(error.value) == f"{path}{separator}{message}".replace("PATH", str(path))


def without(tensors, *names):
    return {k: v for k, v in tensors.items() if not any(name in k for name in names)}


EMBEDDINGS = "base_model.model.bert.embeddings.word_embeddings"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: (
                tensors | {f"{EMBEDDINGS}.lora_embedding_A": np.zeros((2, 40), "f4")}
            ),
            f"'{EMBEDDINGS}.lora_embedding_A' has no place here: expected `lora_A` and "
            "`lora_B` of query, key, value, attention.output.dense, "
            "intermediate.dense, output.dense, and the head",
        ),
        (
            lambda tensors: without(tensors, "layer.1.attention.self.value.lora_B"),
            "has no encoder/layer_1/self_attention/value/lora_kernel_b, nor has its "
            "base",
        ),
        (
            lambda tensors: without(tensors, "classifier.weight"),
            "has no head/classifier/kernel, nor has its base",
        ),
    ],
)
def test_tensors_that_are_refused(change, message, written, tmp_path):
    path = shutil.copytree(written, tmp_path / "peft") / TENSORS
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file(change(tensors), path)
    with pytest.raises(InputError) as error:
        conversion.read(path.parent)
    assert str(error.value) == f"{path}: {message}"


def test_a_pickle_is_not_opened(written, tmp_path):
    path = shutil.copytree(written, tmp_path / "peft")
    (path / TENSORS).rename(path / "adapter_model.bin")
    with pytest.raises(
        InputError, match="expected adapter_model.safetensors; a .bin is a"
    ):
        conversion.read(path)


def test_only_changes_of_the_base_become_files_of_peft(written, base, tmp_path):
    run, other = base.with_name("tuned"), tmp_path / "other"
    make.make_run(other, making.WORDS, bert_config=making.CONFIG, kind="encoder")
    whole = "^peft keeps changes: expected a run with `lora_rank`$"
    for source, options, message in (
        (base, {}, whole),
        # Its embeddings would be others than the base's.
        (run, {"keep_tokens": ["w1"]}, whole),
        (written, {}, "peft: is in the format 'peft' already"),
        (run, {"base": other}, f"^{run}: was trained on another base than {other}: "),
        (written, {"base": other}, f"^{written}: was trained on another base than "),
    ):
        with pytest.raises(InputError, match=message):
            conversion.convert(source, tmp_path / "out", to="peft", **options)
        assert not (tmp_path / "out").exists()
