"""Windows to learn from, with the vectors that a frozen encoder gives their words."""

from dataclasses import dataclass

import numpy as np

from bert_keras.kinds.tagging import ner_windows
from bert_keras.labelled import dataset


@dataclass(frozen=True, kw_only=True)
class WordsWithVectors(dataset.ExtendedInputs):
    """Windows whose words have their vectors, so that no epoch runs the encoder."""

    inputs: ner_windows.TokenizedWords
    """With `has_places`."""
    vectors: np.ndarray
    """`(num_words, num_layers, hidden_size)` float32."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `TokenizedWords.batch` with `word_vectors`, `(len(rows), num_words,
        num_layers, hidden_size)` float32, with as many words as the longest sentence of
        the batch has, and 0 behind shorter ones."""
        ids, index = self.places(rows)
        shape = (len(rows), int(self.inputs.num_words[rows].max()))
        vectors = np.zeros((*shape, *self.vectors.shape[1:]), np.float32)
        vectors[index] = self.vectors[ids]
        return self.inputs.batch(rows) | {"word_vectors": vectors}
