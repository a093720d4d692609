"""What two cores make of ten million words: BERT by the rules of BabyLM's Strict-Small.

    python -m benchmarks.strict_small text --data ../shared/data --work WORK
    python -m benchmarks.strict_small train --work WORK [--only RECIPE ...]
    python -m benchmarks.strict_small transformers --work WORK [--only RECIPE ...]
    python -m benchmarks.strict_small page --work WORK

The rules of 2026: at most 10.0 million words, counted by white space, of any text, each
seen ten times at most. `text` draws them, without any sentence of BLiMP, and makes
corpus, vocabulary and examples. `train` runs the recipes of `strict_small.yaml` with
each seed, and scores some checkpoints on a sample of BLiMP's pairs, the last one on
all. `transformers` converts the finished models, and scores them by that library's
tokenizer and model instead of ours. `page` prints tables, and draws `strict_small.png`
in WORK. Cost is the processor time of the training, scoring left out. Finished work is
not done again; an unfinished run goes on from its last checkpoint. Linux only.
"""

import csv
import glob
import gzip
import json
import random
import re
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks import compute, measuring

NUM_WORDS = 10_000_000
WORDS = {"sentences": 2_000_000, "news": 1_300_000, "wikipedia": 1_000_000}
"""Words of each kind of text at most; books are the rest."""
GLUE = {
    **{"QQP": ("question1", "question2"), "MNLI": ("sentence1", "sentence2")},
    **{"STS-B": ("sentence1", "sentence2"), "RTE": ("sentence1", "sentence2")},
    **{"MRPC": ("#1 String", "#2 String"), "QNLI": ("question", "sentence")},
    "WNLI": ("sentence1", "sentence2"),
}
"""Columns of text of the tasks whose training files are read, without labels. CoLA and
SST-2 are not: one is linguists' examples, the other parts of sentences."""
SEED = 1
PAIRS_PER_KIND = 60
"""Pairs of each kind that checkpoints before the last one are scored on."""
RULE_WORDS = [*range(1, 10), *range(10, 101, 10)]
"""Millions of words seen at which the rules ask for a checkpoint."""
NUM_SHARDS, NUM_HELD_OUT = 64, 2
BARS = {65.08: "GPT-2, 98 M, the organisers' of 2026", 69.8: "LSTM, 83 M words"}
"""Published means over the 67 kinds of all of BLiMP's pairs."""
PLAN: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("strict_small.yaml").read_text(encoding="utf-8")
)


# Text.


def make_text(data: Path, work: Path) -> None:
    drawn = measuring.once(work / "text" / "drawn.json", lambda: draw_text(data, work))
    print(f"words by white space: {drawn}, {sum(drawn.values()):,} in all")
    text, corpus, vocab = work / "text", work / "corpus", work / "vocab.txt"
    sources = ["--jsonl", *sorted(text.glob("*.jsonl"))]
    sources += ["--books", *sorted(text.glob("*.txt"))]
    compute.make_once(corpus, "corpus", *sources, *PLAN["corpus"])
    compute.make_once(vocab, "vocab", "--corpus", corpus, *PLAN["vocab"])
    for name, options in PLAN["examples"].items():
        words = ("--corpus", corpus, "--vocab", vocab, "--num_shards", NUM_SHARDS)
        compute.make_once(work / f"examples_{name}", "examples", *words, *options)


def draw_text(data: Path, work: Path) -> dict[str, int]:
    """Draws documents of each kind, and books with the words that are left; returns the
    numbers of words."""
    text = work / "text"
    pairs = read_pairs(data)
    with open(work / "pairs.jsonl", "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(pair)}\n" for pair in pairs)
    forbidden = {normal(pair[name]) for pair in pairs for name in ("good", "bad")}
    drawn = {}
    for kind, documents in documents_by_kind(data).items():
        chosen = draw(documents, WORDS[kind], forbidden)
        drawn[kind] = sum(map(num_words, chosen))
        with open(text / f"{kind}.jsonl", "w", encoding="utf-8") as file:
            for number, document in enumerate(chosen):
                row = {"id": f"{kind}-{number}", "text": document}
                file.write(f"{json.dumps(row)}\n")
    paths = sorted((data / "books" / "gutenberg").glob("*.txt"))
    books = {path.read_text("utf-8-sig", "replace"): path.name for path in paths}
    chosen = draw(books, NUM_WORDS - sum(drawn.values()), forbidden)
    drawn["books"] = sum(map(num_words, chosen))
    for book in chosen:
        (text / books[book]).write_text(book, encoding="utf-8")
    return drawn


