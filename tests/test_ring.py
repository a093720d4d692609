"""One model through all formats and back: the weights stay, bit by bit, and each
project's own code computes from its files what ours does from where they came from.

Google's code for TensorFlow 1 does not run here: its files are only read by ours.
"""

import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion, native, weights
from bert_keras.core.settings import architecture, tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from tests import conftest

pytestmark = [
    pytest.mark.reference,
    # What the other packages warn of while they are imported is theirs to mend.
    pytest.mark.filterwarnings("ignore"),
]

VOCABULARY = tokenization.Vocabulary(
    # Small letters alone: Google's files say of casing what the vocabulary shows.
    (*features.SPECIAL_TOKENS, *"abcde", *(f"w{number}" for number in range(30)))
)
TINY = conftest.TINY.model_copy(
    update={"num_hidden_layers": 2, "hidden_act": "gelu_tanh"}
)
SIZES = {"tiny": TINY, "base": architecture.BertConfig(hidden_act="gelu_tanh")}
# Of outputs up to 1, else in proportion to the largest. Float32 has 7 digits: with the
# tiny model, theirs differ from ours by up to 1.3e-6 of 3.4 in `sequence_output` and
# 2.5e-6 of 5.0 in the logits. Sums are longer in BASE, and 12 layers add up: there
# transformers differs by 3.8e-6 of 3.7 from itself in float64, ours from it by 4.9e-6.
TOLERANCES = {"tiny": 1e-6, "base": 1e-5}
STAGES = {
    "encoder": ("google", "model_garden", "hugging_face", "keras_hub", "native"),
    # KerasHub has no place for the heads.
    "pretraining": ("google", "model_garden", "hugging_face", "native"),
}
OUTPUTS = {
    "encoder": ("sequence_output", "pooled_output"),
    "pretraining": ("masked_lm_logits", "next_sentence_logits"),
}


