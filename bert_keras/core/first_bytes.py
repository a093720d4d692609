"""The format of a file, by its first bytes: one table for all rooms that read texts."""

import csv
import re
from typing import Any, NamedTuple

NUM_BYTES = 1 << 14
"""First bytes of a file that `recognize` takes."""

COMPRESSIONS = {
    "bz2": b"BZh",
    "gz": b"\x1f\x8b",
    "xz": b"\xfd7zXZ\0",
    "zst": b"\x28\xb5\x2f\xfd",
}
"""First bytes of compressed files."""


class Format(NamedTuple):
    name: str
    remedy: str
    """What to do with the file for `corpus`."""
    source: str = ""
    """The option of `corpus` that reads it."""
    is_text: bool = False
    """Whether lines of plain text may begin so, too."""


_PLAIN = "save it as plain text, for example with `pandoc -t plain`"
_ONE_A_LINE = "write one object on each line (jq -c {}) and give the file to --jsonl"
_EXTRACT = (
    "extract the dump again with --json for --jsonl, or give the dump itself to "
    "--wikipedia"
)
_LEAVE_OUT = "it is not needed: leave it out"
_CONVERT = "convert it with `iconv -f UTF-16 -t UTF-8`"
_PROLOG = rb"(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?"
_DUMP = _PROLOG + rb"<mediawiki[\s>]"
_HTML = _PROLOG + rb"(?i:<(?:!doctype )?(?:html|head|body)[\s>])"
_MAIL_HEADER = (
    rb"(?i:Return-Path|Received|Delivered-To|Message-ID|MIME-Version|From|To|Cc|Subject"
    rb"|Date|Newsgroups|Path): [^\n]*\n(?:[ \t][^\n]*\n)*"
)
_MAIL = rb"From \S+ +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) |(?:" + _MAIL_HEADER + rb"){2}"
_UNPACK = "unpack it first"
_FORMATS: list[tuple[Any, ...]] = [
    # A pattern that begins the file, after a byte order mark and blanks, and a format.
    # The first match counts: a MediaWiki dump and some HTML pages are XML, too.
    (rb"\{\s*\n", "JSON over several lines", _ONE_A_LINE.format(".")),
    (rb"\{\s*\"", "JSON lines", "give it to --jsonl", "jsonl"),
    (rb"\[\s*\{", "a JSON array", _ONE_A_LINE.format("'.[]'")),
    (_DUMP, "a MediaWiki dump", "give it to --wikipedia", "wikipedia"),
    (rb"<doc ", "the <doc> form of WikiExtractor", _EXTRACT),
    (_HTML, "an HTML page", "extract its text, or download it again"),
    (rb"<\?xml", "XML", _PLAIN),
    (rb"%PDF-", "a PDF", "extract its text, for example with pdftotext"),
    (rb"\{\\rtf", "RTF", _PLAIN),
    (_MAIL, "mail", "extract the bodies of the messages", "", True),
    (rb"PK\x03\x04", "a ZIP archive, such as .docx, .xlsx or .epub", _PLAIN),
    (rb"\xd0\xcf\x11\xe0", "a file of Microsoft Office", _PLAIN),
    (rb"PAR1", "Parquet", "write its rows as JSON lines for --jsonl"),
    (rb"7z\xbc\xaf|\x04\x22\x4d\x18|\x1f\x9d", "packed", _UNPACK),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"\d{3,}:\d+:", "the index of a multistream dump", _LEAVE_OUT, "", True),
    (rb"\xff\xfe|\xfe\xff", "UTF-16", _CONVERT, "books", True),
    *((re.escape(b), f"compressed ({k})", _UNPACK) for k, b in COMPRESSIONS.items()),
]
_PATTERNS = [(re.compile(row[0], re.DOTALL), Format(*row[1:])) for row in _FORMATS]
_TABLE = Format(
    "a table",
    "write its text column as JSON lines for --jsonl, or as plain text",
    is_text=True,
)
# Of an index, none.
_COLUMN_NAME = re.compile(r'(?:"?[A-Za-z_][\w.-]*(?: [\w.-]+)?"?)?')


def recognize(start: bytes) -> Format | None:
    """Returns the format of a file that begins with these bytes. `None`: plain text,
    sentences, or something that is not known."""
    text = start[:NUM_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    for pattern, form in _PATTERNS:
        if pattern.match(text):
            return form
    # Rows of a table have equally many fields, below a header unless tabs divide them.
    decoded = text.decode(errors="replace")
    lines = decoded.splitlines()[:20]
    if len(decoded) >= NUM_BYTES // 2:
        lines = lines[:-1]  # cut off
    for delimiter in ",;\t":
        names = lines[0].split(delimiter) if lines else []
        # Prose has blanks after its commas, and no tab on each of its lines.
        is_header = delimiter == "\t" or all(map(_COLUMN_NAME.fullmatch, names))
        if len(names) < 2 or len(lines) < 3 or not is_header:
            continue
        quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        rows = list(csv.reader(lines, delimiter=delimiter, quoting=quoting))
        # The last row may go on below.
        if all(len(row) == len(names) for row in rows[:-1]):
            return _TABLE
    return None
