"""The encoding of books and of lines of sentences; without Beam.

A text is in the encoding of its byte order mark, in UTF-8 if it is valid UTF-8, or in
the encoding that its Project Gutenberg header states. Nothing else is guessed: a wrong
guess reads Turkish letters as Icelandic ones, and nobody notices. Any other text is
refused with the two likeliest readings of one of its lines, until `--encoding` names
the encoding or leaves the choice to charset-normalizer.
"""

import codecs
import contextlib
import os
import re
import string
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import multistream

AUTO = "auto"
"""The name for `--encoding` with which charset-normalizer chooses for each file."""

# Encodings of text files that are still around. Out of all of Python's, others would
# win by chance, such as those of Kazakhstan and of HP's printers.
_CANDIDATES = (
    *("cp1252", "cp1250", "iso8859_2", "cp1254", "iso8859_9", "cp1257", "cp1258"),
    *("mac_roman", "cp437", "cp850", "cp852", "cp1251", "koi8_r", "koi8_u"),
    *("iso8859_5", "cp866", "mac_cyrillic", "cp1253", "iso8859_7", "cp1255", "cp1256"),
    *("iso8859_6", "gb18030", "big5hkscs", "cp932", "euc_jp", "cp949"),
)
_UTF_16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# ISO 2022 is ASCII to a decoder of UTF-8, but for these bytes.
_ISO_2022 = (b"\x1b$", b"\x1b(")
_STATED = re.compile(rb"^Character set encoding: *(.+?)\s*$", re.MULTILINE)
_ISO_8859 = re.compile(r"8859[ -](\d+)|latin[ -](1)")
_CODE_PAGE = re.compile(r"(?:cp|code ?page|windows)[ -]?(\d+)")


class Choice(NamedTuple):
    """The encoding that `--encoding` names for a file."""

    name: str
    is_for_file: bool
    """Whether a pattern chose the file: then the header's statement does not count."""


def parse_options(options: Sequence[str]) -> dict[str, str]:
    """Returns the encoding, or `auto`, by pattern; `""` is that of all other files."""
    by_pattern = {}
    for option in options:
        pattern, _, name = option.rpartition("=")
        letters = string.ascii_letters + string.digits
        try:
            has_ascii = name == AUTO or letters.encode(name) == letters.encode()
        except (LookupError, UnicodeError):
            has_ascii = False
        if not has_ascii:
            raise InputError(
                "--encoding: expected the name of an encoding that contains ASCII, "
                f"such as cp1251 or gb18030, or auto, got {name!r}"
            )
        by_pattern[pattern] = name if name == AUTO else codecs.lookup(name).name
    return by_pattern