def random_arrays(bert_config, task, *, stddev):
    """Weights of a network, so large that none can be mistaken for another."""
    random = np.random.default_rng(13)
    network = registry.build_network(bert_config, task)
    return {
        name: np.float32(name.endswith("gamma"))
        + stddev * random.standard_normal(array.shape, np.float32)
        for name, array in weights.from_network(network).items()
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("encoder", "tiny"), marks=pytest.mark.slow),
        ("pretraining", "tiny"),
        pytest.param(("encoder", "base"), marks=pytest.mark.slow),
        pytest.param(("pretraining", "base"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def ring(request, tmp_path_factory):
    """A model that went through all formats: `stages` has its place in each, `left` the
    weights that conversions left out or made new, `ours` the outputs of its end."""
    kind, size = request.param
    task = tasks.Task(kind=kind)
    found = SimpleNamespace(kind=kind, config=SIZES[size], left=[], stages={})
    found.tolerance = TOLERANCES[size]
    stddev = 0.04 if size == "base" else 0.3
    found.arrays = random_arrays(found.config, task, stddev=stddev)
    folder = tmp_path_factory.mktemp("ring")
    source = folder / "source"
    source.mkdir()
    native.write(
        weights.Checkpoint(
            bert_config=found.config,
            task=task,
            arrays=found.arrays,
            vocabulary=VOCABULARY,
            do_lower_case=True,
        ),
        source,
    )
    for name in STAGES[kind]:
        done = conversion.convert(source, folder / name, to=name)
        found.left += [*done.left_out, *done.made_new]
        source = found.stages[name] = folder / name
    network = registry.build_network(found.config, task)
    weights.assign(network, conversion.read(source).arrays)
    outputs = network(BATCH, training=False)
    found.ours = {n: keras.ops.convert_to_numpy(outputs[n]) for n in OUTPUTS[kind]}
    yield found
    # Those of the size of BASE take gigabytes.
    shutil.rmtree(folder)


MASK = np.int32(np.arange(32)[None] < np.array([32, 20, 9])[:, None])
BATCH = {
    "input_ids": np.random.default_rng(3).integers(1, 40, MASK.shape, "int32") * MASK,
    "input_mask": MASK,
    "segment_ids": MASK * np.int32(np.arange(32) >= 5),
    "masked_lm_positions": np.int32([[1, 4, 30], [3, 10, 19], [2, 8, 0]]),
}
"""Three examples of two segments, two of them padded."""


def test_every_stage_has_the_same_weights(ring):
    assert ring.left == []
    for name, directory in ring.stages.items():
        found = conversion.read(directory)
        assert found.bert_config == ring.config, name
        assert found.task == tasks.Task(kind=ring.kind), name
        assert (found.vocabulary, found.do_lower_case) == (VOCABULARY, True), name
        assert found.arrays.keys() == ring.arrays.keys(), name
        for weight, array in ring.arrays.items():
            assert found.arrays[weight].tobytes() == array.tobytes(), (name, weight)


def hugging_face_outputs(ring):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    is_encoder = ring.kind == "encoder"
    name = "BertModel" if is_encoder else "BertForPreTraining"
    model, loading = getattr(transformers, name).from_pretrained(
        ring.stages["hugging_face"], output_loading_info=True
    )
    assert not any(loading.values())
    with torch.no_grad():
        outputs = model.eval()(
            input_ids=torch.tensor(BATCH["input_ids"]).long(),
            attention_mask=torch.tensor(BATCH["input_mask"]),
            token_type_ids=torch.tensor(BATCH["segment_ids"]).long(),
        )
    if is_encoder:
        return {
            "sequence_output": outputs.last_hidden_state.numpy(),
            "pooled_output": outputs.pooler_output.numpy(),
        }
    positions = BATCH["masked_lm_positions"][..., None]
    logits = outputs.prediction_logits.numpy()
    return {
        "masked_lm_logits": np.take_along_axis(logits, positions, axis=1),
        "next_sentence_logits": outputs.seq_relationship_logits.numpy(),
    }


def approximate_gelu(x):
    return tf.nn.gelu(x, approximate=True)


def model_garden_outputs(ring):
    modeling = pytest.importorskip("official.nlp.modeling")
    sizes = ring.config
    encoder = modeling.networks.BertEncoderV2(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        max_sequence_length=sizes.max_position_embeddings,
        type_vocab_size=sizes.type_vocab_size,
        inner_dim=sizes.intermediate_size,
        inner_activation=approximate_gelu,
    )
    inputs = {
        "input_word_ids": BATCH["input_ids"],
        "input_mask": BATCH["input_mask"],
        "input_type_ids": BATCH["segment_ids"],
    }
    prefix = tf.train.latest_checkpoint(ring.stages["model_garden"])
    if ring.kind == "encoder":
        encoder(inputs)
        restored = tf.train.Checkpoint(encoder=encoder).read(prefix)
        restored.assert_existing_objects_matched()
        return encoder(inputs)
    head = modeling.layers.ClassificationHead(
        sizes.hidden_size, num_classes=2, activation="tanh", name="next_sentence"
    )
    model = modeling.models.BertPretrainerV2(
        encoder, mlm_activation=approximate_gelu, classification_heads=[head]
    )
    inputs["masked_lm_positions"] = BATCH["masked_lm_positions"]
    model(inputs)
    restored = tf.train.Checkpoint(model=model).read(prefix)
    restored.assert_existing_objects_matched()
    outputs = model(inputs)
    return {
        "masked_lm_logits": outputs["mlm_logits"],
        "next_sentence_logits": outputs["next_sentence"],
    }


def keras_hub_outputs(ring):
    if ring.kind != "encoder":
        pytest.skip("KerasHub has no place for the heads")
    models = pytest.importorskip("keras_hub").models
    backbone = models.BertBackbone.from_preset(str(ring.stages["keras_hub"]))
    inputs = {
        "token_ids": BATCH["input_ids"],
        "padding_mask": BATCH["input_mask"],
        "segment_ids": BATCH["segment_ids"],
    }
    return backbone(inputs, training=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "outputs_of",
    [
        hugging_face_outputs,
        model_garden_outputs,
        keras_hub_outputs,
    ],
)
def test_their_code_computes_the_same_from_their_files(ring, outputs_of):
    theirs = outputs_of(ring)
    for name, expected in ring.ours.items():
        found = keras.ops.convert_to_numpy(theirs[name])
        assert expected.std() > 0.1
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=ring.tolerance * scale)
