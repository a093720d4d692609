"""Labelled files and answers as inputs."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from benchmarks.hostile_inputs.reading import Kind
from bert_keras import finetuning_config
from bert_keras.data import tokenization


def _make_texts(folder: Path, golden: Path) -> None:
    rows = [("text", "label"), ("Ba be bi", "a"), ('Bo, "da" de', "b"), ("Di do", "a")]
    lines = ["\t".join(row) for row in rows]
    (folder / "a.tsv").write_text("\n".join(lines) + "\n")
    with (folder / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, records)))


def _make_tagged(folder: Path, golden: Path) -> None:
    rows = [
        "-DOCSTART- -X- O O",
        "",
        "Ba NN I-NP I-PER",
        "be NN O O",
        "",
        "da X O B-LOC",
    ]
    (folder / "a.txt").write_text("\n".join(rows) + "\n")
    line = json.dumps({"words": ["Ba", "be"], "tags": ["B-PER", "O"]})
    (folder / "b.jsonl").write_text(f"{line}\n{line}\n")


def _make_questions(folder: Path, golden: Path) -> None:
    for name in ("dev.json", "dev.csv"):
        shutil.copy(golden / name, folder)
    row = ["a", "Ba be. Da", "de", "di", "do", "ga", "1"]
    (folder / "c.tsv").write_text("\n".join(["\t".join(row)] * 3))


SETTINGS = {"a.tsv": "text", "b.csv": "text", "c.jsonl": "text"}
TAGGED = {"a.txt": "tagging", "b.jsonl": "tagging"}
QUESTIONS = {"dev.json": "span", "dev.csv": "choice", "c.tsv": "choice"}


def _read_labelled(tasks: dict[str, str]) -> Callable[[Path], object]:
    vocabulary = tokenization.Vocabulary(
        ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "##a", "##e", "d", "i")
    )
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)

    def read(folder: Path) -> object:
        from bert_keras.tasks import catalogue

        for name, task in tasks.items():
            if not (folder / name).is_file():
                continue
            settings = finetuning_config.FinetuningConfig(task=task, max_seq_length=128)
            data = catalogue.read(folder / name, settings)
            described = data.describe()
            inputs = data.encode(described, tokenizer, settings)
            inputs.batch([0])
            described.model_dump_json()

    return read


def _make_answers(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "dev.json", folder)
    data = json.loads((golden / "dev.json").read_text())
    ids = [
        question["id"]
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    (folder / "predictions.json").write_text(json.dumps(dict.fromkeys(ids, "ba be")))


def _read_answers(folder: Path) -> object:
    from bert_keras.tasks import squad_predictions

    return squad_predictions.score_file(
        folder / "dev.json", folder / "predictions.json"
    )


def _make_triviaqa(folder: Path, golden: Path) -> None:
    answer = {"Value": "da", "Aliases": ["Da", "de"]}
    pages = [{"Filename": "x.txt"}]
    question = {"Question": "Ba?", "QuestionId": "q", "Answer": answer}
    data = {"Data": [question | {"EntityPages": pages}]}
    (folder / "triviaqa.json").write_text(json.dumps(data))
    (folder / "wikipedia").mkdir()
    (folder / "wikipedia/x.txt").write_text("Ba be Da de.")


def _read_triviaqa(folder: Path) -> object:
    from bert_keras.tasks import triviaqa

    return triviaqa.read_triviaqa(folder / "triviaqa.json", folder)


GLUE = {
    "CoLA/dev.tsv": "a\t1\t\tBa be bi\na\t0\t*\tBo da\n",
    "SST-2/train.tsv": "sentence\tlabel\nBa be bi\t1\nBo da\t0\n",
    "STS-B/dev.tsv": "sentence1\tsentence2\tscore\nBa\tbe\t3.5\nBo\tda\t0\n",
    "QNLI/test.tsv": 'index\tquestion\tsentence\n0\tBa?\tBe "bi\n1\tBo?\tDa\n',
}


def _make_glue(folder: Path, golden: Path) -> None:
    for name, text in GLUE.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)


def _read_glue(folder: Path) -> object:
    from bert_keras.tasks import catalogue

    for name in GLUE:
        if (folder / name).is_file():
            settings = finetuning_config.FinetuningConfig(task=Path(name).parent.name)
            catalogue.read(folder / name, settings).describe()


def _read_unlabelled(folder: Path) -> object:
    """Reads what a model is to answer."""
    from bert_keras.tasks import catalogue

    for name, task in (SETTINGS | TAGGED | QUESTIONS).items():
        if (folder / name).is_file():
            settings = finetuning_config.FinetuningConfig(task=task)
            catalogue.read(folder / name, settings, has_labels=False)


def _make_unlabelled(folder: Path, golden: Path) -> None:
    _make_texts(folder, golden)
    _make_tagged(folder, golden)
    _make_questions(folder, golden)


def _make_tags(folder: Path, golden: Path) -> None:
    pairs = (
        "B-PER B-PER",
        "I-PER O",
        "O I-LOC",
        "",
        "E-X S-X",
        "L-A U-A",
        "",
        "I-- B-_",
    )
    (folder / "tags.txt").write_text("\n".join(pairs))


def _read_tags(folder: Path) -> object:
    """Describes right and answered tags that no reader of files has checked."""
    from bert_keras.report import drawing, tagged_sentences
    from bert_keras.tasks import answers, ner

    text = (folder / "tags.txt").read_bytes().decode(errors="replace")
    records = []
    for line, block in enumerate(text.split("\n\n")):
        rows = [row.partition(" ") for row in block.split("\n")]
        right, _, answered = zip(*rows, strict=True)
        records.append(
            answers.TaggedSentence(
                words=right, line=line, labels=right, prediction=answered
            )
        )
    # One plain tag makes all of them plain.
    entities = [
        record
        for record in records
        if ner.scheme_of([*record.labels, *record.prediction]) != "plain"
    ]
    with mock.patch.object(drawing, "as_png", lambda *_, **__: b""):
        tagged_sentences.describe(records)
        return tagged_sentences.describe(entities or records)


KINDS = {
    "labelled texts": Kind(30_000, _make_texts, _read_labelled(SETTINGS), alone=True),
    "tagged words": Kind(30_000, _make_tagged, _read_labelled(TAGGED), alone=True),
    "tags": Kind(6_000, _make_tags, _read_tags),
    "questions, endings": Kind(
        20_000, _make_questions, _read_labelled(QUESTIONS), alone=True
    ),
    "TriviaQA": Kind(40_000, _make_triviaqa, _read_triviaqa),
    "GLUE": Kind(30_000, _make_glue, _read_glue, alone=True),
    "files to answer": Kind(30_000, _make_unlabelled, _read_unlabelled, alone=True),
    "answers": Kind(40_000, _make_answers, _read_answers),
}
