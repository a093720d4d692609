"""Documents -> pairs of texts that belong together, for `finetune --task embedding`.

One pass over the shards, without Beam. Which pairs are made, and which documents are
held out, follows from their ids alone.
"""

import array
import bisect
import hashlib
import itertools
import logging
import tempfile
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import choices
from bert_keras.data import corpora
from bert_keras.pipelines import words

logger = logging.getLogger(__name__)

KINDS: tuple[str, ...] = typing.get_args(choices.PairKind)
"""Pairs: a document's title and each of its paragraphs; a paragraph and the next one; a
sentence of a paragraph and the rest of it, which is the inverse cloze task (Lee et al.,
2019)."""

MIN_WORDS = 5
"""Smallest length of each text but a title."""

TRAIN_NAME, DEV_NAME = "train.tsv", "dev.tsv"
_HEADER = "text\ttext_pair\n"

_REMEDIES = {
    "titles": "their documents may have no titles: try --of neighbours or sentences",
    "neighbours": "they may have one paragraph each: try --of sentences",
    "sentences": "their paragraphs may be too short: try --of neighbours",
}


def write_pairs(
    corpus_dir: files.Path,
    output_dir: files.Path,
    *,
    kind: str,
    per_document: int = 4,
    dev_percent: float = 5.0,
) -> dict[str, int]:
    """Writes `train.tsv` and `dev.tsv`; returns the number of pairs of each.

    `dev_percent` is the share of the documents whose pairs are held out; a held-out
    pair with a text of a training pair is left out. At most `per_document` pairs of a
    document are chosen, by their hashes.
    """
    check_choice("--of", kind, KINDS)
    if per_document < 1:
        raise InputError(f"--per_document is 1 or more, got {per_document}")
    if not 0 < dev_percent < 100:
        raise InputError(f"--dev_percent is between 0 and 100, got {dev_percent:g}")
    files.check_is_new(output_dir)
    corpus = corpora.open_corpus(corpus_dir)
    # Eight bytes for each text, where a set has 82; the texts themselves are on disk.
    trained = array.array("Q")
    counts = {TRAIN_NAME: 0, DEV_NAME: 0}
    options: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"}
    with (
        files.new_directory(output_dir) as directory,
        tempfile.TemporaryFile("w+", dir=directory, **options) as candidates,
        open(directory / TRAIN_NAME, "w", **options) as train,
        open(directory / DEV_NAME, "w", **options) as dev,
    ):
        # 1. The pairs to train on, and those that may be held out.
        train.write(_HEADER)
        for document in corpora.read_corpus(corpus_dir, corpus, title="pairs"):
            pairs = pairs_of(document, kind=kind, per_document=per_document)
            lines = ["\t".join(pair) + "\n" for pair in pairs]
            if _number(document["id"]) < dev_percent / 100 * 2**64:
                candidates.writelines(lines)
                continue
            trained.extend(_number(text) for pair in pairs for text in pair)
            train.writelines(lines)
            counts[TRAIN_NAME] += len(lines)
        # 2. Those of them that have no text of a pair to train on. `trained` is sorted
        # in place: the numpy array shares its memory.
        np.asarray(trained).sort()
        dev.write(_HEADER)
        candidates.seek(0)
        for line in candidates:
            for text in line.removesuffix("\n").split("\t"):
                number = _number(text)
                place = bisect.bisect_left(trained, number)
                if place < len(trained) and trained[place] == number:
                    break
            else:
                dev.write(line)
                counts[DEV_NAME] += 1
        if not all(counts.values()):
            raise InputError(
                f"{corpus_dir}: {counts[TRAIN_NAME]} pairs to train on and "
                f"{counts[DEV_NAME]} held out of {corpus.num_records} documents, "
                f"expected some of both: {_REMEDIES[kind]}, or give `corpus` more text"
            )
    logger.info(
        "%s: %d pairs to train on, %d held out, of %d documents",
        *(output_dir, counts[TRAIN_NAME], counts[DEV_NAME], corpus.num_records),
    )
    return counts


def pairs_of(
    document: Mapping[str, Any], *, kind: str, per_document: int
) -> list[tuple[str, str]]:
    """Returns at most `per_document` pairs of a document, in its order."""
    # 1. All pairs of the kind.
    pairs: list[tuple[str, str]] = []
    texts = [_line(paragraph) for paragraph in document["paragraphs"]]
    if kind == "titles":
        title = _line([document.get("title") or ""])
        pairs = [(title, text) for text in texts if title and _is_long(text)]
    elif kind == "neighbours":
        for first, second in itertools.pairwise(texts):
            if first != second and _is_long(first) and _is_long(second):
                pairs.append((first, second))
    else:
        for text, sentences in zip(texts, document["paragraphs"], strict=True):
            long = [n for n, sentence in enumerate(sentences) if _is_long(sentence)]
            if long:
                # A long sentence, by a hash, and the rest of its paragraph.
                place = long[_number(f"{document['id']}\0{text}") % len(long)]
                rest = _line([*sentences[:place], *sentences[place + 1 :]])
                if _is_long(rest):
                    pairs.append((_line([sentences[place]]), rest))
    # 2. Some of them, by their hashes.
    places = {pair: number for number, pair in enumerate(pairs)}
    chosen = sorted(places, key=lambda pair: _number(f"{document['id']}\0{pair}"))
    return sorted(chosen[:per_document], key=places.__getitem__)


def _line(sentences: Sequence[str]) -> str:
    """Returns sentences as one line without tabs."""
    return " ".join(" ".join(sentences).split())


def _is_long(text: str) -> bool:
    return words.count_words(text) >= MIN_WORDS


def _number(text: str) -> int:
    """Returns a hash: each number below 2^64 is equally likely."""
    digest = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")
