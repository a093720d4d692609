"""The encoder and both heads equal two implementations that we did not write."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.settings.config import BertConfig
from bert_keras.model import encoder, pretrainer

pytestmark = [
    pytest.mark.reference,
    # What the other packages warn of while they are imported is theirs to mend.
    pytest.mark.filterwarnings("ignore"),
]

TOLERANCE = 1e-5

# The vocabulary is no part of the shape that could matter, and one layer is as another:
# twelve of them, in several copies, take gigabytes.
BASE = BertConfig(vocab_size=1000, num_hidden_layers=3)


def largest_difference(ours, theirs, mask=None) -> float:
    difference = np.abs(np.array(ours) - np.array(theirs))
    return float(difference.max() if mask is None else difference[mask > 0].max())


def hugging_face_weights(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our weights under the names of Hugging Face, whose matrices are transposed."""
    renamed = {}
    for path, value in weights.items():
        if path.endswith("kernel"):
            value = value.T
        if "query_key_value" in path:
            for part, values in zip(
                ("query", "key", "value"), np.split(value, 3), strict=True
            ):
                renamed[path.replace("query_key_value", part)] = values
        else:
            renamed[path] = value
    return {hugging_face_name(path): value for path, value in renamed.items()}


def hugging_face_name(path: str) -> str:
    for ours, theirs in {
        "masked_lm_head/transform": "cls/predictions/transform/dense",
        "masked_lm_head/layer_norm": "cls/predictions/transform/LayerNorm",
        "masked_lm_head/output_bias": "cls/predictions/bias",
        "next_sentence_head/classifier": "cls/seq_relationship",
        "encoder/embeddings/": "bert/embeddings/",
        "encoder/pooler/": "bert/pooler/dense/",
        "encoder/layer_": "bert/encoder/layer/",
        "word_embeddings": "word_embeddings/weight",
        "position_embeddings": "position_embeddings/weight",
        "type_embeddings": "token_type_embeddings/weight",
        "self_attention/output_dense": "attention/output/dense",
        "self_attention/": "attention/self/",
        "attention_layer_norm": "attention/output/LayerNorm",
        "feed_forward/intermediate_dense": "intermediate/dense",
        "feed_forward/output_dense": "output/dense",
        "output_layer_norm": "output/LayerNorm",
        "layer_norm": "LayerNorm",
        "kernel": "weight",
        "gamma": "weight",
        "beta": "bias",
    }.items():
        path = path.replace(ours, theirs)
    return path.replace("/", ".")


def hugging_face_model(config: BertConfig, weights: dict[str, np.ndarray]):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    values = config.model_dump()
    if config.hidden_act == "gelu_tanh":
        values["hidden_act"] = "gelu_pytorch_tanh"
    model = transformers.BertForPreTraining(transformers.BertConfig(**values)).eval()
    state = {
        name: torch.tensor(value)
        for name, value in hugging_face_weights(weights).items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    # The tied matrix, its bias and a constant are there under a second name.
    assert not unexpected
    assert {name.split(".")[-2] for name in missing} <= {"decoder", "embeddings"}
    model.tie_weights()
    return model


@pytest.mark.parametrize(
    "shape", ["tiny", "tiny_tanh", pytest.param("base", marks=pytest.mark.slow)]
)
def test_equals_hugging_face(
    shape, tiny_config, make_batch, randomize, weights_by_path
):
    torch = pytest.importorskip("torch")
    tanh = tiny_config.model_copy(update={"hidden_act": "gelu_tanh"})
    config = {"tiny": tiny_config, "tiny_tanh": tanh, "base": BASE}[shape]
    batch = make_batch(config, lengths=(32, 20, 9))
    model = pretrainer.BertPretrainer(config)
    model.build()
    randomize(model, stddev=0.04 if shape == "base" else 0.3)
    reference = hugging_face_model(config, weights_by_path(model))

    arguments = {
        "input_ids": torch.tensor(batch["input_ids"]).long(),
        "attention_mask": torch.tensor(batch["input_mask"]),
        "token_type_ids": torch.tensor(batch["segment_ids"]).long(),
    }
    with torch.no_grad():
        encoded = reference.bert(**arguments)
        heads = reference(**arguments)
    ours = model.encoder(batch)
    outputs = model(batch)
    logits = heads.prediction_logits.numpy()
    logits = np.take_along_axis(logits, batch["masked_lm_positions"][..., None], axis=1)

    assert np.std(ours["sequence_output"]) > 0.5
    assert (
        largest_difference(ours["sequence_output"], encoded.last_hidden_state)
        <= TOLERANCE
    )
    assert largest_difference(ours["pooled_output"], encoded.pooler_output) <= TOLERANCE
    # Sums of `hidden_size` products of numbers around 1: relative to their size.
    scale = max(1.0, float(np.abs(logits).max()))
    assert largest_difference(outputs["masked_lm_logits"], logits) <= TOLERANCE * scale
    assert (
        largest_difference(
            outputs["next_sentence_logits"], heads.seq_relationship_logits
        )
        <= TOLERANCE * scale
    )


def test_loss_equals_hugging_face(tiny_config, make_batch, randomize, weights_by_path):
    torch = pytest.importorskip("torch")
    batch = make_batch(tiny_config)
    model = pretrainer.BertPretrainer(tiny_config)
    model.build()
    randomize(model)
    reference = hugging_face_model(tiny_config, weights_by_path(model))

    # Theirs are labels at every position, -100 for what is not predicted.
    labels = np.full(batch["input_ids"].shape, -100)
    for row, slot in np.argwhere(batch["masked_lm_weights"] > 0):
        position = batch["masked_lm_positions"][row, slot]
        labels[row, position] = batch["masked_lm_ids"][row, slot]
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            attention_mask=torch.tensor(batch["input_mask"]),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            labels=torch.tensor(labels),
            next_sentence_label=torch.tensor(
                batch["next_sentence_labels"][:, 0]
            ).long(),
        ).loss.item()

    terms = model.loss_terms(batch, model(batch))
    loss = sum(float(terms[name][0] / terms[name][1]) for name in model.loss_names)
    assert math.isclose(loss, expected, rel_tol=1e-5)


