"""Checkpoints of tf-models-official, both ways with that package's own models."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import tensor_bundle
from bert_keras.checkpoints.formats import companions, google_tf1, model_garden
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

# What the other package warns of is its own to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = 1e-5

CONFIG = making.CONFIG
PRETRAINING, ENCODER = making.TASKS["pretraining"], making.TASKS["encoder"]


def make_checkpoint(task=PRETRAINING, **options):
    return making.make_checkpoint(task=task, **options)


def read(path):
    """Reads a checkpoint of their models, which have `CONFIG`."""
    companions.write(
        make_checkpoint(vocabulary=None), path if path.is_dir() else path.parent
    )
    return model_garden.read(path)


@pytest.fixture(scope="module")
def official():
    """The package with their models."""
    return pytest.importorskip("official.nlp.modeling")


def their_encoder(official, name="BertEncoderV2"):
    encoder = getattr(official.networks, name)(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        num_layers=CONFIG.num_hidden_layers,
        num_attention_heads=CONFIG.num_attention_heads,
        max_sequence_length=CONFIG.max_position_embeddings,
        type_vocab_size=CONFIG.type_vocab_size,
        inner_dim=CONFIG.intermediate_size,
    )
    encoder(encoder.inputs)
    return encoder


def approximate_gelu(x):
    return tf.nn.gelu(x, approximate=True)


def their_pretrainer(official, *heads):
    heads = [
        official.layers.ClassificationHead(
            inner_dim=CONFIG.hidden_size, num_classes=num_classes, name=name
        )
        for name, num_classes in heads
    ]
    model = official.models.BertPretrainerV2(
        their_encoder(official),
        mlm_activation=approximate_gelu,
        classification_heads=heads,
    )
    model(model.inputs)
    return model


def fill(model):
    """Gives one of their models random weights."""
    random = np.random.default_rng(5)
    for variable in model.variables:
        centre = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(centre + 0.3 * random.standard_normal(variable.shape))


def their_inputs(batch):
    return {
        "input_word_ids": batch["input_ids"],
        "input_mask": batch["input_mask"],
        "input_type_ids": batch["segment_ids"],
        "masked_lm_positions": batch["masked_lm_positions"],
    }


def our_outputs(checkpoint, batch):
    network = registry.build_network(checkpoint.bert_config, checkpoint.task)
    assert weights.assign(network, checkpoint.arrays) == []
    return network(batch)


def assert_near(ours, theirs):
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=TOLERANCE)


def names_in(prefix):
    return set(tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map())


def value(name):
    return f"{name}/.ATTRIBUTES/VARIABLE_VALUE"


# === What we write, their models restore; what they save, we read ===


THREE = tasks.Task(kind="classification", labels=("0", "1", "2"))
TAGGING = tasks.Task(kind="tagging", labels=("0", "1", "2"))
SPAN = making.TASKS["span"]
MODELS = {
    "encoder": (ENCODER, their_encoder),
    "pretrainer": (PRETRAINING, lambda o: their_pretrainer(o, ("next_sentence", 2))),
    "classifier": (THREE, lambda o: o.models.BertClassifier(their_encoder(o), 3)),
    "own pooler": (
        THREE,
        lambda o: o.models.BertClassifier(
            their_encoder(o), 3, use_encoder_pooler=False
        ),
    ),
    "regression": (
        tasks.Task(kind="regression"),
        lambda o: o.models.BertClassifier(their_encoder(o), 1),
    ),
    "tagger": (TAGGING, lambda o: o.models.BertTokenClassifier(their_encoder(o), 3)),
    "span": (SPAN, lambda o: o.models.BertSpanLabeler(their_encoder(o))),
}
"""Tasks, and models for them."""
THEIR_NAMES = {
    "masked_lm_logits": "mlm_logits",
    "next_sentence_logits": "next_sentence",
}


def assert_same_answers(checkpoint, model, batch):
    ours, theirs = our_outputs(checkpoint, batch), model(their_inputs(batch))
    if isinstance(theirs, dict):
        theirs = [theirs[THEIR_NAMES.get(name, name)] for name in ours]
    theirs = theirs if isinstance(theirs, list) else [theirs]
    for our, their in zip(ours.values(), theirs, strict=True):
        assert_near(np.reshape(our, -1), np.reshape(their, -1))


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_and_restored(name, official, make_batch, tmp_path):
    """Whole, and by the items that its trainer saves."""
    task, make = MODELS[name]
    model, batch = make(official), make_batch(CONFIG)
    fill(model)
    whole = {"encoder" if name == "encoder" else "model": model}
    items = getattr(model, "checkpoint_items", {})
    saved = tf.train.Checkpoint(**whole, **items).save(str(tmp_path / "theirs/ckpt"))
    checkpoint = read(tmp_path / "theirs")
    assert checkpoint.task == task
    reasons = set(checkpoint.unused.values())
    assert reasons <= {"the head has a pooler of its own", "step counter"}
    assert_same_answers(checkpoint, model, batch)

    checkpoint = make_checkpoint(task)
    (tmp_path / "ours").mkdir()
    assert model_garden.write(checkpoint, tmp_path / "ours") == {}
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {
        *("bert_config.json", "vocab.txt", "checkpoint", "bert_model.ckpt-1.index"),
        "bert_model.ckpt-1.data-00000-of-00001",
    }
    ours = tf.train.latest_checkpoint(str(tmp_path / "ours"))
    for objects in (items, {**whole, **items}):
        status = tf.train.Checkpoint(**objects).read(ours)
        status.assert_existing_objects_matched()
    assert_same_answers(checkpoint, model, batch)
    if name == "encoder":
        assert names_in(ours) == names_in(saved)


@pytest.mark.reference
def test_reads_a_training_run(official, make_batch, tmp_path):
    """The checkpoint of a trainer, its heads and optimizer."""
    import tf_keras

    model = their_pretrainer(official, ("next_sentence", 2))
    fill(model)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    step = tf.Variable(3, dtype="int64")
    tf.train.Checkpoint(
        model=model, optimizer=optimizer, global_step=step, **model.checkpoint_items
    ).save(str(tmp_path / "ckpt"))
    assert model_garden.recognizes(tmp_path)
    assert not google_tf1.recognizes(tmp_path)
    checkpoint = read(tmp_path)
    assert checkpoint.task == PRETRAINING
    assert checkpoint.vocabulary is checkpoint.do_lower_case is None
    weights.check(checkpoint, path=tmp_path)

    names = names_in(tmp_path / "ckpt-1") - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    poolers = {value(f"encoder/_pooler_layer/{n}") for n in ("kernel", "bias")}
    assert checkpoint.unused == {
        **{n: "optimizer slot" for n in names if n.startswith("optimizer/")},
        value("global_step"): "step counter",
        value("save_counter"): "step counter",
        **dict.fromkeys(poolers, "the head has a pooler of its own"),
    }
    # The word embeddings have another name than in a file with an encoder only.
    assert value("encoder/_embedding_layer/embeddings") not in names
    batch = make_batch(CONFIG)
    ours, theirs = our_outputs(checkpoint, batch), model(their_inputs(batch))
    assert_near(ours["masked_lm_logits"], theirs["mlm_logits"])
    assert_near(ours["next_sentence_logits"], theirs["next_sentence"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objects"),
    [
        ("BertEncoderV2", "model"),
        *(("BertEncoder", objects) for objects in ("encoder", "model", "root")),
    ],
)
@pytest.mark.reference
def test_reads_an_encoder(name, objects, official, make_batch, tmp_path):
    encoder = their_encoder(official, name)
    fill(encoder)
    # `root` makes the encoder itself the root of the graph.
    tf.train.Checkpoint(**{objects: encoder}).write(str(tmp_path / "ckpt"))
    checkpoint = read(tmp_path / "ckpt")
    assert checkpoint.task == ENCODER
    assert checkpoint.unused == {}
    batch = make_batch(CONFIG)
    theirs = encoder(
        their_inputs(batch)
        if name == "BertEncoderV2"
        else [batch["input_ids"], batch["input_mask"], batch["segment_ids"]]
    )
    if name == "BertEncoderV2":
        theirs = [theirs["sequence_output"], theirs["pooled_output"]]
    ours = our_outputs(checkpoint, batch)
    assert_near(ours["sequence_output"], theirs[0])
    assert_near(ours["pooled_output"], theirs[1])


@pytest.mark.slow
@pytest.mark.reference
def test_reads_slots_of_the_older_optimizers(official, tmp_path):
    import tf_keras

    encoder = their_encoder(official)
    optimizer = tf_keras.optimizers.legacy.Adam()
    variables = encoder.trainable_variables
    optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables])
    tf.train.Checkpoint(encoder=encoder, optimizer=optimizer).write(
        str(tmp_path / "ckpt")
    )
    checkpoint = read(tmp_path)
    slots = names_in(tmp_path / "ckpt") - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    slots = {n for n in slots if ".OPTIMIZER_SLOT" in n or n.startswith("optimizer/")}
    assert len(slots) == 2 * len(variables) + 5
    assert checkpoint.unused == dict.fromkeys(slots, "optimizer slot")
    assert len(checkpoint.arrays) == len(variables)


@pytest.mark.slow
@pytest.mark.reference
def test_several_heads(official, tmp_path):
    """Only the name beside the model tells which head is for the next sentence."""
    model = their_pretrainer(
        official, ("topic", 2), ("next_sentence", 2), ("language", 5)
    )
    fill(model)
    tf.train.Checkpoint(model=model, **model.checkpoint_items).write(
        str(tmp_path / "named")
    )
    tf.train.Checkpoint(model=model).write(str(tmp_path / "nameless"))
    checkpoint = read(tmp_path / "named")
    head = model.classification_heads[1]
    arrays = checkpoint.arrays
    kernel = arrays["next_sentence_head/classifier/kernel"]
    np.testing.assert_array_equal(kernel, head.out_proj.kernel)
    np.testing.assert_array_equal(arrays["encoder/pooler/kernel"], head.dense.kernel)
    assert sum(why == "not part of BERT" for why in checkpoint.unused.values()) == 8
    checkpoint = read(tmp_path / "nameless")
    assert not any(n.startswith("next_sentence_head/") for n in checkpoint.arrays)
    pooler = checkpoint.arrays["encoder/pooler/kernel"]
    np.testing.assert_array_equal(pooler, model.encoder_network.pooler_layer.kernel)


def test_reads_an_encoder_of_2020(tmp_path):
    """Its layers have numbers for names, and attention's output another place."""
    source = make_checkpoint(ENCODER)
    rows = model_garden._rows(CONFIG, ENCODER)
    numbered = {
        "encoder/_embedding_layer": "0",
        "encoder/_position_embedding_layer": "1",
        "encoder/_type_embedding_layer": "2",
        "encoder/_embedding_norm_layer": "3",
        "encoder/_transformer_layers/0": "4",
        "encoder/_transformer_layers/1": "5",
        "pooler": "6",
        "_attention_layer/_output_dense": "_attention_output_dense",
    }
    tree = {}
    for path, array in weights.write_rows(rows, source.arrays):
        for today, before in numbered.items():
            number = f"layer_with_weights-{before}" if before.isdigit() else before
            path = path.replace(today, number)
        branch = tree
        *parents, name = path.split("/")
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = array
    encoder = model_garden._object(tree)
    tf.train.Checkpoint(model=encoder).write(str(tmp_path / "ckpt"))
    assert value("model/layer_with_weights-5/_attention_output_dense/kernel") in (
        names_in(tmp_path / "ckpt")
    )
    assert model_garden.recognizes(tmp_path)
    checkpoint = read(tmp_path)
    assert checkpoint.task == ENCODER
    assert checkpoint.unused == {}
    making.assert_same_arrays(checkpoint.arrays, source.arrays)


# === Configuration ===


@pytest.fixture
def written(tmp_path):
    """A directory with a checkpoint and its `bert_config.json`."""
    model_garden.write(make_checkpoint(), tmp_path)
    return tmp_path


def test_without_configuration(written):
    (written / "bert_config.json").unlink()
    message = "of Model Garden has the sizes in its params.yaml$"
    with pytest.raises(InputError, match=message):
        model_garden.read(written)


# === Other checkpoints and damage ===


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: tf.train.Checkpoint(a=tf.Variable(1.0)).write(f"{path}/ckpt"),
            r"ckpt\.index: expected an encoder of Model",
        ),
        (
            lambda path: google_tf1.write(make_checkpoint(), path),
            "expected an object checkpoint of TensorFlow",
        ),
        (
            lambda path: tensor_bundle.write(
                path / "ckpt", {tensor_bundle.GRAPH: b"\xff\xff\xff"}
            ),
            "damaged graph of objects",
        ),
    ],
    ids=["other objects", "named tensors", "damaged graph"],
)
def test_other_checkpoints_and_damage(write, message, tmp_path):
    write(tmp_path)
    assert not model_garden.recognizes(tmp_path)
    with pytest.raises(InputError, match=message):
        model_garden.read(tmp_path)
