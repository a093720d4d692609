"""First word embeddings from the words' neighbours in the text, instead of random ones.

A new BERT spends its first hundreds of steps on what counting tells in a minute: which
words stand beside which, so that "was" is like "were", and "she" like "he". The counts
become vectors as in Levy and Goldberg (2014), "Neural word embedding as implicit matrix
factorization", with the neighbours' places kept apart.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from scipy import sparse

from bert_keras.core import progress
from bert_keras.training.pretraining import phases
from bert_keras.training.step import replicas

logger = logging.getLogger(__name__)

DISTANCES = ((1,), (2,), (3, 4))
"""Distances of neighbours, in tokens; those of a group are counted together."""
NUM_CONTEXTS = 8192
"""Most pieces that count as neighbours, the commonest ones: the matrix stays small."""
MAX_TOKENS = 20_000_000
"""Tokens after which no more records are read: documents lie in the shards at random,
so the first shards stand for all."""
MIN_COUNT = 5
"""Neighbours that a piece needs; the row of a rarer piece stays random."""
SMOOTHING = 0.75
"""Power of the neighbours' frequencies, so that rare neighbours weigh less (Levy et
al., 2015)."""
NUM_ITERATIONS = 4
"""Of the search for singular vectors."""


def count_neighbours(
    texts: Iterable[np.ndarray], *, vocab_size: int, cls_id: int, pad_id: int
) -> list[sparse.csr_array]:
    """Counts pairs of pieces that stand near each other in one text.

    Args:
        texts: blocks of rows of ids, `(n, L)`, in which a text begins with `cls_id`.

    Returns:
        A `(vocab_size, vocab_size)` matrix for each group of `DISTANCES`: how often the
        piece of the column comes so far after the piece of the row.
    """
    size = (vocab_size, vocab_size)
    counts = [sparse.csr_array(size, dtype=np.float32) for _ in DISTANCES]
    for ids in texts:
        text = np.cumsum(ids == cls_id, axis=1)
        for group, distances in enumerate(DISTANCES):
            for distance in distances:
                first, second = ids[:, :-distance], ids[:, distance:]
                is_pair = text[:, :-distance] == text[:, distance:]
                is_pair &= second != pad_id
                pairs = first[is_pair], second[is_pair]
                ones = np.ones(len(pairs[0]), np.float32)
                counts[group] += sparse.coo_array((ones, pairs), size).tocsr()
    return counts


def vectors_of(
    counts: Sequence[sparse.csr_array], size: int, *, seed: int
) -> np.ndarray:
    """Returns `(vocab_size, size)` float32 vectors of mean square 1, and rows of 0 for
    pieces with fewer than `MIN_COUNT` neighbours.

    They are the left singular vectors, times the roots of the singular values, of the
    positive pointwise mutual information of pieces and neighbours, turned at random: no
    column is special.
    """
    # 1. Neighbours after and before a piece, side by side.
    frequencies = counts[0].sum(axis=0)
    common = np.sort(np.argsort(-frequencies, kind="stable")[:NUM_CONTEXTS])
    blocks = [side[:, common] for each in counts for side in (each, each.T.tocsr())]
    pairs = sparse.hstack(blocks, format="coo")
    of_piece, of_neighbour = pairs.sum(axis=1), pairs.sum(axis=0) ** SMOOTHING
    # 2. Information: how much likelier a pair is than by chance.
    row, column = pairs.coords
    chance = of_piece[row] * of_neighbour[column] / max(of_neighbour.sum(), 1.0)
    information = np.log(pairs.data / chance)
    kept = information > 0
    matrix = sparse.csr_array(
        (information[kept], (row[kept], column[kept])), pairs.shape, dtype=np.float32
    )
    # 3. Its largest singular vectors, by iteration from random ones (Halko et al.,
    # 2011). It converges sooner with a few vectors more than are wanted.
    random = np.random.default_rng(seed)
    num_vectors = min(size + 16, *matrix.shape)
    basis = random.standard_normal((matrix.shape[1], num_vectors), np.float32)
    done = 0
    with progress.Progress(
        "word embeddings",
        total=NUM_ITERATIONS,
        unit="iterations",
        read=lambda: done,
        only_if_long=True,
    ):
        while done < NUM_ITERATIONS:
            left, _ = np.linalg.qr(matrix @ basis)
            basis = matrix.T @ left
            done += 1
    squares, turn = np.linalg.eigh(basis.T.astype(np.float64) @ basis)
    # The values come in ascending order.
    squares, turn = squares[-size:], turn[:, -size:]
    rotation, _ = np.linalg.qr(random.standard_normal((size, len(squares))))
    scale = np.maximum(squares, 0.0) ** 0.25
    vectors = left @ (turn * scale) @ rotation.T
    # 4. All rows get one length: the row of a rare piece is short.
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors *= np.sqrt(size) / np.maximum(lengths, 1e-12)
    vectors[of_piece < MIN_COUNT] = 0.0
    return vectors.astype(np.float32)


def begin(
    state: Mapping[str, keras.Variable],
    planned: Sequence[phases.Phase],
    *,
    strategy: tf.distribute.Strategy,
) -> None:
    """Sets the word embeddings to vectors of a phase's texts; see `vectors_of`.

    The phase is the one with the most text, the first of equals. The vectors are as
    large as the random ones, which stay for rare pieces. All workers take the first
    worker's rows, because other processors round otherwise.
    """

    def most_tokens(phase: phases.Phase) -> int:
        return phase.num_train_records * phase.examples.max_seq_length

    phase = max(planned, key=most_tokens)
    vocabulary, num_tokens = phase.vocabulary, 0

    def texts() -> Iterator[np.ndarray]:
        nonlocal num_tokens
        for ids in phase.batches.texts(phase.train_shards):
            if num_tokens >= MAX_TOKENS:
                return
            num_tokens += int(np.count_nonzero(ids != vocabulary.pad_id))
            yield ids

    with progress.Progress(
        "neighbours",
        total=min(most_tokens(phase), MAX_TOKENS),
        unit="tokens",
        read=lambda: num_tokens,
        only_if_long=True,
    ):
        counts = count_neighbours(
            texts(),
            vocab_size=len(vocabulary),
            cls_id=vocabulary.cls_id,
            pad_id=vocabulary.pad_id,
        )
    for name, variable in state.items():
        if name.endswith("word_embeddings"):
            table = np.array(keras.ops.convert_to_numpy(variable))
            vectors = vectors_of(counts, table.shape[1], seed=phase.settings.seed)
            rows = np.flatnonzero(vectors.any(axis=1))
            table[rows] = vectors[rows] * np.sqrt(np.mean(np.square(table)))
            variable.assign(replicas.take_first_workers(strategy, table))
    logger.info("word embeddings from the neighbours of %d tokens", num_tokens)
