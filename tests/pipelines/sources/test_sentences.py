"""Files with a sentence on each line: documents, ranges, long documents."""

import io
import random

import pytest

from bert_keras.pipelines.sources import reading, sentences

LINES = [f"this is sentence number {number} , she said ." for number in range(60)]


def read(data, start=0, stop=None):
    stop = len(data) if stop is None else stop
    blocks = sentences.read_blocks(io.BytesIO(data), "a.txt", start, stop)
    return [(offset, tuple(block)) for offset, block in blocks]


def test_a_blank_line_begins_a_document():
    data = b"\n\na b .\nc d .\n\n \ne f .\n\ng h ."
    assert read(data) == [
        (2, (b"a b .", b"c d .")),
        (17, (b"e f .",)),
        (24, (b"g h .",)),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_ranges_hold_each_line_once(seed, monkeypatch):
    """Documents that are shorter than `PART_BYTES` stay whole."""
    monkeypatch.setattr(sentences, "PART_BYTES", 50)
    rng = random.Random(seed)
    lines = [
        b"" if rng.random() < rng.choice((0.0, 0.3)) else b"x" * rng.randrange(1, 120)
        for _ in range(100)
    ]
    data = b"\n".join(lines)
    whole = read(data)
    assert [line for _, block in whole for line in block] == list(filter(None, lines))
    bounds = sorted(
        {0, len(data), *(50 * rng.randrange(len(data) // 50) for _ in "ab")}
    )
    parts = [read(data, *pair) for pair in zip(bounds, bounds[1:], strict=False)]
    assert sum(parts, []) == whole
    documents = data.split(b"\n\n")
    short = [d for d in documents if 0 < len(d) < 50 and d.strip()]
    blocks = {b"\n".join(block) for _, block in whole}
    assert all(b"\n".join(filter(None, d.split(b"\n"))) in blocks for d in short)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\n".join(LINES) + "\n", "sentences"),
        ("\n\n".join("\n".join(LINES[n : n + 20]) for n in (0, 20, 40)), "sentences"),
        ("project gutenberg prints it .\n" + "\n".join(LINES) + "\n", "sentences"),
        ("THE PROJECT GUTENBERG EBOOK OF X\n" + "\n".join(LINES) + "\n", "books"),
        ("\n\n".join(LINES), "books"),
        ("\n".join(f"{line} Then he left." for line in LINES), "books"),
        (" ".join(LINES).replace(" sentence", "\nsentence"), "books"),
    ],
)
def test_lines_that_are_sentences_are_recognised(tmp_path, text, kind):
    path = tmp_path / "book.txt"
    path.write_text(text)
    [item] = reading.find_inputs({"books": [str(path)]})
    assert item.kind == kind
