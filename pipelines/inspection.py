"""`inspect`: masked examples as a person reads them."""

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras import features, manifest, tokenization
from bert_keras.errors import InputError
from pipelines import records


def describe_examples(
    examples_dir: str | Path, *, vocab_path: str | Path | None, limit: int
) -> Iterator[str]:
    """Lines that show how a directory was made, then its first examples.

    A hidden token reads `[MASK→capital]`, `capital→capital` where it was kept and
    `harbour→capital` where a random one stands.

    Args:
        examples_dir: made by `examples`.
        vocab_path: `None`: the vocabulary kept with the examples.
        limit: how many examples to show.

    Raises:
        InputError: an unfinished directory, a shard that was changed, another
            vocabulary than that of the examples, `limit` below 1.
    """
    if limit < 1:
        raise InputError(f"--limit must be at least 1, got {limit}")
    directory = Path(examples_dir)
    made = manifest.read_manifest(
        directory, kind="examples", verb="bert-keras examples"
    )
    vocab_path = vocab_path or directory / records.VOCABULARY_NAME
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    if vocabulary.sha256 != made.vocab_sha256:
        raise InputError(
            f"{vocab_path}: expected the vocabulary that the examples were made with "
            f"(sha256 {str(made.vocab_sha256)[:12]}…), found another "
            f"({vocabulary.sha256[:12]}…): give that one, or leave --vocab out"
        )
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    yield from _describe_manifest(directory, made)
    for shard, index, example in _first_examples(directory, made, limit):
        origin = f"{directory / shard.name}, record {index}"
        check_example(example, made.config, len(vocabulary), origin=origin)
        yield ""
        yield from describe_example(
            example, vocabulary, title=f"{shard.name}, record {index}", width=width
        )


def _describe_manifest(directory: Path, made: manifest.Manifest) -> Iterator[str]:
    settings = made.config
    casing = "uncased" if settings["do_lower_case"] else "cased"
    words = "whole words" if settings["do_whole_word_mask"] else "single pieces"
    counts = Counter(made.counters)
    yield (
        f"{directory}: {made.num_records:,} examples from {counts['documents']:,} "
        f"documents, in {len(made.shards):,} files"
    )
    yield (
        f"{casing} vocabulary of {made.vocab_size:,}; at most "
        f"{settings['max_seq_length']} tokens and "
        f"{settings['max_predictions_per_seq']} predictions"
    )
    yield (
        f"{settings['masked_lm_prob']:.0%} hidden as {words}; "
        f"dupe_factor {settings['dupe_factor']}, seed {settings['random_seed']}"
    )


def _first_examples(
    directory: Path, made: manifest.Manifest, limit: int
) -> Iterator[tuple[manifest.Shard, int, Mapping[str, Any]]]:
    for shard in made.shards:
        # Only what is shown is checked: hashing all of a large directory takes hours.
        manifest.verify_shards(directory, made.model_copy(update={"shards": (shard,)}))
        for index, record in enumerate(records.read_records(directory / shard.name)):
            if not limit:
                return
            limit -= 1
            yield shard, index, records.decode_example(record)


def check_example(
    example: Mapping[str, Sequence[float]],
    settings: Mapping[str, Any],
    vocab_size: int,
    *,
    origin: str,
) -> None:
    """Checks what must hold before an example can be shown.

    Args:
        settings: of the manifest.
        origin: file and record, for the error.

    Raises:
        InputError: a feature is missing or of another length, or a number in it
            points outside the vocabulary or the sequence.
    """
    length = settings["max_seq_length"]
    bounds = {
        "input_ids": vocab_size,
        "masked_lm_ids": vocab_size,
        "masked_lm_positions": length,
    }
    for feature in features.pretraining_features(
        length, settings["max_predictions_per_seq"]
    ):
        values = example.get(feature.name, [])
        if len(values) != feature.length:
            raise InputError(
                f"{origin}: expected {feature.length} values of {feature.name}, found "
                f"{len(values)}: make the examples again"
            )
        bound = bounds.get(feature.name, 2)
        if not 0 <= min(values) <= max(values) < bound:
            raise InputError(
                f"{origin}: expected {feature.name} from 0 to {bound - 1}, found "
                f"{min(values)} to {max(values)}: make the examples again"
            )


def describe_example(
    example: Mapping[str, Sequence[float]],
    vocabulary: tokenization.Vocabulary,
    *,
    title: str,
    width: int,
) -> Iterator[str]:
    """The lines of one example: what it is, segment A, segment B.

    Args:
        example: from `records.decode_example`.
        title: where it comes from.
        width: columns of a line.
    """
    length = sum(example["input_mask"])
    ids, segment_ids = example["input_ids"][:length], example["segment_ids"]
    labels = _labels(example)
    pieces = [
        _Piece(vocabulary.tokens[shown], vocabulary.tokens[labels.get(i, shown)])
        for i, shown in enumerate(ids)
    ]
    label = "B is random" if example["next_sentence_labels"][0] else "B follows A"
    yield f"── {title}: {label}"
    for segment, name in enumerate("AB"):
        text = "".join(
            piece.text(is_target=i in labels)
            for i, piece in enumerate(pieces)
            if segment_ids[i] == segment
        )
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=f"{name} ",
            subsequent_indent="   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    kinds = Counter(pieces[i].kind for i in labels)
    yield (
        f"   {length} tokens, {len(example['input_ids']) - length} padding; "
        f"{len(labels)} hidden: {kinds['masked']} [MASK], {kinds['kept']} kept, "
        f"{kinds['random']} random"
    )


def _labels(example: Mapping[str, Sequence[float]]) -> dict[int, int]:
    """True ids by position."""
    slots = zip(
        example["masked_lm_positions"],
        example["masked_lm_ids"],
        example["masked_lm_weights"],
        strict=True,
    )
    return {position: label for position, label, weight in slots if weight}


class _Piece(NamedTuple):
    """A piece as the model sees it, and the true one."""

    shown: str
    true: str

    @property
    def kind(self) -> str:
        if self.shown == features.MASK_TOKEN:
            return "masked"
        return "kept" if self.shown == self.true else "random"

    def text(self, *, is_target: bool) -> str:
        """With a blank before it, unless the true piece continues a word."""
        prefix = tokenization.CONTINUATION_PREFIX
        blank = "" if self.true.startswith(prefix) else " "
        if not is_target:
            return blank + self.true.removeprefix(prefix)
        if self.kind == "masked":
            return f"{blank}[MASK→{self.true}]"
        return f"{blank}{self.shown}→{self.true}"
