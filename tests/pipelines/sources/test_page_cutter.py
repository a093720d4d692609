"""Chunks -> pages, against a regular expression over the whole text."""

import random
import re

import pytest

from bert_keras.pipelines.sources import dump_pages

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


def test_pages_are_taken_between_skip_and_stop():
    rng = random.Random(0)
    for _ in range(300):
        text = random_text(rng)
        starts = [tag.start() + 1000 for tag in re.finditer(b"<page>", text)]
        skip, stop = sorted(rng.choices([*starts, 1000, 5000], k=2))
        found = cut(text, [3] * len(text), offset=1000, skip=skip, stop=stop)
        pages = zip(starts, cut_by_hand(text), strict=True)
        assert found == [page for start, page in pages if skip <= start < stop]
