"""Single messages, for tests of what is in records."""

from bert_keras.pipelines.inspection import example_decoding


def decode(message):
    """The features of a serialised `tf.train.Example`, each a list, by name."""
    columns = example_decoding.decode_examples([message])
    return {name: column.values.tolist() for name, column in columns.items()}
