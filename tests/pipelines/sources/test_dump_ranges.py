"""Dumps read in ranges: each page once, however a file is split, packed or damaged."""

import bz2
import gzip
import io
import itertools
import random
import re
import tracemalloc

import pytest

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import dump_pages, multistream
from tests.pipelines.sources import test_dump_pages

write = test_dump_pages.write
HEAD = (
    b"<!-- not a <page> -->\n<mediawiki>\n<siteinfo><dbname>xxwiki</dbname>"
    b"<namespaces><namespace key='0'/></namespaces></siteinfo>\n"
)


def page_xml(number, text="Größe 文."):
    return (
        f"  <page>\n<title>T{number}</title><ns>0</ns><id>{number}</id>"
        f"<revision><id>1</id><text>{text * (number % 5)}</text></revision></page>\n"
    ).encode()


def multistream_dump(num_pages=12, pages_each=3):
    """As Wikimedia makes them: the head, pages by the hundred, the end."""
    pages = [page_xml(n) for n in range(num_pages)]
    groups = [pages[n : n + pages_each] for n in range(0, num_pages, pages_each)]
    return [HEAD, *map(b"".join, groups), b"</mediawiki>"]


def cut_everywhere(text, sizes):
    """As pbzip2 makes them: cut after so many bytes, wherever that is."""
    bounds = [0]
    for size in itertools.cycle(sizes):
        bounds.append(bounds[-1] + size)
        if bounds[-1] >= len(text):
            return [text[a:b] for a, b in itertools.pairwise(bounds)]


# The head is whole, since it is read by itself.
PBZIP2 = [HEAD, *cut_everywhere(b"".join(multistream_dump()[1:]), (97, 1, 2, 3, 210))]
IN_TAGS = [HEAD] + [
    piece
    for n in range(1, 7)
    for piece in (page_xml(n)[: n + 2], page_xml(n)[n + 2 :] + b"<pa", b"", b"x")
]
DUMPS = {
    "multistream": b"".join(map(bz2.compress, multistream_dump())),
    "cut anywhere": b"".join(map(bz2.compress, PBZIP2)),
    "cut in tags": b"".join(map(bz2.compress, IN_TAGS)),
    "one stream": bz2.compress(b"".join(multistream_dump())),
    "plain": b"".join(multistream_dump()),
    "gzip": gzip.compress(b"".join(multistream_dump())),
}


@pytest.fixture(params=DUMPS)
def dump(request, tmp_path):
    return write(tmp_path, DUMPS[request.param])


def read_pages(path, **options):
    return dump_pages.read_pages(path, allow_cut=True, **options)


def titles(pages):
    return [page.title for page in pages]


def read_in_ranges(path, bounds):
    return [
        page
        for start, stop in itertools.pairwise(bounds)
        for page in read_pages(path, start=start, stop=stop)
    ]


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_every_page_once_by_every_single_cut(dump, step):
    """The fast half cuts around the start of each stream and page, and in between."""
    whole = list(read_pages(dump))
    data = files.read_bytes(dump)
    numbers = range(1, 7) if len(whole) == 6 else range(12)
    assert titles(whole) == [f"T{n}" for n in numbers]
    assert {page.text for page in whole} <= {"Größe 文." * n for n in range(5)}
    starts = [match.start() for match in re.finditer(b"BZh|<page>", data)]
    near = {start + offset for start in starts for offset in (-1, 0, 1)}
    for cut in sorted(near.union(range(0, len(data) + 1, step)) - {-1}):
        assert read_in_ranges(dump, [0, cut, len(data)]) == whole, cut


def test_chunks_of_any_size(dump, monkeypatch):
    whole = list(read_pages(dump))
    size = files.size(dump)
    rng = random.Random(2)
    for chunk in (1, 9, 10, 11, 64):
        monkeypatch.setattr(multistream, "CHUNK_BYTES", chunk)
        bounds = [0, *sorted(rng.randrange(size) for _ in range(6)), size]
        assert read_in_ranges(dump, bounds) == whole


