"""Parquet, which is read wherever a table is."""

import datetime
import decimal
import io
import json
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from obstore import store as object_stores
from pyarrow import parquet

from bert_keras.core import files, stores
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.inference.features import word_inputs
from bert_keras.kinds import catalogue
from bert_keras.kinds.ranking import negatives
from bert_keras.lab.distill import data as distill_data
from bert_keras.labelled import reading, tables
from bert_keras.scoring import minimal_pairs
from tests.bert_keras.kinds.choice.test_dataset import CSV

SETTINGS = finetuning.FinetuningConfig

READERS = {
    "text": [{"text": "a\tb\n", "label": 1}, {"text": "é \U0001f600", "label": 0}],
    "several": [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}],
    "embedding": [{"text": "a", "text_pair": "b", "label": 0.5}] * 2,
    "ranking": [
        {"question": "a", "passage": "b", "relevance": 1, "question_id": 7},
        {"question": "a", "passage": "c", "relevance": 0, "question_id": 7},
    ],
    "pairs": [{"good": "a", "bad": "b", "group": "g"}],
    "passages": [{"passage": "a"}, {"passage": "b c"}],
    "features": [{"text": "a b"}, {"text": "c"}],
    "distill": [{"text": "a b"}, {"text": "c"}],
    "strings": [{"n": 1, "title": "a", "more": {"texts": ["b", "c"]}}],
}


def read(what: str, path: Path):
    if what == "pairs":
        return minimal_pairs.read_pairs(path)
    if what == "passages":
        return [*negatives.read_passages(path)]
    if what == "features":
        form, columns = word_inputs.form_of(path), finetuning.TextColumns()
        return word_inputs.read_sentences(path, form=form, columns=columns)
    if what == "distill":
        return [*distill_data.plain_texts(path, SETTINGS())]
    if what == "strings":
        return [*reading.read_strings([str(path)])]
    task = {"task": "text", "multi_label": True} if what == "several" else {}
    data = catalogue.read(path, SETTINGS(**{"task": what} | task))
    return [row for row in data.rows], data.describe()


def write(path: Path, rows: list[dict], **options) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


@pytest.mark.parametrize("what", READERS)
def test_a_table_is_that_of_json_lines(what, tmp_path):
    rows = READERS[what]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(what, write(tmp_path / "a.PARQUET", rows, row_group_size=1))
    assert found == read(what, lines)
    assert found


def test_endings_are_those_of_csv(tmp_path):
    cells = ["a", "b", "c", "d", "e", "f"]
    (tmp_path / "a.csv").write_text(f"{CSV}{','.join(cells)},1\n")
    names = CSV.strip().split(",")
    row = dict(zip(names, [*cells, 1], strict=True))
    settings = SETTINGS(task="choice")
    found = catalogue.read(write(tmp_path / "a.parquet", [row]), settings)
    [question], [expected] = (
        found.rows,
        catalogue.read(tmp_path / "a.csv", settings).rows,
    )
    assert question._replace(line=2) == expected


