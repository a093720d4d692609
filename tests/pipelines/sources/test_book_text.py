"""Books: the licence goes, the running text stays. Literal and on real books."""

import random
import re
from collections import Counter

import pytest

from bert_keras.pipelines.sources import book_text

HEADER = """The Project Gutenberg EBook of A Small Book, by Ann Other

This eBook is for the use of anyone anywhere at no cost.

Title: A Small Book
       And How It Grew

Author: Ann Other

"""
BODY = """


Produced by A. Volunteer and the Online Distributed
Proofreading Team at http://www.example.org


A SMALL BOOK

By Ann Other

[Illustration: A small
book on a table]

CONTENTS

CHAPTER I. The Beginning           1
CHAPTER II. The End               12



CHAPTER I. The Beginning

It was a _very_ small book, hardly larger than a match-
box, and nobody--not even the well-known Mr.
Smith--had read it.[1]

"Have you?" he asked.

"No!"

                                  7

       *       *       *       *       *

 Small is the book,
 And small the print.

Year      Pages
1801      12
1802      14

II

They all read it in the end. {13}

THE END

[Footnote 1: It was lent
to him once.]

"""
PARAGRAPHS = (
    "It was a very small book, hardly larger than a match-box, and nobody--not even "
    "the well-known Mr. Smith--had read it.",
    '"Have you?" he asked.',
    '"No!"',
    "Small is the book, And small the print.",
    "They all read it in the end.",
)
LICENCE = "\n\nSection 1.  General Terms of Use and Redistributing\n"
MARKERS = {
    "this": ("*** START OF THIS PROJECT GUTENBERG EBOOK X ***", "*** END OF THIS"),
    "the": ("*** START OF THE PROJECT GUTENBERG EBOOK X ***", "    *** END OF THE"),
    "no space": ("***START OF THE PROJECT GUTENBERG EBOOK X***", "***END OF THE"),
    "two lines": (
        "*** START OF THIS PROJECT GUTENBERG EBOOK A\nSMALL BOOK ***",
        "End of the",
    ),
    "etext": ("*** START OF THE PROJECT GUTENBERG ETEXT OF X ***", "End of The"),
    "possessive": ("*** START OF THIS PROJECT GUTENBERG EBOOK X ***", "End of"),
    "small print": ("*END*THE SMALL PRINT! FOR ETEXTS*Ver.04.29.93*END*", "End of the"),
}


