"""An approximate index of many vectors, by faiss: a search reads the nearest clusters.

hnswlib has no wheels, and a graph of usearch depends on its threads; clusters of the
same vectors are the same bytes. Their file has a copy of all vectors, in float16.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.core import files, progress

LEAST_VECTORS = 1_000_000
"""An exact search of fewer takes a tenth of a second."""
LEAST_RECALL = 0.95
"""The share of the ten nearest vectors for which as many clusters are read."""
_NUM_SAMPLED = 200


def write(path: Path, vectors: Sequence[np.ndarray]) -> None:
    """Writes the clusters of vectors, `(num_vectors, size)` float16 in one array or
    more. Meanwhile all are in memory."""
    import faiss

    num_vectors, size = sum(map(len, vectors)), vectors[0].shape[1]
    num_clusters = int(2 * num_vectors**0.5)
    name = f"IVF{num_clusters},SQfp16"
    index: Any = faiss.index_factory(size, name, faiss.METRIC_INNER_PRODUCT)
    # The vectors themselves are stored, not their differences from a centre.
    index.by_residual = False
    with progress.Progress(
        "clusters",
        total=num_vectors,
        unit="vectors",
        read=lambda: index.ntotal,
        only_if_long=True,
    ):
        # faiss warns of fewer than 39 for a cluster, and takes 256 at most.
        index.train(_sample(vectors, 50 * num_clusters))
        for block in vectors:
            index.add(block.astype(np.float32))
        with files.open_atomically(path) as file:
            writer = faiss.PyCallbackIOWriter(file.write)  # pyright: ignore
            faiss.write_index(index, writer)


def read(path: Path, num_clusters: int) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Returns a search of the nearest clusters, mapped into memory: from `(num_vectors,
    size)` float32 and a number of neighbours to their scores and their numbers, each
    `(num_vectors, num_neighbours)`, the best first; -1 is no neighbour."""
    import faiss

    flags = faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY
    index: Any = faiss.read_index(str(path), flags)
    index.nprobe = num_clusters
    return index.search


def measure(path: Path, vectors: Sequence[np.ndarray]) -> dict[str, Any]:
    """Returns the number of clusters, a power of two, that give `LEAST_RECALL`, and the
    recall of ten neighbours of some vectors."""
    sample = _sample(vectors, _NUM_SAMPLED)
    exact, _ = read(path, sum(map(len, vectors)))(sample, 11)
    recall, num_clusters = 0.0, 1
    while recall < LEAST_RECALL:
        num_clusters *= 2
        scores, _ = read(path, num_clusters)(sample, 11)
        # By scores, as equal texts are equally near. The first is the vector itself.
        recall = float((scores[:, 1:] >= exact[:, -1:] - 1e-6).mean())
    return {"num_clusters": num_clusters, "recall_at_10": round(recall, 4)}


def _sample(vectors: Sequence[np.ndarray], count: int) -> np.ndarray:
    step = max(1, sum(map(len, vectors)) // count)
    rows = itertools.chain.from_iterable(vectors)
    return np.array([*itertools.islice(rows, 0, None, step)], np.float32)
