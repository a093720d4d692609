"""Whole dev files through exported models: are the answers those of `predict`?

    python -m benchmarks.served_answers --run SST-2=RUN:dev.tsv \
        --run CoNLL-2003=RUN:eng.testa

A run of `bert-keras finetune` is exported as a SavedModel, which is then loaded in a
process that has nothing of this project but its readers of files, and asked with
strings, 64 examples a request. `predict` computes in the precision of the training, an
export in float32; the comparison is with `predict` in float32, and changes by the
run's own precision are counted separately.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measuring
from bert_keras.kinds.tagging import dataset as tagging_data

BATCH_SIZE = 64


def predicted(run: str, dev: str, precision: str | None) -> list[Any]:
    """Returns the answers of `predict`: labels or tags, one item per example."""
    from bert_keras.inference import finetuned

    model = finetuned.FinetunedModel.load(Path(run), precision=precision)
    answers = model.answer(model.read(Path(dev), has_labels=True))
    if isinstance(answers, tagging_data.TaggingAnswers):
        return [list(tags) for tags in answers.tags()]
    return [record.prediction for record in answers.records()]


def served(run: str, dev: str, exported: str) -> list[Any]:
    """Returns the answers of the export, one item per example."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (its operations)

    from bert_keras.core.settings import finetuning, loading
    from bert_keras.kinds import catalogue

    settings = loading.load(finetuning.FinetuningConfig, Path(run, "config.yaml"))
    data = catalogue.read(Path(dev), settings)
    # Signatures are gone with their model.
    model = tf.saved_model.load(exported)
    if not isinstance(data, tagging_data.TaggingDataset):
        columns = {"text": [row.text for row in data.rows]}
        if data.rows[0].text_pair is not None:
            columns["text_pair"] = [row.text_pair for row in data.rows]
        answer = model.signatures["serving_default"]
        replies = [answer(**batch)["label"] for batch in _batches(columns, tf.constant)]
        return [text.decode() for reply in replies for text in reply.numpy()]
    requests = _batches({"words": [s.words for s in data.rows]}, _pad)
    name = "documents" if "documents" in model.signatures else "words"
    if name == "documents":
        requests = _documents(data.rows)
    replies = [model.signatures[name](**request)["tags"] for request in requests]
    rows = [row for reply in replies for row in reply.numpy()]
    return [[tag.decode() for tag in row if tag] for row in rows]


def _batches(columns: Mapping[str, Sequence[Any]], convert: Callable) -> Iterator[dict]:
    num_rows = len(next(iter(columns.values())))
    for first in range(0, num_rows, BATCH_SIZE):
        part = slice(first, first + BATCH_SIZE)
        yield {name: convert(values[part]) for name, values in columns.items()}


def _documents(sentences: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yields a request per document."""
    import tensorflow as tf

    for document, group in itertools.groupby(sentences, key=lambda s: s.document):
        words = [sentence.words for sentence in group]
        names = tf.constant([str(document)] * len(words))
        yield {"words": _pad(words), "document": names}


def _pad(rows: Sequence[Sequence[str]]) -> Any:
    import tensorflow as tf

    longest = max(map(len, rows))
    return tf.constant([[*row, *[""] * (longest - len(row))] for row in rows])


def make_answer(run: str, dev: str, exported: str) -> Callable[[str], list[Any]]:
    """Returns the answer of a worker, to the name of a way."""
    ways = {
        "served": lambda: served(run, dev, exported),
        "float32": lambda: predicted(run, dev, "float32"),
        "as trained": lambda: predicted(run, dev, None),
    }
    return lambda way: ways[way]()


def rows(runs: Sequence[str]) -> Iterator[list[object]]:
    for text in runs:
        name, _, paths = text.partition("=")
        run, _, dev = paths.partition(":")
        with tempfile.TemporaryDirectory() as work:
            exported = Path(work, name, "1")
            measuring.bert_keras("export", "--model", run, "--output", exported)
            expected, *others = (
                measuring.ask_once(
                    *("benchmarks.served_answers", run, dev, exported), question=way
                )
                for way in ("float32", "served", "as trained")
            )
        pairs = [zip(answers, expected, strict=True) for answers in others]
        yield [name, len(expected), *(sum(a != b for a, b in pair) for pair in pairs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="append", required=True, metavar="NAME=RUN:DEV")
    args = parser.parse_args()
    print(measuring.machine("bert-keras", "tensorflow", "tensorflow-text", "keras"))
    header = ["task", "examples", "served otherwise than predicted (float32)"]
    header.append("predicted otherwise in the run's precision")
    measuring.print_table(header, rows(args.run))


if __name__ == "__main__":
    measuring.start(main, make_answer)
