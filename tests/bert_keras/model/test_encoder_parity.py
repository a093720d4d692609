"""The encoder and both heads equal an implementation that we did not write; others: see
`tests/test_ring.py`."""

import math

import numpy as np
import pytest

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import pretrainer

pytestmark = [
    pytest.mark.reference,
    # What the other packages warn of while they are imported is theirs to mend.
    pytest.mark.filterwarnings("ignore"),
]

TOLERANCE = 1e-5

# The vocabulary is no part of the shape that could matter, and one layer is as another:
# twelve of them, in several copies, take gigabytes.
BASE = BertConfig(vocab_size=1000, num_hidden_layers=3)


def largest_difference(ours, theirs) -> float:
    return float(np.abs(np.array(ours) - np.array(theirs)).max())


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
    "shape", ["tiny", pytest.param("base", marks=pytest.mark.slow)]
)
def test_equals_hugging_face(
    shape, tiny_config, make_batch, randomize, weights_by_path
):
    """Outputs of the encoder and of both heads, and the loss."""
    torch = pytest.importorskip("torch")
    config = tiny_config if shape == "tiny" else BASE
    batch = make_batch(config, lengths=(32, 20, 9))
    model = pretrainer.BertPretrainer(config)
    model.build()
    randomize(model, stddev=0.04 if shape == "base" else 0.3)
    reference = hugging_face_model(config, weights_by_path(model))
    # Theirs are labels at every position, -100 for what is not predicted.
    labels = np.full(batch["input_ids"].shape, -100)
    for row, slot in np.argwhere(batch["masked_lm_weights"] > 0):
        position = batch["masked_lm_positions"][row, slot]
        labels[row, position] = batch["masked_lm_ids"][row, slot]
    sentences = batch["next_sentence_labels"][:, 0]
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]).long(),
        "attention_mask": torch.tensor(batch["input_mask"]),
        "token_type_ids": torch.tensor(batch["segment_ids"]).long(),
    }
    with torch.no_grad():
        encoded = reference.bert(**inputs)
        heads = reference(
            **inputs,
            labels=torch.tensor(labels),
            next_sentence_label=torch.tensor(sentences).long(),
        )
    logits = heads.prediction_logits.numpy()
    logits = np.take_along_axis(logits, batch["masked_lm_positions"][..., None], axis=1)
    # Sums of `hidden_size` products of numbers around 1: relative to their size.
    scale = max(1.0, float(np.abs(logits).max()))
    outputs = model(batch)
    ours = outputs | model.encoder(batch)
    assert np.std(ours["sequence_output"]) > 0.5
    for name, expected, tolerance in (
        ("sequence_output", encoded.last_hidden_state, TOLERANCE),
        ("pooled_output", encoded.pooler_output, TOLERANCE),
        ("masked_lm_logits", logits, TOLERANCE * scale),
        ("next_sentence_logits", heads.seq_relationship_logits, TOLERANCE * scale),
    ):
        assert largest_difference(ours[name], expected) <= tolerance, name
    terms = model.loss_terms(batch, outputs)
    loss = sum(float(terms[name][0] / terms[name][1]) for name in model.loss_names)
    assert math.isclose(loss, heads.loss.item(), rel_tol=1e-5)
