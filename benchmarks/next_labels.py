"""Whether rows that a model is unsure of are worth a label more than random ones.

    python -m benchmarks.next_labels --glue GLUE --books BOOKS --work DIR
        [--sets films authors] [--seeds 1 2 3] [--rules random margin]

Two sets: `films`, whose texts are phrases of SST-2's training file of eight words or
more, evaluated on its dev file; and `authors`, for which passages of about twenty words
stand, each by one of six authors (19 books of Project Gutenberg), as often as their
books are long, with 1,000 other passages of the same books to evaluate on.

A seed draws a pool of 5,000 texts and its first 200 rows. In each round the published
6 x 384 model of `benchmarks.finetuning` is tuned from its start on the rows with a
label, and a rule chooses the next 250 of the others, up to 700:

- `random`: by chance.
- `margin`: of the 750 rows with the least difference between the probabilities of the
  two likeliest labels, 250 which are far from one another in the mean vectors of the
  tuned encoder (k-means++, from the least margin on).

DIR has the score of each round, which is not computed again, as `SET.RULE.SEED.json`.
"""

import argparse
import csv
import functools
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import measuring
from benchmarks.finetuning import find_model, load_settings
from bert_keras.kinds import catalogue

POOL, FIRST, STEP, LAST, SHORTLIST = 5_000, 200, 250, 700, 3
"""Rows of the pool, of the first round, of each next, of the last; and how many times
as many rows as are chosen the shortlist has."""
NUM_EVALUATED, NUM_WORDS = 1_000, 20

AUTHORS = {
    "Austen": "158-0.txt Pride_and_Prejudice_JaneAusten.txt pg161.txt",
    "Dickens": "98-0.txt 46-0.txt Great_Expectations_CharlesDickens.txt",
    "Twain": "74-0.txt 76-0.txt 3176-0.txt",
    "Doyle": "244-0.txt 2852-0.txt pg108.txt pg1661.txt",
    "Christie": "1155-0.txt 58866-0.txt 863-0.txt",
    "Wodehouse": "pg10554.txt pg59254.txt My_Man_Jeeves_PGWodehouse.txt",
}
SETTINGS = {
    "max_seq_length": 48,
    "batch_size": 16,
    "learning_rate": 1e-4,
    "num_train_epochs": 5,
    "precision": "mixed_bfloat16",
    "adamw_mode": "corrected",
}


# The texts: pairs of text and label, those of the pool and those to evaluate on.

Rows = list[tuple[str, str]]


def films(args: argparse.Namespace) -> tuple[Rows, Rows]:
    parts = []
    for name in ("train", "dev"):
        with (args.glue / f"SST-2/{name}.tsv").open(encoding="utf-8") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            parts.append([(row["sentence"].strip(), row["label"]) for row in rows])
    train, dev = parts
    known = {text for text, _ in dev}
    kept = {t: label for t, label in train if len(t.split()) >= 8 and t not in known}
    return [*kept.items()], dev


def authors(args: argparse.Namespace) -> tuple[Rows, Rows]:
    rows: Rows = []
    for author, names in AUTHORS.items():
        for name in names.split():
            text = (args.books / f"gutenberg/{name}").read_text("utf-8-sig", "replace")
            _, _, text = re.split(r"(\*\*\* ?START OF.*)", text, maxsplit=1)
            text = re.split(r"\n\s*(?:\*\*\* ?END OF|End of)", text)[0]
            words: list[str] = []
            for sentence in re.split(r"(?<=[.!?])[\"”’]?\s+", " ".join(text.split())):
                words += sentence.split()
                if len(words) >= NUM_WORDS:
                    rows.append((" ".join(words[: 2 * NUM_WORDS]), author))
                    words = []
    rows = [*dict(rows).items()]
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = [rows[place] for place in order]
    return shuffled[NUM_EVALUATED:], shuffled[:NUM_EVALUATED]


SETS = {"films": films, "authors": authors}


# The model.


