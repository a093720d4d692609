"""A data card: statistics of a directory of examples, from reading all of it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_keras.core import manifest
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, tokenization

NUM_COMMONEST = 20
"""Commonest tokens to list, without special ones."""

NUM_MEMBERS = 20
"""Sources, reasons or tokens to list; JSON has all."""

_COUNTERS = (
    *("documents", "duplicate_documents", "empty_documents"),
    *("sentences", "tokens", "unknown_tokens"),
)

_MAX_BARS = 16
_BLOCKS = " ▏▎▍▌▋▊▉█"


class Counts:
    """Sums over examples, in constant memory."""

    def __init__(self, config: ExamplesConfig, vocabulary: tokenization.Vocabulary):
        self.config = config
        self.vocabulary = vocabulary
        self.by_length = np.zeros(config.max_seq_length + 1, np.int64)
        """Examples of each number of tokens."""
        self.by_predictions = np.zeros(config.num_predictions + 1, np.int64)
        """Examples of each number of hidden tokens."""
        self.by_token = np.zeros(len(vocabulary), np.int64)
        """Occurrences of each token, hidden or not."""
        self.num_masked = 0
        """Hidden tokens shown as `[MASK]`."""
        self.num_kept = 0
        """Hidden tokens shown as they are, on purpose or by a random choice."""
        self.num_random_next = 0
        self.num_second_tokens = 0
        """Tokens of second segments."""

    @property
    def num_examples(self) -> int:
        return int(self.by_length.sum())

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        is_token = batch["input_mask"] == 1
        is_hidden = batch["masked_lm_weights"] == 1
        # (hidden tokens,) each, as are the positions, labels and shown ids.
        rows, slots = np.nonzero(is_hidden)
        positions = batch["masked_lm_positions"][rows, slots]
        labels = batch["masked_lm_ids"][rows, slots]
        shown = batch["input_ids"][rows, positions]
        true_ids = batch["input_ids"].copy()
        true_ids[rows, positions] = labels
        for sums, values in (
            (self.by_length, is_token.sum(axis=1)),
            (self.by_predictions, is_hidden.sum(axis=1)),
            (self.by_token, true_ids[is_token]),
        ):
            sums += np.bincount(values, minlength=len(sums))
        is_masked = shown == self.vocabulary.mask_id
        self.num_masked += int(is_masked.sum())
        self.num_kept += int(((shown == labels) & ~is_masked).sum())
        self.num_second_tokens += int(batch["segment_ids"].sum())
        if "next_sentence_labels" in batch:
            self.num_random_next += int(batch["next_sentence_labels"].sum())


def make_card(counts: Counts, summary: manifest.Manifest) -> dict[str, Any]:
    """Returns the card, for JSON; adopted examples have fewer values."""
    config, vocabulary = counts.config, counts.vocabulary
    num_tokens = int(counts.by_token.sum())
    num_places = summary.num_records * config.max_seq_length
    num_hidden = weighted_sum(counts.by_predictions)
    num_random = num_hidden - counts.num_masked - counts.num_kept
    num_unknown = int(counts.by_token[vocabulary.unk_id])
    order = np.argsort(-counts.by_token, kind="stable").tolist()
    seen = {vocabulary.tokens[i]: int(counts.by_token[i]) for i in order}
    ordinary = [t for t, n in seen.items() if n and t not in features.SPECIAL_TOKENS]
    card = {
        "corpus": _corpus_card(summary),
        "examples": {
            "files": len(summary.shards),
            "bytes": sum(shard.num_bytes for shard in summary.shards),
            "examples": counts.num_examples,
            "tokens": num_tokens,
            "padding_share": _share(num_places - num_tokens, num_places),
            "unknown_share": _share(num_unknown, num_tokens),
        },
        "length": _distribution(counts.by_length),
        "masking": {
            "kind": config.masking,
            "hidden_share": _share(num_hidden, num_tokens),
            "mask_share": _share(counts.num_masked, num_hidden),
            "random_share": _share(num_random, num_hidden),
            "kept_share": _share(counts.num_kept, num_hidden),
        },
        "predictions": _distribution(counts.by_predictions),
        "vocabulary": {
            "size": len(vocabulary),
            "seen": int((counts.by_token > 0).sum()),
            "commonest": {token: seen[token] for token in ordinary[:NUM_COMMONEST]},
        },
        "config": summary.config,
    }
    if config.pack_instances:
        card["examples"]["rows"] = summary.num_records
    if config.packing == "sentence_pairs":
        random_share = _share(counts.num_random_next, counts.num_examples)
        card["next_sentence"] = {
            # Only their maker knows of adopted examples.
            "kind": summary.config.get("next_sentence"),
            "random_share": random_share,
            "next_share": round(1 - random_share, 6),
        }
    return card


def _share(part: float, whole: float) -> float:
    return round(float(part) / float(whole), 6) if whole else 0.0


def weighted_sum(histogram: np.ndarray) -> int:
    return int(histogram @ np.arange(len(histogram)))


def _distribution(histogram: np.ndarray) -> dict[str, Any]:
    """Returns the mean, quantiles, and the number of examples of each value from 0."""
    total = int(histogram.sum())
    cumulative = np.cumsum(histogram)
    quantiles = {
        name: int(np.searchsorted(cumulative, max(1, round(q * total))))
        for name, q in (("min", 0), ("p5", 0.05), ("median", 0.5), ("p95", 0.95))
    }
    return {
        "mean": round(weighted_sum(histogram) / max(total, 1), 3),
        **quantiles,
        "max": int(np.flatnonzero(histogram)[-1]) if total else 0,
        "histogram": histogram.tolist(),
    }


def _corpus_card(summary: manifest.Manifest) -> dict[str, Any]:
    """Returns facts about the documents, from the manifests of examples and corpus.

    Counters of a corpus are `name`, `name/source`, `dropped/reason`, `rejected/reason`,
    `dropped_paragraphs/reason`, `cleaned/rule` and `encoding/name`; those of examples
    `name` and `dropped_reason`.
    """
    known = summary.config.get("corpus", {}).get("counters", {})
    by_source: dict[str, dict[str, int]] = defaultdict(dict)
    left_out: Counter[str] = Counter()
    cleaned: Counter[str] = Counter()
    card: dict[str, Any] = {}
    for name, count in known.items():
        group, slash, member = name.partition("/")
        if not slash:
            card[group] = count
        elif group in ("dropped", "rejected", "dropped_paragraphs"):
            left_out[name] = count
        elif group == "cleaned":
            cleaned[member] = count
        elif group not in ("encoding", "faults"):
            by_source[member][group] = count
    card |= {key: summary.counters[key] for key in _COUNTERS if key in summary.counters}
    for name, count in summary.counters.items():
        if name.startswith("dropped_"):
            left_out[name.replace("_", "/", 1).replace("_", " ")] = count
    if by_source:
        card["sources"] = dict(sorted(by_source.items()))
    for key, counts in (("left_out", left_out), ("cleaned", cleaned)):
        ordered = sorted((+counts).items(), key=lambda item: (-item[1], item[0]))
        card |= {key: dict(ordered)} if ordered else {}
    return card


def card_text(card: Mapping[str, Any], *, width: int = 100) -> Iterator[str]:
    """Yields lines with the values of a card, less the settings, which JSON has."""
    for section, values in card.items():
        if section == "config" or not values:
            continue
        yield section.replace("_", " ").capitalize()
        rows = []
        for key, value in values.items():
            name = key.replace("_", " ")
            if isinstance(value, Mapping):
                rows.append((name, "" if value else "none"))
                items = list(value.items())[:NUM_MEMBERS]
                rows += [(f"  {member}", _in_words(v)) for member, v in items]
            elif key != "histogram" and value is not None:
                is_share = key.endswith("_share")
                rows.append((name, f"{value:.2%}" if is_share else _in_words(value)))
        label_width = max(len(label) for label, _ in rows)
        for label, text in rows:
            yield f"  {label:<{label_width}}  {text}".rstrip()
        if "histogram" in values:
            # A line for each range of values, with a bar for the share of examples.
            histogram, room = values["histogram"], max(width - 30, 10)
            step = -(-len(histogram) // _MAX_BARS)
            starts = range(0, len(histogram), step)
            sums = [sum(histogram[start : start + step]) for start in starts]
            for start, count in zip(starts, sums, strict=True):
                end = min(start + step, len(histogram)) - 1
                label = f"{start}" if start == end else f"{start}-{end}"
                eighths = round(8 * room * count / max(max(sums), 1))
                bar = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
                yield f"  {label:>9}  {count:>12,}  {bar}".rstrip()
        yield ""


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{number:,} {name}" for name, number in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)
