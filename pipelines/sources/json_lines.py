"""JSON lines -> documents, such as those of WikiExtractor's `--json`."""

import json
from typing import ClassVar

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import source, text_lines


class JsonLines:
    name: ClassVar[str] = "jsonl"
    description: ClassVar[str] = 'JSON lines of {"id": ..., "text": ...}'

    def check(self, path: str, *, allow_cut_dumps: bool) -> str:
        start = text_lines.check_packing(path)
        if start.lstrip().startswith(b"<doc "):
            raise InputError(
                f"{path}: line 1: expected lines of JSON, but this is the <doc> form "
                "of WikiExtractor: extract the dump again with --json, or give the "
                "dump itself by --wikipedia"
            )
        source.check_no_html(start, path, expected="lines of JSON")
        return self.name

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Divides only files that are not compressed."""
        return text_lines.split(item, max_bytes)

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        with text_lines.open_range(part, context.advance) as (file, stop, progress):
            lines = text_lines.read_lines(file, part.path, part.start)
            for number, (offset, line) in enumerate(lines, 1):
                if offset >= stop:
                    break
                progress.update()
                if line is not None and not line.strip():
                    continue
                context.counts["items_read"] += 1
                try:
                    document = parse_line(line)
                except ValueError as error:
                    # The number of lines before a range is not known.
                    place = f"byte {offset}" if part.start else f"line {number}"
                    yield source.Reject(part.path, place, "", str(error))
                    continue
                if document is None:
                    context.counts["dropped/no running text"] += 1
                else:
                    yield document


def parse_line(line: bytes | None) -> source.SourceDocument | None:
    """Reads a line of JSON (`None`: too long to read); returns `None` for blank text.

    Raises:
        ValueError: not an object with an `id` (a string or integer) and a `text`.
    """
    if line is None:
        raise ValueError("longer than 64 MiB")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    document_id, text = values.get("id"), values.get("text")
    if isinstance(document_id, int) and not isinstance(document_id, bool):
        document_id = str(document_id)
    if not isinstance(document_id, str) or not document_id:
        raise ValueError("no 'id', which must be a string or integer")
    title, origin = values.get("title") or "", values.get("source") or "jsonl"
    for name, value in (("text", text), ("title", title), ("source", origin)):
        if not isinstance(value, str):
            raise ValueError(f"no {name!r}, which must be a string")
    text = str(text)
    _check_plain(document_id + title + origin + text)
    blocks = text.replace("\r\n", "\n").split("\n\n")
    paragraphs = [" ".join(block.split()) for block in blocks if block.strip()]
    if not paragraphs:
        return None
    return source.SourceDocument(
        id=document_id, rank="", source=origin, title=title, paragraphs=paragraphs
    )


def _check_plain(text: str) -> None:
    if "\0" in text:
        raise ValueError("not plain text: it holds NUL characters")
    if text.encode(errors="replace").decode() != text:
        raise ValueError("not plain text: it holds lone surrogates")
