"""Single messages, for tests of what is in records."""

import numpy as np

from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import example_reading


def encode(values):
    """Serialises one `tf.train.Example`: a list for each name, weights as floats."""
    arrays = {
        name: np.array([numbers], np.float32 if "weights" in name else np.int64)
        for name, numbers in values.items()
    }
    return records.encode_examples(arrays)[0] if arrays else b""


def decode(message):
    """The features of a serialised `tf.train.Example`, each a list, by name."""
    columns = example_reading.decode_examples([message])
    return {name: column[0].tolist() for name, column in columns.items()}
