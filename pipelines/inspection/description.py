"""`inspect`: masked examples for people to read, and a data card of all of them."""

import itertools
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from bert_keras.core import files, manifest, progress
from bert_keras.core.errors import InputError
from bert_keras.data import features, tokenization
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import data_card, example_reading

_WITHOUT_PAIRS = {
    "full_sentences": "full sentences across documents",
    "single_sentences": "each sentence alone",
}


def _open_examples(
    examples_dir: files.Path, vocab_path: files.Path | None
) -> tuple[manifest.Manifest, example_reading.Reader]:
    summary = manifest.read_manifest(examples_dir, kind="examples")
    vocab_path = vocab_path or files.join(examples_dir, records.VOCABULARY_NAME)
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    if vocabulary.sha256 != summary.vocab_sha256:
        raise InputError(
            f"{vocab_path}: expected the vocabulary that the examples were made with "
            f"(sha256 {str(summary.vocab_sha256)[:12]}…), found another "
            f"({vocabulary.sha256[:12]}…): give that one, or leave --vocab out"
        )
    config = features.examples_config(
        summary.config, origin=files.join(examples_dir, manifest.MANIFEST_NAME)
    )
    return summary, example_reading.Reader(config=config, vocabulary=vocabulary)


def describe_all(
    examples_dir: files.Path,
    *,
    vocab_path: files.Path | None,
    json_path: files.Path | None,
) -> Iterator[str]:
    """Yields the lines of the data card, for which every example is read. The
    vocabulary kept with the examples is used if `vocab_path` is `None`. If `json_path`
    is not `None`, the card is written there as JSON."""
    summary, reader = _open_examples(examples_dir, vocab_path)
    # The records' own checksums suffice: each is read anyway.
    manifest.verify_shards(examples_dir, summary, hashes=False)
    counts = data_card.Counts(reader.config, reader.vocabulary)
    seen: Counter[str] = Counter()
    with progress.Progress(
        "inspect",
        total=summary.num_records,
        unit="examples",
        read=lambda: seen["records"],
    ):
        for shard in summary.shards:
            before = seen["records"]
            path = files.join(examples_dir, shard.name)
            for batch in reader.read(path, first_record=before, seen=seen):
                counts.add(batch)
            if seen["records"] - before != shard.num_records:
                raise InputError(
                    f"{path}: {seen['records'] - before} records, "
                    f"{manifest.MANIFEST_NAME} says {shard.num_records}: recreate the "
                    "examples"
                )
    card = data_card.make_card(counts, summary)
    if json_path is not None:
        files.write_json(json_path, card, indent=1, ensure_ascii=False)
    yield f"{examples_dir}: every example of {len(summary.shards):,} files was read"
    yield ""
    yield from data_card.card_text(card, width=_terminal_width())


def describe_examples(
    examples_dir: files.Path, *, vocab_path: files.Path | None, limit: int
) -> Iterator[str]:
    """Yields lines about the settings of a directory, then its first `limit` examples.

    A hidden token is shown as `[MASK→capital]`, as `capital→capital` if it was kept and
    as `harbour→capital` if a random one replaces it. `vocab_path`: see `describe_all`.
    """
    if limit < 1:
        raise InputError(f"--limit must be at least 1, got {limit}")
    summary, reader = _open_examples(examples_dir, vocab_path)
    # 1. The settings.
    known, config = summary.config, reader.config
    casing = "uncased" if known["do_lower_case"] else "cased"
    nouns = f"{summary.num_records:,} examples"
    if config.pack_instances:
        num_examples = summary.counters.get("examples", 0)
        nouns = f"{num_examples:,} examples in {summary.num_records:,} rows"
    if "documents" in summary.counters:
        nouns += f" from {summary.counters['documents']:,} documents"
    yield f"{examples_dir}: {nouns}, in {len(summary.shards):,} files"
    yield (
        f"{casing} vocabulary of {summary.vocab_size:,}; at most "
        f"{config.max_seq_length} tokens and {config.num_predictions} predictions"
    )
    unit = "whole words" if config.do_whole_word_mask else "single pieces"
    longest = config.max_ngram_size
    unit = f"runs of up to {longest} words" if longest > 1 else unit
    if "masked_lm_prob" in known:
        yield (
            f"{config.masked_lm_prob:.0%} hidden as {unit}; "
            f"dupe_factor {config.num_duplicates}, seed {config.random_seed}"
        )
    else:
        yield "made by another program: how is not known"
    if texts := _WITHOUT_PAIRS.get(config.packing):
        yield f"{texts}, no next-sentence prediction"
    if config.masking == "dynamic":
        yield (
            "masked when loaded; shown as in the first epoch of a run with seed "
            f"{config.random_seed}"
        )
    # 2. The examples.
    noun = "instance" if config.pack_instances else "record"
    first_record = 0
    for shard in summary.shards:
        # Only the shards shown are checked: hashing a large directory takes hours.
        only = summary.model_copy(update={"shards": (shard,)})
        manifest.verify_shards(examples_dir, only)
        batches = reader.read(
            files.join(examples_dir, shard.name), first_record=first_record, limit=limit
        )
        examples = (
            {name: values[row] for name, values in batch.items()}
            for batch in batches
            for row in range(len(batch["input_ids"]))
        )
        index = -1
        for index, example in enumerate(itertools.islice(examples, limit)):
            yield ""
            yield from describe_example(
                example,
                reader.vocabulary,
                title=f"{shard.name}, {noun} {index}",
                width=_terminal_width(),
            )
        limit -= index + 1
        first_record += shard.num_records
        if not limit:
            return


def _terminal_width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def describe_example(
    example: Mapping[str, np.ndarray],
    vocabulary: tokenization.Vocabulary,
    *,
    title: str,
    width: int,
) -> Iterator[str]:
    """Yields the lines of one example: a title, segment A, segment B if it has one."""
    is_used = example["masked_lm_weights"] == 1
    positions = example["masked_lm_positions"][is_used].tolist()
    hidden_ids = example["masked_lm_ids"][is_used].tolist()
    labels = dict(zip(positions, hidden_ids, strict=True))
    length = int(sum(example["input_mask"]))
    kinds: Counter[str] = Counter()
    texts = ["", ""]
    for position, shown_id in enumerate(example["input_ids"][:length].tolist()):
        shown = vocabulary.tokens[shown_id]
        true = vocabulary.tokens[labels[position]] if position in labels else shown
        # A blank comes before each piece whose true form does not continue a word.
        text = "" if true.startswith(tokenization.CONTINUATION_PREFIX) else " "
        if position not in labels:
            text += true.removeprefix(tokenization.CONTINUATION_PREFIX)
        elif shown == features.MASK_TOKEN:
            kinds["masked"] += 1
            text += f"[MASK→{true}]"
        else:
            kinds["kept" if shown == true else "random"] += 1
            text += f"{shown}→{true}"
        texts[example["segment_ids"][position]] += text
    label = "no pair"
    if "next_sentence_labels" in example:
        is_random = example["next_sentence_labels"][0]
        label = "B is random" if is_random else "B follows A"
    yield f"── {title}: {label}"
    for name, text in zip("AB", texts, strict=True):
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=f"{name} ",
            subsequent_indent="   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    yield (
        f"   {length} tokens, {len(example['input_ids']) - length} padding; "
        f"{len(labels)} hidden: {kinds['masked']} [MASK], {kinds['kept']} kept, "
        f"{kinds['random']} random"
    )
