"""Files of plain texts, and what is taken for none."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.labelled import reading


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A text.\nAnother, with a comma\n",
        # Prose may have a comma or a tab, and two lines are no table.
        "yes,no\nmaybe\n",
        "yes,no\nyes,yes\n",
        "Anna, Bert\nCarl, Dora\nEva, Finn\n",
        "[CLS] is a token\n",
        "\ufeffwords\n",
    ],
)
def test_plain_texts_are_read(text, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    lines = reading.read_plain_texts(tmp_path / "a.txt", remedy="x")
    assert lines == (text.removeprefix("\ufeff").splitlines() or [""])


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (b'text,label\nAn apple,fruit\n"A, b and c",1\n', "a table"),
        (b"text\tlabel\na\t1\nb\t2\n", "a table"),
        (b'"text";"label"\na;1\nb;2\n', "a table"),
        (b'{"text": "a"}\n', "JSON lines"),
        (b'[{"text": "a"}]', "a JSON array"),
        (b"<html><body>", "an HTML page"),
        (b"\n<mediawiki xmlns=", "a MediaWiki dump"),
        (b"%PDF-1.7", "a PDF"),
        (b"PK\x03\x04...", "a ZIP archive, such as .docx"),
        (gzip.compress(b"a", mtime=0), r"compressed \(gz\): unpack it first"),
        (bz2.compress(b"a"), r"compressed \(bz2\): unpack it first"),
        (lzma.compress(b"a"), r"compressed \(xz\): unpack it first"),
        (b"\x28\xb5\x2f\xfd...", r"compressed \(zst\): unpack it first"),
    ],
)
def test_what_is_no_plain_text_is_refused(content, actual, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    message = f"a.txt: expected plain texts, one a line, but this is {actual}"
    with pytest.raises(InputError, match=message):
        reading.read_plain_texts(tmp_path / "a.txt", remedy="do it")


def test_a_first_line_like_the_name_of_a_column(tmp_path, caplog):
    """Is a text all the same; `predict`, which reads its input twice, says so once."""
    for number, line in enumerate(("sentence", '"Text"', "Sentences")):
        path = tmp_path / f"{number}.txt"
        path.write_text(f"{line}\nIt was late.\n")
        for _ in range(2):
            rows = [row.cells["text"] for row in reading.read_rows(path)]
            assert rows == [line, "It was late."]
        assert caplog.messages == [
            f"{path}: the first line, {line!r}, is read as a text: delete it if it "
            "names a column"
        ]
        caplog.clear()
    for text in ("text\n", "text me\nor not\n", "It was\nsentence\n", ""):
        (tmp_path / "a.txt").write_text(text)
        reading.read_plain_texts(tmp_path / "a.txt", remedy="x")
    assert not caplog.messages


def test_names_of_other_forms(tmp_path):
    for name, form in (("a.tsv", "a table"), ("a.jsonl", "JSON lines")):
        with pytest.raises(InputError, match=f"this is {form}: do it"):
            reading.read_plain_texts(tmp_path / name, remedy="do it")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.xlsx", r": save the sheet as .csv \(Excel: CSV UTF-8\)$"),
        ("a.tsv.gz", r": unpack it first$"),
        ("a.pdf", ": copy its texts into a table$"),
        ("a.json", ": write one object on each line, and name it .jsonl$"),
    ],
)
def test_tables_of_other_formats(name, remedy):
    with pytest.raises(InputError, match=f"named .* or .txt, got .*{remedy}"):
        reading.read_rows(Path(name))
    with pytest.raises(InputError, match="are written as .tsv, .csv or .jsonl, got "):
        reading.check_output_name(Path(name))
