"""Books: the licence goes, the running text stays. Literal and on real books."""

import random
import re
from collections import Counter

import pytest

from bert_keras.pipelines.sources import book_text, encodings

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
        "*** START OF THIS PROJECT GUTENBERG EBOOK A\nBOOK ***",
        "End of the",
    ),
    "etext": ("*** START OF THE PROJECT GUTENBERG ETEXT OF X ***", "End of The"),
    "possessive": ("*** START OF THIS PROJECT GUTENBERG EBOOK X ***", "End of"),
    "small print": ("*END*THE SMALL PRINT! FOR ETEXTS*Ver.04.29.93*END*", "End of the"),
}


def parse(text, counts=None):
    return tuple(book_text.parse_book(text, name="x", counts=counts)[1])


@pytest.mark.parametrize("generation", MARKERS)
@pytest.mark.parametrize(
    ("newline", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8"), ("\n", "utf-8-sig")]
)
def test_book_with_header_and_licence(generation, newline, encoding):
    start, end = MARKERS[generation]
    text = f"{HEADER}{start}\n{BODY}{end} Project Gutenberg EBook{LICENCE}"
    decoded, name = encodings.decode(text.replace("\n", newline).encode(encoding))
    assert name == "utf-8-sig"
    book = ("A Small Book And How It Grew", list(PARAGRAPHS))
    assert book_text.parse_book(decoded, name="file") == book


def test_each_rule_counts_what_it_drops():
    late = "\n\n\n\nTranscriber's Note\n\nIt was typed.\n\n"
    start, end = MARKERS["the"]
    text = f"{HEADER}{start}\n{BODY}{late}{end} Project Gutenberg"
    notice = "This was a book of Project Gutenberg.\n\n"
    text = text.replace("They all read", f"{notice}They all read")
    counts = Counter()
    assert parse(text, counts) == PARAGRAPHS
    assert counts == {
        **{"licences": 1, "notes": 2, "page marks": 2, "front matter": 1, "notices": 1},
        **{"transcriber's notes": 2, "contents": 2, "headings": 5},
        "ornaments": 3,  # with the table, which is mostly digits
    }


def test_blocks_are_kept_or_counted():
    rng = random.Random(0)
    pieces = ["It was dark.", "CHAPTER I", "a  |  b\nc  |  d", "* * *", "CONTENTS"]
    pieces += ["Produced by A. Volunteer", "Transcriber: Typed.", "\n\n", "A Heading"]
    pieces += ["Project Gutenberg is", "I. One   12", "He said: “So be it, or not.”"]
    for _ in range(300):
        blocks = rng.choices(pieces, k=rng.randrange(1, 40))
        text = "\n\n".join(blocks)
        counts = Counter()
        kept = parse(text, counts)
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
    [paragraph] = parse(VERSE, counts)
    assert paragraph == (
        "When that Aprilis, with his showers swoot*, The drought of March hath pierced "
        "to the root, And bathed every vein in such licour, Of which virtue engender'd "
        "is the flower; When Zephyrus eke with his swoote breath Inspired hath in "
        "every holt* and heath"
    )
    assert counts["line notes"] == 4
    assert counts["tables"] == 0


JAPANESE = (
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である"
)
THAI = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม"
TABLES = [
    "Louisville    American Asso.\nChattanooga   Southern Asso.",
    "How the king of the land came        12\nHow the queen of the sea went    24",
    "A book of the wild birds    cloth    2.00\nA book of tame    paper    1.00",
    "The Lamp of the old House ........ 12\nThe Door that was shut ........ 24",
    "De Londres à Suez par le Mont-Cenis........... 7 jours " * 6,
]
LONG = "It was .... said | by all, and Project Gutenberg too. " + "So it is. " * 600
LATE = "".join(f"It was {word}.\n\n" for word in "dark late cold wet far".split())
ENTRIES = "The Lamp\nThe Door\nThe Key"
LIT = "The Lamp\n\nIt was lit.\n\nThe Door\n\nIt was shut.\n"


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        *((f"{table}\n{table}", ()) for table in TABLES),
        # Four points make no table; text without capitals is no heading.
        *((text, None) for text in ("“It is just here....” he said.", "And then....")),
        ("人人生而自由，在尊严和权利上一律平等。", None),
        ("「よろしい」と彼は言った", ()),
        (JAPANESE, None),
        (THAI, None),
        ("كان الليل مظلما.", None),
        ("第一章\n\n夜は暗かった。", ("夜は暗かった。",)),
        ("It was dark.\n\nIt was late.", ("It was dark.", "It was late.")),
        # A paragraph on one line is neither a table nor a notice.
        (LONG.strip(), None),
        (("- " * 200 + LONG).strip(), None),
        (LONG + "At http://x.org 7", None),
        (("Transcribers' work. " * 300).strip(), None),
        # Contents end where their first entry comes again; without an end, they cost
        # nothing.
        (f"CONTENTS\n\n{ENTRIES}\n\n{LIT}", ("It was lit.", "It was shut.")),
        (f"CONTENTS\n\n{LATE}", tuple(LATE.strip().split("\n\n"))),
    ],
)
def test_paragraphs_of_a_text_without_header(text, paragraphs):
    """`None` stands for the text itself."""
    book = book_text.parse_book(text, name="file")
    expected = (text,) if paragraphs is None else paragraphs
    assert book == ("file", list(expected))


