"""Many `tf.train.Example` messages at once, as arrays, without TensorFlow."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
    text_format,
)

from bert_keras.core.errors import InputError


class Ragged(NamedTuple):
    """One feature of `n` examples."""

    values: np.ndarray
    """All numbers, one example after the other; int64 or float32."""
    lengths: np.ndarray
    """`(n,)`: count of the numbers of each example."""


# `tensorflow/core/example/{example,feature}.proto`.
_SCHEMA = """
name: "example.proto" syntax: "proto3"
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: "Features" } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: "Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type_name: "Features.FeatureEntry" } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_BYTES }
  field { name: "floats" number: 2 label: LABEL_OPTIONAL oneof_index: 0
          type_name: "FloatList" }
  field { name: "integers" number: 3 label: LABEL_OPTIONAL oneof_index: 0
          type_name: "Int64List" } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
"""


# In a pool of its own: TensorFlow's has these messages, too.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Example"))
_NOTHING = np.empty(0, np.int64)


def decode_examples(messages: Sequence[bytes]) -> dict[str, Ragged]:
    """Returns features by name; an example without the feature has length 0."""
    columns: dict[str, list[np.ndarray]] = {}
    for row, data in enumerate(messages):
        try:
            features = _Example.FromString(data).features.feature
            kinds = {name: each.WhichOneof("kind") for name, each in features.items()}
            if "bytes" in kinds.values():
                raise message.DecodeError("bytes")
        except message.DecodeError:
            raise InputError(
                "expected a serialised tf.train.Example of numbers, got something "
                "else; recreate the records with `bert-keras examples` or TensorFlow"
            ) from None
        for name, kind in kinds.items():
            values = _NOTHING
            if kind is not None:
                dtype = np.float32 if kind == "floats" else np.int64
                values = np.array(getattr(features[name], kind).value, dtype)
            columns.setdefault(name, [_NOTHING] * len(messages))[row] = values
    decoded = {}
    for name, column in columns.items():
        types = {values.dtype for values in column if len(values)}
        if len(types) > 1:
            raise InputError(
                f"expected all values of {name} of one kind, found integers and floats"
            )
        values = np.concatenate(column).astype(next(iter(types), np.int64))
        lengths = np.fromiter(map(len, column), np.int64, len(column))
        decoded[name] = Ragged(values, lengths)
    return decoded
