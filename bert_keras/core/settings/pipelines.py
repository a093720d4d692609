"""Settings of `corpus` and `examples`; unknown keys are refused."""

import math
from collections.abc import Iterator
from typing import Literal

import pydantic

from bert_keras.core.settings.strict import StrictModel


class CorpusConfig(StrictModel):
    """Text that `corpus` leaves out."""

    min_document_words: int = pydantic.Field(default=20, ge=0)
    """Words that a document needs; shorter ones are dropped. Two characters of Chinese
    or Japanese are a word, and four of Thai, Lao, Khmer or Burmese."""
    drop_lists: bool = True
    """Drop disambiguation and list pages of Wikipedia."""
    deduplicate_paragraphs: bool = True
    """Keep a paragraph that several documents share in one of them only."""
    min_duplicate_words: int = pydantic.Field(default=10, ge=1)
    """Minimum length, in words, of a paragraph that can count as a duplicate. Shorter
    ones, such as dialogue and headings, repeat by chance."""


def instances_per_row(max_seq_length: int) -> int:
    """Instances that a packed row has slots for."""
    return max(1, max_seq_length // 8)


class ExamplesConfig(StrictModel):
    """Masked examples from documents (`create_pretraining_data.py`'s flags)."""

    max_seq_length: int = pydantic.Field(default=128, ge=8)
    """Tokens per example, `[CLS]` and both `[SEP]` included."""
    max_predictions_per_seq: int | None = pydantic.Field(default=None, gt=0)
    """Slots for masked tokens; null: `ceil(max_seq_length * masked_lm_prob)`."""
    masked_lm_prob: float = pydantic.Field(default=0.15, gt=0, lt=1)
    """Fraction of tokens to predict."""
    dupe_factor: int | None = pydantic.Field(default=None, ge=1)
    """Copies of each document, each with other pairs and masks; null: 10, or 1 with
    dynamic masking, which draws new masks in each epoch."""
    short_seq_prob: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Fraction of examples that aim at a random shorter length; null: 0.1, or 0 with
    full sentences, as RoBERTa has them."""
    masking: Literal["static", "dynamic"] = "static"
    """`static` writes masked and padded examples; `dynamic` writes plain ones, which
    training masks when it loads them, differently in each epoch."""
    mask_token_prob: float = pydantic.Field(default=0.8, ge=0, le=1)
    """Fraction of the chosen tokens that becomes `[MASK]`."""
    random_token_prob: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Fraction of the chosen tokens that becomes a random one; the rest stays."""
    do_whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    max_ngram_size: int = pydantic.Field(default=1, ge=1)
    """Longest run of whole words masked together, n with a share of 1 / n; 1: none."""
    packing: Literal["sentence_pairs", "full_sentences", "single_sentences"] = (
        "sentence_pairs"
    )
    """`sentence_pairs` as in the paper; for training without next-sentence prediction
    `full_sentences`: consecutive sentences, across documents, up to `max_seq_length`,
    or `single_sentences`: each one alone."""
    max_sentence_length: int | None = pydantic.Field(default=None, gt=0)
    """Most WordPieces of a sentence with `single_sentences`; longer sentences are left
    out. null: no sentence is, and what an example cannot hold comes in the next one."""
    pack_instances: bool = False
    """Put several instances into each row of `max_seq_length` tokens, so that hardly a
    position is padding; each is trained as in a row of its own."""
    partner: Literal["same_source", "any_source"] = "same_source"
    """Documents of random next segments: of the same source, or all as in the paper."""
    next_sentence: Literal["original", "balanced"] = "original"
    """Pairs whose B is random: `original` as in google-research/bert, about half in
    long documents and 60 % in short ones, where a sentence that is left alone gets a
    random B; `balanced`: exactly half, drawn from the commoner kind; the rest goes."""
    feature_names: Literal["v1", "v2"] = "v1"
    """Names of the record's features: the original's, or tf-models-official's newer."""
    compression: Literal["none", "gzip"] = "none"
    """Compression of the TFRecord files."""
    random_seed: int = 12345
    """Seed of pairs and masks: the same seed gives the same bytes."""

    def _problems(self) -> Iterator[str]:
        if self.num_predictions > self.max_seq_length - 3:
            yield (
                "`max_predictions_per_seq` must leave room for [CLS] and two [SEP] in "
                f"`max_seq_length`, got {self.num_predictions} and "
                f"{self.max_seq_length}"
            )
        if self.next_sentence == "balanced" and self.packing != "sentence_pairs":
            yield (
                "`next_sentence=balanced` needs `packing=sentence_pairs`, got "
                f"{self.packing}: full sentences have no next sentence"
            )
        if self.short_seq_prob and self.packing == "single_sentences":
            yield (
                "`short_seq_prob` changes nothing with `packing=single_sentences`, "
                "which leaves each sentence as long as it is: set it to null"
            )
        if self.max_sentence_length and self.packing != "single_sentences":
            yield (
                "`max_sentence_length` needs `packing=single_sentences`, got "
                f"{self.packing}, whose sentences follow one another"
            )
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            yield (
                "`mask_token_prob` and `random_token_prob` must not exceed 1 together, "
                f"got {self.mask_token_prob} and {self.random_token_prob}"
            )

    @property
    def num_duplicates(self) -> int:
        """`dupe_factor`, or its default for this kind of masking."""
        if self.dupe_factor is not None:
            return self.dupe_factor
        return 10 if self.masking == "static" else 1

    @property
    def num_predictions(self) -> int:
        """`max_predictions_per_seq`, or its default for this length."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq
        return math.ceil(self.max_seq_length * self.masked_lm_prob)

    @property
    def num_slots(self) -> int:
        """Instances that a row has room for."""
        return instances_per_row(self.max_seq_length) if self.pack_instances else 1

    @property
    def num_row_predictions(self) -> int:
        """Slots for the masked tokens of a row: of one instance, or of all in it."""
        if not self.pack_instances:
            return self.num_predictions
        # The shares of several instances are rounded one by one.
        wanted = math.ceil(1.05 * self.max_seq_length * self.masked_lm_prob)
        return max(self.num_predictions, wanted)
