"""Exported choosers: the best of several endings."""

import tensorflow as tf

from bert_keras.kinds import served
from bert_keras.kinds.choice import swag


class Choices(served.DirectAnswers):
    """The best of several endings.

    Strings: `sentence`, `beginning`, which follows the sentence and may be empty, and
    `endings`, `(batch_size, num_endings)`, which continue the beginning. Ids:
    `served.INPUT_NAMES`, each `(batch_size, num_endings, sequence_length)` int32. All
    examples of a batch have the same number of endings.

    Numbers: `logits`, `(batch_size, num_endings)` float32. Answers: `best`,
    `(batch_size,)` int32, the number of the most probable ending, from 0, and
    `probabilities`, `(batch_size, num_endings)` float32.
    """

    string_specs = (
        tf.TensorSpec([None], tf.string, "sentence"),
        tf.TensorSpec([None], tf.string, "beginning"),
        tf.TensorSpec([None, None], tf.string, "endings"),
    )
    id_specs = tuple(
        tf.TensorSpec([None, None, None], tf.int32, name) for name in served.INPUT_NAMES
    )

    def __init__(self, trained: served.Trained):
        super().__init__(trained, max_seq_length=trained.settings.max_seq_length)

    def encode(self, sentence, beginning, endings):
        shape = tf.shape(endings)
        examples = tf.repeat(tf.range(shape[0]), shape[1])
        continuations = tf.strings.join(
            [tf.gather(beginning, examples), tf.reshape(endings, [-1])], separator=" "
        )
        packed = self._pack(
            tf.gather(self._tokenizer(sentence), examples),
            self._tokenizer(continuations),
        )
        return {
            name: tf.reshape(values, [shape[0], shape[1], tf.shape(values)[1]])
            for name, values in packed.items()
        }

    def compute(self, ids):
        return {"logits": self.network(ids)["logits"]}

    def present(self, ids, numbers):
        logits = numbers["logits"]
        return {
            "best": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }

    def id_probes(self):
        questions = _probe_questions()
        tokenized = swag.tokenize(
            questions, self.tokenizer, max_seq_length=self.max_seq_length
        )
        return tokenized.batch(range(len(questions)))

    def string_probes(self):
        questions = _probe_questions()
        return {
            "sentence": [question.sentence for question in questions],
            "beginning": [question.beginning for question in questions],
            "endings": [question.endings for question in questions],
        }


def _probe_questions() -> list[swag.Question]:
    texts = served.PROBES
    return [
        swag.Question(texts[i], texts[i - 1], texts[:4], None, 0)
        for i in range(len(texts))
    ]
