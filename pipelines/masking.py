"""Pure: token ids to masked-LM input and targets, as google-research/bert has it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class MaskingVocabulary:
    """What masking must know of a vocabulary."""

    size: int
    """Random replacements are drawn from all ids below it, special ones included."""
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: Sequence[bool]
    """For each id: is the piece a `##` one, that goes on with a word?"""


class MaskedTokens(NamedTuple):
    """One sequence with some of its tokens hidden."""

    input_ids: list[int]
    """All tokens, the replacements in place."""
    positions: list[int]
    """Where a prediction is asked for, ascending."""
    labels: list[int]
    """The true ids at `positions`."""


def num_predictions(
    num_tokens: int, *, masked_lm_prob: float, max_predictions_per_seq: int
) -> int:
    """How many tokens are hidden in a sequence of `num_tokens`, specials counted.

    `round` is Python's (half to even), as in the original: 0.15 x 10 gives 2,
    and 0.15 x 30 = 4.5 gives 4.
    """
    return min(max_predictions_per_seq, max(1, round(num_tokens * masked_lm_prob)))


def mask_tokens(
    input_ids: Sequence[int],
    *,
    vocabulary: MaskingVocabulary,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    do_whole_word_mask: bool,
    rng: random.Random,
) -> MaskedTokens:
    """Hides a random part of a sequence.

    Positions are drawn without replacement from all but `[CLS]` and `[SEP]`. Each
    drawn token becomes `[MASK]` in 80 % of the cases, stays in 10 %, and becomes a
    random id of the whole vocabulary in 10 %.

    With `do_whole_word_mask`, whole words are drawn (a piece and the `##` pieces
    after it); a word that would exceed the number of predictions is passed over, so
    fewer tokens than that number, even none, may be hidden. The 80/10/10 choice stays
    one for each piece, as in the original.

    Args:
        input_ids: `[CLS] A [SEP] B [SEP]`, not padded.
        rng: the only source of chance.
    """
    wanted = num_predictions(
        len(input_ids),
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
    )
    if do_whole_word_mask:
        positions = _draw_words(_words(input_ids, vocabulary), wanted, rng)
    else:
        specials = (vocabulary.cls_id, vocabulary.sep_id)
        candidates = [i for i, t in enumerate(input_ids) if t not in specials]
        positions = rng.sample(candidates, min(wanted, len(candidates)))
    positions.sort()
    masked_ids = list(input_ids)
    for position in positions:
        if rng.random() < 0.8:
            masked_ids[position] = vocabulary.mask_id
        elif rng.random() < 0.5:
            masked_ids[position] = rng.randrange(vocabulary.size)
    return MaskedTokens(masked_ids, positions, [input_ids[p] for p in positions])


def _words(input_ids: Sequence[int], vocabulary: MaskingVocabulary) -> list[list[int]]:
    """Positions grouped into words.

    A `##` piece right after a special token (its word was cut in two) is a word of
    its own: the original would join it to the word before the special token.
    """
    words: list[list[int]] = []
    in_word = False
    for position, token in enumerate(input_ids):
        if token == vocabulary.cls_id or token == vocabulary.sep_id:
            in_word = False
        elif in_word and vocabulary.is_continuation[token]:
            words[-1].append(position)
        else:
            words.append([position])
            in_word = True
    return words


def _draw_words(words: list[list[int]], wanted: int, rng: random.Random) -> list[int]:
    rng.shuffle(words)
    positions: list[int] = []
    for word in words:
        if len(positions) + len(word) <= wanted:
            positions.extend(word)
        if len(positions) == wanted:
            break
    return positions
