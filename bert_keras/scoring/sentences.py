"""Scores of sentences, as numbers. No TensorFlow."""

from typing import NamedTuple

import numpy as np

from bert_keras.data import features


class SentenceScore(NamedTuple):
    text: str
    pieces: tuple[str, ...]
    log_probs: np.ndarray
    """`(num_pieces,)` float32, in nats."""
    num_words: int
    """Words as the tokenizer divides them; a punctuation mark is a word."""

    @property
    def num_unknown(self) -> int:
        return self.pieces.count(features.UNK_TOKEN)

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood, in nats."""
        return float(np.sum(self.log_probs, dtype=np.float64))

    @property
    def per_piece(self) -> float:
        return self.total / len(self.pieces)

    @property
    def per_word(self) -> float:
        return self.total / self.num_words

    def as_json(self) -> dict[str, object]:
        return {
            "text": self.text,
            "total": self.total,
            "per_piece": self.per_piece,
            "per_word": self.per_word,
            "num_words": self.num_words,
            "num_unknown": self.num_unknown,
            "pieces": list(self.pieces),
            "log_probs": [round(float(value), 6) for value in self.log_probs],
        }
