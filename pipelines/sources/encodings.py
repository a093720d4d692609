"""The encoding of text that is not UTF-8; without Beam.

charset-normalizer tells scripts apart, but not the encodings of Latin letters: there,
the letters that a language has decide.
"""

import codecs
import re

import charset_normalizer

from bert_keras.core.errors import InputError

_SAMPLE_BYTES = 1 << 16
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_ASCII_LETTER = re.compile(rb"[A-Za-z]")
_OTHER_SCRIPTS = [
    *("cp1251", "koi8_r", "iso8859_5", "cp866", "cp1253", "iso8859_7", "cp1255"),
    *("cp1256", "gb18030", "big5hkscs", "cp932", "euc_jp", "cp949"),
]
_LATIN = ("cp1252", "cp1250", "iso8859_2")
_MARKS = "“”‘’„‚«»‹›–—…•¡¿§©®°·£¢½¼¾ªº\xa0\xad"
_LANGUAGES = (
    "àâæçèéêëîïôœùûüÿ",  # French
    "áéíóúüñ",  # Spanish
    "áâãàçéêíóôõúü",  # Portuguese
    "àèéìíîòóùú",  # Italian
    "äöüßé",  # German
    "åäöéæøü",  # Danish, Norwegian, Swedish, Finnish
    "áðéíóúýþæöœ",  # Icelandic, Old English
    "éëïèöüáóí",  # Dutch
    "ąćęłńóśźż",  # Polish
    "áčďéěíňóřšťúůýžäĺľŕô",  # Czech, Slovak
    "áéíóöőúüű",  # Hungarian
    "čćđšž",  # Croatian, Slovene
    "ăâîşţ",  # Romanian
)
_WESTERN = "".join(_LANGUAGES[:8])


def check_name(name: str) -> None:
    try:
        "a".encode(name)
    except (LookupError, UnicodeError):
        raise InputError(
            f"--encoding: expected the name of an encoding, such as cp1251 or gb18030, "
            f"got {name!r}"
        ) from None


def detect(data: bytes) -> str:
    """Returns Python's name of the encoding of a text.

    Raises:
        ValueError: the encoding is not known for sure.
    """
    lines = [line for line in data.split(b"\n") if _NOT_ASCII.search(line[:1000])]
    sample = b"\n".join(lines)[:_SAMPLE_BYTES] or data[:_SAMPLE_BYTES]
    if b"\n" in sample:
        sample = sample[: sample.rfind(b"\n") + 1]
    num_high = len(_NOT_ASCII.findall(sample))
    if num_high > (num_high + len(_ASCII_LETTER.findall(sample))) / 4 and num_high > 9:
        best = charset_normalizer.from_bytes(sample, cp_isolation=_OTHER_SCRIPTS).best()
        if best is None:
            raise ValueError(_UNKNOWN)
        return codecs.lookup(best.encoding).name
    best_score, best_name = max((_score(sample, name), name) for name in _LATIN[1:])
    if best_score > 0.97 and best_score > _score(sample, _LATIN[0]) + 0.02:
        return best_name
    text = sample.decode(_LATIN[0], errors="replace").lower()
    letters = [letter for letter in text if letter > "\x7f"]
    num_known = sum(letter in _WESTERN + _MARKS for letter in letters)
    if len(letters) > 9 and num_known < 0.7 * len(letters):
        raise ValueError(_UNKNOWN)
    return _LATIN[0]


_UNKNOWN = (
    "not UTF-8, and its encoding is not known for sure: convert it with iconv, or give "
    "--encoding"
)


def _score(sample: bytes, encoding: str) -> float:
    """Returns the share of letters beyond ASCII that the best fitting language has."""
    text = sample.decode(encoding, errors="replace").lower()
    letters = [letter for letter in text if letter > "\x7f" and letter not in _MARKS]
    fits = (sum(letter in one for letter in letters) for one in _LANGUAGES)
    return max(fits) / max(len(letters), 1)


def decode(
    data: bytes, encoding: str | None = None, *, otherwise: str | None = None
) -> tuple[str, str]:
    """Decodes a text; returns it, with `\\n` as line end, and its encoding's name.

    `encoding` comes from `book_cutter.encoding_of`. Text that is mostly UTF-8 is
    decoded as UTF-8, its other bytes as U+FFFD; other text is in the encoding
    `otherwise`; `None` detects it.

    Raises:
        ValueError: binary data, or an encoding that is not known for sure.
    """
    encoding = encoding or "utf-8-sig"
    text = data.decode(encoding, errors="replace").removeprefix("\ufeff")
    if "\0" in text:
        raise ValueError("not plain text: it holds NUL characters")
    if encoding == "utf-8-sig" and "\ufffd" in text:
        # Letters of other encodings hardly ever form sequences of UTF-8.
        num_bad = text.count("\ufffd")
        num_good = sum(map(len, _NOT_ASCII_TEXT.findall(text))) - num_bad
        if num_good < num_bad:
            encoding = otherwise or detect(data)
            text = data.decode(encoding, errors="replace")
            # Windows-1252 leaves five bytes undefined, and always counted as a last
            # resort.
            if encoding != _LATIN[0] and text.count("\ufffd") * 100 > len(text):
                raise ValueError(f"neither UTF-8 nor {encoding}: give --encoding")
    name = encoding.removesuffix("-le").removesuffix("-be")
    return text.replace("\r\n", "\n").replace("\r", "\n"), name


_NOT_ASCII_TEXT = re.compile(r"[^\x00-\x7f]+")
