"""The search in an index of texts: by words, by vectors, by both, with a reranker."""

import bisect
import collections
import contextlib
import errno
import itertools
import math
import typing
from collections.abc import Iterable
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.core import files, manifest, requirements
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import choices
from bert_keras.inference import finetuned
from bert_keras.labelled import similarity
from bert_keras.search import approximate, building

RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)."""
_K1, _B = 1.5, 0.75
"""The constants of BM25: how soon a word's count, and a text's length, weigh less."""
NUM_CANDIDATES = 100
"""The number of best pieces of each way that are fused."""
NUM_RERANKED = 20
"""The number of best pieces that a reranker reads, together with the question."""


@dataclass(frozen=True)
class Hit:
    """A piece of a text that was found."""

    text: str
    """The piece: `start` to `end` of the text's characters."""
    document: str
    """`FILE:LINE` of the text; of Parquet, the row; of a corpus, the title."""
    start: int
    end: int
    score: float
    """The reranker's score, else BM25, the cosine, or the sum of reciprocal ranks.
    Scores are comparable between hits of one search alone."""


class SearchIndex:
    """An index that `bert-keras index` made, open to be searched, also by threads.

    Args:
        directory: of the index.
        model: place of the model that made it; `None`: where it was then.
        reranker: model of `finetune --task ranking`, which orders the best pieces.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        model: str | Path | None = None,
        reranker: str | Path | None = None,
    ):
        for name in ("numkong", "faiss"):
            requirements.check_installed(name, "search", "`search` needs the package")
        # 1. The index and its models.
        description = manifest.read_manifest(directory, kind="index")
        manifest.verify_shards(directory, description, hashes=False)
        place = model or description.config["model"]["path"]
        if not files.exists(place):
            raise InputError(
                f"{place}: the model of the index {directory} is not there: name its "
                "place with --model"
            )
        load = finetuned.FinetunedModel.load_form
        self._embedder = load(place, "embedding")
        if self._embedder.digest() != description.config["model"]["sha256"]:
            raise InputError(
                f"{directory}: an index of another model than {place}: give the one "
                "that made it with --model, or index again"
            )
        self._reranker = None if reranker is None else load(reranker, "ranking")
        # 2. The shards. Vectors and words come from the disk when they are searched.
        names = [shard.name for shard in description.shards]
        self._nearest, directory = None, files.path(directory)
        self._sizes = {directory / s.name: s.num_bytes for s in description.shards}
        if (facts := description.config.get("approximate")) is not None:
            self._nearest = approximate.read(
                directory / names.pop(), facts["num_clusters"]
            )
        sources = description.config["files"]
        self._paths = [sources[name.split("-")[3]] for name in names]
        self._shards = [building.read_shard(directory / name) for name in names]
        self._starts = [0, *itertools.accumulate(len(s.pieces) for s in self._shards)]
        lengths = np.concatenate([shard.pieces["num_words"] for shard in self._shards])
        self._norms = _K1 * (1 - _B + _B * lengths / lengths.mean(dtype=np.float64))
        self._threads = futures.ThreadPoolExecutor()

    def __len__(self) -> int:
        """Returns the number of pieces."""
        return self._starts[-1]

    def search(
        self, question: str, top: int = 10, *, by: choices.SearchBy = "both"
    ) -> list[Hit]:
        """Returns the `top` pieces that answer a question best, the best first. Of
        pieces with the same text, and of those that overlap, only the best is there.

        Args:
            by: `words`: BM25; `vectors`: the cosine; `both`: their ranks, fused. A
                reranker orders the first `NUM_RERANKED` anew.
        """
        check_choice("by", by, typing.get_args(choices.SearchBy))
        if not question.strip() or top < 1:
            raise InputError(
                f"expected a question and a number of hits from 1, got {question!r} "
                f"and {top}"
            )
        # Reading a map of a file that was truncated since would end the process. Files
        # that `index --add` deleted stay mapped.
        for path, num_bytes in self._sizes.items():
            with contextlib.suppress(FileNotFoundError):
                if files.size(path) < num_bytes:
                    problem = "truncated while the index was open: make the index again"
                    raise OSError(errno.EIO, problem, str(path))
        # 1. The best pieces by each way, and fused.
        ways = {"words": self._by_words, "vectors": self._by_vectors}
        depth = min(max(NUM_CANDIDATES, 2 * top), len(self))
        rankings = [
            best(question, depth) for way, best in ways.items() if by in (way, "both")
        ]
        [scores] = rankings if len(rankings) == 1 else [fused(rankings)]
        # 2. The first texts, each once.
        num_hits = top if self._reranker is None else max(top, NUM_RERANKED)
        hits: list[Hit] = []
        texts: set[str] = set()
        # By text, as documents may have one title.
        by_text: dict[tuple[int, int], list[Hit]] = collections.defaultdict(list)
        for number, score in scores.items():
            of_text, hit = self._hit(number, score)
            if hit.text not in texts and not any(
                hit.start < better.end and better.start < hit.end
                for better in by_text[of_text]
            ):
                hits.append(hit)
                by_text[of_text].append(hit)
                texts.add(hit.text)
            if len(hits) == num_hits:
                break
        # 3. The reranker's order.
        if self._reranker is not None and hits:
            pair = question, [hit.text for hit in hits]
            answer: Any = self._reranker.predict([pair])[0]
            hits = [replace(hits[n], score=answer.scores[n]) for n in answer.prediction]
        return hits[:top]

    def _by_words(self, question: str, count: int) -> dict[int, float]:
        """Returns the best pieces by BM25, as Lucene has it, of pieces of words."""
        scores = np.zeros(len(self), np.float32)
        asked = collections.Counter(self._embedder.tokenizer.encode(question))
        for word, times in asked.items():
            matches = []
            for start, shard in zip(self._starts, self._shards, strict=False):
                words = shard.words["word"]
                first = bisect.bisect_left(words, word)
                last = bisect.bisect_right(words, word, first)
                matches.append((start, shard.words[first:last]))
            num_pieces = sum(len(postings) for _, postings in matches)
            rarity = math.log1p((len(self) - num_pieces + 0.5) / (num_pieces + 0.5))
            for start, postings in matches:
                rows, counts = start + postings["piece"], postings["count"]
                scores[rows] += times * rarity * counts / (counts + self._norms[rows])
        # A piece without a word of the question is not found.
        return _best(np.where(scores > 0, scores, -np.inf), count)

    def _by_vectors(self, question: str, count: int) -> dict[int, float]:
        answer: Any = self._embedder.predict([question])[0]
        vector = similarity.unit_length(np.array([answer.prediction]))
        if not np.isfinite(vector).all():
            raise InputError(f"the vector of {question!r} is not finite")
        if self._nearest is not None:
            # A question at a time: faiss's threads for several do not survive a fork.
            scores, numbers = self._nearest(vector, count)
            pairs = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
            return {number: score for number, score in pairs if number >= 0}
        vectors = [shard.vectors for shard in self._shards]
        scores = cosines(vector.astype(np.float16), vectors, self._threads)
        return _best(scores, count)

    def _hit(self, number: int, score: float) -> tuple[tuple[int, int], Hit]:
        """Returns the shard and the place of a piece's text, and the hit."""
        place = bisect.bisect_right(self._starts, number) - 1
        shard, row = self._shards[place], number - self._starts[place]
        of_text, start, end, last, _ = shard.pieces[row].tolist()
        first = shard.pieces[row - 1]["last_byte"] if row else 0
        text = shard.texts[first:last].tobytes().decode()
        name = shard.names[of_text]
        document = name if isinstance(name, str) else f"{self._paths[place]}:{name}"
        return (place, of_text), Hit(text, str(document), start, end, score)


def cosines(
    vector: np.ndarray, shards: Iterable[np.ndarray], threads: futures.Executor
) -> np.ndarray:
    """Returns the products of a vector, `(1, size)` float16, with those of all shards,
    in their order. The sums have more digits than float16."""
    import numkong

    def products(shard: np.ndarray) -> np.ndarray:
        return np.asarray(numkong.cdist(vector, shard, "dot"))[0]

    return np.concatenate([*threads.map(products, shards)])


def fused(rankings: Iterable[Iterable[int]]) -> dict[int, float]:
    """Returns sums of reciprocal ranks by number, the greatest first; Cormack et al."""
    sums: dict[int, float] = {}
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            sums[number] = sums.get(number, 0.0) + 1 / (RANK_CONSTANT + rank)
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _best(scores: np.ndarray, count: int) -> dict[int, float]:
    """Returns the greatest scores by their numbers, the greatest first."""
    numbers = np.argpartition(-scores, count - 1)[:count]
    numbers = numbers[np.lexsort((numbers, -scores[numbers]))]
    return {int(n): float(scores[n]) for n in numbers if scores[n] > -np.inf}
