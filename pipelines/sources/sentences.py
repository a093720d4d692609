"""Files with a sentence on each line -> documents, in bounded memory; without Beam.

The form of google-research/bert's own input, and of BookCorpus: a blank line or a new
file begins a document. BookCorpus has no blank lines, so long documents are cut.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from bert_keras.core import files
from bert_keras.pipelines.sources import encodings, source, text_lines

PART_BYTES = 4 << 20
"""Places where a document of this size or more is cut are multiples of this."""
_SENTENCE_END = re.compile(r"[.!?…:;][\s\"'`”’»)\]]*$")
# Not the points of "mr. bean", nor "`` who ? '' he asked .".
_INNER_END = re.compile(r"(?:[^\W\d_]{4}|\s)\.[\"'`”’»)\]]*\s[^\W\d_]")
_GUTENBERG = re.compile(rb"PROJECT GUTENBERG E(?:BOOK|TEXT)")


def is_one_sentence_a_line(data: bytes) -> bool:
    """Whether lines next to each other at a text's beginning are whole sentences. A
    hard-wrapped book ends few of its lines with a sentence, and the lines of a file
    with one paragraph a line hold several."""
    if _GUTENBERG.search(data):
        return False
    lines = data.decode("utf-8-sig", errors="replace").split("\n")[:-1]
    pairs = zip(lines, lines[1:], strict=False)
    within = [line for line, following in pairs if line.strip() and following.strip()]
    num_ended = sum(bool(_SENTENCE_END.search(line)) for line in within)
    num_several = sum(bool(_INNER_END.search(line)) for line in within)
    return (
        len(within) >= 30
        and num_ended > 0.8 * len(within)
        and num_several < 0.2 * len(within)
    )


def read_blocks(
    file: BinaryIO, path: str, start: int, stop: int
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Reads the documents of a range; adjacent ranges hold each line once.

    Yields the offset in the text of each document, or part of a long one, and its lines
    that are not blank, `None` for a line of more than 64 MiB.

    A range begins at the first blank line at or after a multiple of `PART_BYTES`, in
    bytes of the text; without a blank line before the next multiple, at the first line.
    `start` and `stop` are such multiples, or the end of the file.
    """
    lines: list[bytes | None] = []
    begin, passed = start, start
    # The first line after the multiple passed last, until a blank line comes.
    cut: tuple[int, int] | None = (0, 0) if start else None
    is_before = start > 0  # The lines belong to the range before.
    for offset, line in text_lines.read_lines(file, path, start):
        while offset >= passed + PART_BYTES:
            # No blank line since the multiple passed before: the document is cut there.
            if cut is not None:
                if cut[0] and not is_before:
                    yield begin, lines[: cut[0]]
                if passed >= stop:
                    return
                begin = cut[1] if cut[0] else begin
                del lines[: cut[0]]
                is_before = False
            passed += PART_BYTES
            cut = len(lines), offset
        if line is None or line.strip():
            begin = begin if lines else offset
            lines.append(line)
            continue
        if lines and not is_before:
            yield begin, lines
        if offset >= stop:
            return
        lines, cut, is_before = [], None, False
    if lines and not is_before:
        yield begin, lines


class Sentences(source.Source):
    """Lines of sentences: the form of google-research/bert's own input."""

    name: ClassVar[str] = "sentences"
    description: ClassVar[str] = (
        "a sentence a line; a blank line or a new file begins a document"
    )
    takes_encodings: ClassVar[bool] = True
    step: ClassVar[int] = PART_BYTES

    def check(self, path: str, *, allow_cut_dumps: bool) -> None:
        text_lines.check(path, kind=self.name, expected="lines of text")

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        name = files.name_of(part.item.path)
        with text_lines.open_range(part) as (file, stop):
            for offset, block in read_blocks(file, part.item.path, part.start, stop):
                context.reach(file.tell())
                context.counts["items_read"] += 1
                data = b"\n".join(filter(None, block))
                try:
                    if None in block:
                        raise ValueError("longer than 64 MiB")
                    text, codec = encodings.decode(data, choice=part.item.encoding)
                except ValueError as error:
                    place = f"byte {offset}"
                    yield source.Reject(part.item.path, place, "", str(error))
                    continue
                context.counts[f"encoding/{codec}"] += 1
                lines = (" ".join(line.split()) for line in text.split("\n"))
                yield source.SourceDocument(
                    id=f"{name}:{hashlib.sha256(data).hexdigest()[:12]}",
                    source=self.name,
                    title=os.path.splitext(name)[0],
                    paragraphs=[[line for line in lines if line]],
                )
