"""Tiny data of every kind of task, for the laws that each kind keeps."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.kinds.text import text, text_forms

GOOD = ["fine", "great", "lovely"]
BAD = ["dull", "awful", "weak"]
FILLER = ["the", "film", "plot", "is", "so", "and", "a", "scene", "very", "with"]

Rows = Sequence[Mapping[str, Any]]


def tokenizer(*tokens: str, do_lower_case: bool = True) -> tokenization.Tokenizer:
    """A tokenizer of the special tokens and these."""
    vocabulary = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *tokens))
    return tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file with the very line ends of its content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(*rows: tuple, kind="classification") -> text_forms.TextDataset:
    """Labels and texts; ` / ` divides pairs."""
    labelled = []
    for number, (label, joined) in enumerate(rows, start=2):
        first, second = [*joined.split(" / "), None][:2]
        labelled.append(text.LabelledText(first, second, label, number))
    return text_forms.TextDataset(
        path=Path("train.tsv"), rows=labelled, has_labels=True, kind=kind
    )


def words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choices(FILLER, k=rng.randint(low, high)))


def table(*columns: str, labels: Sequence[str] = (), separator: str = "\t"):
    """A function that writes rows as a table, maybe without the columns of labels."""

    def write(rows: Rows, has_labels: bool) -> str:
        names = [*columns, *(labels if has_labels else ())]
        lines = [names, *([str(row[name]) for name in names] for row in rows)]
        return "".join(separator.join(line) + "\n" for line in lines)

    return write


def json_lines(rows: Rows, has_labels: bool) -> str:
    kept = [{k: v for k, v in r.items() if has_labels or k != "label"} for r in rows]
    return "".join(json.dumps(row) + "\n" for row in kept)


def tagged_words(rows: Rows, has_labels: bool) -> str:
    lines = ""
    for row in rows:
        for word, tag in zip(row["words"], row["tags"], strict=True):
            lines += f"{word} {tag}\n" if has_labels else f"{word}\n"
        lines += "\n"
    return lines


def squad(rows: Rows, has_labels: bool) -> str:
    paragraphs = []
    for number, row in enumerate(rows, start=1):
        question = {"id": str(number), "question": row["question"]}
        if has_labels:
            answer = {"text": row["answer"], "answer_start": row["start"]}
            question["answers"] = [answer]
        paragraphs.append({"context": row["context"], "qas": [question]})
    return json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]})


def passages(rows: Rows, has_labels: bool) -> str:
    flat = [
        {"question": row["question"], "passage": text, "relevance": relevance}
        for row in rows
        for text, relevance in zip(row["passages"], row["relevances"], strict=True)
    ]
    return table("question", "passage", labels=["relevance"])(flat, has_labels)


def opinion(rng: random.Random, number: int) -> dict[str, Any]:
    word = rng.choice((GOOD, BAD)[number % 2])
    return {"text": f"{words(rng, 2, 15)} {word}", "label": ("good", "bad")[number % 2]}


def several(rng: random.Random, number: int) -> dict[str, Any]:
    row = opinion(rng, number)
    return row | {"label": [[], ["bad"], ["good"], ["bad", "good"]][number % 4]}


def rating(rng: random.Random, number: int) -> dict[str, Any]:
    row = opinion(rng, number)
    return row | {"text_pair": words(rng, 1, 6), "label": round(rng.uniform(0, 5), 2)}


def sentence(rng: random.Random, number: int) -> dict[str, Any]:
    several_words = words(rng, 1, 8).split()
    tags = ["O"] * len(several_words)
    several_words.append(rng.choice(GOOD))
    return {"words": several_words, "tags": [*tags, "B-GOOD"]}


def question(rng: random.Random, number: int) -> dict[str, Any]:
    before, answer = words(rng, 1, 30), rng.choice(GOOD)
    row = {"context": f"{before} {answer} {words(rng, 1, 5)}", "question": "is a film"}
    return row | {"answer": answer, "start": len(before) + 1}


def endings(rng: random.Random, number: int) -> dict[str, Any]:
    row = {f"ending{place}": words(rng, 1, 5) for place in range(4)}
    return row | {"sent1": words(rng, 1, 5), "sent2": "it is", "label": number % 4}


def pair(rng: random.Random, number: int) -> dict[str, Any]:
    return {"text": words(rng, 2, 9), "text_pair": f"{words(rng, 2, 9)} {number}"}


def ranked(rng: random.Random, number: int) -> dict[str, Any]:
    texts = [f"{words(rng, 2, 9)} {place}" for place in range(2 + number % 3)]
    relevances = [1, *[0] * (len(texts) - 1)]
    row = {"question": f"{words(rng, 2, 5)} {'x' * number}", "passages": texts}
    return row | {"relevances": relevances}


class Data(NamedTuple):
    row: Callable[[random.Random, int], dict[str, Any]]
    suffix: str
    write: Callable[[Rows, bool], str]
    """From rows, and whether labels are written, to the content of a file."""
    python: Callable[[Mapping[str, Any]], Any]
    """From a row to an example for `LoadedModel.predict`."""
    broken: tuple[str, str]
    """A file with a fault in its second example, and what the error says of it."""
    empty: Any
    """An example without any text in Python."""
    unlike: tuple[Sequence[Any], str]
    """Objects that are no examples, and the expected one in words."""
    unknown: tuple[str, str] | None = None
    """A file with a label that no training file has, and the error."""
    settings: Mapping[str, Any] = {}


DATA = {
    "classification": Data(
        row=opinion,
        suffix=".tsv",
        write=table("text", labels=["label"]),
        python=lambda row: row["text"],
        broken=("text\tlabel\na\tgood\nb\n", "line 3: expected 2 columns"),
        empty="",
        unlike=([("a", "b")], "a string"),
        unknown=("text\tlabel\na\tgood\nb\tgod\n", "line 3: label 'god' .*'good'"),
        settings={"task": "text"},
    ),
    "multi_label": Data(
        row=several,
        suffix=".jsonl",
        write=json_lines,
        python=lambda row: row["text"],
        broken=('{"text": "a", "label": []}\n{"text": "b"}\n', "line 2: no column"),
        empty="",
        unlike=([None], "a string"),
        unknown=('{"text": "a", "label": ["god"]}\n', "line 1: label 'god'"),
        settings={"task": "text", "multi_label": True},
    ),
    "regression": Data(
        row=rating,
        suffix=".tsv",
        write=table("text", "text_pair", labels=["label"]),
        python=lambda row: (row["text"], row["text_pair"]),
        broken=("text\ttext_pair\tlabel\na\tb\t1\na\tb\tc\n", "line 3: .* got 'c'"),
        empty=("", ""),
        unlike=(["ab", ("a", "b", "c"), ("a", 1)], "a pair of strings"),
        settings={"task": "text", "regression": True},
    ),
    "tagging": Data(
        row=sentence,
        suffix=".txt",
        write=tagged_words,
        python=lambda row: row["words"],
        broken=("a O\n\nb\n", "line 3: expected 2 columns"),
        empty="",
        unlike=([[]], "a string, or a list of words"),
        unknown=("a O\n\nb B-GOD\n", "line 3: .*B-GOD"),
        settings={"task": "tagging"},
    ),
    "span": Data(
        row=question,
        suffix=".json",
        write=squad,
        python=lambda row: (row["question"], row["context"]),
        broken=(
            '{"data": [{"paragraphs": [{"context": "a", "qas": ['
            '{"id": "1", "question": "b", "answers": [{"text": "a", "answer_start": 0}'
            ']}, {"id": "2"}]}]}]}',
            r"paragraphs\[0\].qas\[1\]: expected 'question'",
        ),
        empty=("", ""),
        unlike=([("who?",)], "a question and its context"),
        settings={"task": "span"},
    ),
    "choice": Data(
        row=endings,
        suffix=".csv",
        write=table(
            *("sent1", "sent2", "ending0", "ending1", "ending2", "ending3"),
            labels=["label"],
            separator=",",
        ),
        python=lambda r: (r["sent1"], r["sent2"], [r[f"ending{n}"] for n in range(4)]),
        broken=(
            "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,0\n"
            "a,b,c,d,e,f,4\n",
            "line 3: expected a label from 0 to 3",
        ),
        empty=("", "", [""] * 4),
        unlike=(
            [("a", "wxyz"), ("a", ["b"]), ("a", "b", "c", list("wxyz")), 3],
            "a text, the beginning of the endings if any, four endings",
        ),
        settings={"task": "choice"},
    ),
    "embedding": Data(
        row=pair,
        suffix=".tsv",
        write=table("text", labels=["text_pair"]),
        python=lambda row: row["text"],
        broken=("text\ttext_pair\na\tb\n\tb\n", "line 3: 'text' is empty"),
        empty="",
        unlike=([("a", "b")], "a string"),
        settings={"task": "embedding"},
    ),
    "ranking": Data(
        row=ranked,
        suffix=".tsv",
        write=passages,
        python=lambda row: (row["question"], row["passages"]),
        broken=(
            "question\tpassage\trelevance\na\tb\t1\na\tb\tyes\n",
            "line 3: .* got 'yes'",
        ),
        empty=("", [""]),
        unlike=(
            [("q", []), ("q", "a"), (1, ["a"]), ("q",), ("q", ["a", None])],
            "a question, and a list of passages",
        ),
        settings={
            "task": "ranking",
            "ranking": finetuning.RankingConfig(num_candidates=3),
        },
    ),
}
