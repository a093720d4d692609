"""Clusters of vectors beside the exact search: seconds, bytes, and what is found.

    python -m benchmarks.clusters --work WORK --num_vectors 2000000

Random vectors of 384 numbers, as sentences have them: 10,000 topics of unequal size,
which are not equally far from each other, and noise of 0.8 times their length. Recall
at 10 is that of 200 of these vectors, as `index` measures it, and of 200 new ones of
the same topics. WORK keeps the vectors.
"""

import argparse
import statistics
import time
from concurrent import futures
from pathlib import Path

import numpy as np

from benchmarks import measuring
from bert_keras.labelled import similarity
from bert_keras.search import approximate, searching

SIZE, NUM_TOPICS, ROWS = 384, 10_000, 1 << 15
SPECTRUM = np.arange(1, SIZE + 1, dtype=np.float32) ** -0.4


def draw(random: np.random.Generator, topics: np.ndarray, count: int) -> np.ndarray:
    """Returns float16 vectors of length 1; an eighth of the topics has half."""
    topic = (NUM_TOPICS * random.random(count) ** 3).astype(np.int64)
    noise = 0.8 * SPECTRUM / np.linalg.norm(SPECTRUM)
    noise = random.standard_normal((count, SIZE), np.float32) * noise
    return similarity.unit_length(topics[topic] + noise).astype(np.float16)


def vectors(work: Path, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns arrays of mapped vectors, and 200 questions."""
    random, blocks = np.random.default_rng(0), []
    topics = random.standard_normal((NUM_TOPICS, SIZE), np.float32) * SPECTRUM
    topics = similarity.unit_length(topics)
    questions = draw(random, topics, 200)
    for number, begin in enumerate(range(0, count, ROWS)):
        path = work / f"topics-{number:05}.npy"
        block = draw(random, topics, min(ROWS, count - begin))
        if not path.exists() or len(np.load(path, mmap_mode="r")) != len(block):
            np.save(path, block)
        blocks.append(np.load(path, mmap_mode="r"))
    return blocks, questions


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--num_vectors", type=int, nargs="+", default=[2_000_000])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(measuring.machine("faiss-cpu", "numkong"), flush=True)
    header = ["vectors", "build: seconds", "processor seconds", "MB", "clusters read"]
    header += ["ms a search, median", "exact", "recall at 10", "of new vectors"]
    measuring.print_table(header, (row(args.work, n) for n in args.num_vectors))


def row(work: Path, count: int) -> list[str]:
    blocks, questions = vectors(work, count)
    path, threads = work / f"clusters-{count}", futures.ThreadPoolExecutor()
    built = measuring.timed(lambda: approximate.write(path, blocks))
    facts = approximate.measure(path, blocks)
    search = approximate.read(path, facts["num_clusters"])
    found, near, exact = [], [], []
    for question in questions[:, None]:
        wide, start = question.astype(np.float32), time.perf_counter()
        _, numbers = search(wide, 100)
        near.append(time.perf_counter() - start)
        start = time.perf_counter()
        scores = searching.cosines(question, blocks, threads)
        exact.append(time.perf_counter() - start)
        best = {*np.argpartition(-scores, 10)[:10].tolist()}
        found.append(len(best & {*numbers[0, :10].tolist()}) / 10)
    return [
        f"{count:,}",
        *(f"{built.wall:.0f}", f"{built.cpu:.0f}", f"{path.stat().st_size / 1e6:,.0f}"),
        f"{facts['num_clusters']} of {int(2 * count**0.5)}",
        *(f"{1000 * statistics.median(times):.1f}" for times in (near, exact)),
        *(f"{100 * r:.1f}" for r in (facts["recall_at_10"], statistics.fmean(found))),
    ]


if __name__ == "__main__":
    main()