def read_pairs(data: Path) -> list[dict[str, Any]]:
    packed = (data / "blimp" / "pairs.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def documents_by_kind(data: Path) -> dict[str, Iterable[str]]:
    """Returns all documents but books, by kind."""
    extracted, news = data / "wikipedia_extracted", []
    for path in sorted(glob.glob(f"{extracted}/enwikinews_json/*/*")):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        news += [json.loads(line)["text"] for line in lines]
    articles = [
        article
        for path in sorted(glob.glob(f"{extracted}/enwiki_2018_articles/*/*"))
        for article in re.findall(
            r"<doc [^>]*>\n(.*?)</doc>", Path(path).read_text("utf-8"), re.DOTALL
        )
    ]
    return {"sentences": sentences(data), "news": news, "wikipedia": articles}


def sentences(data: Path) -> Iterator[str]:
    """Yields paragraphs of SQuAD with their questions, and texts of GLUE's examples."""
    for path in sorted(glob.glob(f"{data}/squad/v*/*.json")):
        for article in json.loads(Path(path).read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                questions = [each["question"].strip() for each in paragraph["qas"]]
                yield "\n".join([paragraph["context"].strip(), *questions])
    for name, columns in GLUE.items():
        path = data / "glue" / name / "train.tsv"
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            for row in rows:
                yield "\n".join(row[column] for column in columns if row[column])


def draw(
    documents: Iterable[str], max_words: int, forbidden: Collection[str]
) -> list[str]:
    """Returns different documents in random order, up to a number of words, without
    those that have a forbidden sentence."""
    choose = random.Random(SEED)
    shuffled = list(dict.fromkeys(documents))
    choose.shuffle(shuffled)
    chosen = []
    for document in shuffled:
        size = num_words(document)
        parts = re.split(r"(?<=[.?!])\s+", document)
        if size <= max_words and not any(normal(part) in forbidden for part in parts):
            chosen.append(document)
            max_words -= size
    return chosen


def num_words(text: str) -> int:
    return len(text.split())


def normal(sentence: str) -> str:
    return " ".join(sentence.lower().split())


# Runs.


def train(work: Path, only: Sequence[str]) -> None:
    """Makes and scores all runs of the plan that are missing."""
    for directory in runs_of(work, only):
        if not (directory / "results.json").is_file():
            compute.train_and_count(command(work, directory), directory)
        # A process of its own: TensorFlow's memory is given back.
        path = compute.beside(directory, ".json")
        words = ("benchmarks.strict_small", work, directory)
        measuring.once(path, lambda words=words: measuring.ask_once(*words))


def runs_of(work: Path, only: Sequence[str] = ()) -> Iterator[Path]:
    for recipe in only or PLAN["recipes"]:
        for seed in PLAN["recipes"][recipe]["seeds"]:
            yield work / "runs" / f"{recipe},seed={seed}"


def command(work: Path, directory: Path) -> list[object]:
    recipe, seed = directory.name.split(",seed=")
    facts = PLAN["recipes"][recipe]
    settings = [*facts.get("set", []), *PLAN["settings"], f"seed={seed}"]
    words = ["pretrain", "--config", facts["config"], "--examples"]
    words += examples_of(work, directory)
    return [*measuring.BERT_KERAS, *words, *measuring.set_options(settings)]


def examples_of(work: Path, directory: Path) -> list[Path]:
    recipe = directory.name.partition(",")[0]
    return [work / f"examples_{n}" for n in PLAN["recipes"][recipe]["examples"]]


def make_answer(work: str, directory: str) -> Any:
    return lambda _: score_checkpoints(Path(work), Path(directory))


def score_checkpoints(work: Path, directory: Path) -> dict[str, Any]:
    """Returns the accuracy at the steps of the plan, in all and by kind. The last
    checkpoint is scored on all pairs, the others on a sample."""
    from bert_keras.scoring import minimal_pairs, scored_files

    pairs = minimal_pairs.read_pairs(work / "pairs.jsonl")
    sample = minimal_pairs.sample(pairs, PAIRS_PER_KIND, seed=SEED)
    points = {}
    paths = sorted((directory / "checkpoints").glob("step-*.safetensors"))
    for path in paths:
        step = int(path.stem.partition("-")[2])
        if path != paths[-1] and step not in PLAN["curve_steps"]:
            continue
        chosen = pairs if path == paths[-1] else sample
        tally = minimal_pairs.Tally()
        scorer = scored_files.load_scorer(path)
        scored = minimal_pairs.score_pairs(scorer, chosen, total=2 * len(chosen))
        for pair in scored:
            tally.add(pair)
        mean = tally.mean()
        points[step] = {
            "pairs": len(chosen),
            "blimp": 100 * mean.share,
            "interval": [100 * mean.low, 100 * mean.high],
            "groups": {group.name: 100 * group.share for group in tally.groups()},
        }
        print(f"{path}: {100 * mean.share:.2f}", file=sys.stderr, flush=True)
    return points


# Another library.


def score_with_transformers(work: Path, only: Sequence[str]) -> None:
    """Prints the score of each finished run's last weights, on all pairs."""
    for directory in runs_of(work, only):
        if (directory / "results.json").is_file():
            converted = compute.beside(directory, ".hugging_face")
            words = ("--input", directory, "--to", "hugging_face")
            compute.make_once(converted, "convert", *words)
            path = compute.beside(directory, ".transformers.json")
            pairs = work / "pairs.jsonl"
            score = measuring.once(path, lambda c=converted, p=pairs: score_bert(c, p))
            print(f"{directory.name}: {score:.2f} by transformers")


def score_bert(converted: Path, pairs: Path) -> float:
    """Returns pairs told right, %: mean over the kinds, by `BertForMaskedLM`."""
    import torch
    import transformers

    tokenizer = transformers.BertTokenizerFast.from_pretrained(converted)
    model = transformers.BertForMaskedLM.from_pretrained(converted).eval()

    def log_likelihood(sentence: str) -> float:
        """Of each piece with only this one masked, summed (Salazar et al., 2020)."""
        ids = tokenizer(sentence, return_tensors="pt").input_ids[0]
        places = torch.arange(1, len(ids) - 1)
        rows = torch.arange(len(places))
        masked = ids.repeat(len(places), 1)
        masked[rows, places] = tokenizer.mask_token_id
        with torch.inference_mode():
            logits = model(masked).logits[rows, places]
        return logits.log_softmax(-1)[rows, ids[places]].sum().item()

    right: dict[str, list[float]] = {}
    for line in pairs.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        good, bad = log_likelihood(pair["good"]), log_likelihood(pair["bad"])
        told = 0.5 if good == bad else float(good > bad)
        right.setdefault(pair["paradigm"], []).append(told)
    return 100 * statistics.fmean(map(statistics.fmean, right.values()))


# The page.


class Curve(NamedTuple):
    """A run's points; all lists are of one length."""

    name: str
    words: list[float]
    """Words seen, in millions."""
    seconds: list[float]
    """Processor seconds."""
    petaflops: list[float]
    """Matrix products of the training, Muon's included."""
    blimp: list[float]


def read_curves(work: Path) -> Iterator[Curve]:
    """Yields the scored runs."""
    corpus = json.loads((work / "text" / "drawn.json").read_text(encoding="utf-8"))
    for directory in runs_of(work):
        path = compute.beside(directory, ".json")
        if not path.is_file():
            continue
        points = {int(k): v for k, v in json.loads(path.read_text()).items()}
        costs = compute.read_costs(directory)
        seen = [words_seen(work, directory, step) for step in points]
        flops = compute.petaflops(directory, examples_of(work, directory))
        # All steps have one size.
        per_step = flops / compute.phase_ends(directory)[-1]
        yield Curve(
            directory.name,
            [words * sum(corpus.values()) / 1e6 for words in seen],
            [compute.cost_at(costs, step) for step in points],
            [per_step * step for step in points],
            [point["blimp"] for point in points.values()],
        )


def words_seen(work: Path, directory: Path, step: int) -> float:
    """Returns how often a run has seen each word of the corpus by a step, in the mean:
    examples of short sentences have a part of the words, and counts read all of them
    once."""
    from bert_keras.core import manifest

    facts, lasts = compute.read_settings(directory), compute.phase_ends(directory)
    seen = 1.0 if facts.get("word_embeddings") == "counts" else 0.0
    for examples, phase, first, last in zip(
        examples_of(work, directory),
        facts["phases"],
        [0, *lasts[:-1]],
        lasts,
        strict=True,
    ):
        made = manifest.read_manifest(examples, kind="examples")
        counts = [shard.num_records for shard in made.shards[:-NUM_HELD_OUT]]
        batch_size = phase["global_batch_size"] or facts["global_batch_size"]
        epochs = max(min(step, last) - first, 0) * batch_size / sum(counts)
        # Each instance has [CLS] and [SEP].
        pieces = made.counters["example_tokens"] - 2 * made.counters["examples"]
        seen += epochs * pieces / made.counters["tokens"]
    return seen


def seconds_to(curve: Curve, blimp: float) -> float | None:
    """Returns the processor seconds of the first point from which a run stays above a
    score; `None`: it does not."""
    above = [score > blimp for score in curve.blimp]
    last_below = max(
        (n for n, is_above in enumerate(above) if not is_above), default=-1
    )
    return curve.seconds[last_below + 1] if last_below + 1 < len(above) else None


def print_page(work: Path) -> None:
    header = ["run", "processor hours", "PFLOP", "million words seen", "BLiMP"]
    header += [f"hours to {bar}" for bar in BARS]
    rows, curves = [], []
    scores: dict[str, list[float]] = {}
    for curve in read_curves(work):
        reached = [seconds_to(curve, bar) for bar in BARS]
        cells = ["" if each is None else f"{each / 3600:.2f}" for each in reached]
        hours = f"{curve.seconds[-1] / 3600:.2f}"
        cells = [
            hours,
            f"{curve.petaflops[-1]:.2f}",
            f"{curve.words[-1]:.1f}",
            f"{curve.blimp[-1]:.2f}",
            *cells,
        ]
        rows.append([curve.name, *cells])
        curves.append(curve)
        recipe = curve.name.partition(",")[0]
        scores.setdefault(recipe, []).append(curve.blimp[-1])
    for recipe, blimp in scores.items():
        if len(blimp) > 1:
            mean = f"{statistics.fmean(blimp):.2f} ± {statistics.stdev(blimp):.2f}"
            name = f"{recipe}, mean and deviation of {len(blimp)}"
            rows.append([name, "", "", "", mean, *[""] * len(BARS)])
    measuring.print_table(header, rows)
    draw_curves(work / "strict_small.png", curves)


def draw_curves(path: Path, curves: Sequence[Curve]) -> None:
    from bert_keras.pages import drawing

    def picture() -> Any:
        image, plot = drawing.new_plot("BLiMP by compute", width=9, height=5.4)
        plot.set_xscale("log")
        longest = max(curves, key=lambda curve: curve.words[-1], default=None)
        for name, points in PLAN["earlier"].items():
            costs, blimp = [*points], [*points.values()]
            plot.plot(costs, blimp, "o:", markersize=3, label=name)
        for curve in curves:
            costs, blimp = curve.petaflops, curve.blimp
            plot.plot(costs, blimp, "o-", markersize=3, label=curve.name)
            for words in RULE_WORDS:
                if curve.words[0] <= words <= curve.words[-1]:
                    x = np.interp(words, curve.words, costs)
                    y = np.interp(words, curve.words, curve.blimp)
                    plot.plot(x, y, "|", color="black", markersize=10)
                    # Other curves have the same marks.
                    if curve is longest:
                        plot.text(x, y, f"\n{words}", fontsize=8, ha="center", va="top")
        for bar, name in BARS.items():
            plot.axhline(bar, color=drawing.GREY, linestyle="--")
            where = {"transform": plot.get_yaxis_transform(), "va": "bottom"}
            plot.text(0.01, bar, name, fontsize=9, **where)
        labels = "PFLOP of matrix products; numbers: million words seen"
        plot.set(xlabel=labels, ylabel="pairs told right, %, mean of 67")
        ticks = [0.25, 0.5, 1, 2, 4, 8]
        plot.set_xticks(ticks, ticks)
        plot.minorticks_off()
        drawing.add_legend(image, num_columns=3)
        return image

    path.write_bytes(drawing.as_png(picture))


STAGES = {
    "text": lambda args: make_text(args.data, args.work),
    "train": lambda args: train(args.work, args.only),
    "transformers": lambda args: score_with_transformers(args.work, args.only),
    "page": lambda args: print_page(args.work),
}


def main() -> None:
    measuring.run_stage(__doc__.splitlines()[0], STAGES)


if __name__ == "__main__":
    measuring.start(main, make_answer)