def test_which_dumps_can_be_shared_and_how_far_they_are_read(dump, request):
    name = request.node.callspec.params["dump"]
    can = name in ("multistream", "cut anywhere", "cut in tags", "plain")
    assert dump_pages.is_splittable(dump) == can
    size = files.size(dump)
    for start, stop in itertools.pairwise((0, 10, size // 2, size)):
        places = []
        pages = read_pages(dump, start=start, stop=stop, reach=places.append)
        assert len(list(pages)) == len(places) <= 12
        assert places == sorted(places)


class CountedFile(io.FileIO):
    """A file that remembers how far it was read."""

    furthest = 0

    def read(self, size=-1):
        data = super().read(size)
        CountedFile.furthest = max(CountedFile.furthest, self.tell())
        return data


@pytest.mark.parametrize("name", ["multistream", "cut anywhere", "one stream", "plain"])
def test_little_is_read_beyond_the_range(tmp_path, monkeypatch, name):
    head, *groups = multistream_dump(num_pages=1000, pages_each=20)
    noise = [random.Random(3).randbytes(20).hex().encode() for _ in groups]
    groups = [g.replace(b"T", part) for g, part in zip(groups, noise, strict=True)]
    if name == "cut anywhere":
        groups = cut_everywhere(b"".join(groups), (5000,))
    texts = [head, *groups]
    joined = b"".join(texts)
    packed = b"".join(map(bz2.compress, texts))
    data = {"plain": joined, "one stream": bz2.compress(joined)}.get(name, packed)
    path = write(tmp_path, data)
    monkeypatch.setattr(multistream, "CHUNK_BYTES", 512)
    monkeypatch.setattr(dump_pages.files, "open_to_read", CountedFile)
    start, stop = len(data) // 4, len(data) // 2
    CountedFile.furthest = 0
    pages = list(read_pages(path, start=start, stop=stop))
    assert (len(pages) > 50) == (name != "one stream")
    assert CountedFile.furthest < stop + 4096


# Chunks of any text, against a regular expression over all of it.


TAGS = (b"<page>", b"</page>", b"<page", b"page>", b"/page>", b"<", b"</", b"x" * 9)


def cut_by_hand(text):
    """All from a `<page>` to the next tag, whatever that is; None if there is none."""
    tags = list(re.finditer(b"</?page>", text))
    ends = [*tags, None][1:]
    for tag, end in zip(tags, ends, strict=True):
        if tag[0] == b"</page>":
            continue
        if end is None:
            yield text[tag.start() :], "the end"
        elif end[0] == b"</page>":
            yield text[tag.start() : end.end()], None
        else:
            yield text[tag.start() : end.start()], "no </page>"


def cut(text, sizes, **options):
    cutter = dump_pages.PageCutter(**options)
    position, found = 0, []
    for size in sizes:
        found += cutter.feed(text[position : position + size])
        position += size
        assert cutter.offset == options.get("offset", 0) + min(position, len(text))
    assert position >= len(text)
    return [*found, *cutter.cut_off("the end")]


def random_text(rng):
    return b"".join(rng.choice(TAGS) for _ in range(rng.randrange(40)))


@pytest.mark.parametrize("seed", range(20))
def test_any_text_in_chunks_of_any_size(seed):
    rng = random.Random(seed)
    for _ in range(50):
        text = random_text(rng)
        sizes = [rng.randrange(1, 12) for _ in range(len(text))]
        assert cut(text, sizes) == list(cut_by_hand(text)), text


# Damage.


def flip(data, position):
    return data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :]


def test_a_flipped_bit_stops_the_job(tmp_path):
    streams = [bz2.compress(text) for text in multistream_dump()]
    begin = len(b"".join(streams[:2]))
    for at in range(4, len(streams[2])):
        damaged = flip(streams[2], at)
        path = write(tmp_path, b"".join([*streams[:2], damaged, *streams[3:]]))
        with pytest.raises(InputError, match=rf"dump.xml: the c.*at byte {begin}\)"):
            list(read_pages(path))


def test_bytes_after_the_end_and_a_missing_end(tmp_path, caplog):
    data = DUMPS["multistream"]
    whole = [f"T{n}" for n in range(12)]
    path = write(tmp_path, data + bytes(700_000))
    assert titles(read_pages(path)) == whole
    # Ignored as by bunzip2.
    path = write(tmp_path, data + b"rubbish")
    dump_pages.check_dump(path)
    assert "ignores the last 7 bytes, which are no bzip2 stream" in caplog.text
    assert titles(read_pages(path)) == whole
    for num_bytes in (11, 60):
        path = write(tmp_path, data[:-num_bytes])
        with pytest.raises(InputError, match="no end .truncated.; copy or download it"):
            dump_pages.check_dump(path)
    with pytest.raises(InputError, match=r"ends in the middle \(truncated\)"):
        list(read_pages(path))


ENCODING = "bytes that are not in the file's encoding"
REFERENCE = "not well-formed XML: reference to invalid character number"


@pytest.mark.parametrize(
    ("characters", "reason"),
    [
        (b"\0", ENCODING),
        (b"\xff", ENCODING),
        (b"\xed\xa0\x80", ENCODING),  # a lone surrogate
        (b"&#xD800;", REFERENCE),  # another
        (b"&#0;", REFERENCE),
        (b"\x07", "not well-formed XML: not well-formed (invalid token)"),
    ],
)
def test_characters_that_are_none(tmp_path, characters, reason):
    bad = page_xml(2).replace("文".encode(), characters)
    data = b"".join((HEAD, page_xml(1), bad, page_xml(3)))
    first, lost, last = read_pages(write(tmp_path, data))
    assert (lost.item, lost.title, lost.reason[: len(reason)]) == ("2", "T2", reason)
    assert titles([first, last]) == ["T1", "T3"]


@pytest.mark.slow
def test_a_page_of_100_mb_takes_no_memory(tmp_path):
    long = page_xml(1).replace(b"<text>", b"<text>" + b"x" * 100_000_000)
    data = b"".join(map(bz2.compress, (HEAD, long, page_xml(2), page_xml(3))))
    del long
    path = write(tmp_path, data)
    tracemalloc.start()
    found = list(read_pages(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [page.title for page in found] == ["T1", "T2", "T3"]
    assert found[0].reason == "longer than 64 MiB"
    assert peak < 80e6


# Real dumps.


def assert_ranges_give_the_whole(path, num_cuts):
    whole = list(read_pages(path))
    rng, size = random.Random(5), files.size(path)
    cuts = sorted(rng.randrange(size) for _ in range(num_cuts))
    assert read_in_ranges(path, [0, *cuts, size]) == whole
    return whole, cuts


@pytest.mark.slow
def test_real_dumps_in_random_ranges(shared_data, tmp_path):
    folder = shared_data / "wikipedia"
    path = next(folder.glob("multistream/*multistream.xml.bz2"))
    whole, _ = assert_ranges_give_the_whole(str(path), 40)
    # As pbzip2 would pack it.
    pieces = cut_everywhere(bz2.decompress(path.read_bytes()), (90_000,))
    packed = write(tmp_path, b"".join(map(bz2.compress, pieces)))
    for num_cuts in (1, 60):
        assert assert_ranges_give_the_whole(packed, num_cuts)[0] == whole
    assert len(whole) == 206
    path = str(folder / "enwik8-first-4154399-bytes.xml")
    whole, cuts = assert_ranges_give_the_whole(path, 30)
    with open(path, "rb") as file:
        num_begun = file.read(cuts[15]).count(b"<page>")
    assert read_in_ranges(path, [0, cuts[15]]) == whole[:num_begun]
