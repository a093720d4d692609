"""Exported rankers: scores of passages for a question."""

import tensorflow as tf

from bert_keras.kinds import served


class Rankings(served.DirectAnswers):
    """Scores of the passages of each question.

    Strings: `question` and `passages`, `(batch_size, num_passages)`. Ids:
    `served.INPUT_NAMES`, each `(batch_size, num_passages, sequence_length)` int32. All
    questions of a batch have the same number of passages; a score does not depend on
    other passages, so shorter lists may be filled up.

    Numbers: `logits`, `(batch_size, num_passages)` float32. Answers: `scores`, the same
    numbers, higher is better; and `ranking`, the same shape, int32: the numbers of the
    passages from 0, the best first.
    """

    string_specs = (
        tf.TensorSpec([None], tf.string, "question"),
        tf.TensorSpec([None, None], tf.string, "passages"),
    )
    id_specs = tuple(
        tf.TensorSpec([None, None, None], tf.int32, name) for name in served.INPUT_NAMES
    )

    def __init__(self, trained: served.Trained):
        super().__init__(
            trained,
            max_seq_length=trained.settings.max_seq_length,
            long_texts=trained.settings.long_texts,
        )

    def encode(self, question, passages):
        shape = tf.shape(passages)
        questions = tf.gather(
            self._tokenizer(question), tf.repeat(tf.range(shape[0]), shape[1])
        )
        pairs = self._pack(questions, self._tokenizer(tf.reshape(passages, [-1])))
        return {
            name: tf.reshape(values, [*tf.unstack(shape), tf.shape(values)[1]])
            for name, values in pairs.items()
        }

    def compute(self, ids):
        return {"logits": self.network(ids)["logits"]}

    def present(self, ids, numbers):
        scores = numbers["logits"]
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        return {"scores": scores, "ranking": order}

    def id_probes(self):
        pairs = [(a, b) for a in served.PROBES for b in served.PROBES]
        count = len(served.PROBES)
        return {
            name: values.reshape(count, count, -1)
            for name, values in self._python_ids(pairs).items()
        }

    def string_probes(self):
        return {
            "question": list(served.PROBES),
            "passages": [list(served.PROBES)] * len(served.PROBES),
        }
