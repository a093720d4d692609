"""New words for a trained model's vocabulary, in `[unusedN]` entries or at its end.

No row moves, so the model's results stay the same. The weights of a new entry are the
mean of the weights of the pieces into which the word was split before.
"""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import tokenization

logger = logging.getLogger(__name__)

_UNUSED = re.compile(r"\[unused\d+\]")
_NUM_SHOWN = 10


def extend(
    vocabulary: tokenization.Vocabulary,
    words: Iterable[str],
    *,
    do_lower_case: bool,
    into_unused: bool = True,
) -> tokenization.Vocabulary:
    """Adds words to a trained model's vocabulary.

    Words are as they stand in text, or have `##` in front if they continue a word.
    Existing entries are skipped; a word that the tokenizer splits before it looks for
    entries is refused. With `into_unused`, words replace `[unusedN]` entries, the first
    ones first, so that the embedding keeps its size; the others go after the last one.
    """
    new = [word for word in dict.fromkeys(words) if word not in vocabulary.ids]
    for word in new:
        text = word.removeprefix(tokenization.CONTINUATION_PREFIX)
        parts = tokenization.basic_tokenize(text, do_lower_case=do_lower_case)
        if parts != [text]:
            parts_text = " ".join(map(repr, parts)) or "nothing"
            raise InputError(
                f"{word!r} would never be used: of such text the tokenizer makes "
                f"{parts_text} before it looks for entries; leave it out, or give what "
                "it makes"
            )
    tokens = list(vocabulary.tokens)
    unused = [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)]
    slots = unused[: len(new)] if into_unused else []
    for slot, word in zip(slots, new, strict=False):
        tokens[slot] = word
    appended = new[len(slots) :]
    message = "%d words into unused entries, %d after the last one"
    logger.info(message, len(slots), len(appended))
    return tokenization.Vocabulary((*tokens, *appended))


def write_extended(
    vocab_path: files.Path,
    words_path: files.Path,
    output_path: files.Path,
    *,
    do_lower_case: bool,
    into_unused: bool = True,
) -> None:
    """Writes a new vocabulary, extended by a file's words, one a line."""
    files.new_file(output_path)
    vocabulary = tokenization.Vocabulary.load(vocab_path, do_lower_case=do_lower_case)
    lines = files.read_text(words_path, expected="words, one a line").splitlines()
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise InputError(f"{words_path}: holds no words, expected one a line")
    extend(
        vocabulary, words, do_lower_case=do_lower_case, into_unused=into_unused
    ).save(output_path)


def sources(
    old: tokenization.Vocabulary,
    new: tokenization.Vocabulary,
    *,
    do_lower_case: bool,
    path: files.Path,
) -> dict[int, tuple[int, ...]]:
    """Returns for the id of every new entry the old ids whose mean weights it gets.

    The old ids belong to the pieces into which `old` splits the new entry, without
    `[UNK]`; if no piece is left, they are the ids of all entries in use. `path` is the
    model's, for errors: `new` must be a vocabulary that `extend` makes from `old`.
    """
    pairs = itertools.zip_longest(old.tokens, new.tokens)
    differing = [
        f"line {line}: {repr(there) if there else 'nothing'} there, "
        f"{repr(here) if here else 'nothing'} here"
        for line, (there, here) in enumerate(pairs, start=1)
        if here != there
        and (not here or here in old.ids or (there and not _UNUSED.fullmatch(there)))
    ]
    if differing:
        num_more = len(differing) - _NUM_SHOWN
        raise InputError(
            f"{path}: not the vocabulary of the examples, nor one that it extends: "
            + "; ".join(differing[:_NUM_SHOWN])
            + (f" and {num_more} more" if num_more > 0 else "")
            + ". New entries may only replace [unusedN] or follow the last one: make "
            "the examples with such a vocabulary"
        )
    used = tuple(
        i for i, token in enumerate(old.tokens) if not _UNUSED.fullmatch(token)
    )
    tokenizer = tokenization.Tokenizer(old, do_lower_case=do_lower_case)
    prefix, old_ids = tokenization.CONTINUATION_PREFIX, {}
    for index, token in enumerate(new.tokens):
        if token in old.ids:
            continue
        if token.startswith(prefix):
            pieces = tokenizer.encode_continuation(token.removeprefix(prefix))
        else:
            pieces = [i for i in tokenizer.encode(token) if i != old.unk_id]
        old_ids[index] = tuple(pieces) or used
    return old_ids


def extend_rows(
    rows: np.ndarray, means: Mapping[int, Sequence[int]], *, num_rows: int
) -> np.ndarray:
    """Copies `(old number of rows, ...)` float32 to `(num_rows, ...)`, with the mean
    rows of the new entries; `means`, from `sources`, has every row beyond the old ones.
    """
    extended = np.zeros((num_rows, *rows.shape[1:]), np.float32)
    extended[: len(rows)] = rows
    # Many words may share their pieces, which may be the whole array.
    known: dict[tuple[int, ...], np.ndarray] = {}
    for index, pieces in means.items():
        pieces = tuple(pieces)
        if pieces not in known:
            known[pieces] = rows[list(pieces)].mean(axis=0, dtype=np.float64)
        extended[index] = known[pieces]
    return extended
