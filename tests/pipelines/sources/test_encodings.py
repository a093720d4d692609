"""Texts in other encodings than UTF-8: each is read as it was written, or refused."""

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import encodings

TEXTS = {
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. "
    "Они наделены разумом и совестью.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych "
    "praw. Są oni obdarzeni rozumem i sumieniem.",
    "cs": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága van. "
    "Az emberek testvéri szellemben élnek, ösztönük és tűrőképességük szerint.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "zh": "人人生而自由，在尊严和权利上一律平等。"
    "他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "tw": "人人生而自由，在尊嚴和權利上一律平等。"
    "他們賦有理性和良心，並應以兄弟關係的精神相對待。",
    "ja": "すべての人間は、生れながらにして自由であり、尊厳と権利とについて平等。",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "de": "Größe und “Maß” sind für alle gleich.",
    "en": "It cost £5 at the café, and ½ of it was “paid”. " + "So it was. " * 99,
    "no": "Alle mennesker er født frie og med samme menneskeverd; også på sjøen.",
}
CASES = [
    *(("ru", name) for name in ("cp1251", "koi8-r", "iso8859-5", "cp866")),
    *((key, name) for key in ("pl", "cs", "hu") for name in ("iso8859-2", "cp1250")),
    *(("ko", "euc_kr"), ("zh", "gb18030"), ("tw", "big5"), ("ja", "shift_jis")),
    *((key, "cp1252") for key in ("fr", "de", "en", "no")),
]


@pytest.mark.parametrize(("key", "encoding"), CASES)
def test_books_are_read_as_they_were_written(key, encoding):
    text = f"{TEXTS[key]}\n" * 20
    decoded, name = encodings.decode(text.encode(encoding))
    assert decoded == text
    assert not name.startswith("utf")
    # Plain UTF-8 is no guess.
    assert encodings.decode(text.encode()) == (text, "utf-8-sig")


def test_a_given_encoding_is_for_what_is_not_utf_8():
    text, name = TEXTS["ru"], "mac_cyrillic"
    assert encodings.decode(text.encode(name), otherwise=name) == (text, name)
    assert encodings.decode(text.encode(), otherwise="big5")[0] == text
    with pytest.raises(ValueError, match="neither UTF-8 nor big5: give --encoding"):
        encodings.decode(text.encode("koi8-r"), otherwise="big5")


def test_damaged_and_unknown_text():
    damaged = "Größe und “Ma".encode() + b"\xff."
    assert encodings.decode(damaged) == ("Größe und “Ma\ufffd.", "utf-8-sig")
    # A byte that Windows-1252 does not know is no reason to lose a book.
    assert encodings.decode(b"\xe9\x81")[1] == "cp1252"
    with pytest.raises(ValueError, match="not known for sure: convert it with iconv"):
        encodings.decode(bytes(range(128, 256)) * 20)
    for name in ("klingon", "rot13"):
        with pytest.raises(InputError, match="--encoding: expected the name of an enc"):
            encodings.check_name(name)
