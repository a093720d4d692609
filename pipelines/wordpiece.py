"""Word counts -> WordPiece vocabulary; without Beam.

At a given threshold, the pieces are those of tensorflow-text's learner
(`wordpiece_tokenizer_learner_lib`). The learner counts all substrings of all words,
then subtracts from each the counts of its extensions, which leaves those that end a
word. Here only these are counted, in a fraction of the time and memory.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from bert_keras.core import progress
from bert_keras.core.errors import InputError
from bert_keras.data import features, tokenization

logger = logging.getLogger(__name__)

CHARACTER_COVERAGE = 0.99995
"""Share of the text that the alphabet spells; rarer characters are left out, since each
costs two entries and hardly any text would train them."""

MAX_WORD_LENGTH = 50
"""Characters of a word; longer ones teach nothing."""

# In the order of the original's vocabularies; unused entries are room for users.
RESERVED_TOKENS = (
    features.PAD_TOKEN,
    *(f"[unused{i}]" for i in range(99)),
    *features.SPECIAL_TOKENS[1:],
)

# The default of tensorflow-text's learner.
_NUM_ITERATIONS = 4
# A little more than the wanted size is near enough; the rarest pieces are cut.
_SLACK = 0.02
_USUAL_STEPS = 3


def learn_vocabulary(
    words: Sequence[tuple[str, int]],
    *,
    character_counts: Mapping[str, int],
    vocab_size: int,
    do_lower_case: bool,
) -> list[str]:
    """Learns a vocabulary of exactly `vocab_size` entries, reserved ones included. The
    words come by falling count, then by the word."""
    characters = alphabet(character_counts, do_lower_case=do_lower_case)
    least = len(RESERVED_TOKENS) + len(characters)
    if vocab_size < least:
        raise InputError(
            f"--vocab_size {vocab_size} is too small: special tokens and the "
            f"characters of this text alone take {least} entries; give at least that"
        )
    spelt = [
        (word, count)
        for word, count in words
        if len(word) <= MAX_WORD_LENGTH and characters.issuperset(word)
    ]
    pieces: list[str] = []
    if spelt and vocab_size > least:
        learner = PieceLearner(spelt)
        with progress.Progress(
            "vocab: learning",
            total=_USUAL_STEPS * (_NUM_ITERATIONS - 1) * len(spelt),
            unit="words",
            read=lambda: learner.num_words_done,
        ):
            counts = [count for _, count in spelt]
            num_pieces = vocab_size - least
            pieces = find_pieces(learner.learn, num_pieces=num_pieces, counts=counts)
    return assemble(characters, pieces, words=spelt, vocab_size=vocab_size)


def alphabet(character_counts: Mapping[str, int], *, do_lower_case: bool) -> set[str]:
    """Returns the characters of a vocabulary, and their forms inside words.

    They are all of printable ASCII, since later text may have signs that running text
    lacks, and `check_casing` needs the letters; and the most frequent characters that
    together make up `CHARACTER_COVERAGE` of the text. Punctuation and ideographs are
    always words of their own, so they have no form with `##`.
    """
    characters = {chr(code_point) for code_point in range(ord("!"), ord("~") + 1)}
    if do_lower_case:
        characters = {char.lower() for char in characters}
    missing = sum(character_counts.values()) * CHARACTER_COVERAGE
    for char, count in sorted(character_counts.items(), key=rank):
        if missing <= 0:
            break
        missing -= count
        # Not a surrogate, half a character of cut text, which UTF-8 cannot encode.
        if not "\ud800" <= char <= "\udfff":
            characters.add(char)
    inner = {
        tokenization.CONTINUATION_PREFIX + char
        for char in characters
        if not (tokenization.is_punctuation(char) or tokenization.is_cjk(char))
    }
    return characters | inner


def rank(item: tuple[str, int]) -> tuple[int, str]:
    """Returns the sort key of a word and its count: the most frequent come first."""
    word, count = item
    return -count, word


class PieceLearner:
    def __init__(self, words: Sequence[tuple[str, int]]):
        self._words = words
        self.num_words_done = 0
        """Words split so far, for progress."""
        # All proper endings of words that are frequent enough for any threshold. Most
        # are rare. By last letter, so that only those of one letter are in memory.
        self._endings: dict[str, int] = {}
        # The lowest threshold of `find_pieces`: words come by falling count.
        least = max(2, words[-1][1])
        by_last: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for word, count in words:
            by_last[word[-1]].append((word, count))
        for group in by_last.values():
            counts: defaultdict[str, int] = defaultdict(int)
            for word, count in group:
                for start in range(1, len(word)):
                    counts[word[start:]] += count
            self._endings |= {e: count for e, count in counts.items() if count >= least}

    def learn(self, threshold: int) -> list[str]:
        """Returns all pieces of several characters and a count of at least `threshold`.

        The first iteration takes all endings of words, each further one the endings
        that follow a piece of the previous iteration, as in tokenisation. The pieces
        have their `##`, and the most frequent comes first.
        """
        whole = {word: count for word, count in self._words if count >= threshold}
        inner = {e: count for e, count in self._endings.items() if count >= threshold}
        for _ in range(_NUM_ITERATIONS - 1):
            counts = self._count_inner(whole, inner)
            inner = {e: count for e, count in counts.items() if count >= threshold}
        prefix = tokenization.CONTINUATION_PREFIX
        pieces = whole | {prefix + ending: count for ending, count in inner.items()}
        logger.info(
            f"vocab: {len(pieces):,} pieces occur {threshold:,} times or more in "
            f"{len(self._words):,} words"
        )
        return [
            piece
            for piece, _ in sorted(pieces.items(), key=rank)
            if len(piece.removeprefix(prefix)) > 1
        ]

    def _count_inner(
        self, whole: Mapping[str, int], inner: Mapping[str, int]
    ) -> dict[str, int]:
        """Splits words into pieces, and counts the ending after each but the last. All
        single characters are pieces, besides the pieces `whole` at the beginning of
        words and `inner` within words."""
        counts: defaultdict[str, int] = defaultdict(int)
        for word, count in self._words:
            # A word that is a piece itself is never split, so its endings do not count.
            start = 0 if word not in whole else len(word)
            pieces = whole
            while start < len(word):
                end = len(word)
                while end > start + 1 and word[start:end] not in pieces:
                    end -= 1
                if end < len(word):
                    counts[word[end:]] += count
                start, pieces = end, inner
            self.num_words_done += 1
        return counts


def find_pieces(
    learn: Callable[[int], list[str]], *, num_pieces: int, counts: Sequence[int]
) -> list[str]:
    """Finds the threshold at which the learner gives just enough pieces.

    The search in tensorflow-text's learner starts from a count of ten million, takes
    many more steps and ends less close to the requested size. Here the descending
    `counts` of words give a first guess. `learn` gives all pieces that occur as often
    as a threshold, most frequent first. Returns at least `num_pieces` pieces and few
    more, or all if there are fewer.
    """
    lowest = max(2, counts[-1])
    threshold = max(lowest, counts[min(num_pieces, len(counts) - 1)])
    # The closest thresholds on both sides, and their pieces.
    enough: tuple[int, list[str]] | None = None
    short: tuple[int, list[str]] | None = None
    while True:
        pieces = learn(threshold)
        if len(pieces) >= num_pieces:
            enough = threshold, pieces
            if len(pieces) <= num_pieces * (1 + _SLACK):
                return pieces
        elif threshold == lowest:
            return pieces
        else:
            short = threshold, pieces
        if not (enough and short):
            threshold = 2 * threshold if enough else max(lowest, threshold // 2)
            continue
        if short[0] - enough[0] <= 1:
            return enough[1]
        # Between two, by Zipf's law: the logarithm of the number of pieces falls about
        # linearly with the logarithm of the threshold.
        target, most = num_pieces * (1 + _SLACK / 2), len(enough[1])
        span = math.log(most / max(len(short[1]), 1))
        # Away from both ends: each step narrows the range by a tenth of its logarithm
        # at least, however far the counts are from Zipf's law.
        share = min(max(math.log(most / target) / span, 0.1), 0.9)
        guess = round(enough[0] * (short[0] / enough[0]) ** share)
        threshold = min(max(guess, enough[0] + 1), short[0] - 1)


def assemble(
    characters: set[str],
    pieces: Sequence[str],
    *,
    words: Sequence[tuple[str, int]],
    vocab_size: int,
) -> list[str]:
    """Sorts entries, and cuts or fills them to exactly `vocab_size`.

    The order is: reserved tokens, characters by code point, characters with `##`,
    pieces by falling frequency. If these are too few, whole words follow, the most
    frequent first, and then more `[unusedN]`.
    """
    prefix = tokenization.CONTINUATION_PREFIX
    spelling = sorted(characters, key=lambda entry: (entry.startswith(prefix), entry))
    entries = dict.fromkeys([*RESERVED_TOKENS, *spelling, *pieces])
    for word, _ in words:
        if len(entries) >= vocab_size:
            break
        entries.setdefault(word)
    tokens = list(entries)[:vocab_size]
    num_unused = vocab_size - len(tokens)
    if num_unused:
        logger.warning(
            f"vocab: the text gives only {len(tokens):,} entries; {num_unused:,} are "
            "filled with [unused] ones: give more text or a smaller --vocab_size"
        )
    return tokens + [f"[unused{99 + i}]" for i in range(num_unused)]