@pytest.mark.parametrize("generation", MARKERS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_book_with_header_and_licence(generation, newline, encoding):
    start, end = MARKERS[generation]
    text = f"{HEADER}{start}\n{BODY}{end} Project Gutenberg EBook{LICENCE}"
    decoded, name = book_text.decode(text.replace("\n", newline).encode(encoding))
    assert name == "utf-8-sig"
    book = book_text.parse_book(decoded, name="file")
    assert book == book_text.Book(
        title="A Small Book And How It Grew", paragraphs=PARAGRAPHS
    )


def test_each_rule_counts_what_it_drops():
    late = "\n\n\n\nTranscriber's Note\n\nIt was typed.\n\n"
    start, end = MARKERS["the"]
    text = f"{HEADER}{start}\n{BODY}{late}{end} Project Gutenberg"
    notice = "This was a book of Project Gutenberg.\n\n"
    text = text.replace("They all read", f"{notice}They all read")
    counts = Counter()
    assert book_text.parse_book(text, name="x", counts=counts).paragraphs == PARAGRAPHS
    assert counts == {
        "licences": 1,
        "notes": 2,
        "page marks": 2,
        "front matter": 1,
        "notices": 1,
        "transcriber's notes": 2,
        "contents": 2,
        "headings": 5,
        "ornaments": 3,  # with the table, which is mostly digits
    }


def test_blocks_are_kept_or_counted():
    rng = random.Random(0)
    pieces = ["It was dark.", "CHAPTER I", "a  |  b\nc  |  d", "* * *", "CONTENTS"]
    pieces += [
        "Produced by A. Volunteer",
        "Transcriber: Typed.",
        "Project Gutenberg is",
    ]
    pieces += ["\n\n", "I. One   12", "A Heading", "He said: “So be it, and so it is.”"]
    for _ in range(300):
        blocks = rng.choices(pieces, k=rng.randrange(1, 40))
        text = "\n\n".join(blocks)
        counts = Counter()
        kept = book_text.parse_book(text, name="x", counts=counts).paragraphs
        num_blocks = sum(1 for block in blocks if block.strip())
        assert len(kept) + counts.total() == num_blocks


VERSE = """When that Aprilis, with his showers swoot*,                    *sweet
The drought of March hath pierced to the root,
And bathed every vein in such licour,
Of which virtue engender'd is the flower;                        5
When Zephyrus eke with his swoote breath            *also
Inspired hath in every holt* and heath                      *grove, forest"""


def test_verse_is_kept_without_the_notes_to_its_lines():
    counts = Counter()
    [paragraph] = book_text.parse_book(VERSE, name="x", counts=counts).paragraphs
    assert paragraph == (
        "When that Aprilis, with his showers swoot*, The drought of March hath pierced "
        "to the root, And bathed every vein in such licour, Of which virtue engender'd "
        "is the flower; When Zephyrus eke with his swoote breath Inspired hath in "
        "every holt* and heath"
    )
    assert counts["line notes"] == 4
    assert counts["tables"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "Louisville    American Asso.\nChattanooga   Southern Asso.",
        "How the king of the land came        12\nHow the queen of the sea went    24",
        "A book of the wild birds    cloth    2.00\nA book of tame    paper    1.00",
        "The Lamp of the old House ........ 12\nThe Door that was shut ........ 24",
    ],
)
def test_tables_are_none(text):
    counts = Counter()
    text = "\n".join([text, text])
    assert book_text.parse_book(text, name="x", counts=counts).paragraphs == ()
    assert counts["tables"] == 1


def test_four_points_are_no_table():
    for text in ("“I tell you, it is just here....” he said.", "And then...."):
        assert book_text.parse_book(text, name="x").paragraphs == (text,)


def test_text_without_capitals_is_no_heading():
    for text in (
        "人人生而自由，在尊严和权利上一律平等。",
        "「よろしい」と彼は言った",
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である",
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
        "كان الليل مظلما.",
    ):
        text = text.strip()
        expected = () if text.startswith("「よ") else (text,)
        assert book_text.parse_book(text, name="x").paragraphs == expected
    assert book_text.parse_book("第一章\n\n夜は暗かった。", name="x").paragraphs == (
        "夜は暗かった。",
    )


def test_book_without_header():
    book = book_text.parse_book("It was dark.\n\nIt was late.", name="file")
    assert book == book_text.Book(
        title="file", paragraphs=("It was dark.", "It was late.")
    )


def test_title_from_the_first_line():
    header = "Project Gutenberg's Small Book, by Ann Other\n\n"
    text = header + MARKERS["the"][0] + "\n\nIt was dark.\n"
    assert book_text.parse_book(text, name="file").title == "Small Book"


def test_notices_at_the_end_of_old_files():
    body = "".join(f"It was day {n}.\n\n" for n in range(30))
    notices = "The Project Gutenberg Etext of X\n\nBooks are free.\n\n"
    small_print = "***START**THE SMALL PRINT!**\n\nLaw.\n"
    text = f"{HEADER}{MARKERS['etext'][0]}\n\n{body}\n{notices}{small_print}"
    assert book_text.parse_book(text, name="x").paragraphs == tuple(
        body.strip().split("\n\n")
    )


def test_transcribers_notes_at_both_ends():
    text = "".join(f"Sentence number {n} is here.\n\n" for n in range(100))
    note = "\n\n\nTranscriber's Note\n\nSpelling was kept.\n\nDashes too.\n\n\n\n\n"
    paragraphs = book_text.parse_book(note + text + note, name="x").paragraphs
    assert paragraphs == tuple(f"Sentence number {n} is here." for n in range(100))


