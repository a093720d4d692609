"""The base of all exported models: a network that answers questions."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.graphs import graph_tokenizer, graph_windows, input_checks

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
"""Inputs of models that take ids."""

ID_SPECS = tuple(tf.TensorSpec([None, None], tf.int32, name) for name in INPUT_NAMES)
"""The same, each `(batch_size, sequence_length)`."""

STRINGS, IDS = "serving_default", "ids"
"""Signatures that every SavedModel has."""


class Signature(NamedTuple):
    function: Callable[..., dict[str, tf.Tensor]]
    """From inputs, in their order, to outputs by name."""
    inputs: tuple[tf.TensorSpec, ...]
    is_by_row: bool = True
    """Whether a row's answer depends on this row alone, so that a server may compute
    the rows of several requests together."""

    def answer(self, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Calls the function; shapes that do not fit raise an error in words."""
        return self.function(*input_checks.rows(self.inputs, values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model, as a graph of its answers needs it."""

    task: tasks.Task
    bert_config: architecture.BertConfig
    tokenizer: tokenization.Tokenizer
    dtype: str
    """Keras dtype policy of `network`."""
    network: keras.Model
    settings: finetuning.FinetuningConfig | None
    """Lengths and columns of the inputs; `None`: as long as the network takes, because
    the model was not tuned on a task or gives vectors in place of its answers."""
    decision: tasks.Decision = tasks.LIKELIEST
    """Of the run: how its numbers become answers."""
    path: Path
    """Directory of the model, for errors."""


class ServedModel(tf.Module):
    """A model that answers one kind of question.

    A SavedModel has `signatures`; formats that give only numbers have `compute`. Texts
    that are too long are treated as in the training, by `Trained.settings`.
    """

    string_specs: tuple[tf.TensorSpec, ...] = (
        tf.TensorSpec([None], tf.string, "text"),
    )
    """Inputs in strings, `(batch_size, ...)` each."""
    id_specs = ID_SPECS
    """Inputs in ids, `(batch_size, ...)` int32 each; `INPUT_NAMES` first."""
    outputs: tuple[str, ...] = ("logits",)
    """Outputs of the network that are the model's numbers."""
    record_fields: Mapping[str, str] = {"probabilities": "probabilities"}
    """From outputs for strings to the fields of Python's records that equal them."""
    labels: tuple[str, ...] | None = None
    column_count: str | None = None
    """Output for strings that counts the columns of a row's answer. Further columns are
    padding; `None`: answers have none."""
    windows_at_once = 32
    """Windows read together: memory depends on this, not on the length of texts."""

    def __init__(self, trained: Trained):
        super().__init__()
        self.trained = trained
        self.max_seq_length = trained.bert_config.max_position_embeddings
        self.long_texts: tasks.LongTexts = "cut"
        stride = None
        if (settings := trained.settings) is not None:
            self.max_seq_length = min(self.max_seq_length, settings.max_seq_length)
            self.long_texts, stride = settings.long_texts, settings.window_stride
        self.stride = tasks.window_stride(self.max_seq_length, stride)
        self.dtype = trained.dtype
        self.decision = trained.decision
        # Probabilities or scores that differ by less may change places with the
        # rounding of another batch.
        self.clear_cut = 1e-3 if trained.dtype == "float32" else 0.25

        def network(features: Mapping[str, Any], **options: Any) -> dict[str, Any]:
            return trained.network(dict(features), training=False, **options)

        # A SavedModel holds everything that it finds in a module, and would hold every
        # weight of a Keras model twice. So a module has a function in place of its
        # network, and the variables beside it.
        self.network = network
        self._variables = [weight.value for weight in trained.network.weights]
        self.tokenizer = trained.tokenizer
        self.vocabulary = self.tokenizer.vocabulary
        self._tokenizer = graph_tokenizer.GraphTokenizer(
            self.vocabulary, do_lower_case=self.tokenizer.do_lower_case
        )

    @property
    def decisions(self) -> dict[str, Any]:
        """Returns thresholds and limits that turn numbers into the run's answers, as
        JSON. Callers of LiteRT and ONNX files, which give numbers alone, need them."""
        if not self.decision.is_promise:
            return {}
        if self.decision.half_width is not None:
            return {"half_width": self.decision.half_width}
        values: dict[str, Any] = {"temperature": self.decision.temperature}
        if by_label := self.decision.label_thresholds:
            return {**values, "thresholds": by_label}
        return {**values, "threshold": self.decision.threshold}

    def probabilities(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the softmax along the last axis, calibrated if the run is."""
        return tf.nn.softmax(logits / self.decision.temperature)

    def encode(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Makes ids, by the names of `id_specs`, from strings, in the graph; here of a
        text or a pair of texts. Long texts are cut."""
        return self._pack_pairs(*[self._tokenizer(text) for text in texts])

    def answer(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers strings, however long they are."""
        raise NotImplementedError

    def present(
        self, ids: Mapping[str, tf.Tensor], numbers: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Makes the answers to ids from their numbers; here the numbers themselves."""
        return dict(numbers)

    def compute(self, ids: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Computes numbers from ids, with operations that all formats have."""
        outputs = self.network(ids)
        return {name: outputs[name] for name in self.outputs}

    def compute_in_order(self, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Computes numbers from ids in the order of `id_specs`."""
        return self.compute(self._by_name(values))

    def _by_name(self, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        names = [spec.name for spec in self.id_specs]
        return dict(zip(names, values, strict=True))

    def signatures(self) -> dict[str, Signature]:
        """Returns ways to ask: `STRINGS`, `IDS`, and maybe more. The graph refuses ids
        that the network cannot take."""

        def answer_ids(*values):
            ids = input_checks.ids(self._by_name(values), self.trained.bert_config)
            return self.present(ids, self.compute(ids))

        return {
            STRINGS: Signature(self.answer, self.string_specs),
            IDS: Signature(answer_ids, self.id_specs),
        }

    def expected_outputs(self, answers: Any) -> Iterator[dict[str, Any]]:
        """Yields outputs for the strings of each example, without padding, from the
        answers that the network gives in Python. Outputs that rounding may change are
        left out, such as the order of two answers that are almost as good."""
        for record in answers.records(decision=self.decision):
            fields = {k: getattr(record, v) for k, v in self.record_fields.items()}
            yield {
                name: [*value.values()] if isinstance(value, dict) else value
                for name, value in fields.items()
            }

    def _pack_pairs(
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


class DirectAnswers(ServedModel):
    """A model for which a row of ids is one question, or a window of a long text.

    With `long_texts` in windows, numbers of a text are the mean or the greatest of its
    windows' numbers; the `ids` signature takes windows and returns one answer for each.
    """

    def answer(self, *texts):
        if not tasks.reads_windows(self.long_texts):
            ids = self.encode(*texts)
            return self.present(ids, self.compute(ids))
        # 1. Cut the texts, of which none is a pair, into windows, as
        # `tokenized.WindowedInputs` does.
        [texts] = texts
        tokens = self._tokenizer(texts)
        num_tokens = tokens.row_lengths()
        room = tf.fill(tf.shape(num_tokens), np.int64(self.max_seq_length - 2))
        windows = graph_windows.cut(num_tokens, room, self.stride)
        places = tf.ragged.range(windows.starts, windows.ends)
        ids = places.with_values(tf.gather(tokens.flat_values, places.values))
        ids = self._pack_pairs(ids)
        # 2. Compute `windows_at_once` rows at a time.
        specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ids}
        # Traced first, because the loop's state begins with the shapes of its outputs.
        compute = tf.function(self.compute).get_concrete_function(specs)

        def read(rows, numbers):
            outputs = compute(**{k: tf.gather(v, rows) for k, v in ids.items()})
            return {k: tf.concat([v, outputs[k]], 0) for k, v in numbers.items()}

        none = {
            name: tf.zeros([0, *output.shape[1:]], output.dtype)
            for name, output in compute.structured_outputs.items()
        }
        num_windows = tf.shape(ids["input_ids"], tf.int64)[0]
        numbers = graph_windows.fold(
            read, none, num_windows, windows_at_once=self.windows_at_once
        )
        # 3. Pool the numbers of each text's windows.
        pool = tf.math.unsorted_segment_mean
        if self.long_texts == "windows_max":
            pool = tf.math.unsorted_segment_max
        num_texts = tf.shape(texts)[0]
        pooled = {k: pool(v, windows.texts, num_texts) for k, v in numbers.items()}
        return self.present(ids, pooled)


class SeveralParts(DirectAnswers):
    """A model for which a question has several parts, each an input of its own.

    Ids are `INPUT_NAMES`, `(batch_size, num_parts, sequence_length)` int32 each. All
    questions of a batch have the same number of parts.
    """

    id_specs = tuple(
        tf.TensorSpec([None, None, None], tf.int32, name) for name in INPUT_NAMES
    )

    def encode(self, text: tf.Tensor, parts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Packs `(batch_size,)` texts with each of `(batch_size, num_parts)` parts."""
        shape = tf.shape(parts)
        repeated = tf.gather(
            self._tokenizer(text), tf.repeat(tf.range(shape[0]), shape[1])
        )
        packed = self._pack_pairs(repeated, self._tokenizer(tf.reshape(parts, [-1])))
        return {
            name: tf.reshape(values, [*tf.unstack(shape), tf.shape(values)[1]])
            for name, values in packed.items()
        }


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
