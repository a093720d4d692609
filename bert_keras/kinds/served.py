"""The base of all exported models: a network that answers questions."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.graphs import graph_tokenizer, graph_windows, input_checks
from bert_keras.labelled import dataset, text_windows, tokenized

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
"""Inputs of models that take ids."""

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
"""Texts on which an export must give the answers of the model itself."""

CLEAR_CUT = 1e-3
"""Least difference of probabilities or scores: nearer answers to a probe may change
places with the rounding of another batch."""


class Signature(NamedTuple):
    function: Callable[..., dict[str, tf.Tensor]]
    """From inputs, in their order, to outputs by name."""
    inputs: tuple[tf.TensorSpec, ...]

    def answer(self, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Calls the function; shapes that do not fit raise an error in words."""
        return self.function(*input_checks.rows(self.inputs, values))


class Probe(NamedTuple):
    """Questions to one signature of a SavedModel, and the right answers."""

    signature: str
    inputs: Mapping[str, Any]
    """By name, as `tf.constant` takes them."""
    wanted: Mapping[str, np.ndarray]
    """Outputs, or some of them; where masked, several are right. Strings are not
    compared: they follow from the numbers, and where two are equal, either may come
    first."""


class Network:
    """A network for answers, hidden from TensorFlow.

    A SavedModel holds everything that it finds in a module, and would hold every weight
    of a Keras model twice. So modules keep their network in a `Network`, and its
    variables beside it.
    """

    def __init__(self, network: keras.Model):
        self._network = network

    def __call__(self, features: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        return self._network(dict(features), training=False, **options)

    @property
    def weights(self) -> list[keras.Variable]:
        return self._network.weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model, as a graph of its answers needs it."""

    task: tasks.Task
    bert_config: architecture.BertConfig
    tokenizer: tokenization.Tokenizer
    dtype: str
    """Keras dtype policy of `network`."""
    network: Network
    settings: finetuning.FinetuningConfig | None
    """Lengths and columns of the inputs; `None`: as long as the network takes, because
    the model was not tuned on a task or gives vectors in place of its answers."""
    threshold: dataset.Threshold
    """The threshold of the run; `None`: the usual one."""
    path: Path
    """Directory of the model, for errors."""


class ServedModel(tf.Module):
    """A model that answers one kind of question.

    A SavedModel has `signatures`; formats that give only numbers have `compute`. Texts
    that are too long are treated as in the training, by `Trained.settings`.
    """

    id_specs = ID_SPECS
    """Inputs in ids, `(batch_size, ...)` int32 each; `INPUT_NAMES` first."""
    outputs: tuple[str, ...] = ("logits",)
    """Outputs of the network that are the model's numbers."""
    labels: tuple[str, ...] | None = None
    windows_at_once = 32
    """Windows read together: memory depends on this, not on the length of texts."""

    def __init__(self, trained: Trained):
        super().__init__()
        self._bert_config = trained.bert_config
        self.max_seq_length = trained.bert_config.max_position_embeddings
        self.long_texts: tasks.LongTexts = "cut"
        stride = None
        if (settings := trained.settings) is not None:
            self.max_seq_length = min(self.max_seq_length, settings.max_seq_length)
            self.long_texts, stride = settings.long_texts, settings.window_stride
        self.stride = tasks.window_stride(self.max_seq_length, stride)
        self.dtype = trained.dtype
        self.network = trained.network
        self._variables = [weight.value for weight in trained.network.weights]
        self.tokenizer = trained.tokenizer
        self.vocabulary = self.tokenizer.vocabulary
        self._tokenizer = graph_tokenizer.GraphTokenizer(
            self.vocabulary, do_lower_case=self.tokenizer.do_lower_case
        )
        self.task = trained.task

    @property
    def decisions(self) -> dict[str, Any]:
        """Returns thresholds and limits that turn numbers into the run's answers, as
        JSON. Callers of LiteRT and ONNX files, which give numbers alone, need them."""
        return {}

    def compute(self, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Computes numbers from ids, with operations that all formats have."""
        outputs = self.network(ids)
        return {name: outputs[name] for name in self.outputs}

    def signatures(self) -> dict[str, Signature]:
        """Returns ways to ask: `STRINGS`, `IDS`, and maybe more."""
        raise NotImplementedError

    def id_probes(self) -> dict[str, np.ndarray]:
        """Returns ids to compare numbers on, by the names of `id_specs`."""
        raise NotImplementedError

    def probes(self) -> list[Probe]:
        """Returns questions to compare answers on."""
        raise NotImplementedError

    def by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        names = [spec.name for spec in self.id_specs]
        return dict(zip(names, values, strict=True))

    def compute_in_order(self, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes numbers from ids in the order of `id_specs`."""
        return self.compute(self.by_name(values))

    def checked(self, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns ids by name; the graph refuses ids that the network cannot take."""
        return input_checks.ids(self.by_name(values), self._bert_config)

    def numbers_signature(self) -> Signature:
        """Returns the signature from ids to the outputs of `compute`."""
        return Signature(lambda *v: self.compute(self.checked(v)), self.id_specs)

    def numbers_probe(self) -> Probe:
        ids = self.id_probes()
        return Probe(IDS, ids, as_arrays(self.compute(as_tensors(ids))))

    def _pack(
        self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        packed = graph_tokenizer.pack_pairs(
            ids_a,
            ids_b,
            max_seq_length=self.max_seq_length,
            vocabulary=self.vocabulary,
            keeps_tail=self.long_texts == "head_tail",
        )
        # Without texts there are no columns, but the pooler wants a first one.
        missing = tf.cast(tf.equal(ids_a.nrows(), 0), tf.int32)
        paddings = [[0, 0], [0, missing]]
        return {name: tf.pad(packed[name], paddings) for name in INPUT_NAMES}

    def _python_ids(
        self, pairs: Sequence[tuple[str, str | None]]
    ) -> dict[str, np.ndarray]:
        """Makes inputs of texts, of their windows or of pairs, in Python."""
        if tasks.reads_windows(self.long_texts):
            windows = self._python_windows(text for text, _ in pairs)
            return windows.inputs.batch(np.arange(len(windows.inputs)))
        made = tokenized.tokenize(
            pairs,
            self.tokenizer,
            max_seq_length=self.max_seq_length,
            keeps_tail=self.long_texts == "head_tail",
        )
        return made.batch(np.arange(len(pairs)))

    def _python_batch(
        self, inputs: dataset.Inputs, rows: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Returns some inputs, or all, by the names of `id_specs`."""
        rows = np.arange(len(inputs.lengths)) if rows is None else rows
        batch = inputs.batch(rows)
        return {spec.name: batch[spec.name] for spec in self.id_specs}

    def _python_numbers(self, inputs: dataset.Inputs) -> dict[str, np.ndarray]:
        """Computes the numbers of inputs, `(inputs.num_answers, ...)` by name."""
        parts, num_inputs = [], len(inputs.lengths)
        for first in range(0, num_inputs, self.windows_at_once):
            rows = np.arange(first, min(first + self.windows_at_once, num_inputs))
            numbers = self.compute(as_tensors(self._python_batch(inputs, rows)))
            index = inputs.places(rows).index
            parts.append({k: v[index] for k, v in as_arrays(numbers).items()})
        return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}

    def _python_windows(self, texts: Iterable[str]) -> text_windows.WindowedInputs:
        return text_windows.cut(
            texts,
            self.tokenizer,
            max_seq_length=self.max_seq_length,
            stride=self.stride,
        )


class DirectAnswers(ServedModel):
    """A model for which a row of ids is one question, or a window of a long text.

    With `long_texts` in windows, numbers of a text are the mean or the greatest of its
    windows' numbers; the `ids` signature takes windows and returns one answer for each.
    """

    string_specs: tuple[tf.TensorSpec, ...]
    """Inputs in strings, `(batch_size, ...)` each."""

    def encode(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Makes ids from strings, in the graph."""
        raise NotImplementedError

    def present(
        self, ids: Mapping[str, tf.Tensor], numbers: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Makes answers from numbers."""
        raise NotImplementedError

    def id_probes(self):
        return self._python_ids([(text, None) for text in PROBES])

    def string_probes(self) -> Mapping[str, Any]:
        """Returns the texts of `id_probes`, by the names of `string_specs`."""
        return {"text": list(PROBES)}

    def signatures(self):
        def answer(ids):
            return self.present(ids, self.compute(ids))

        def answer_texts(*texts):
            if not tasks.reads_windows(self.long_texts):
                return answer(self.encode(*texts))
            ids, owners = self._windows_of(*texts)
            pooled = self._pool(self._in_parts(ids), owners, tf.shape(*texts)[0])
            return self.present(ids, pooled)

        return {
            STRINGS: Signature(answer_texts, self.string_specs),
            IDS: Signature(lambda *v: answer(self.checked(v)), self.id_specs),
        }

    def probes(self):
        ids = self.id_probes()
        tensors = as_tensors(ids)
        numbers = self.compute(tensors)
        wanted = of_strings = as_arrays(self.present(tensors, numbers))
        texts = self.string_probes()
        if tasks.reads_windows(self.long_texts):
            windows = self._python_windows(texts["text"])
            pooled = {
                name: tf.constant(windows.pool(values.numpy(), self.long_texts))
                for name, values in numbers.items()
            }
            of_strings = as_arrays(self.present(tensors, pooled))
        return [Probe(STRINGS, texts, of_strings), Probe(IDS, ids, wanted)]

    def _windows_of(self, texts: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns ids of all windows, and `(num_windows,)` numbers of their texts."""
        tokens = self._tokenizer(texts)
        num_tokens = tokens.row_lengths()
        room = tf.fill(tf.shape(num_tokens), np.int64(self.max_seq_length - 2))
        windows = graph_windows.cut(num_tokens, room, self.stride)
        places = tf.ragged.range(windows.starts, windows.ends)
        ids = places.with_values(tf.gather(tokens.flat_values, places.values))
        return self._pack(ids), windows.texts

    def _in_parts(self, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Computes `windows_at_once` rows at a time."""
        specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ids}
        compute = tf.function(self.compute).get_concrete_function(specs)

        def read(rows, numbers):
            outputs = compute(
                **{k: tf.gather(values, rows) for k, values in ids.items()}
            )
            return {k: tf.concat([v, outputs[k]], 0) for k, v in numbers.items()}

        none = {
            name: tf.zeros([0, *output.shape[1:]], output.dtype)
            for name, output in compute.structured_outputs.items()
        }
        num_windows = tf.shape(ids["input_ids"], tf.int64)[0]
        return graph_windows.fold(
            read, none, num_windows, windows_at_once=self.windows_at_once
        )

    def _pool(
        self, numbers: Mapping[str, tf.Tensor], owners: tf.Tensor, num_texts: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Does the same as `text_windows.WindowedInputs.pool`, in the graph."""
        pool = tf.math.unsorted_segment_mean
        if self.long_texts == "windows_max":
            pool = tf.math.unsorted_segment_max
        return {k: pool(values, owners, num_texts) for k, values in numbers.items()}


class SeveralParts(DirectAnswers):
    """A model for which a question has several parts, each an input of its own.

    Ids are `INPUT_NAMES`, `(batch_size, num_parts, sequence_length)` int32 each. All
    questions of a batch have the same number of parts.
    """

    id_specs = tuple(
        tf.TensorSpec([None, None, None], tf.int32, name) for name in INPUT_NAMES
    )

    def _pack_parts(self, text: tf.Tensor, parts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Packs `(batch_size,)` texts with each of `(batch_size, num_parts)` parts."""
        shape = tf.shape(parts)
        repeated = tf.gather(
            self._tokenizer(text), tf.repeat(tf.range(shape[0]), shape[1])
        )
        packed = self._pack(repeated, self._tokenizer(tf.reshape(parts, [-1])))
        return {
            name: tf.reshape(values, [*tf.unstack(shape), tf.shape(values)[1]])
            for name, values in packed.items()
        }

    def id_probes(self):
        pairs = [(text, part) for text, parts in self.probe_parts() for part in parts]
        ids = self._python_ids(pairs)
        shape = len(PROBES), len(pairs) // len(PROBES), -1
        return {name: values.reshape(shape) for name, values in ids.items()}

    def probe_parts(self) -> Iterable[tuple[str, Sequence[str]]]:
        """Returns `string_probes` as texts with their parts, one for each probe."""
        raise NotImplementedError


def as_tensors(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    return {name: tf.constant(value) for name, value in values.items()}


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