def test_cells_of_all_kinds(tmp_path):
    """Rows of several groups and parts of groups; values that JSON does not have."""
    when = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
    columns = {
        "text": pa.array(["a", "b"] * 1500),
        "label": pa.array(["x", "y"] * 1500).dictionary_encode(),
        "day": pa.array([when.date()] * 3000),
        "when": pa.array([when] * 3000, pa.timestamp("ns", "UTC")),
        "price": pa.array([decimal.Decimal("1.50")] * 3000),
        "days": pa.array([[when.date()]] * 3000),
        "bytes": pa.array([b"x"] * 3000),
        "none": pa.nulls(3000),
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=1100)
    rows = [*reading.read_rows(path)]
    assert [row.line for row in rows] == [*range(1, 3001)]
    expected = {
        **{"text": "b", "label": "y", "day": "2024-02-29"},
        **{"when": "2024-02-29 12:30:00.000000000Z", "price": "1.50"},
        **{"days": [when.date()], "bytes": b"x", "none": None},
    }
    assert rows[-1].cells == expected
    content = tables.joined([rows[-1].cells], {}, suffix=".jsonl")
    in_json = {**expected, "days": ["2024-02-29"], "bytes": "b'x'"}
    assert json.loads(content) == in_json
    assert '\t["2024-02-29"]\t' in tables.joined([rows[-1].cells], {}, suffix=".tsv")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"text": [["a", "b"]]},
            r"row 1: 'text': expected a string, got \['a', 'b'\]$",
        ),
        (
            {"text": [{"en": "a"}]},
            r"row 1: 'text': expected a string, got {'en': 'a'}$",
        ),
        ({"text": [b"a"]}, "row 1: 'text': expected a string, got b'a'$"),
        ({"text": [["a" * 99]]}, "expected a string, got .{60}$"),
        (
            {"text": ["a", None], "label": [1, 1]},
            "row 2: 'text': expected a string, got None$",
        ),
        ({"text": ["a"], "label": [None]}, "row 1: 'label': expected a string, got N"),
        ({"text": ["a"], "label": [["x"]]}, "row 1: 'label': expected a label, got a "),
        ({"title": ["a"]}, r"a.parquet: no column 'text' \(there: title\)"),
        (
            {"text": pa.array([], pa.string())},
            "a.parquet: holds no rows, expected at l",
        ),
        ({"text": ["\ud7ff\r"], "label": ["\n"]}, "expected a label of one line"),
        ([["a"], ["b"]], "^[^:]*a.parquet: two columns are named 'text': rename one$"),
    ],
)
def test_bad_columns_are_named(columns, message, tmp_path):
    names = ["text"] * 2 if isinstance(columns, list) else None
    parquet.write_table(pa.table(columns, names), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message) as error:
        catalogue.read(tmp_path / "a.parquet", SETTINGS(task="text"))
    assert "\n" not in str(error.value)


def test_damaged_files_are_one_line(tmp_path):
    """An end cut off, bytes of others, or a part with more or fewer bytes."""
    path, buffer, num_whole = tmp_path / "a.parquet", io.BytesIO(), 0
    rows = [{"text": f"text number {n}", "label": n % 3} for n in range(500)]
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, buffer, row_group_size=100, write_page_checksum=True)
    data, rng = buffer.getvalue(), random.Random(0)
    for number in range(300):
        place, length = rng.randrange(len(data)), rng.randint(1, 99)
        rest = (b"", data[place + length :], data[place + rng.randint(0, 99) :])
        path.write_bytes(data[:place] + rng.randbytes(length) + rest[number % 3])
        try:
            found = [row.cells for row in reading.read_rows(path)]
        except InputError as error:
            assert str(error).startswith(f"{path}: cannot be read as Parquet after ")
            assert "\n" not in str(error)
        else:
            # The footer has no checksum.
            assert [[*cells.values()] for cells in found] == [
                [*r.values()] for r in rows
            ]
            num_whole += 1
    assert num_whole < 30
    path.unlink()
    with pytest.raises(InputError, match="a.parquet: cannot be read .* No such file"):
        [*reading.read_rows(path)]


def test_a_table_in_a_store(monkeypatch):
    scheme = {"ram": lambda bucket, **_: object_stores.MemoryStore()}
    monkeypatch.setattr(stores, "_STORES", stores._STORES | scheme)
    path = files.path(f"ram://tables{time.monotonic_ns()}/a.parquet")
    buffer = io.BytesIO()
    texts = [str(n) for n in np.random.default_rng(0).integers(10**9, size=50_000)]
    parquet.write_table(pa.table({"text": texts}), buffer, row_group_size=7000)
    files.write_atomically(path, buffer.getvalue())
    assert [row.cells["text"] for row in reading.read_rows(path)] == texts


def test_rows_come_before_the_file_is_read(tmp_path):
    """A row group is read when its rows are due: damage in the last one is not seen
    before."""
    path = tmp_path / "a.parquet"
    options = {"row_group_size": 3000, "compression": "none"}
    options["write_page_checksum"] = True
    write(path, [{"text": f"{n:07}"} for n in range(9000)], **options)
    path.write_bytes(path.read_bytes().replace(b"0007000", b"0007777"))
    rows = reading.read_rows(path)
    assert [next(rows).cells["text"] for _ in range(6000)][-1] == "0005999"
    with pytest.raises(InputError, match="Parquet after 6000 rows: .* checksum"):
        next(rows)