def test_title_from_the_first_line():
    header = "Project Gutenberg's Small Book, by Ann Other\n\n"
    text = header + MARKERS["the"][0] + "\n\nIt was dark.\n"
    assert book_text.parse_book(text, name="file")[0] == "Small Book"


def test_notices_at_the_end_of_old_files():
    body = "".join(f"It was day {n}.\n\n" for n in range(30))
    notices = "The Project Gutenberg Etext of X\n\nBooks are free.\n\n"
    small_print = "***START**THE SMALL PRINT!**\n\nLaw.\n"
    text = f"{HEADER}{MARKERS['etext'][0]}\n\n{body}\n{notices}{small_print}"
    assert parse(text) == tuple(body.strip().split("\n\n"))


def test_transcribers_notes_at_both_ends():
    text = "".join(f"Sentence number {n} is here.\n\n" for n in range(100))
    note = "\n\n\nTranscriber's Note\n\nSpelling was kept.\n\nDashes too.\n\n\n\n\n"
    assert parse(note + text + note) == tuple(text.strip().split("\n\n"))


def test_a_start_that_never_ends_costs_nothing():
    """The square of its length would be minutes."""
    text = "*** START OF THE PROJECT GUTENBERG EBOOK " + "{{a|" * 100_000
    assert book_text.split_header(text) == ("", text)


LICENCE_WORDS = re.compile(
    r"PROJECT GUTENBERG|[Pp]roject Gutenberg|utenberg(?:-tm|\.org|\.net)|www\.pgdp"
)


# A manual full of tables, an index that is no book, and two very short stories.
SPARSE = {"56817-0.txt", "pg28860.txt", "1952-0.txt", "pg7256.txt"}


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_real_books_hold_no_licence_and_most_of_their_text(shared_data, step):
    paths = sorted((shared_data / "books").glob("gutenberg*/*.txt"))
    assert len(paths) == 103
    for path in paths[::step]:
        text, _ = encodings.decode(path.read_bytes())
        _, paragraphs = book_text.parse_book(text, name=path.stem)
        running_text = "\n".join(paragraphs)
        assert not LICENCE_WORDS.search(running_text), path.name
        _, body = book_text.split_header(text)
        share = len(running_text) / len(" ".join(body.split()))
        assert share > 0.9 or path.name in SPARSE, path.name


def letters(text):
    return re.sub(r"[\W_]+", "", text)


REFERENCE = [10028, 10076, 10089, 1013, 10509, 33956, 36261, 38003, 38507]


@pytest.mark.parametrize(
    "number",
    [REFERENCE[0], *(pytest.param(n, marks=pytest.mark.slow) for n in REFERENCE[1:])],
)
def test_same_book_as_another_tool_strips_it(shared_data, number):
    folder = shared_data / "books" / "strip_headers_reference"
    raw, _ = encodings.decode((folder / "raw" / f"{number}.txt").read_bytes())
    clean, _ = encodings.decode((folder / "clean" / f"{number}.txt").read_bytes())
    header, body = book_text.split_header(raw)
    assert "Project Gutenberg" in header
    # All of their text is in ours; ours has at most the credits before it.
    assert letters(clean) in letters(body)
    assert len(letters(body)) - len(letters(clean)) < 300
    _, paragraphs = book_text.parse_book(raw, name="x")
    for paragraph in (paragraphs[0], paragraphs[-1]):
        assert letters(paragraph) in letters(clean)
    assert not any(LICENCE_WORDS.search(paragraph) for paragraph in paragraphs)
