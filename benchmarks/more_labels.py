"""Whether `sweep` and `compare` foretell the score with twice the labels.

    python -m benchmarks.more_labels --data films.train.tsv films.evaluated.tsv ...

The files are pairs of labelled texts to learn from and to score on. TF-IDF with
logistic regression, the baseline of `compare`, learns from 125, 250, ... texts in many
orders. Three orders at a time are three seeds: their last three sizes up to `n` are
continued to `2 n`, and compared with the mean of all orders at `2 n`.
"""

import argparse
import re
from pathlib import Path

import numpy as np

from benchmarks import measuring
from benchmarks.finetuning import load_settings
from bert_keras.kinds import catalogue, kind
from bert_keras.lab.sweep import baselines, forecast

SIZES = tuple(125 * 2**n for n in range(7))


def curves(train: Path, dev: Path, num_orders: int) -> np.ndarray:
    """Returns accuracies, `(num_orders, num_sizes)`."""
    settings = load_settings("text", [])
    train_data, dev_data = (catalogue.read(path, settings) for path in (train, dev))
    task = train_data.describe()
    right = dev_data.targets(task)
    rng, rows = np.random.default_rng(0), []
    for _ in range(num_orders):
        order = rng.permutation(len(train_data))
        rows.append([])
        for size in SIZES:
            subset = train_data.subset(order[:size].tolist())
            logits = baselines.learn(baselines.LINEAR, subset, task)(dev_data)
            rows[-1].append((logits.argmax(axis=-1) == right).mean())
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--orders", type=int, default=60)
    args = parser.parse_args()
    rows = []
    for train, dev in zip(args.data[::2], args.data[1::2], strict=True):
        scores = curves(train, dev, args.orders)
        means = scores.mean(axis=0)
        for place in range(2, len(SIZES) - 1):
            hits, widths, errors, still = [], [], [], []
            for three in np.split(scores, len(scores) // 3):
                line = [
                    (SIZES[n], tuple(three[:, n])) for n in range(place - 2, place + 1)
                ]
                text = forecast.sentence(line, kind.Metric("accuracy"))
                score, low, high, now = map(float, re.findall(r"\d\.\d+", text or ""))
                hits.append(low <= means[place + 1] <= high)
                widths.append(100 * (high - low) / 2)
                errors.append(100 * abs(score - means[place + 1]))
                still.append(100 * abs(now - means[place + 1]))
            numbers = (np.mean(values) for values in (widths, errors, still))
            rows.append(
                [train.name.partition(".")[0], SIZES[place], f"{means[place]:.1%}"]
                + [f"{means[place + 1]:.1%}", f"{sum(hits)} of {len(hits)}"]
                + [f"{number:.1f}" for number in numbers]
            )
    header = ["set", "labels", "accuracy", "with twice as many", "in the interval"]
    measuring.print_table(
        [*header, "half of the interval", "mistake", "mistake of no change"], rows
    )


if __name__ == "__main__":
    main()
