"""Records -> checked examples, as the model would get them, without TensorFlow."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
    text_format,
)

from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, masking, packing, seeded_hash, tokenization
from bert_keras.pipelines import records

BATCH_SIZE = 512

_SCHEMA = resources.files("bert_keras.pipelines") / "example.pbtxt"
# In a pool of its own: TensorFlow's has these messages, too.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_SCHEMA.read_text(), descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("Example"))
_NOTHING = np.empty(0, np.int64)


def decode_examples(messages: Sequence[bytes]) -> dict[str, list[np.ndarray]]:
    """Returns each feature's numbers, int64 or float32, of each example. An example
    without the feature has none."""
    columns: dict[str, list[np.ndarray]] = {}
    for row, data in enumerate(messages):
        try:
            stored = _Example.FromString(data).features.feature
            kinds = {name: each.WhichOneof("kind") for name, each in stored.items()}
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
                values = np.array(getattr(stored[name], kind).value, dtype)
            columns.setdefault(name, [_NOTHING] * len(messages))[row] = values
    for name, column in columns.items():
        if len({values.dtype for values in column if len(values)}) > 1:
            raise InputError(
                f"expected all values of {name} of one kind, found integers and floats"
            )
    return columns


@dataclass(frozen=True, kw_only=True, eq=False)
class Reader:
    config: ExamplesConfig
    vocabulary: tokenization.Vocabulary

    def read(
        self,
        path: str,
        *,
        first_record: int = 0,
        limit: int | None = None,
        seen: Counter[str] | None = None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields batches of the first `limit` records of a shard, in order.

        They are `features.pretraining_features`, each `(n, length)`, integers or
        float32, without `next_sentence_labels` if there are none; a packed row gives
        several. Plain examples are masked as in the first epoch of a run with the seed
        of the examples, of which `first_record` is the first. `seen` counts `records`
        and their `bytes`.
        """
        seen = Counter() if seen is None else seen
        records_read = records.read_records(path, compression=self.config.compression)
        messages, start = itertools.islice(records_read, limit), 0
        while chunk := list(itertools.islice(messages, BATCH_SIZE)):
            arrays, places = self._load(chunk, path=path, start=start)
            if self.config.masking == "dynamic":
                # As in training, each slot of a packed row has a number, used or not.
                places += (first_record + start) * self.config.num_slots
                seeds = seeded_hash.record_seeds(
                    self.config.random_seed, np.zeros_like(places), places
                )
                ids = arrays["input_ids"]
                # No token of a plain example is padding.
                lengths = (ids != 0).sum(axis=1)
                options = {"vocabulary": self.vocabulary, "config": self.config}
                arrays |= masking.plain_examples(ids, lengths, **options)
                arrays |= masking.mask_batch(ids, lengths, seeds, **options)
            seen.update(records=len(chunk), bytes=sum(map(len, chunk)))
            yield arrays
            start += len(chunk)

    def _load(
        self, messages: Sequence[bytes], *, path: str, start: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns examples and their places: packed rows have some for each slot."""
        try:
            decoded = decode_examples(messages)
            arrays = self._to_arrays(decoded, len(messages))
            self._check(arrays)
            places = np.arange(len(messages))
            if self.config.pack_instances:
                arrays, row_of, slots = packing.split_rows(arrays, self.config)
                places = row_of * self.config.num_slots + slots
        except InputError as error:
            if len(messages) == 1:
                raise InputError(f"{path}, record {start}: {error}") from None
            # Find the first bad record.
            for index, each in enumerate(messages):
                self._load([each], path=path, start=start + index)
            raise
        return arrays, places

    def _to_arrays(
        self, decoded: Mapping[str, list[np.ndarray]], num_rows: int
    ) -> dict[str, np.ndarray]:
        """Returns matrices by the model's names; plain `input_ids` are padded."""
        arrays = {}
        names = {
            features.stored_name(feature.name, self.config): feature.name
            for feature in features.batch_features(self.config)
        }
        for feature in features.record_features(self.config):
            column = decoded.get(feature.name, [_NOTHING] * num_rows)
            lengths = np.array([*map(len, column)])
            width = feature.length or self.config.max_seq_length
            if names[feature.name] == "next_sentence_labels":
                width = self.config.num_slots
            least = 1 if feature.length is None else width
            is_wrong = (lengths < least) | (lengths > width)
            if is_wrong.any():
                expected = str(width) if least == width else f"{least} to {width}"
                actual = str(lengths[is_wrong.argmax()])
                raise _violation(f"{expected} values of {feature.name}", actual)
            joined = np.concatenate(column)
            if joined.dtype != feature.dtype:
                expected = f"{feature.dtype} values of {feature.name}"
                raise _violation(expected, str(joined.dtype))
            values = np.zeros((num_rows, width), joined.dtype)
            values[np.arange(width) < lengths[:, np.newaxis]] = joined
            arrays[names[feature.name]] = values
        if self.config.pack_instances and self.config.masking == "dynamic":
            input_ids = arrays["input_ids"]
            numbers = np.cumsum(input_ids == self.vocabulary.cls_id, axis=1)
            arrays["instance_ids"] = np.where(input_ids != 0, numbers, 0)
        return arrays

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        size, length = len(self.vocabulary), self.config.max_seq_length
        limits = {
            "input_ids": size,
            "masked_lm_ids": size,
            "masked_lm_positions": length,
            "instance_ids": self.config.num_slots + 1,
        }
        for name, values in arrays.items():
            limit = limits.get(name, 2)
            low, high = values.min(), values.max()
            if not 0 <= low <= high < limit:
                actual = f"{low:g} to {high:g}"
                raise _violation(f"{name} from 0 to {limit - 1}", actual)
        rules = {"[CLS] first": arrays["input_ids"][:, 0] == self.vocabulary.cls_id}
        if self.config.masking == "static":
            weights = arrays["masked_lm_weights"]
            rules["masked_lm_weights of 0 or 1"] = (weights == 0) | (weights == 1)
        if self.config.pack_instances:
            ids = arrays["instance_ids"]
            before, after = ids[:, :-1], ids[:, 1:]
            ascends = (after == before) | (after == before + 1) & (before > 0)
            begins = (np.diff(ids, axis=1, prepend=0) != 0) & (ids > 0)
            is_cls = arrays["input_ids"] == self.vocabulary.cls_id
            rules |= {
                "instance_ids of 1, 2, ..., then 0": ascends | (after == 0),
                "instance_ids from 1": ids[:, 0] == 1,
                "[CLS] first in each instance": ~begins | is_cls,
            }
        elif self.config.masking == "static":
            mask = arrays["input_mask"]
            rules["an input_mask of ones, then zeros"] = mask[:, 1:] <= mask[:, :-1]
        for expected, holds in rules.items():
            if not holds.all():
                raise _violation(expected, "other values")


def _violation(expected: str, actual: str) -> InputError:
    return InputError(f"expected {expected}, found {actual}: recreate the examples")
