"""Checks of requests inside an exported graph, which answer with a sentence.

A server passes requests on: without these checks an unfit request fails somewhere in
the network, with the names of operations, or gets a wrong answer. The checks look at
shapes and ids only, which costs nothing beside a layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_keras.core.settings import architecture

PLACES = ("masked_lm_positions", "word_positions")
"""Inputs that hold places of tokens."""


def rows(
    specs: Sequence[tf.TensorSpec], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns a signature's inputs, if each has its rank and all have as many rows."""
    checks = []
    for spec, value in zip(specs, values, strict=True):
        # A look at the static rank would be answered at once from the signature, but a
        # session takes values of other ranks too.
        hidden = tf.raw_ops.PlaceholderWithDefault(
            input=value, shape=tf.TensorShape(None)
        )
        axes = ", ".join(["batch", "columns", "tokens"][: spec.shape.rank])
        sentence = f"expected {spec.name} of shape ({axes})"
        checks.append((tf.rank(hidden) == spec.shape.rank, sentence, tf.shape(hidden)))
    checked = _checked(values, checks)
    if len(checked) == 1:
        return checked
    sizes = tf.stack([tf.shape(value)[0] for value in checked])
    names = ", ".join(spec.name for spec in specs)
    same = tf.reduce_all(sizes == sizes[0])
    return _checked(checked, [(same, f"expected as many rows of {names}", sizes)])


def parts(name: str, values: tf.Tensor) -> tf.Tensor:
    """Returns `(batch_size, num_parts)` strings, if a question has at least one."""
    shape = tf.shape(values)
    check = shape[1] > 0, f"expected at least one of the {name} in a row", shape
    return _checked([values], [check])[0]


def ids(
    values: Mapping[str, tf.Tensor], bert_config: architecture.BertConfig
) -> dict[str, tf.Tensor]:
    """Returns int32 inputs (`input_ids`, `input_mask`, `segment_ids` and maybe one of
    `PLACES`) by name, if the network's tables can take them."""
    shape = tf.shape(values["input_ids"])
    length, longest = shape[-1], bert_config.max_position_embeddings
    checks = [
        (length <= longest, f"expected {longest} ids in a row at most", shape),
        (tf.reduce_all(shape[1:] > 0), "expected at least one id in a row", shape),
    ]
    ends = {
        "input_ids": bert_config.vocab_size,
        "input_mask": 2,
        "segment_ids": bert_config.type_vocab_size,
        **dict.fromkeys(PLACES, length),
    }
    for name, value in values.items():
        if name in ("input_mask", "segment_ids"):
            same = tf.reduce_all(tf.equal(tf.shape(value), shape))
            both = tf.stack([shape, tf.shape(value)])
            checks.append((same, f"expected input_ids and {name} of one shape", both))
        known = (value >= 0) & (value < ends[name])
        last = "length - 1" if name in PLACES else ends[name] - 1
        what = "ids" if name == "input_ids" else name
        wrong = tf.boolean_mask(value, ~known)
        sentence = f"expected {what} from 0 to {last}"
        checks.append((tf.reduce_all(known), sentence, wrong))
    checked = _checked(list(values.values()), checks)
    return dict(zip(values, checked, strict=True))


def _checked(
    values: Sequence[tf.Tensor], checks: Sequence[tuple[Any, str, tf.Tensor]]
) -> list[tf.Tensor]:
    """Returns the values if all conditions hold, else fails with a sentence and a
    value."""
    asserted = [
        tf.debugging.Assert(condition, [f"{sentence}, got", value], summarize=12)
        for condition, sentence, value in checks
    ]
    with tf.control_dependencies(asserted):
        return [tf.identity(value) for value in values]
