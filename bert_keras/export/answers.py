"""What the kinds of exported models have in common."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_keras import text_graph, tokenization
from bert_keras.checkpoints import weights
from bert_keras.errors import InputError
from bert_keras.tasks import text

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
"""Of models that take ids: each `(batch_size, sequence_length)` int32."""

PROBES = (
    "",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Ein naïver Ångström-Käfer … ΟΔΥΣΣΕΥΣ fährt nach İstanbul № 42!",
    "日本語とひらがな, 한국어, русский, العربية 🙂 \u200b\ufffd\x00\ttab",
    "long " * 600,
)
"""What an export must answer as the model itself does."""


class Probes(NamedTuple):
    """Texts as an exported model takes them, in both ways."""

    strings: dict[str, list[str]]
    """By the names of `Answers.string_names`."""
    ids: dict[str, np.ndarray]
    """The same texts through the tokenizer in Python, by `Answers.id_names`."""


class Answers(Protocol):
    """A model that answers one kind of question: a `tf.Module`, float32.

    A SavedModel gives `present(ids, compute(ids))` of ids or of strings; the forms that
    know nothing but numbers give `compute(ids)`.
    """

    string_names: tuple[str, ...]
    """What is asked, `(batch_size,)` strings each."""
    id_names: tuple[str, ...]
    """The same as ids, `(batch_size, ...)` int32 each."""
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    max_seq_length: int
    """Tokens at most; longer texts are cut."""
    labels: tuple[str, ...] | None

    def encode(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """From strings to ids, in the graph."""

    def compute(self, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """From ids to numbers, with operations that all forms have."""

    def present(
        self, ids: Mapping[str, tf.Tensor], numbers: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """From numbers to answers."""

    def probes(self) -> Probes:
        """Texts to compare answers on."""


def id_specs(model: Answers) -> list[tf.TensorSpec]:
    """What a model takes as ids, of any batch size and length."""
    return [tf.TensorSpec([None, None], tf.int32, name) for name in model.id_names]


def numbers_function(model: Answers) -> Callable:
    """`compute` as a graph function of the ids one by one, as `id_specs` has them."""
    return tf.function(
        lambda *values: model.compute(dict(zip(model.id_names, values, strict=True))),
        autograph=False,
    )


def pack(
    ids_a: tf.RaggedTensor,
    ids_b: tf.RaggedTensor | None,
    *,
    max_seq_length: int,
    vocabulary: tokenization.Vocabulary,
) -> dict[str, tf.Tensor]:
    """`text_graph.pack_pairs`, with at least one column even for no texts at all."""
    packed = text_graph.pack_pairs(
        ids_a, ids_b, max_seq_length=max_seq_length, vocabulary=vocabulary
    )
    # Without texts there are no columns, but the pooler wants a first one.
    missing = tf.cast(tf.equal(ids_a.nrows(), 0), tf.int32)
    paddings = [[0, 0], [0, missing]]
    return {name: tf.pad(packed[name], paddings) for name in INPUT_NAMES}


def tokenize(
    texts: Sequence[str],
    pairs: Sequence[str | None],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
) -> dict[str, np.ndarray]:
    """Ids of texts, or of pairs of them, in Python."""
    rows = [
        text.LabelledText(first, second, None, 0)
        for first, second in zip(texts, pairs, strict=True)
    ]
    tokenized = text.tokenize(rows, tokenizer, max_seq_length=max_seq_length)
    return tokenized.batch(np.arange(len(rows)))


def parts_of(network: keras.Model) -> tuple[Callable, list[tf.Variable]]:
    """What an exported module keeps of a network: how to call it, and its weights.

    Not the network itself: a SavedModel holds all that the module holds, and would
    hold every weight twice.
    """
    forward = functools.partial(network, training=False)
    return forward, [weight.value for weight in network.weights]


def tokenizer_of(checkpoint: weights.Checkpoint) -> tokenization.Tokenizer:
    """The tokenizer of a model's training, in Python."""
    return tokenization.Tokenizer(
        checkpoint.vocabulary, do_lower_case=checkpoint.do_lower_case
    )


def graph_tokenizer_of(checkpoint: weights.Checkpoint) -> text_graph.GraphTokenizer:
    """The same in a graph."""
    return text_graph.GraphTokenizer(
        checkpoint.vocabulary, do_lower_case=checkpoint.do_lower_case
    )


def check_has(
    missing: Sequence[str], parts: Sequence[str], *, purpose: str, path: Path
) -> None:
    """Refuses a model without weights that answers come from.

    Args:
        missing: names of weights that the checkpoint has not.
        parts: how names of needed weights begin.
        purpose: what needs them.
        path: of the checkpoint.

    Raises:
        InputError: some of the missing ones are needed.
    """
    lacking = [name for name in missing if name.startswith(tuple(parts))]
    if lacking:
        raise InputError(
            f"{path}: {purpose} needs {', '.join(lacking)}, which the model does not "
            "have or was not trained with"
        )
