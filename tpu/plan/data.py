"""Data of a pre-training: time of processors and bytes on disk, for a number of words.

Measured on text in English and scaled by the words: times in
benchmarks/results/data.md, bytes in benchmarks/results/disk_and_rate.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bert_keras import config

_MEASURED_WORDS = 3.3e9
# Core-hours for that many words; of `examples`, for each length and each duplicate.
_CORPUS, _VOCAB, _EXAMPLES, _DUPLICATE = 4.1, 0.6, 0.43, 0.214
_DOCUMENT_BYTES = 2.31
"""Of gzipped documents, for each word."""
_TOKENS_PER_WORD = {128: 1.79, 512: 2.11}
"""Tokens of the examples, padding included, for each word and duplicate."""
_BYTES_PER_TOKEN = {
    "static": {128: 6.33, 512: 5.11},
    "dynamic": {128: 2.31, 512: 1.99},
}
"""Of records without compression."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples of one length."""

    max_seq_length: int
    number: int
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Data:
    """All data of a run."""

    num_words: float
    document_bytes: float
    examples: tuple[Examples, ...]
    core_hours: dict[str, float]
    """By verb."""

    @property
    def bytes(self) -> float:
        return self.document_bytes + sum(made.bytes for made in self.examples)


def prepare(
    num_words: float, lengths: Sequence[int], settings: config.ExamplesConfig
) -> Data:
    """What `corpus`, `vocab` and `examples` take, once for each length."""
    share = num_words / _MEASURED_WORDS
    copies = settings.num_duplicates
    made = []
    for length in lengths:
        tokens = num_words * copies * _between(_TOKENS_PER_WORD, length)
        each = _between(_BYTES_PER_TOKEN[settings.masking], length)
        number = round(tokens / length)
        made.append(Examples(max_seq_length=length, number=number, bytes=tokens * each))
    examples_hours = len(lengths) * (_EXAMPLES + _DUPLICATE * copies)
    hours = {"corpus": _CORPUS, "vocab": _VOCAB, "examples": examples_hours}
    return Data(
        num_words=num_words,
        document_bytes=num_words * _DOCUMENT_BYTES,
        examples=tuple(made),
        core_hours={verb: share * value for verb, value in hours.items()},
    )


def _between(measured: dict[int, float], length: int) -> float:
    """Between the two lengths that were measured; beyond them, the nearer one's."""
    (short, first), (long, last) = sorted(measured.items())
    share = (min(max(length, short), long) - short) / (long - short)
    return first + share * (last - first)
