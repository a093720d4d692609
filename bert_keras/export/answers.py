"""What the kinds of exported models have in common."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_keras import config, run_directory
from bert_keras.checkpoints import weights
from bert_keras.data import tokenization
from bert_keras.errors import InputError
from bert_keras.export import graph_tokenizer
from bert_keras.model import networks
from bert_keras.tasks import tokenized

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
"""Of models that take ids."""

ID_SPECS = tuple(tf.TensorSpec([None, None], tf.int32, name) for name in INPUT_NAMES)
"""The same, each `(batch_size, sequence_length)`."""

STRINGS, IDS = "serving_default", "ids"
"""Signatures that every SavedModel has."""

PROBES = (
    "",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Ein naïver Ångström-Käfer … ΟΔΥΣΣΕΥΣ fährt nach İstanbul № 42!",
    "日本語とひらがな, 한국어, русский, العربية 🙂 \u200b\ufffd\x00\ttab",
    "long " * 600,
)
"""What an export must answer as the model itself does."""


class Signature(NamedTuple):
    """One way to ask a SavedModel."""

    function: Callable[..., dict[str, tf.Tensor]]
    """From inputs, in their order, to outputs by name."""
    inputs: tuple[tf.TensorSpec, ...]


class Probe(NamedTuple):
    """Questions to one signature of a SavedModel, and what is right."""

    signature: str
    inputs: Mapping[str, Any]
    """By name, as `tf.constant` takes them."""
    wanted: Mapping[str, np.ndarray]
    """Outputs, or some of them; where masked, several are right. Strings are not looked
    at: they follow from the numbers, and where two are equal, either may come first."""


class Answers(Protocol):
    """A model that answers one kind of question: a `tf.Module`, float32.

    A SavedModel has `signatures`; the forms that know nothing but numbers have
    `compute`.
    """

    id_specs: tuple[tf.TensorSpec, ...]
    """What is asked as ids, `(batch_size, ...)` int32 each; `INPUT_NAMES` first."""
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    max_seq_length: int
    """Tokens at most; longer texts are cut, or read in windows."""
    labels: tuple[str, ...] | None
    network: "Network"

    def compute(self, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """From ids to numbers, with operations that all forms have."""

    def signatures(self) -> dict[str, Signature]:
        """How it can be asked: `STRINGS`, `IDS`, and maybe more."""

    def id_probes(self) -> dict[str, np.ndarray]:
        """Ids to compare numbers on, by the names of `id_specs`."""

    def probes(self) -> list[Probe]:
        """Questions to compare answers on."""


class DirectAnswers(Answers, Protocol):
    """Where a row of ids is one question: no windows.

    `signatures` and `probes` are then `direct_signatures` and `direct_probes`.
    """

    string_specs: tuple[tf.TensorSpec, ...]
    """What is asked as strings, `(batch_size, ...)` each."""

    def encode(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """From strings to ids, in the graph."""

    def present(
        self, ids: Mapping[str, tf.Tensor], numbers: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """From numbers to answers."""


def direct_signatures(model: DirectAnswers) -> dict[str, Signature]:
    """Of strings and of ids, both to the same answers."""

    def answer(ids):
        return model.present(ids, model.compute(ids))

    return {
        STRINGS: Signature(lambda *t: answer(model.encode(*t)), model.string_specs),
        IDS: Signature(lambda *v: answer(by_name(model, v)), model.id_specs),
    }


def direct_probes(model: DirectAnswers, strings: Mapping[str, Any]) -> list[Probe]:
    """Probes of both signatures.

    Args:
        model: the model.
        strings: by the names of its `string_specs`; the same texts as `id_probes`,
            which the tokenizer in Python made.
    """
    ids = model.id_probes()
    tensors = as_tensors(ids)
    wanted = as_arrays(model.present(tensors, model.compute(tensors)))
    return [Probe(STRINGS, strings, wanted), Probe(IDS, ids, wanted)]


def numbers_probe(model: Answers) -> Probe:
    """A probe of the signature of ids where it gives what `compute` gives."""
    ids = model.id_probes()
    return Probe(IDS, ids, as_arrays(model.compute(as_tensors(ids))))


def numbers_signature(model: Answers) -> Signature:
    """From ids to what `compute` gives."""
    return Signature(lambda *v: model.compute(by_name(model, v)), model.id_specs)


def by_name(model: Answers, values: Sequence[Any]) -> dict[str, Any]:
    """Ids one by one, as `id_specs` has them, with their names."""
    names = [spec.name for spec in model.id_specs]
    return dict(zip(names, values, strict=True))


def as_tensors(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The same values for TensorFlow."""
    return {name: tf.constant(value) for name, value in values.items()}


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    """The same values for NumPy."""
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def numbers_function(model: Answers) -> Callable:
    """`compute` as a graph function of the ids one by one, as `id_specs` has them."""
    return tf.function(
        lambda *values: model.compute(by_name(model, values)), autograph=False
    )


def pack(
    ids_a: tf.RaggedTensor,
    ids_b: tf.RaggedTensor | None,
    *,
    max_seq_length: int,
    vocabulary: tokenization.Vocabulary,
) -> dict[str, tf.Tensor]:
    """`text_graph.pack_pairs`, with at least one column even for no texts at all."""
    packed = graph_tokenizer.pack_pairs(
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
    made = tokenized.tokenize(
        zip(texts, pairs, strict=True), tokenizer, max_seq_length=max_seq_length
    )
    return made.batch(np.arange(len(texts)))


class Network:
    """A network as it answers, hidden from TensorFlow.

    A SavedModel holds all that it finds in a module, and would hold every weight of a
    Keras model twice: modules keep their network in one of these, and `variables`
    beside it.
    """

    def __init__(self, network: keras.Model):
        self._network = network

    def __call__(self, features: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        return self._network(dict(features), training=False, **options)

    @property
    def weights(self) -> list[keras.Variable]:
        return self._network.weights

    @property
    def variables(self) -> list[tf.Variable]:
        return [weight.value for weight in self.weights]


def tuned_network(
    checkpoint: weights.Checkpoint, *, path: Path, needs_pooler: bool
) -> Network:
    """The network of a fine-tuned model, with its weights.

    Args:
        checkpoint: the model.
        path: where it is from.
        needs_pooler: whether answers come from the encoder's pooler.

    Raises:
        InputError: weights that answers come from are not there.
    """
    task = checkpoint.task
    network = networks.build(checkpoint.bert_config, task, seed=0)
    missing = weights.assign(network, checkpoint.arrays)
    if not needs_pooler:
        missing = [n for n in missing if not n.startswith("encoder/pooler/")]
    check_has(missing, ("encoder/", "head/"), purpose=task.kind, path=path)
    return Network(network)


def read_settings(path: Path) -> config.FinetuningConfig | None:
    """How a model was fine-tuned, if it is a run's and has its `config.yaml`."""
    return run_directory.read_settings(path, config.FinetuningConfig)


def tokenizer_of(checkpoint: weights.Checkpoint) -> tokenization.Tokenizer:
    """The tokenizer of a model's training, in Python."""
    return tokenization.Tokenizer(
        checkpoint.vocabulary, do_lower_case=checkpoint.do_lower_case
    )


def graph_tokenizer_of(
    checkpoint: weights.Checkpoint,
) -> graph_tokenizer.GraphTokenizer:
    """The same in a graph."""
    return graph_tokenizer.GraphTokenizer(
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
