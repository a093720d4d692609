"""Exported classifiers: a label, or a number, for a text or a pair of texts."""

from pathlib import Path

import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.export import answers


class Labels(tf.Module):
    """See `answers.Answers`.

    Strings: `text`, and `text_pair` if the model was trained on pairs; an empty
    `text_pair` is no second text. Ids: `answers.INPUT_NAMES`.

    Numbers: `logits`, `(batch_size, num_labels)` float32, one column for a number.
    Answers: of classes `probabilities`, `(batch_size, num_labels)` float32, and
    `label`, `(batch_size,)` strings, the most probable one; of numbers `score`,
    `(batch_size,)` float32.

    Args:
        checkpoint: of kind `classification` or `regression`.
        path: where it is from; its `config.yaml`, if there is one, says how long texts
            were in training.
    """

    id_specs = answers.ID_SPECS

    def __init__(self, checkpoint: weights.Checkpoint, *, path: Path):
        super().__init__(name="labels")
        names = ("text", "text_pair")[: 1 + checkpoint.task.has_text_pair]
        self.string_specs = tuple(
            tf.TensorSpec([None], tf.string, name) for name in names
        )
        self.vocabulary = checkpoint.vocabulary
        self.do_lower_case = checkpoint.do_lower_case
        self.max_seq_length = checkpoint.bert_config.max_position_embeddings
        if settings := answers.read_settings(path):
            self.max_seq_length = settings.max_seq_length
        self.labels = checkpoint.task.labels
        self.network = answers.tuned_network(checkpoint, path=path, needs_pooler=True)
        self._variables = self.network.variables
        self._tokenizer = answers.graph_tokenizer_of(checkpoint)
        self._python_tokenizer = answers.tokenizer_of(checkpoint)

    def signatures(self):
        return answers.direct_signatures(self)

    def encode(self, text, text_pair=None):
        return answers.pack(
            self._tokenizer(text),
            None if text_pair is None else self._tokenizer(text_pair),
            max_seq_length=self.max_seq_length,
            vocabulary=self.vocabulary,
        )

    def compute(self, ids):
        return {"logits": self.network(ids)["logits"]}

    def present(self, ids, numbers):
        logits = numbers["logits"]
        if self.labels is None:
            return {"score": logits[:, 0]}
        return {
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(tf.constant(self.labels), tf.argmax(logits, axis=-1)),
        }

    def id_probes(self):
        return answers.tokenize(
            *self._text_probes(),
            self._python_tokenizer,
            max_seq_length=self.max_seq_length,
        )

    def probes(self):
        names = [spec.name for spec in self.string_specs]
        # Without pairs there is one name, and the second column is left.
        strings = dict(zip(names, self._text_probes(), strict=False))
        return answers.direct_probes(self, strings)

    def _text_probes(self) -> list[list[str | None]]:
        seconds = answers.PROBES if len(self.string_specs) == 2 else (None,)
        pairs = [(first, second) for first in answers.PROBES for second in seconds]
        return [list(column) for column in zip(*pairs, strict=True)]
