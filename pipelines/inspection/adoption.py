"""`adopt`: third-party records become a directory of examples.

The records are `tf.train.Example`s of google-research/bert and tf-models-official
(older or newer names). Every record is checked; the vocabulary and a manifest, as
`examples` would have written them, are added.
"""

import fnmatch
import logging
from collections import Counter

from bert_keras.core import files, manifest, progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, tokenization
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import data_card, example_reading

logger = logging.getLogger(__name__)

_PATTERN = "*.tfrecord*"


def adopt_examples(
    directory: files.Path, vocab_path: files.Path, *, do_lower_case: bool
) -> manifest.Manifest:
    """Makes `pretrain --examples DIRECTORY` possible, without changing a record.

    Files that match `*.tfrecord*` are read, plain or gzip; `vocab_path` is copied next
    to the files. The manifest is written last, without facts that the records do not
    tell, such as how often each document was used.
    """
    if files.exists(files.join(directory, manifest.MANIFEST_NAME)):
        raise InputError(
            f"{directory}: has a {manifest.MANIFEST_NAME} already, so there is nothing "
            "to adopt: use it as it is, or delete that file to have the records read "
            "again"
        )
    vocabulary = tokenization.Vocabulary.load(vocab_path, do_lower_case=do_lower_case)
    stored = files.join(directory, records.VOCABULARY_NAME)
    is_there = files.exists(stored)
    if is_there and tokenization.Vocabulary.load(stored).sha256 != vocabulary.sha256:
        raise InputError(
            f"{stored}: differs from {vocab_path}: give the vocabulary that the "
            "records were made with, and delete the other"
        )
    names = fnmatch.filter(files.list_directory(directory), _PATTERN)
    paths = [files.join(directory, name) for name in names if name[0] != "."]
    if not paths:
        raise InputError(
            f"{directory}: expected files named {_PATTERN}, found none: give the "
            "directory that contains them"
        )
    format_ = _find_format(paths)
    # All records are read, checked and counted.
    counts = data_card.Counts(format_, vocabulary)
    shards: list[manifest.Shard] = []
    seen: Counter[str] = Counter()
    reader = example_reading.Reader(config=format_, vocabulary=vocabulary)
    total = sum(map(files.size, paths))
    with progress.Progress(
        "adopt", total=total, unit="bytes", read=lambda: min(seen["bytes"], total)
    ):
        for path in paths:
            before = counts.num_examples
            actual = _compression_of(path)
            if actual != format_.compression and files.size(path):
                raise InputError(
                    f"{path}: expected compression {format_.compression}, as in the "
                    f"first file, found {actual}: compress all files or none"
                )
            for batch in reader.read(path, seen=seen):
                counts.add(batch)
            num_records = counts.num_examples - before
            shards.append(manifest.Shard.of_file(path, num_records))
    vocabulary.save(stored)
    # Without second segments, the labels are all alike and teach nothing.
    has_pairs = counts.num_second_tokens > 0 and format_.packing == "sentence_pairs"
    settings = {
        **format_.model_dump(mode="json", exclude_unset=True),
        "masking": "static",
        "packing": "sentence_pairs" if has_pairs else "full_sentences",
        "do_lower_case": do_lower_case,
        "vocab_sha256": vocabulary.sha256,
    }
    summary = manifest.Manifest(
        kind="examples",
        shards=tuple(shards),
        config=settings,
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        counters={
            "examples": counts.num_examples,
            "example_tokens": int(counts.by_token.sum()),
            "masked_tokens": data_card.weighted_sum(counts.by_predictions),
            "random_next_examples": counts.num_random_next,
        },
    )
    manifest.write_manifest(directory, summary)
    logger.info(
        f"adopted {counts.num_examples:,} examples in {len(shards)} files; train on "
        f"them with `bert-keras pretrain --examples {directory}`"
    )
    return summary


def _find_format(paths: list[str]) -> ExamplesConfig:
    """Returns the format of the first record of all files."""
    for path in paths:
        compression = _compression_of(path)
        read = records.read_records(path, compression=compression)
        if (message := next(read, None)) is not None:
            break
    else:
        raise InputError(f"{', '.join(paths[:3])}: expected examples, found no record")
    origin = f"{path}, record 0"
    try:
        decoded = example_reading.decode_examples([message])
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None
    names = "v2" if features.V2_NAMES["input_ids"] in decoded else "v1"
    ids = features.V2_NAMES["input_ids"] if names == "v2" else "input_ids"
    if not {ids, "masked_lm_positions"} <= decoded.keys():
        known = [feature.name for feature in features.pretraining_features(1, 1)]
        v2 = {name: f"{name} or {other}" for name, other in features.V2_NAMES.items()}
        raise InputError(
            f"{origin}: expected the features of masked examples "
            f"({', '.join(v2.get(name, name) for name in known)}), found "
            f"{', '.join(sorted(decoded))}"
        )
    # Records without next sentences may lack their labels.
    has_labels = "next_sentence_labels" in decoded
    settings = {
        "feature_names": names,
        "max_seq_length": len(decoded[ids][0]),
        "max_predictions_per_seq": len(decoded["masked_lm_positions"][0]),
        "packing": "sentence_pairs" if has_labels else "full_sentences",
        "compression": compression,
    }
    return features.examples_config(settings, origin=origin)


def _compression_of(path: str) -> records.Compression:
    # A plain file that begins so has a first record of half a megabyte.
    with files.open_to_read(path) as file:
        return "gzip" if file.read(3) == b"\x1f\x8b\x08" else "none"