def model_garden_weights(
    weights: dict[str, np.ndarray], config: BertConfig
) -> dict[str, np.ndarray]:
    """Our weights under the names and in the shapes of tf-models-official."""
    heads = (config.num_attention_heads, -1)
    renamed = {}
    for path, value in weights.items():
        if "query_key_value" in path:
            for part, values in zip(
                ("query", "key", "value"), np.split(value, 3, axis=-1), strict=True
            ):
                name = path.replace("query_key_value", part)
                renamed[name] = values.reshape(*values.shape[:-1], *heads)
        elif path.endswith("self_attention/output_dense/kernel"):
            renamed[path] = value.reshape(*heads, config.hidden_size)
        else:
            renamed[path] = value
    return {model_garden_name(path): value for path, value in renamed.items()}


def model_garden_name(path: str) -> str:
    for ours, theirs in {
        "embeddings/word_embeddings": "word_embeddings/embeddings",
        "embeddings/position_embeddings": "position_embedding/embeddings",
        "embeddings/type_embeddings": "type_embeddings/embeddings",
        "self_attention/output_dense": "self_attention/attention_output",
        "/attention_layer_norm": "/self_attention_layer_norm",
        "feed_forward/intermediate_dense": "intermediate",
        "feed_forward/output_dense": "output",
        "pooler/": "pooler_transform/",
    }.items():
        path = path.replace(ours, theirs)
    return f"transformer/{path}" if path.startswith("layer_") else path


@pytest.mark.parametrize("shape", ["tiny", "tiny_tanh", "base"])
def test_equals_model_garden(
    shape, tiny_config, make_batch, randomize, weights_by_path
):
    networks = pytest.importorskip("official.nlp.modeling.networks")
    tanh = tiny_config.model_copy(update={"hidden_act": "gelu_tanh"})
    config = {"tiny": tiny_config, "tiny_tanh": tanh, "base": BASE}[shape]
    batch = make_batch(config, lengths=(32, 20, 9))
    model = encoder.BertEncoder(config)
    model.build()
    randomize(model, stddev=0.04 if shape == "base" else 0.3)

    reference = networks.BertEncoderV2(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.intermediate_size,
        inner_activation=lambda x: tf.nn.gelu(
            x, approximate=config.hidden_act == "gelu_tanh"
        ),
    )
    inputs = {
        "input_word_ids": batch["input_ids"],
        "input_mask": batch["input_mask"],
        "input_type_ids": batch["segment_ids"],
    }
    reference(inputs)
    theirs = model_garden_weights(weights_by_path(model), config)
    for variable in reference.trainable_variables:
        name = variable.name.partition("/")[2].removesuffix(":0")
        variable.assign(theirs.pop(name))
    assert not theirs

    expected = reference(inputs)
    ours = model(batch, return_all_layers=True)
    assert np.std(ours["sequence_output"]) > 0.5
    for name in ("sequence_output", "pooled_output"):
        assert largest_difference(ours[name], expected[name]) <= TOLERANCE
    for index, output in enumerate(expected["encoder_outputs"]):
        layer = ours["encoder_outputs"][1 + index]
        assert largest_difference(layer, output, batch["input_mask"]) <= TOLERANCE