def test_contents_end_where_their_first_entry_comes_again():
    contents = "CONTENTS\n\nThe Lamp\nThe Door\nThe Key\n\n"
    text = contents + "The Lamp\n\nIt was lit.\n\nThe Door\n\nIt was shut.\n"
    assert book_text.parse_book(text, name="x").paragraphs == (
        "It was lit.",
        "It was shut.",
    )


def test_contents_without_an_end_cost_nothing():
    body = "".join(f"It was {word}.\n\n" for word in "dark late cold wet far".split())
    paragraphs = book_text.parse_book("CONTENTS\n\n" + body, name="x").paragraphs
    assert paragraphs == tuple(body.strip().split("\n\n"))


def test_a_start_that_never_ends_costs_nothing():
    """The square of its length would be hours."""
    text = "*** START OF THE PROJECT GUTENBERG EBOOK " + "{{a|" * 500_000
    assert book_text.split_header(text) == ("", text)


def test_encodings():
    assert book_text.decode("\ufeffé\r\nx".encode()) == ("é\nx", "utf-8-sig")
    assert book_text.decode("é “q”".encode("cp1252")) == ("é “q”", "cp1252")
    assert book_text.decode("\ufeffé".encode("utf-16-be"), "utf-16-be") == (
        "é",
        "utf-16",
    )
    # A byte that Windows-1252 does not know is no reason to lose a book.
    assert book_text.decode(b"\xe9\x81")[1] == "cp1252"


def test_a_paragraph_on_one_line_is_neither_table_nor_notice():
    long = "It was .... said | by all, and Project Gutenberg too. " + "So it is. " * 600
    for text in (
        long,
        "- " * 200 + long,
        long + "At http://x.org 7",
        "Transcribers' work. " * 300,
    ):
        text = text.strip()
        assert book_text.parse_book(text, name="x").paragraphs == (text,)
    row = "De Londres à Suez par le Mont-Cenis........... 7 jours " * 6
    assert book_text.parse_book(row, name="x").paragraphs == ()


LICENCE_WORDS = re.compile(
    r"PROJECT GUTENBERG|[Pp]roject Gutenberg|utenberg(?:-tm|\.org|\.net)|www\.pgdp"
)


# A manual full of tables, an index that is no book, and two very short stories.
SPARSE = {"56817-0.txt", "pg28860.txt", "1952-0.txt", "pg7256.txt"}


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_real_books_hold_no_licence_and_most_of_their_text(shared_data, step):
    paths = sorted((shared_data / "books").glob("gutenberg*/*.txt"))
    assert len(paths) == 103
    for path in paths[::step]:
        text, _ = book_text.decode(path.read_bytes())
        book = book_text.parse_book(text, name=path.stem)
        running_text = "\n".join(book.paragraphs)
        assert not LICENCE_WORDS.search(running_text), path.name
        _, body = book_text.split_header(text)
        share = len(running_text) / len(" ".join(body.split()))
        assert share > 0.9 or path.name in SPARSE, path.name


def letters(text):
    return re.sub(r"[\W_]+", "", text)


@pytest.mark.parametrize(
    "number", [10028, 10076, 10089, 1013, 10509, 33956, 36261, 38003, 38507]
)
def test_same_book_as_another_tool_strips_it(shared_data, number):
    folder = shared_data / "books" / "strip_headers_reference"
    raw, _ = book_text.decode((folder / "raw" / f"{number}.txt").read_bytes())
    clean, _ = book_text.decode((folder / "clean" / f"{number}.txt").read_bytes())
    header, body = book_text.split_header(raw)
    assert "Project Gutenberg" in header
    # All of their text is in ours; ours has at most the credits before it.
    assert letters(clean) in letters(body)
    assert len(letters(body)) - len(letters(clean)) < 300
    book = book_text.parse_book(raw, name="x")
    for paragraph in (book.paragraphs[0], book.paragraphs[-1]):
        assert letters(paragraph) in letters(clean)
    assert not any(LICENCE_WORDS.search(paragraph) for paragraph in book.paragraphs)
