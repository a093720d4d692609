"""Whether inputs are like those of a calibration, to which its promise is limited.

Of some quantities of the calibration file, values are recorded, each with the exact
share of rows up to it. Kolmogorov and Smirnov's test compares the shares of new inputs
at these values alone, so ties and rounding only make it more careful; the bound holds
for any number of rows (Wei and Dudley, 2012). Rows about the same may depend on one
another completely (Kish, 1965): copies of three texts count as three rows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core.settings import tasks
from bert_keras.data import tokenization
from bert_keras.labelled import dataset

LEVEL = 0.01
"""Greatest probability of a false alarm, over all quantities (Bonferroni)."""

MIN_ROWS, MAX_ROWS = 20, 2000
"""Fewer rows are not tested; of more rows a random choice is."""

QUANTITIES = {
    "pieces": ("longer in pieces", "shorter in pieces", "{:g}"),
    "unknown": ("more unknown pieces", "fewer unknown pieces", "{:.1%}"),
    "confidence": ("surer answers", "less sure answers", "{:.2f}"),
}
"""Names, with words for more and for less of it and for a value."""


class Measured(NamedTuple):
    keys: Sequence[str]
    """Equal ones mean rows about the same."""
    values: Mapping[str, np.ndarray]
    """`(num_rows,)` float by quantity; answers that are numbers have no confidence."""

    @property
    def num_rows(self) -> float:
        """Returns the number of independent rows that would tell as much."""
        counts = np.array([*Counter(self.keys).values()], float)
        return float(counts.sum() ** 2 / np.square(counts).sum())

    def describe(self) -> dict[str, tasks.Distribution]:
        described, size = {}, len(self.keys)
        for name, values in self.values.items():
            # The least values that 5, 10, ... 95 % of the rows do not exceed.
            places = np.unique(np.sort(values)[(np.arange(1, 20) * size - 1) // 20])
            points = tuple((float(p), float((values <= p).mean())) for p in places)
            described[name] = tasks.Distribution(num_rows=self.num_rows, points=points)
        return described

    def differences(self, known: Mapping[str, tasks.Distribution]) -> list[str]:
        """Returns in words how the inputs differ from `known` ones."""
        differing = []
        for name in self.values.keys() & known.keys():
            sizes = self.num_rows, known[name].num_rows
            places, before = np.array(known[name].points).T
            now = (self.values[name][:, None] <= places).mean(axis=0)
            largest = np.abs(now - before).argmax()
            difference = now[largest] - before[largest]
            # P(D > d) <= e exp(-2 d^2 / (1 / n + 1 / m)).
            bound = (1 + math.log(len(QUANTITIES) / LEVEL)) / 2
            bound = math.sqrt(bound * sum(1 / size for size in sizes))
            if min(sizes) >= MIN_ROWS and abs(difference) > bound:
                more, less, form = QUANTITIES[name]
                differing.append(
                    f"{less if difference > 0 else more} ({1 - now[largest]:.0%} above "
                    f"{form.format(places[largest])}, there {1 - before[largest]:.0%})"
                )
        return sorted(differing)


def measure(
    data: dataset.Dataset,
    answers: dataset.Answers,
    tokenizer: tokenization.Tokenizer,
    *,
    temperature: float,
) -> Measured:
    """Measures examples of a file, `MAX_ROWS` at most, and the answers to them."""
    rows = np.random.default_rng(0).permutation(len(data))[:MAX_ROWS]
    keys, values = data.keys(), dict[str, Any](pieces=[], unknown=[])
    for row in rows:
        texts = data.subset([row]).contents().texts
        ids = [i for parts in texts for p in parts if p for i in tokenizer.encode(p)]
        values["pieces"].append(len(ids))
        num_unknown = ids.count(tokenizer.vocabulary.unk_id)
        values["unknown"].append(num_unknown / max(1, len(ids)))
    if (candidates := answers.candidates()) is not None:
        # Of several answers to an example, the least sure one counts.
        shares, _, texts = candidates.answered(temperature)
        shares, least = np.nan_to_num(shares, nan=0.0), np.ones(len(data))
        np.minimum.at(least, np.arange(len(data)) if texts is None else texts, shares)
        values["confidence"] = least[rows]
    # A model's numbers differ a little from batch to batch.
    arrays = {name: np.round(array, 4) for name, array in values.items()}
    return Measured([keys[row] for row in rows], arrays)
