"""JSON lines -> documents, such as those of WikiExtractor's `--json`."""

import json
import re
from typing import ClassVar

from bert_keras.pipelines.sources import source, text_lines

_BLANK_LINES = re.compile(r"\n\s*\n")
_LINE_END = re.compile(r"[.!?…:;。！？।۔][\s\"'`”’»)\]」』]*$")
_MAX_WRAPPED = 200
"""Characters of the longest hard-wrapped line."""

# What running text does not have. A text that is about HTML has it, too.
_FAULTS = {
    "HTML tags": re.compile(
        r"(?:<|&lt;)/?(?:p|br|div|span|a|b|i|em|strong|[uo]l|li|table|t[rdh]|h[1-6]|img"
        r"|ref|script|style|templatestyles)\b[^<>]{0,200}(?:>|&gt;)|&(?:nbsp|amp|quot);"
    ),
    # UTF-8 that was read as Windows-1252 or Latin-1: `cafÃ©`, `donâ€™t`.
    "mojibake": re.compile(
        "[ÂÃÐÑ][\x80-\xbf]|Ã[‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]|â€[\x80-\xbf™œ“”˜¦¢]|ï¿½"
    ),
}


class JsonLines(source.Source):
    name: ClassVar[str] = "jsonl"
    description: ClassVar[str] = 'JSON lines of {"id": ..., "text": ...}'

    def check(self, path: str, *, allow_cut_dumps: bool) -> None:
        text_lines.check(path, kind=self.name, expected="lines of JSON")

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        with text_lines.open_range(part) as (file, stop):
            lines = text_lines.read_lines(file, part.item.path, part.start)
            for number, (offset, line) in enumerate(lines, 1):
                if offset >= stop:
                    break
                context.reach(file.tell())
                if line is not None and not line.strip():
                    continue
                context.counts["items_read"] += 1
                try:
                    document = parse_line(line)
                except ValueError as error:
                    # The number of lines before a range is not known.
                    place = f"byte {offset}" if part.start else f"line {number}"
                    yield source.Reject(part.item.path, place, "", str(error))
                    continue
                if document is None:
                    context.counts["dropped/no running text"] += 1
                    continue
                text = "\n".join(map(str, document.paragraphs))
                for fault, pattern in _FAULTS.items():
                    if pattern.search(text):
                        context.counts[f"faults/{fault}"] += 1
                yield document


def parse_line(line: bytes | None) -> source.SourceDocument | None:
    """Reads a line of JSON (`None`: too long to read); returns `None` for blank text. A
    `ValueError`: it is no object with an `id` (a string or integer) and a `text`."""
    if line is None:
        raise ValueError("longer than 64 MiB")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    document_id = values.get("id")
    if isinstance(document_id, int) and not isinstance(document_id, bool):
        document_id = str(document_id)
    strings = {
        "id": document_id or None,
        "text": values.get("text"),
        "title": values.get("title") or "",
        "source": values.get("source") or "jsonl",
    }
    for name, value in strings.items():
        if not isinstance(value, str):
            expected = "a string or integer" if name == "id" else "a string"
            actual = repr(values[name])[:40] if name in values else "none"
            raise ValueError(f"expected {expected} {name!r}, found {actual}")
    joined = "".join(strings.values())
    if "\0" in joined:
        raise ValueError("not plain text: it holds NUL characters")
    if joined.encode(errors="replace").decode() != joined:
        raise ValueError("not plain text: it holds lone surrogates")
    paragraphs = divide(strings.pop("text"))
    if not paragraphs:
        return None
    return source.SourceDocument(**strings, paragraphs=paragraphs)


def divide(text: str) -> list[str]:
    """Returns the paragraphs of a text, each on one line.

    Blank lines divide them. A text without any, but for one below its title, has a
    paragraph on each line, as those of WikiExtractor's `--json`, unless the lines are
    parts of sentences, as hard-wrapped ones are.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    blocks = [block for block in _BLANK_LINES.split(text) if block]
    has_title = len(blocks) == 2 and "\n" not in blocks[0]
    if len(blocks) == 1 or has_title:
        lines = blocks[-1].split("\n")
        num_whole = sum(bool(_LINE_END.search(line)) for line in lines[:-1])
        is_wrapped = max(map(len, lines)) <= _MAX_WRAPPED
        if not is_wrapped or num_whole * 2 > len(lines) - 1:
            blocks[-1:] = lines
    return [line for block in blocks if (line := " ".join(block.split()))]
