"""Pseudo-log-likelihoods: how probable a masked LM finds whole sentences.

Each piece of a sentence is masked once, and the logarithms of the probabilities of the
true pieces are added (Salazar et al., 2020, "Masked language model scoring"):

    the cat [MASK]   log p(sat | the cat _)
    the [MASK] sat   log p(cat | the _ sat)
    [MASK] cat sat   log p(the | _ cat sat)
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from bert_keras.core import progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings.choices import PllForm
from bert_keras.data import features, tokenization
from bert_keras.inference import forward
from bert_keras.labelled import dataset, tokenized

_SENTENCES_AT_ONCE = 4000
"""Sentences that are sorted by length together: a row of input for each piece."""


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


class SentenceScorer:
    """Computes pseudo-log-likelihoods in float32.

    A left-to-right model (`attention`) predicts each piece from those before it; its
    sum is a log-likelihood, and nothing is masked.
    """

    def __init__(
        self,
        network: keras.Model,
        tokenizer: tokenization.Tokenizer,
        *,
        pll: PllForm = "original",
        **options: Any,
    ):
        self.tokenizer = tokenizer
        self._longest = network.config.max_position_embeddings
        self._is_left_to_right = network.config.attention == "left_to_right"
        self._pll = pll
        self._starts_word = ~tokenizer.vocabulary.is_continuation
        names = ("masked_lm_positions", "masked_lm_ids")

        def log_probs(batch):
            # (num_rows, vocab_size): each row has a single place to predict.
            logits = network(batch, training=False)["masked_lm_logits"][:, 0]
            true = ops.take_along_axis(logits, batch["masked_lm_ids"], axis=1)
            return true[:, 0] - ops.logsumexp(logits, axis=1)

        self._predict = forward.BatchPredictor(
            log_probs, feature_names=(*forward.INPUT_NAMES, *names), **options
        )

    def __call__(
        self,
        texts: Iterable[str],
        *,
        total: int | None = None,
        place: Callable[[int], str] = "sentence {}".format,
    ) -> Iterator[SentenceScore]:
        """Yields scores in the order of the texts.

        Args:
            total: number of the texts, for a line of progress; `None`: no line.
            place: returns where a text stands, for errors, from its number, from 1.
        """
        numbered = enumerate(texts, start=1)
        num_done, part, num_rows = 0, [], 1

        def done() -> int:
            return num_done + int(self._predict.num_done / num_rows * len(part))

        line = contextlib.nullcontext()
        if total is not None:
            line = progress.Progress(
                "scoring", total=total, unit="sentences", read=done, only_if_long=True
            )
        with line:
            while part := list(itertools.islice(numbered, _SENTENCES_AT_ONCE)):
                ids = [self.encode(text, place(number)) for number, text in part]
                rows = self._rows(ids)
                self._predict.num_done, num_rows = 0, rows.num_answers
                outputs = self._predict(rows, title=None)
                if not np.isfinite(outputs).all():
                    raise InputError(
                        "the model's probabilities are not finite: its weights are "
                        "damaged, or its training diverged"
                    )
                ends = np.cumsum([len(of_text) for of_text in ids])
                log_probs = np.split(outputs, ends[:-1])
                tokens = self.tokenizer.vocabulary.tokens
                scored = zip(part, ids, log_probs, strict=True)
                for (_, text), of_text, values in scored:
                    pieces = tuple(tokens[i] for i in of_text)
                    num_words = int(self._starts_word[of_text].sum())
                    yield SentenceScore(text, pieces, values, max(1, num_words))
                # No part is left that `done`, in another thread, could count twice.
                num_done, part = num_done + len(part), []

    def encode(self, text: str, place: str) -> list[int]:
        """Returns the pieces' ids; raises `InputError` if they cannot be scored."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise InputError(f"{place}: expected a sentence, got {text!r}")
        if len(ids) + 2 > self._longest:
            raise InputError(
                f"{place}: a sentence of {len(ids) + 2} tokens with [CLS] and [SEP], "
                f"the model takes {self._longest}: {text[:60]!r}"
            )
        return ids

    def _rows(self, ids: Sequence[Sequence[int]]) -> "_MaskedRows":
        """Returns an input for each piece of each sentence, in their order."""
        vocabulary = self.tokenizer.vocabulary
        cls, sep = vocabulary.cls_id, vocabulary.sep_id
        texts = tokenized.TokenizedTexts.join(
            ([cls, *of_text, sep], [0] * (len(of_text) + 2)) for of_text in ids
        )
        counts = texts.lengths - 2
        # 1 to the number of pieces of a sentence, sentence after sentence.
        begins = tokenized.ranges(np.ones_like(counts), counts)
        # Left to right, the masked stretch is empty.
        ends = begins + (not self._is_left_to_right)
        text_of = np.repeat(np.arange(len(ids)), counts)
        if self._pll == "word_l2r" and not self._is_left_to_right:
            # The end of each piece's word, which is masked with it; [SEP] starts a
            # word, so each piece has one.
            starts = np.flatnonzero(self._starts_word[texts.input_ids])
            offsets = texts.starts[text_of]
            ends = starts[np.searchsorted(starts, offsets + begins, side="right")]
            ends -= offsets
        return _MaskedRows(
            texts=texts,
            text_of=text_of,
            begins=begins,
            ends=ends,
            mask_id=vocabulary.mask_id,
            offset=-1 if self._is_left_to_right else 0,
        )


@dataclass(frozen=True, kw_only=True)
class _MaskedRows(dataset.Inputs):
    """Inputs with one masked stretch each, whose first piece is to be predicted."""

    texts: tokenized.TokenizedTexts
    text_of: np.ndarray
    """`(num_rows,)`: the sentence of each row."""
    begins: np.ndarray
    """`(num_rows,)`: place of the first masked token, `[CLS]` has 0."""
    ends: np.ndarray
    """`(num_rows,)`: place after the last masked token."""
    mask_id: int
    offset: int
    """From the piece to the position that predicts it."""

    @property
    def lengths(self) -> np.ndarray:
        return self.texts.lengths[self.text_of]

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        batch = self.texts.batch(self.text_of[rows])
        begins, ends = self.begins[rows, None], self.ends[rows, None]
        columns = np.arange(batch["input_ids"].shape[1])
        is_masked = (begins <= columns) & (columns < ends)
        ids = np.where(is_masked, np.int32(self.mask_id), batch["input_ids"])
        return batch | {
            "input_ids": ids,
            "masked_lm_positions": (begins + self.offset).astype(np.int32),
            "masked_lm_ids": np.take_along_axis(batch["input_ids"], begins, axis=1),
        }
