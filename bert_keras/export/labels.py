"""Exported classifiers: a label, or a number, for a text or a pair of texts."""

from pathlib import Path

import tensorflow as tf

from bert_keras import config, networks
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

    id_names = answers.INPUT_NAMES

    def __init__(self, checkpoint: weights.Checkpoint, *, path: Path):
        super().__init__(name="labels")
        task = checkpoint.task
        self.string_names = ("text", "text_pair")[: 1 + task.has_text_pair]
        self.vocabulary = checkpoint.vocabulary
        self.do_lower_case = checkpoint.do_lower_case
        self.max_seq_length = checkpoint.bert_config.max_position_embeddings
        if (path / "config.yaml").is_file():
            settings = config.load_config(config.FinetuningConfig, path / "config.yaml")
            self.max_seq_length = settings.max_seq_length
        self.labels = task.labels
        network = networks.build(checkpoint.bert_config, task)
        missing = weights.assign(network, checkpoint.arrays)
        answers.check_has(missing, ("encoder/", "head/"), purpose=task.kind, path=path)
        self._forward, self._weights = answers.parts_of(network)
        self._tokenizer = answers.graph_tokenizer_of(checkpoint)
        self._python_tokenizer = answers.tokenizer_of(checkpoint)

    def encode(self, text, text_pair=None):
        return answers.pack(
            self._tokenizer(text),
            None if text_pair is None else self._tokenizer(text_pair),
            max_seq_length=self.max_seq_length,
            vocabulary=self.vocabulary,
        )

    def compute(self, ids):
        return {"logits": self._forward(dict(ids))["logits"]}

    def present(self, ids, numbers):
        logits = numbers["logits"]
        if self.labels is None:
            return {"score": logits[:, 0]}
        return {
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(tf.constant(self.labels), tf.argmax(logits, axis=-1)),
        }

    def probes(self) -> answers.Probes:
        has_pair = len(self.string_names) == 2
        seconds = answers.PROBES if has_pair else (None,)
        pairs = [(first, second) for first in answers.PROBES for second in seconds]
        columns = [list(column) for column in zip(*pairs, strict=True)]
        ids = answers.tokenize(
            *columns, self._python_tokenizer, max_seq_length=self.max_seq_length
        )
        # Without pairs there is one name, and the second column is left.
        return answers.Probes(dict(zip(self.string_names, columns, strict=False)), ids)