class Tuner:
    """Tunes one network again and again, from the same start."""

    def __init__(self, pool: Any, evaluated: Any, settings: Any):
        import tensorflow as tf

        from bert_keras.checkpoints import conversion, starting_point
        from bert_keras.data import tokenization
        from bert_keras.inference import forward
        from bert_keras.kinds import registry

        start = conversion.read_with_tokenizer(find_model())
        task = evaluated.describe()
        tokenizer = tokenization.Tokenizer(
            start.vocabulary, do_lower_case=start.do_lower_case
        )
        self.settings, self.evaluated = settings, evaluated
        self.pool = pool.encode(task, tokenizer, settings)
        self.inputs = evaluated.encode(task, tokenizer, settings)
        self.labels = self.inputs.batch(np.arange(len(evaluated)))["label_ids"].ravel()
        self.network = registry.build_network(
            start.bert_config, task, dropout_prob=0.1, dtype=settings.precision
        )
        head = registry.find(task.kind).transfers_head
        arrays = starting_point.tuning_arrays(start, task, transfers_head=head)
        starting_point.assign(self.network, arrays, path=find_model())
        self.start = self.network.get_weights()

        def compute(features):
            outputs = self.network(features, training=False, return_all_layers=True)
            mask = tf.cast(features["input_mask"], tf.float32)[..., None]
            vectors = tf.cast(outputs["encoder_outputs"][-1], tf.float32)
            mean = tf.reduce_sum(vectors * mask, 1) / tf.reduce_sum(mask, 1)
            return tf.concat([outputs["logits"], mean], axis=-1)

        self.compute = forward.BatchPredictor(compute)

    @functools.cache  # noqa: B019
    def learner(self, num_rows: int) -> tuple[Any, Callable]:
        """Returns the training step of so many rows, whose schedule depends on them."""
        import tensorflow as tf

        from bert_keras.training.finetuning import learning

        subset = Subset(self.pool, np.arange(num_rows))
        tuner = learning.build_learner(
            self.settings, lambda: self.network, subset, tf.distribute.get_strategy()
        )
        batches = learning.training_batches(
            self.settings, subset, by_length=True, num_replicas=1
        )
        signature = [batches.stream().element_spec]
        return tuner, tf.function(
            tuner.train_step, autograph=False, input_signature=signature
        )

    def tune(self, rows: np.ndarray, seed: int) -> None:
        from bert_keras.training.finetuning import learning

        tuner, step = self.learner(len(rows))
        rng = np.random.default_rng([seed, len(rows)])
        for variable, value in zip(self.network.weights, self.start, strict=True):
            if "head" in variable.path:
                is_kernel = value.ndim == 2
                value = is_kernel * 0.02 * rng.standard_normal(value.shape)
            variable.assign(value)
        for variable in tuner.optimizer.variables:
            if variable.path.split("/")[-1] != "learning_rate":
                variable.assign(np.zeros(variable.shape, variable.dtype))
        settings = self.settings.model_copy(update={"seed": seed})
        batches = learning.training_batches(
            settings, Subset(self.pool, rows), by_length=True, num_replicas=1
        )
        for batch in batches.stream().take(learning.num_steps(settings, len(rows))[1]):
            logs = step(batch)
        print(f"  loss of the last step {float(logs['loss']):.3f}")

    def outputs(self, inputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns logits and vectors."""
        outputs = self.compute(inputs, title=None)
        num_labels = self.network.num_labels
        return outputs[:, :num_labels], outputs[:, num_labels:]

    def accuracy(self) -> float:
        logits, _ = self.outputs(self.inputs)
        return float((logits.argmax(axis=-1) == self.labels).mean())


class Subset(NamedTuple):
    """Some of a file's inputs."""

    inputs: Any
    rows: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths[self.rows]

    @property
    def num_answers(self) -> int:
        return len(self.rows)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return self.inputs.batch(self.rows[rows])

    def places(self, rows: np.ndarray) -> Any:
        return self.inputs.places(rows)


# The rules.


def choose_by_margin(
    logits: np.ndarray, vectors: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    *_, second, first = np.sort(probabilities, axis=-1).T
    shortlist = np.argsort(first - second, kind="stable")[: SHORTLIST * number]
    vectors = vectors[shortlist]
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    chosen = [0]
    squares = np.full(len(shortlist), np.inf)
    while len(chosen) < number:
        squares = np.minimum(squares, ((vectors - vectors[chosen[-1]]) ** 2).sum(-1))
        squares[chosen] = 0.0
        chosen.append(int(rng.choice(len(shortlist), p=squares / squares.sum())))
    return shortlist[chosen]


def run_rounds(tuner: Tuner, rule: str, seed: int, path: Path) -> dict[str, float]:
    """Returns the accuracy by number of rows."""
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(tuner.pool.lengths))[:POOL]
    labelled, rest = order[:FIRST], order[FIRST:]
    scores: dict[str, float] = {}
    first = path.with_name(f"{path.name.partition('.')[0]}.first.{seed}.json")
    while True:
        start = time.perf_counter()
        if len(labelled) == FIRST and first.exists() and rule == "random":
            scores |= json.loads(first.read_text())
        else:
            tuner.tune(labelled, seed)
            scores[str(len(labelled))] = tuner.accuracy()
            if len(labelled) == FIRST:
                first.write_text(json.dumps(scores))
        seconds = time.perf_counter() - start
        print(path.name, len(labelled), scores[str(len(labelled))], f"{seconds:.0f} s")
        if len(labelled) >= LAST:
            return scores
        places = np.arange(STEP)
        if rule != "random":
            outputs = tuner.outputs(Subset(tuner.pool, rest))
            places = choose_by_margin(*outputs, STEP, rng)
        labelled = np.append(labelled, rest[places])
        rest = np.delete(rest, places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=[*SETS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rules", nargs="+", default=["margin", "random"])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    settings = load_settings("text", [f"{k}={v}" for k, v in SETTINGS.items()])

    @functools.cache
    def tuner(name: str) -> Tuner:
        data = []
        for part, rows in zip(["train", "evaluated"], SETS[name](args), strict=True):
            path = args.work / f"{name}.{part}.tsv"
            lines = ["text\tlabel", *("\t".join(row) for row in rows)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            data.append(catalogue.read(path, settings))
        return Tuner(*data, settings)

    scores: dict[tuple, dict[str, float]] = {}
    for words in itertools.product(args.seeds, args.sets, args.rules):
        seed, name, rule = words
        path = args.work / f"{name}.{rule}.{seed}.json"
        scores[words] = measuring.once(
            path,
            lambda name=name, words=(rule, seed, path): run_rounds(tuner(name), *words),
        )
    rows = []
    for name in args.sets:
        for seed in args.seeds:
            for rule in args.rules:
                values = [100 * v for v in scores[seed, name, rule].values()]
                mean = np.mean(values[1:])
                cells = (f"{value:.1f}" for value in (*values, mean))
                rows.append([name, seed, rule, *cells])
    sizes = range(FIRST, LAST + 1, STEP)
    measuring.print_table(["set", "seed", "rule", *sizes, "mean of the last"], rows)


if __name__ == "__main__":
    main()
