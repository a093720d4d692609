"""Files with a sentence on each line -> documents."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from bert_keras.core import files
from bert_keras.pipelines.sources import sentence_lines, source, text_lines


class Sentences:
    """Lines of sentences: the form of google-research/bert's own input."""

    name: ClassVar[str] = "sentences"
    description: ClassVar[str] = (
        "a sentence a line; a blank line or a new file begins a document"
    )

    def check(self, path: str, options: source.Options) -> str:
        start = text_lines.check_packing(path)
        source.check_no_html(start, path, expected="lines of text")
        return self.name

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Divides only files that are not compressed."""
        return text_lines.split(item, max_bytes, step=sentence_lines.PART_BYTES)

    def read(
        self,
        part: source.Range,
        options: source.Options,
        advance: source.Advance,
        counts: Counter[str],
    ) -> Iterator[source.SourceDocument | source.Reject]:
        name = files.name_of(part.path)
        with text_lines.open_range(part, advance) as (file, stop, progress):
            blocks = sentence_lines.read_blocks(file, part.path, part.start, stop)
            for block in blocks:
                progress.update()
                counts["items_read"] += 1
                data = b"\n".join(filter(None, block.lines))
                try:
                    if None in block.lines:
                        raise ValueError("longer than 64 MiB")
                    text, codec = source.plain_text(
                        data, None, otherwise=options.encoding
                    )
                except ValueError as error:
                    place = f"byte {block.offset}"
                    yield source.Reject(part.path, place, "", str(error))
                    continue
                counts[f"encoding/{codec}"] += 1
                lines = (" ".join(line.split()) for line in text.split("\n"))
                yield source.SourceDocument(
                    id=f"{name}:{hashlib.sha256(data).hexdigest()[:12]}",
                    rank="",
                    source=self.name,
                    title=os.path.splitext(name)[0],
                    paragraphs=[[line for line in lines if line]],
                )
