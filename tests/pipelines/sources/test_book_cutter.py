"""Files of many books: cut by hand, real books one after the other, hostile files."""

import io
import tracemalloc

import pytest

from bert_keras.pipelines.sources import book_cutter, book_text, encodings

START = "*** START OF THE PROJECT GUTENBERG EBOOK {} ***\n"
END = "*** END OF THE PROJECT GUTENBERG EBOOK {} ***\n"
LICENCE = "Section 1. Terms of use.\n"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Sizes of a test: a licence has less than 200 bytes, a book more than 100."""
    monkeypatch.setattr(book_cutter, "MAX_HEADER_BYTES", 200)
    monkeypatch.setattr(book_cutter, "_MIN_BOOK_BYTES", 100)


def cut(text, encoding="utf-8"):
    data = text.encode(encoding)
    pieces = book_cutter.find_pieces(io.BytesIO(data), len(data))
    assert [0, *(p.stop for p in pieces)] == [*(p.start for p in pieces), len(data)]
    return [data[piece.start : piece.stop].decode(encoding) for piece in pieces]


def book(name, *, start=START, end=END):
    body = f"It was a book of the name {name}, with enough text in it.\n" * 3
    return f"Title: {name}\n" + start.format(name) + body + end.replace("{}", name)


@pytest.mark.parametrize("chunk", [1, 64, 1 << 20])
@pytest.mark.parametrize(
    ("encoding", "newline"),
    [("utf-8", "\n"), *((e, n) for e in ("cp1252", "utf-16") for n in ("\r\n", "\r"))],
)
def test_a_book_ends_after_its_mark(monkeypatch, chunk, encoding, newline):
    monkeypatch.setattr(book_cutter, "_CHUNK_BYTES", 2 * chunk)
    text = book("é") + LICENCE + book("Two") + LICENCE + book("Three") + LICENCE
    first, second = (text.index(LICENCE), text.rindex(LICENCE + "Title"))
    if newline == "\r":
        # Whoever looks for the end of a line finds none: the line is the header's.
        first, second = (place - len(" EBOOK é ***\n") for place in (first, second))
        second -= len("Two") - len("é")
    data = text.replace("\n", newline).encode(encoding)
    pieces = book_cutter.find_pieces(io.BytesIO(data), len(data))
    name = encodings.mark_of(io.BytesIO(data)) or encoding
    found = [data[piece.start : piece.stop].decode(name) for piece in pieces]
    found = [piece.removeprefix("\ufeff").replace(newline, "\n") for piece in found]
    assert found == [text[:first], text[first:second], text[second:]]


def test_generations_of_marks():
    law = "***START**THE SMALL PRINT!**\nLaw.\n*END*THE SMALL PRINT!*\n"
    old = book("Old", start=law, end="End of The Project Gutenberg Etext of {}\n")
    new = book("New", end="End of Project Gutenberg's {}\n    " + END)
    late = book("Late", end=law)
    found = cut(old + new + late + old + late)
    assert [piece.count("It was a book") for piece in found] == [3] * 5
    for piece, name in zip(found, ("Old", "New", "Late", "Old", "Late"), strict=True):
        assert f"Title: {name}\n" in piece
        _, body = book_text.split_header(piece)
        assert set(body.split("\n")) - {""} == {
            f"It was a book of the name {name}, with enough text in it."
        }


def test_without_a_mark_of_the_end_the_next_header_is_it():
    notice = "The Project Gutenberg EBook of {}, by Ann Other\n"
    one, two = book("One", end=""), notice.format("Two") + book("Two", end="")
    assert cut(one + two + book("Three")) == [
        one,
        two + "Title: Three\n",
        book("Three").removeprefix("Title: Three\n"),
    ]


def test_long_text_outside_of_marks_is_a_book():
    other = "Nobody marked this book.\n" * 20
    assert cut(other) == [other]
    assert cut(other + book("A")) == [other + "Title: A\n", book("A")[9:]]
    assert cut(book("A") + other) == [book("A"), other]
    assert cut(book("A") + LICENCE) == [book("A") + LICENCE]
    end = END.format("x")
    assert cut(other + end + other + end) == [other + end, other + end]


def test_short_files_are_one_book():
    for text in ("", "It was dark.", END, START, LICENCE + END + LICENCE):
        assert cut(text) == [text]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("One line.\n\n" * 50, "\n\n"),
        ("One line.\r\n\r\n" * 50, "\r\n\r\n"),
        ("One line.\n" * 50, "\n"),
        ("word " * 100, " "),
        ("字" * 200, "字"),
        ("𐍈" * 130, "𐍈"),
        ("x" * 500, "x"),
        # Bytes that are no text.
        (b"\x80" * 500, ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_long_book_is_cut_where_it_hurts_least(monkeypatch, text, ends, encoding):
    monkeypatch.setattr(book_cutter, "MAX_PIECE_BYTES", 120)
    monkeypatch.setattr(book_cutter, "_WINDOW_BYTES", 40)
    data = text if isinstance(text, bytes) else text.encode(encoding)
    pieces = book_cutter.find_pieces(io.BytesIO(data), len(data))
    assert len(pieces) > 3
    assert {piece.book for piece in pieces} == {0}
    assert max(piece.stop - piece.start for piece in pieces) <= 160
    found = [data[piece.start : piece.stop] for piece in pieces]
    assert b"".join(found) == data
    if isinstance(text, str):
        name = encodings.mark_of(io.BytesIO(data)) or encoding
        assert all(part.decode(name).endswith(ends) for part in found)


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.undo()
    path = tmp_path / "one_line.txt"
    path.write_bytes(b"It has no end. " * 1_000_000)
    with open(path, "rb") as file:
        tracemalloc.start()
        pieces = book_cutter.find_pieces(file, path.stat().st_size)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 5_000_000
    sizes = [piece.stop - piece.start for piece in pieces]
    assert sum(sizes) == path.stat().st_size
    assert len(sizes) == 3
    assert max(sizes) < book_cutter.MAX_PIECE_BYTES + 1000


def test_real_books_one_after_the_other(shared_data, monkeypatch):
    monkeypatch.undo()
    # Two generations of marks, a short book, and one without any mark.
    names = ["pg7256", "pg4657", "pg1080", "Le-tour-du-mond-quatre-vingts-jours"]
    found = {path.stem: path for path in (shared_data / "books").glob("*/*.txt")}
    paths = [found[name] for name in [*names, "Candide"]]
    data = b"".join(path.read_bytes() for path in paths)
    pieces = book_cutter.find_pieces(io.BytesIO(data), len(data))
    assert len(pieces) == len(paths)
    for piece, path in zip(pieces, paths, strict=True):
        alone = book_text.parse_book(encodings.decode(path.read_bytes())[0], name="x")
        text, _ = encodings.decode(data[piece.start : piece.stop])
        assert book_text.parse_book(text, name="x") == alone
