"""The search in an index of texts: by words, by vectors, by both, with a reranker."""

import bisect
import itertools
import typing
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import choices
from bert_keras.inference import finetuned, forward
from bert_keras.labelled import similarity, tokenized
from bert_keras.search import building

RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)."""
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
    """`FILE:LINE` of the text; of Parquet, the row."""
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
        bm25s = building.import_bm25s("search")
        # 1. The index and its models.
        self._directory = files.path(directory)
        description = manifest.read_manifest(directory, kind="index")
        manifest.verify_shards(directory, description, hashes=False)
        place = model or description.config["model"]["path"]
        if not files.exists(place):
            raise InputError(
                f"{place}: the model of the index {directory} is not there: name its "
                "place with --model"
            )
        load = finetuned.FinetunedModel.load_form
        embedder = load(place, "embedding")
        if embedder.digest() != description.config["model"]["sha256"]:
            raise InputError(
                f"{directory}: an index of another model than {place}: give the one "
                "that made it with --model, or index again"
            )
        self._tokenizer, self._embed = embedder.tokenizer, _outputs_of(embedder)
        self._rerank = None
        if reranker is not None:
            self._rerank = _outputs_of(load(reranker, "ranking"))
        # 2. The files. Vectors come from the disk when they are first searched.
        self._paths = {f["key"]: f["path"] for f in description.config["files"]}
        names = [s.name for s in description.shards if s.num_records]
        paths = [self._directory / n for n in names if n.startswith("vectors-")]
        self._keys = [building.key_of(path.name) for path in paths]
        self._vectors = [np.load(path, mmap_mode="r") for path in paths]
        self._starts = [0, *itertools.accumulate(map(len, self._vectors))]
        words = building.words_names(building.key_of(names[-1]))
        self._words = bm25s.BM25.load(self._directory, mmap=True, **words)
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
        # 1. The best pieces by each way, and fused.
        ways = {"words": self._score_words, "vectors": self._score_vectors}
        depth = max(NUM_CANDIDATES, 2 * top)
        rankings = [
            _best(score(question), depth)
            for way, score in ways.items()
            if by in (way, "both")
        ]
        [scores] = rankings if len(rankings) == 1 else [fused(rankings)]
        # 2. The first texts, each once.
        num_hits = top if self._rerank is None else max(top, NUM_RERANKED)
        hits: list[Hit] = []
        for number, score in scores.items():
            hit = self._hit(number, score)
            if not any(_is_same(hit, better) for better in hits):
                hits.append(hit)
            if len(hits) == num_hits:
                break
        # 3. The reranker's order.
        if self._rerank is not None and hits:
            scores = self._rerank([(question, hit.text) for hit in hits])[:, 0]
            order = np.argsort(-scores, kind="stable")
            hits = [replace(hits[n], score=float(scores[n])) for n in order]
        return hits[:top]

    def _score_words(self, question: str) -> np.ndarray:
        known = self._words.vocab_dict
        words = building.words_of(question, self._tokenizer)
        words = [word for word in words if word in known]
        scores = self._words.get_scores(words) if words else np.zeros(len(self))
        # A piece without a word of the question is not found.
        return np.where(scores > 0, scores, -np.inf)

    def _score_vectors(self, question: str) -> np.ndarray:
        vector = similarity.unit_length(self._embed([(question, None)]))
        if not np.isfinite(vector).all():
            raise InputError(f"the vector of {question!r} is not finite")
        return cosines(vector.astype(np.float16), self._vectors, self._threads)

    def _hit(self, number: int, score: float) -> Hit:
        shard = bisect.bisect_right(self._starts, number) - 1
        key = self._keys[shard]
        pieces = np.load(self._directory / f"pieces-{key}.npy", mmap_mode="r")
        row = number - self._starts[shard]
        line, start, end, last = pieces[row].tolist()
        first = pieces[row - 1]["last_byte"] if row else 0
        with open(self._directory / f"texts-{key}.txt", "rb") as file:
            file.seek(first)
            text = file.read(last - first).decode()
        return Hit(
            text, f"{self._paths[key.partition('-')[0]]}:{line}", start, end, score
        )


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
    count = min(count, len(scores))
    numbers = np.argpartition(-scores, count - 1)[:count]
    numbers = numbers[np.lexsort((numbers, -scores[numbers]))]
    return {int(n): float(scores[n]) for n in numbers if scores[n] > -np.inf}


def _is_same(hit: Hit, better: Hit) -> bool:
    is_overlap = hit.start < better.end and better.start < hit.end
    return hit.text == better.text or (hit.document == better.document and is_overlap)


def _outputs_of(model: finetuned.FinetunedModel) -> Callable[..., np.ndarray]:
    """Returns a function from texts, or pairs, to the outputs of a model."""
    compute = forward.predictor_for(model.network)

    def outputs(pairs: Iterable[tuple[str, str | None]]) -> np.ndarray:
        length = model.settings.max_seq_length
        texts = tokenized.tokenize(pairs, model.tokenizer, max_seq_length=length)
        return compute(tokenized.LabelledInputs(texts=texts, labels={}), title=None)

    return outputs
