"""Output of WikiExtractor -> documents: both formats, literally and on real files."""

import json
import time

import pytest

from bert_keras.errors import InputError
from bert_keras.pipelines.sources import wikiextractor

ELEMENTS = """<doc id="12" url="https://en.wikipedia.org/12" title="Bread &amp; butter">
Bread &amp; butter

Bread &amp; butter (; "pain et beurre") is eaten in , France, mostly early .
Early life and education.
BULLET::::- An item of a list that goes on for more than sixty characters, and ends so.
Professional career
It costs 2 &lt; 3&lt;br /&gt;francs&lt;ref name="x"&gt;Smith&lt;/ref&gt;, it is cheap.
1990.
She ate it every day.

</doc>
<doc id="13" revid="7" url="?curid=13" title="The "small" one">
The "small" one


</doc>
<doc id="14" url="http://zh.wikipedia.org/wiki?curid=14" title="面包">
面包

面包是一种食品。
历史.

</doc>
"""
DOCUMENTS = [
    wikiextractor.Document(
        id="enwiki:12:Bread & butter",
        title="Bread & butter",
        paragraphs=[
            'Bread & butter ("pain et beurre") is eaten in, France, mostly early.',
            "It costs 2 < 3 francs, it is cheap.",
            "She ate it every day.",
        ],
        num_fragments=4,
    ),
    wikiextractor.Document('wiki:13:The "small" one', 'The "small" one', [], 0),
    wikiextractor.Document("zhwiki:14:面包", "面包", ["面包是一种食品。"], 1),
]
LINE = {
    "id": "3",
    "revid": "5",
    "url": "https://fr.wikinews.org/wiki?curid=3",
    "title": "Le &quot;Titre&quot;",
    "text": 'Le "Titre"\n\nIl &amp; elle mangent ici.\n__NOEDITSECTION__\nVoir',
}


def lines_of(data):
    offset = 0
    for line in data.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


def parse(data, *, start=0, stop=1 << 40):
    data = data if isinstance(data, bytes) else data.encode()
    lines = [pair for pair in lines_of(data) if pair[0] >= start]
    return list(wikiextractor.parse(iter(lines), stop, data[:500], "wiki_00"))


def test_elements_literally():
    assert parse(ELEMENTS) == DOCUMENTS
    assert parse("\ufeff" + ELEMENTS.replace("\n", "\r\n")) == DOCUMENTS


def test_json_lines_literally():
    data = "\n".join([json.dumps(LINE), "", json.dumps({**LINE, "text": ""})])
    assert parse(data) == [
        wikiextractor.Document(
            id='frwikinews:3:Le "Titre"',
            title='Le "Titre"',
            paragraphs=["Il & elle mangent ici."],
            num_fragments=1,
        ),
        wikiextractor.Document('frwikinews:3:Le "Titre"', 'Le "Titre"', [], 0),
    ]


def test_an_element_is_read_by_the_range_of_its_first_byte():
    size = len(ELEMENTS.encode())
    for cut in range(size):
        left, right = parse(ELEMENTS, stop=cut), parse(ELEMENTS, start=cut)
        assert left + right == DOCUMENTS, cut


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        (
            lambda data: data.replace(b"\n</doc>\n", b"\n", 1),
            (0, "Bread & butter", "no </doc>"),
        ),
        (
            lambda data: data.replace(b"cheap", b"ch\xff\xfe"),
            (0, "Bread & butter", "bytes that are not UTF-8"),
        ),
        (
            lambda data: data.replace(b"cheap", b"\xed\xa0\x80"),
            (0, "Bread & butter", "bytes that are not UTF-8"),
        ),
        (
            lambda data: data.replace(b"cheap", b"ch\0p"),
            (0, "Bread & butter", "not plain text: it holds NUL characters"),
        ),
    ],
)
def test_a_bad_element_costs_only_itself(change, bad):
    found = parse(change(ELEMENTS.encode()))
    assert found == [wikiextractor.BadDocument(*bad), *DOCUMENTS[1:]]


def test_an_element_without_an_end_and_one_that_is_too_long(monkeypatch):
    cut = ELEMENTS[: ELEMENTS.index("面包是")]
    assert parse(cut)[2] == wikiextractor.BadDocument(
        ELEMENTS.encode().index(b'<doc id="14'),
        "面包",
        "cut off: the file ends before </doc>",
    )
    monkeypatch.setattr(wikiextractor.text_lines, "MAX_LINE_BYTES", 100)
    assert parse(ELEMENTS) == [
        wikiextractor.BadDocument(0, "Bread & butter", "longer than 64 MiB"),
        *DOCUMENTS[1:],
    ]


def test_a_hostile_line_takes_no_time():
    line = b'<doc id="1"' + b' url="" title="' * 100_000 + b"\n"
    begin = time.process_time()
    assert parse(line + ELEMENTS.encode()) == DOCUMENTS
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("line", "title", "reason"),
    [
        (b'{"id": "1"', "", "not JSON: Expecting ',' delimiter: line 1 column 11"),
        (b"[" * 100_000, "", "not JSON: maximum recursion depth exceeded"),
        (b"[1]", "", "not an object"),
        (json.dumps({**LINE, "id": 3}).encode(), "", "no 'id', 'url',"),
        (
            json.dumps({**LINE, "text": "a\ud800"}).encode(),
            None,
            "not plain text: it ho",
        ),
        (
            json.dumps({**LINE, "text": "a\0"}).encode(),
            None,
            "not plain text: it holds N",
        ),
    ],
)
def test_a_bad_line(line, title, reason):
    found = wikiextractor.parse_line(line, 7)
    assert found.offset == 7
    assert found.title == (title if title is not None else 'Le "Titre"')
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (
            b"<!DOCTYPE html><html>",
            "this is an HTML page; it begins with '<!DOCTYPE html><html>'",
        ),
        (b"<mediawiki>", "it begins with '<mediawiki>'"),
        (b"Bread is eaten.", "it begins with 'Bread is eaten.'"),
    ],
)
def test_another_format(start, what):
    with pytest.raises(InputError) as error:
        wikiextractor.is_json(start, "wiki_00")
    assert str(error.value) == (
        "wiki_00: expected output of WikiExtractor (<doc id=... or JSON lines), but "
        + what
    )
