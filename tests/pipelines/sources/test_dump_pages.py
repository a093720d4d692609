"""Dumps -> pages: literal small dumps, damaged files, and the real dumps."""

import bz2
import gzip
import lzma
import tracemalloc

import pytest
import zstandard

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import dump_pages

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10">
<siteinfo><dbname>xxwiki</dbname><base>https://xx.wikipedia.org/wiki/Main</base>
<namespaces><namespace key="0" /><namespace key="1">Tolk</namespace></namespaces>
</siteinfo>
"""


def page_xml(number, title="Title", text="Text.", *, ns=0, year=2020, extra=""):
    ns_tag = "" if ns is None else f"<ns>{ns}</ns>"
    return (
        f"<page><title>{title}</title>{ns_tag}<id>{number}</id>{extra}<revision>"
        f"<id>9</id><timestamp>{year}-01-01T00:00:00Z</timestamp><text>{text}</text>"
        "</revision></page>\n"
    )


DUMP = HEAD + page_xml(1) + page_xml(2, "A &amp; B", "x &lt;ref>") + "</mediawiki>"


def write(tmp_path, data, name="dump.xml"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def read(path):
    return list(dump_pages.read_pages(path, allow_cut=True))


def titles(path):
    return [page.title for page in read(path)]


def test_a_page_literally(tmp_path):
    _, second = read(write(tmp_path, DUMP))
    assert second == dump_pages.Page(
        wiki="xxwiki",
        page_id=2,
        title="A & B",
        namespace=0,
        timestamp="2020-01-01T00:00:00Z",
        is_redirect=False,
        model="wikitext",
        text="x <ref>",
    )


def test_byte_order_mark_and_crlf(tmp_path):
    dump = DUMP.replace("\n", "\r\n").replace("Text.", "Größe 文\r\nx")
    first, second = read(write(tmp_path, dump.encode("utf-8-sig")))
    assert (first.text, second.title) == ("Größe 文\nx", "A & B")


@pytest.mark.parametrize(
    ("declared", "encoding", "name"),
    [
        ("", "utf-16", "UTF-16"),
        ("", "utf-16-be", "UTF-16BE"),
        ("", "utf-32", "UTF-32"),
        ('<?xml version="1.0" encoding="iso-8859-1"?>', "latin-1", "iso-8859-1"),
        ('<?xml version="1.0" encoding="klingon"?>', "utf-8", "klingon"),
    ],
)
def test_a_dump_that_is_not_in_utf_8(tmp_path, declared, encoding, name):
    path = write(tmp_path, (declared + DUMP).encode(encoding))
    with pytest.raises(InputError) as error:
        dump_pages.check_dump(path)
    assert str(error.value) == (
        f"{path}: line 1: expected a dump in UTF-8, but this one is in {name}: convert "
        f"it with `iconv -f {name} -t UTF-8`, and correct the encoding that its first "
        "line declares"
    )


DOCTYPE = '<!DOCTYPE mediawiki [ <!ENTITY a "b>"> <!-- ] --> ]\n>'


@pytest.mark.parametrize("declared", ["utf-8", "UTF-8", "us-ascii", DOCTYPE])
def test_declarations_before_the_root(tmp_path, declared):
    if declared != DOCTYPE:
        declared = f'<?xml version="1.0" encoding="{declared}"?>'
    assert titles(write(tmp_path, declared + DUMP)) == ["Title", "A & B"]


NO_END = "no </mediawiki> at its end, so it was cut off: .*--allow_cut_dumps"
STREAMS = 5


def in_streams(dump):
    step = -(-len(dump) // STREAMS)
    pieces = [dump[at : at + step] for at in range(0, len(dump), step)]
    return b"".join(map(bz2.compress, pieces))


@pytest.mark.parametrize(
    ("pack", "is_seen_at_once"),
    [
        (bytes, True),
        (in_streams, True),
        (bz2.compress, False),
        (gzip.compress, False),
        (lzma.compress, False),
        (zstandard.ZstdCompressor().compress, False),
    ],
)
def test_a_dump_that_was_cut_between_pages(tmp_path, pack, is_seen_at_once):
    pages = HEAD + "".join(page_xml(n, f"T{n}", "x" * 900) for n in range(40))
    whole = write(tmp_path, pack((pages + "</mediawiki>\n\n" + " " * 50).encode()))
    dump_pages.check_dump(whole)
    assert len(list(dump_pages.read_pages(whole))) == 40
    cut = write(tmp_path, pack(pages.encode()), "cut.xml")
    with pytest.raises(InputError, match=NO_END):
        dump_pages.check_dump(cut)
        assert not is_seen_at_once
        list(dump_pages.read_pages(cut))
    dump_pages.check_dump(cut, allow_cut=True)
    assert len(read(cut)) == 40


NO_NAME = HEAD.replace("<dbname>xxwiki</dbname>", "")


def test_wiki_and_namespace_where_pages_have_none(tmp_path):
    for head, title, wiki, namespace in (
        *((HEAD, title, "xxwiki", 1) for title in ("Tolk: x", "tolk:x")),
        *((HEAD, title, "xxwiki", 0) for title in ("Talk:x", "Art: a life", "x")),
        ("<!-- a <page> -->\n<mediawiki>\n", "x", "wiki", 0),
        ("<mediawiki>", "User talk:x", "wiki", 3),
        (NO_NAME, "x", "xxwiki", 0),  # from the base
    ):
        [page] = read(write(tmp_path, head + page_xml(1, title, ns=None)))
        assert (page.wiki, page.namespace) == (wiki, namespace), title


def test_redirects(tmp_path):
    words = ("#REDIRECT", " #redirect:", "#WEITERLEITUNG", "#転送")
    pages = [page_xml(1, text=f"{word} [[x]]") for word in words]
    pages.append(page_xml(1, text="#a"))
    pages.append(page_xml(1, text="x", extra='<redirect title="y" />'))
    found = [page.is_redirect for page in read(write(tmp_path, HEAD + "".join(pages)))]
    assert found == [True] * 4 + [False, True]


def test_newest_revision_counts(tmp_path):
    older = "<revision><timestamp>2001</timestamp><text>old</text></revision>"
    [page] = read(write(tmp_path, HEAD + page_xml(1, extra=older)))
    assert page.text == "Text."


def test_bad_pages_cost_only_themselves(tmp_path):
    bad = page_xml(3, "C").replace("</text>", "")
    dump = (
        (HEAD + page_xml(1) + bad).encode()
        + page_xml(4, "D", "QQ").encode().replace(b"QQ", b"\xff\xfe")
        + page_xml(5, "E").replace("</page>", "").encode()
        + b"<page><title>F</title></page>"
        + page_xml(7, "G").encode()
    )
    dump += page_xml(9, "J", "One. <b>Two.</b> Three.").encode()
    found = read(write(tmp_path, dump + b"<page><title>K &amp; L</title><id>8</id><re"))
    assert [page[1:] if isinstance(page, tuple) else page.title for page in found] == [
        "Title",
        ("3", "C", "not well-formed XML: mismatched tag: line 1, column 118"),
        ("4", "D", "bytes that are not in the file's encoding"),
        ("5", "E", "no </page>"),
        ("", "F", "no title, id or revision"),
        "G",
        # Not silently the text before the tag alone.
        ("9", "J", "unescaped <b> in <text>"),
        ("8", "K & L", "cut off: the dump ends before </page>"),
    ]


def test_deep_nesting_is_no_trouble(tmp_path):
    deep = page_xml(2, text="<b>" * 50_000 + "</b>" * 50_000)
    bad, good = read(write(tmp_path, HEAD + deep + page_xml(3)))
    assert (bad.reason, good.text) == ("unescaped <b> in <text>", "Text.")


def test_endless_page_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setattr(dump_pages, "_MAX_PAGE_BYTES", 1_000_000)
    dump = HEAD + page_xml(1, "Long", "x" * 3_000_000) + page_xml(2, "After")
    long, after = read(write(tmp_path, dump))
    assert (long.title, long.reason[:11]) == ("Long", "longer than")
    assert after.title == "After"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"Hello, world", "not XML; it begins with 'Hello, world'"),
        (b"<html><body>404</body></html>", "this is an HTML page"),
        (b"<!DOCTYPE html>\n<html lang='en'>", "this is an HTML page"),
        (b"<rss version='2.0'></rss>", "XML with the root <rss>"),
        (b"<mediawik", "not XML"),
        (b"597:10:Bread\n597:12:Loaf", "index of a multistream dump: it is not nee"),
        (b'<!DOCTYPE rss SYSTEM "rss.dtd"><rss/>', "XML with the root <rss>"),
    ],
)
def test_not_a_dump(tmp_path, data, message):
    path = write(tmp_path, data)
    for check in (dump_pages.check_dump, read):
        with pytest.raises(InputError, match=message) as error:
            check(path)
        assert "expected a MediaWiki export" in str(error.value)
        assert "\n" not in str(error.value)


def test_tags_of_pages_with_blanks_are_refused(tmp_path):
    path = write(tmp_path, DUMP.replace("<page>", "<page >"))
    message = r"pages that begin with <page>, but this dump has '<page >': rewrite it"
    with pytest.raises(InputError, match=message):
        dump_pages.check_dump(path)


def test_blanks_before_the_root_take_no_memory(tmp_path):
    path = write(tmp_path, " \n" * 1_000_000 + DUMP)
    tracemalloc.start()
    dump_pages.check_dump(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read(path)) == 2
    assert peak < 20e6


FIRST = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
MULTISTREAM = "multistream/enwiki-excerpt-pages-articles-multistream.xml.bz2"
OTHERS = "other_languages/"
LONG_DUMPS = [
    # file, pages read, bad, articles (namespace 0), redirects, wiki
    ("enwik8-first-4154399-bytes.xml", 491, 1, 490, 243, "enwiki"),
    ("enwiki-2022-excerpt-pages-articles.xml.bz2", 251, 0, 250, 112, "enwiki"),
    (FIRST, 206, 0, 205, 100, "enwiki"),
    (OTHERS + "jawiki-2022-excerpt-pages-articles.xml.bz2", 262, 0, 223, 31, "jawiki"),
    (OTHERS + "ltgwiki-latest-pages-articles.xml", 2004, 0, 1050, 195, "ltgwiki"),
]
SHORT_DUMPS = [
    ("enwiki-minidump.xml.bz2", 27, 0, 26, 2, "enwiki"),
    ("enwiki-table-markup.xml.bz2", 5, 0, 5, 0, "wiki"),
    (OTHERS + "aawiki-20260101-pages-meta-current.xml.bz2", 507, 0, 2, 19, "aawiki"),
    (OTHERS + "nlwiki-20140927-pages-articles-sample.xml", 21, 0, 21, 2, "nlwiki"),
    (OTHERS + "dewiki-minidump.xml.bz2", 2, 0, 2, 0, "enwiki"),
    (OTHERS + "frwiki-minidump.xml.bz2", 3, 0, 3, 0, "enwiki"),
    (OTHERS + "ruwiki-minidump.xml.bz2", 1, 0, 1, 0, "enwiki"),
    (OTHERS + "arwiki-minidump.xml.bz2", 3, 0, 3, 0, "enwiki"),
    (OTHERS + "zhwiki-minidump.xml.bz2", 1, 0, 1, 0, "enwiki"),
]


@pytest.mark.parametrize(
    ("name", "num_pages", "num_bad", "num_articles", "num_redirects", "wiki"),
    [*SHORT_DUMPS, *(pytest.param(*row, marks=pytest.mark.slow) for row in LONG_DUMPS)],
)
def test_real_dumps(
    shared_data, name, num_pages, num_bad, num_articles, num_redirects, wiki
):
    path = str(shared_data / "wikipedia" / name)
    is_cut = "-2022-" in name or name.startswith("enwik8")
    dump_pages.check_dump(path, allow_cut=is_cut)
    found = list(dump_pages.read_pages(path, allow_cut=is_cut))
    pages = [page for page in found if isinstance(page, dump_pages.Page)]
    assert len(pages) == num_pages
    assert len(found) - len(pages) == num_bad
    assert sum(page.namespace == 0 for page in pages) == num_articles
    assert sum(page.is_redirect for page in pages) == num_redirects
    assert {page.wiki for page in pages} == {wiki}


@pytest.mark.slow
def test_multistream_holds_the_same_pages(shared_data):
    folder = shared_data / "wikipedia"
    assert read(str(folder / MULTISTREAM)) == read(str(folder / FIRST))
