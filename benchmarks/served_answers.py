"""Whole dev files through exported models: are the answers those of `predict`?

    python benchmarks/served_answers.py --results benchmarks/results/served_answers.md \
        --run SST-2=RUN:DEV.tsv --run SQuAD=RUN:DEV.json --run CoNLL-2003=RUN:DEV.txt

A run of `bert-keras finetune` is exported as a SavedModel, which is then loaded in a
process that has nothing of this project but its readers of files, and asked with
strings. `predict` computes in the precision of the training, an export in float32; the
comparison is with `predict` in float32, and changes by bfloat16 are counted separately.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import step

BATCH_SIZE = 64
"""Questions in one request."""


# === In processes of their own ===


def predicted(run: Path, dev: Path, precision: str | None) -> list[Any]:
    """Answers of `predict`: labels, scores, tags or texts, one per example."""
    from bert_keras.inference import tuned
    from bert_keras.tasks import forms

    model = tuned.TunedModel.load(run, precision=precision)
    answers = model.answer(model.read(dev, has_labels=True))
    if isinstance(answers, forms.SpanAnswers):
        texts = answers.predictions.answers(
            null_score_diff_threshold=model.threshold or 0.0
        )
        return [texts[question.id] for question in answers.questions.questions]
    if isinstance(answers, forms.TaggingAnswers):
        return [list(tags) for tags in answers.tags()]
    return [record.prediction for record in answers.records()]


def served(exported: Path, run: Path, dev: Path) -> list[Any]:
    """Answers of the export, one per example."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (its operations)

    from bert_keras import config_files, finetuning_config
    from bert_keras.tasks import catalogue

    settings = config_files.load(
        finetuning_config.FinetuningConfig, run / "config.yaml"
    )
    data = catalogue.read(dev, settings)
    signatures = tf.saved_model.load(str(exported)).signatures
    requests, name, read = _requests(data, signatures)
    found: list[Any] = []
    for request in requests:
        outputs = signatures[name](**request)
        found += read({key: value.numpy() for key, value in outputs.items()})
    return found


def _requests(
    data: Any, signatures: Mapping[str, Any]
) -> tuple[Iterator[dict[str, Any]], str, Callable]:
    """Requests, their signature, and a function that reads the answers."""
    import tensorflow as tf

    from bert_keras.tasks import forms

    if isinstance(data, forms.SpanDataset):
        columns = {
            "question": [q.question for q in data.questions.questions],
            "context": [q.context for q in data.questions.questions],
        }
        return _batches(columns, tf.constant), "serving_default", _read_texts("answer")
    if isinstance(data, forms.TaggingDataset):
        if "documents" in signatures:
            return _documents(data.sentences, tf.constant), "documents", _read_tags
        columns = {"words": [s.words for s in data.sentences]}
        return _batches(columns, _pad), "words", _read_tags
    columns = {"text": [row.text for row in data.rows]}
    if data.rows[0].text_pair is not None:
        columns["text_pair"] = [row.text_pair for row in data.rows]
    wanted = signatures["serving_default"].structured_outputs
    read = _read_texts("label") if "label" in wanted else _read_scores
    return _batches(columns, tf.constant), "serving_default", read


def _batches(
    columns: Mapping[str, Sequence[Any]], convert: Callable
) -> Iterator[dict[str, Any]]:
    (num_rows,) = {len(values) for values in columns.values()}
    for first in range(0, num_rows, BATCH_SIZE):
        yield {
            name: convert(values[first : first + BATCH_SIZE])
            for name, values in columns.items()
        }


def _documents(sentences: Sequence[Any], convert: Callable) -> Iterator[dict[str, Any]]:
    """One request per document."""
    import itertools

    for document, group in itertools.groupby(sentences, key=lambda s: s.document):
        words = [sentence.words for sentence in group]
        yield {
            "words": _pad(words),
            "document": convert([str(document)] * len(words)),
        }


def _pad(rows: Sequence[Sequence[str]]) -> Any:
    import tensorflow as tf

    longest = max(map(len, rows))
    return tf.constant([[*row, *[""] * (longest - len(row))] for row in rows])


def _read_texts(name: str) -> Callable:
    return lambda outputs: [text.decode() for text in outputs[name]]


def _read_scores(outputs: Mapping[str, np.ndarray]) -> list[float]:
    return outputs["score"].tolist()


def _read_tags(outputs: Mapping[str, np.ndarray]) -> list[list[str]]:
    return [[tag.decode() for tag in row if tag] for row in outputs["tags"]]


# === Comparison ===


def num_different(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Answers that are not equal; numbers may differ by 1e-3."""
    pairs = zip(ours, theirs, strict=True)
    if isinstance(ours[0], float):
        return sum(abs(a - b) > 1e-3 for a, b in pairs)
    return sum(a != b for a, b in pairs)


def compare(name: str, run: Path, dev: Path, work: Path) -> dict[str, Any]:
    """Exports a run and compares; a row of the page."""
    exported = work / name / "1"
    _call("-m", "bert_keras.cli", "export", "--model", run, "--output", exported)
    found = {}
    for part in ("served", "float32", "as_trained"):
        path = work / f"{name}.{part}.json"
        _call(Path(__file__).resolve(), "--part", part, run, dev, exported, path)
        found[part] = json.loads(path.read_text(encoding="utf-8"))
    answers = found["served"]
    return {
        "name": name,
        "num_examples": len(answers),
        "num_different": num_different(answers, found["float32"]),
        "num_changed": num_different(found["as_trained"], found["float32"]),
    }


def _call(*arguments: Any) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


def do_part(part: str, run: Path, dev: Path, exported: Path, path: Path) -> None:
    if part == "served":
        found = served(exported, run, dev)
    else:
        precision = "float32" if part == "float32" else None
        found = predicted(run, dev, precision)
    path.write_text(json.dumps(found), encoding="utf-8")


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("bert-keras", "tensorflow", "tensorflow-text", "keras")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    lines = [
        "# Whole dev files through exported models",
        "",
        "Made by `python benchmarks/served_answers.py`, "
        f"{datetime.date.today()}, {step.num_cores()} cores of {step.processor()}, "
        f"Python {platform.python_version()}, {versions}.",
        "",
        "Each dev file is asked of the SavedModel as strings, "
        f"{BATCH_SIZE} examples a request (a document a request where documents are "
        "read around sentences), and compared with `bert-keras predict` on the file: "
        "labels, texts of answers, tags of sentences. `predict` computes as the run "
        "was trained, here in bfloat16, an export in float32: what that changes is "
        "beside it.",
        "",
        "| task | examples | served otherwise than predicted (float32) "
        "| predicted otherwise in the run's precision |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['num_examples']:,} | {row['num_different']} "
        f"| {row['num_changed']} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="append", metavar="NAME=RUN:DEV")
    parser.add_argument("--results", type=Path, help="page to write")
    parser.add_argument("--part", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not (args.run or args.part):
        parser.error("give --run")
    return args


def main() -> None:
    args = parse()
    if args.part:
        part, *paths = args.part
        do_part(part, *map(Path, paths))
        return
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for text in args.run:
            name, _, paths = text.partition("=")
            run, _, dev = paths.partition(":")
            rows.append(compare(name, Path(run), Path(dev), Path(work)))
            print(rows[-1], flush=True)
    if args.results:
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text(render(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
