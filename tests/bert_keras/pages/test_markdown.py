"""Texts in Markdown: what is read in a browser is what somebody wrote."""

import random
import re
from html import parser

import markdown_it
import pytest

from bert_keras.pages import markdown

HOSTILE = (
    "<script>alert(1)</script> | a | **b** `c` [d](http://e) ![f](g) <img src=x>",
    "one\ntwo\r\n\r\n# three\n- four\n1. five\n| a | b |\n|---|---|\n> six",
    "&lt;b&gt; &amp; &#124; \\| \\ & ~~x~~ $a_b$ ==c== x^2^ #12 @name :smile: __y__",
    "https://www.example.com/a?b=c&d http://x.y WWW.example.com a@b.org <c@d.org>",
    "    an indented line, and *one* star* or _two",
    "***", "---", "- - -", "1. a", "+ b", "===", "```", "~~~\ncode\n~~~", "[x]: y",
    "\\", "שלום עולם | abc (1)", "日本語の長い文章", "e\u0301 👩‍👩‍👧 a\u00adb \ufeffc",
)  # fmt: skip


class Cells(parser.HTMLParser):
    """The text of all cells, and all tags."""

    def __init__(self, html: str):
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def commonmark(text: str) -> str:
    rules = ["table", "strikethrough"]
    return markdown_it.MarkdownIt("commonmark").enable(rules).render(text)


def tensorboard(text: str) -> str:
    # It warns of a part of it, which the mark below lets pass.
    from tensorboard import plugin_util

    return plugin_util.markdown_to_safe_html(text)


RENDERERS = (commonmark, tensorboard)
pytestmark = pytest.mark.filterwarnings("ignore:html5lib:DeprecationWarning")


def shown(render, cells: list[str]) -> list[str]:
    """What a browser shows of a table's cells."""
    page = Cells(render(markdown.table(["x"] * len(cells), [cells])))
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "strong", "em"}
    isolates = {0x2068: None, 0x2069: None}
    return [" ".join(cell.translate(isolates).split()) for cell in page.cells]


@pytest.mark.parametrize("render", RENDERERS)
def test_a_text_is_shown_as_it_is(render):
    cells = [markdown.excerpt(text) for text in HOSTILE]
    assert shown(render, cells) == [" ".join(text.split()) for text in HOSTILE]


@pytest.mark.parametrize("render", RENDERERS)
def test_any_signs_are_shown_with_any_marks(render):
    rng = random.Random(1)
    signs = "ab |\\`*_{}[]<>#~&$^:/.!-+=()'\"\n" + "אé日"
    texts = ["".join(rng.choices(signs, k=40)) + "." for _ in range(150)]
    cells = []
    for text in texts:
        bounds = {tag: sorted(rng.sample(range(41), 2)) for tag in ("strong", "em")}
        marks = [markdown.Mark(*places, tag) for tag, places in bounds.items()]
        cells.append(markdown.excerpt(text, marks))
    # A line end of the text and a mark beside it make no blank more or less.
    found, expected = (
        [re.sub(r"\s", "", text) for text in lines]
        for lines in (shown(render, cells), texts)
    )
    assert found == expected


def test_the_source_stays_readable():
    text = 'it\'s "low-key" (really): 50% off, no. 1 - a/b; what? yes! 3 + 4 = 7'
    assert markdown.excerpt(text) == text
    assert markdown.excerpt("a|b *c*") == "a&#124;b &#42;c&#42;"


def test_what_cannot_be_seen_is_named():
    # Half a surrogate pair could not even be written to a file.
    text = "a\x00b\x1b[31m \u202eevil\u2066 \ud800 c\x85d"
    found = markdown.excerpt(text)
    assert found.replace("&#92;", "\\").replace("&#91;", "[") == (
        r"a\x00b\x1b[31m \u202eevil\u2066 \ud800 c d"
    )
    found.encode()
    for text in ("\n \t", ""):
        assert markdown.excerpt(text) == "<em>empty</em>"


def test_text_from_right_to_left_is_isolated():
    assert markdown.excerpt("שלום") == "\u2068שלום\u2069"
    assert markdown.excerpt("مرحبا")[0] == "\u2068"
    assert markdown.excerpt("a\u2069 שלום") == "\u2068a&#92;u2069 שלום\u2069"


def test_a_long_text_is_cut_in_the_middle():
    text = " ".join(str(number) for number in range(1000))
    found = markdown.excerpt(text, max_length=40)
    assert found == "0 1 2 3 4 5 6 7 8 9 10 11 12 … 998 999"
    assert markdown.excerpt("x" * 200, max_length=500) == "x" * 45 + "…" + "x" * 15
    # Text without blanks is cut anywhere, and is no long word.
    assert markdown.excerpt("字" * 100, max_length=40) == "字" * 30 + " … " + "字" * 10


def test_an_excerpt_is_around_what_matters():
    text = " ".join(str(number) for number in range(1000))
    one, other = text.index("300"), text.index("700")
    marks = [markdown.Mark(other, other + 3, "em"), markdown.Mark(one, one + 3)]
    assert markdown.excerpt(text, marks, max_length=100) == (
        "… 295 296 297 298 299 <strong>300</strong> 301 302 303 304 305 … "
        "695 696 697 698 699 <em>700</em> 701 702 703 704 705 …"
    )
    marks = [markdown.Mark(0, 3), markdown.Mark(2, 5, "em")]
    assert markdown.excerpt("abcdef", marks) == (
        "<strong>ab</strong><em><strong>c</strong></em><em>de</em>f"
    )


def test_a_long_mark_keeps_its_ends():
    text = "before " + " ".join(str(number) for number in range(1000)) + " after"
    mark = markdown.Mark(7, len(text) - 6)
    found = markdown.excerpt(text, [mark], max_length=40)
    assert found == "before <strong>0 1 2 3 4</strong> … <strong>998 999</strong> after"


def test_short_marks_are_never_cut():
    rng = random.Random(2)
    words = ["".join(rng.choices("abc", k=rng.randint(1, 30))) for _ in range(60)]
    text = " ".join(words)
    for _ in range(300):
        start = rng.randrange(len(text) - 20)
        end = start + rng.randint(1, 20)
        found = markdown.excerpt(text, [markdown.Mark(start, end)], max_length=80)
        assert f"<strong>{text[start:end]}</strong>" in found
        plain = re.sub("</?strong>", "", found)
        assert all(part.strip() in text for part in plain.split("…"))
        assert 20 < len(plain) < 130


def test_tables_and_percents():
    rows = [["a|b", "1"]]
    assert markdown.table(["x", "y"], rows) == "| x | y |\n| --- | --- |\n| a\\|b | 1 |"
    assert markdown.percent(0.125) == "12.5 %"
    assert markdown.percent(float("nan")) == "–"