def likeliest_of_file(path: str) -> str | None:
    """Returns charset-normalizer's answer; `None` for UTF-8 and byte order marks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with files.open_to_read(path) as file:
        for number, chunk in enumerate(multistream.read_all(file, path)):
            if number == 0 and chunk.startswith(tuple(_UTF_16_MARKS)):
                return None
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                return _likeliest(_sample(chunk))[0]
    return None


def mark_of(file: BinaryIO) -> str | None:
    """Returns `utf-16-le` or `utf-16-be` if a file begins with such a mark."""
    file.seek(0)
    return _UTF_16_MARKS.get(file.read(2))


def decode(
    data: bytes,
    *,
    mark: str | None = None,
    head: bytes = b"",
    choice: Choice | None = None,
) -> tuple[str, str]:
    """Decodes a text; returns it, with `\\n` as line end, and its encoding's name.
    `mark` comes from `mark_of` the file, and `head` holds the header of the book. A
    `ValueError`: the data is binary, or its encoding is not known."""
    if mark is None and b"\0" in data:
        for place, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):
            # Of these bytes, more than half are 0: UTF-16 of a Latin script.
            if data[place:8192:2].count(0) * 4 > len(data[:8192]):
                raise ValueError(
                    "UTF-16 without a byte order mark: convert it with "
                    f"`iconv -f {name} -t UTF-8`"
                )
        raise ValueError("not plain text: it holds NUL characters")
    name = mark
    has_escapes = any(escape in data for escape in _ISO_2022)
    if name is None and not has_escapes:
        with contextlib.suppress(UnicodeDecodeError):
            data.decode()
            name = "utf-8-sig"
    if name is None:
        name = _stated_encoding(head)
        if choice and (choice.is_for_file or not name):
            name = choice.name
        if name is None and data.startswith(codecs.BOM_UTF8):
            name = "utf-8-sig"
    if name is None:
        sample = _sample(data)
        names = _likeliest(sample)[:2]
        texts = [sample.decode(name, errors="replace") for name in names]
        # The part of a line in which the readings begin to differ.
        place = len(os.path.commonprefix(texts))
        start = max(texts[0].rfind("\n", 0, place) + 1, place - 20)
        readings = " or ".join(
            f"{name} ({text[start : start + 60].splitlines()[0]!r})"
            for name, text in zip(names, texts, strict=True)
        )
        raise ValueError(
            "not UTF-8, and no header states its encoding: it may be "
            f"{readings}: give --encoding NAME or --encoding 'PATTERN=NAME', or "
            "--encoding auto for the likeliest of each file"
        )
    text = data.decode(name, errors="replace").removeprefix("\ufeff")
    # Some bytes are damaged, or are not defined, as five of Windows-1252 are.
    if text.count("\ufffd") * 100 > len(text):
        raise ValueError(f"neither UTF-8 nor {name}: give another --encoding")
    name = name.removesuffix("-le").removesuffix("-be")
    return text.replace("\r\n", "\n").replace("\r", "\n"), name


def _stated_encoding(head: bytes) -> str | None:
    """Returns the encoding that the header states; `None`: none, UTF-8 or ASCII."""
    match = _STATED.search(head)
    name = match[1].decode(errors="replace").lower() if match else ""
    if number := _ISO_8859.search(name):
        # As in browsers: Windows-1252 has quotation marks where Latin-1 has controls.
        part = number[1] or number[2]
        return "cp1252" if part == "1" else f"iso8859_{part}"
    if number := _CODE_PAGE.search(name):
        name = f"cp{number[1]}"
    try:
        name = codecs.lookup(name).name if name else "ascii"
        "a".encode(name)
    except (LookupError, UnicodeError):
        return None
    # The text is in neither, or it would have been valid UTF-8.
    return None if name in ("ascii", "utf-8") else name


def _sample(data: bytes) -> bytes:
    """Returns the lines that are not ASCII, up to 64 KiB of them."""
    lines = [line for line in data.split(b"\n") if not line[:1000].isascii()]
    if any(escape in data for escape in _ISO_2022) and not lines:
        lines = [line for line in data.split(b"\n") if b"\x1b" in line]
    sample = (b"\n".join(lines) or data)[: 1 << 16]
    return sample[: sample.rfind(b"\n")] if b"\n" in sample else sample


def _likeliest(sample: bytes) -> list[str]:
    """Returns encodings that read the sample differently, the likeliest first."""
    # Not at the top: it takes 30 ms, which `--help` would pay.
    import charset_normalizer

    names = ["iso2022_jp", "iso2022_kr"] if sample.isascii() else []
    matches = charset_normalizer.from_bytes(sample, cp_isolation=[*_CANDIDATES])
    names += [codecs.lookup(match.encoding).name for match in matches]
    readings: dict[str, str] = {}
    # With rare bytes the library may have no answer, or one alone.
    for name in [*names, *_CANDIDATES]:
        readings.setdefault(sample.decode(name, errors="replace"), name)
    whole = [name for text, name in readings.items() if "\ufffd" not in text]
    return whole if len(whole) > 1 else [*readings.values()]
