"""Texts in other encodings than UTF-8: each is read as it was written, or refused."""

import logging

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import encodings, reading, source

# Article 1 of the Universal Declaration of Human Rights.
TEXTS = {
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve "
    "vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket "
    "etmelidirler.",
    "lt": "Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis. Jiems suteiktas "
    "protas ir sąžinė ir jie turi elgtis vienas kito atžvilgiu kaip broliai.",
    "lv": "Visi cilvēki piedzimst brīvi un vienlīdzīgi savā pašcieņā un tiesībās. Viņi "
    "ir apveltīti ar saprātu un sirdsapziņu.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, "
    "dotados como están de razón y conciencia, deben comportarse fraternalmente los "
    "unos con los otros. ¿Mañana?",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Az "
    "emberek, ésszel és lelkiismerettel bírván, egymással szemben testvéri "
    "szellemben kell hogy viseltessenek.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они "
    "наделены разумом и совестью.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה "
    "ובמצפון.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا.",
    "ro": "Toate fiinţele umane se nasc libere şi egale în demnitate şi în drepturi. "
    "Ele sînt înzestrate cu raţiune şi conştiinţă.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych "
    "praw. Są oni obdarzeni rozumem i sumieniem.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten. Größe zählt.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα "
    "δικαιώματα.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "tw": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心。",
    "ja": "すべての人間は、生れながらにして自由であり、尊厳と権利とについて平等。",
}
ENCODINGS = {
    **{"tr": "cp1254 iso8859-9", "lt": "cp1257", "lv": "cp1257"},
    **{"es": "cp850 cp437 cp1252", "hu": "cp852 cp1250 iso8859-2"},
    **{"ru": "mac_cyrillic cp1251 koi8-r iso8859-5 cp866", "he": "cp1255"},
    **{"ar": "iso8859-6 cp1256", "ro": "cp1250 iso8859-2", "pl": "cp1250 iso8859-2"},
    **{"de": "cp1252", "el": "cp1253", "ko": "euc_kr", "zh": "gb18030", "tw": "big5"},
    "ja": "shift_jis euc_jp",
}
CASES = [(key, name) for key, names in ENCODINGS.items() for name in names.split()]
BOOK = "Title: B\n{}*** START OF THE PROJECT GUTENBERG EBOOK B ***\n\n{}\n"


def read(tmp_path, data, *options, kind="books"):
    path = tmp_path / "book.txt"
    path.write_bytes(data)
    [item] = reading.find_inputs({kind: [str(path)]}, encoding=options)
    context = source.Context()
    [part] = reading.split_input(item)
    return list(reading.read_range(part, context)), dict(context.counts)


@pytest.mark.parametrize(("key", "name"), CASES)
def test_no_file_is_read_with_wrong_letters_without_a_word(tmp_path, key, name):
    text = TEXTS[key]
    data = f"A plain line.\n{text}\n\n".encode(name) * 20
    for kind in ("books", "sentences"):
        found, _ = read(tmp_path, data, kind=kind)
        assert {type(document) for document in found} == {source.Reject}
        assert found[0].reason.startswith("not UTF-8, and no header states its enc")
        [document, *_], _ = read(tmp_path, data, "*.txt=" + name, kind=kind)
        assert text in str(document.paragraphs)
    stated = BOOK.format(f"Character set encoding: {name.upper()}\n", text)
    [book], counts = read(tmp_path, stated.encode(name))
    assert text in book.paragraphs[0]
    assert not any("utf" in name for name in counts)


def test_one_of_the_two_likeliest_is_right_for_nearly_all():
    right = 0
    for key, name in CASES:
        data = (TEXTS[key] + "\n").encode(name) * 20
        with pytest.raises(ValueError, match="not UTF-8") as error:
            encodings.decode(data)
        readings = str(error.value).split("'")[1:4:2]
        right += any(reading in TEXTS[key] for reading in readings)
    assert right >= 26


def test_the_message_shows_the_line_in_both():
    data = ("All is plain.\n" + TEXTS["tr"] + "\n").encode("cp1254") * 9
    with pytest.raises(ValueError, match="not UTF-8") as error:
        encodings.decode(data)
    assert str(error.value) == (
        "not UTF-8, and no header states its encoding: it may be cp1254 ('ysiyet ve "
        "haklar bakımından eşit doğarlar. Akıl ve vicdana s') or cp1250 ('ysiyet "
        "ve haklar bakýmýndan eţit dođarlar. Akýl ve vicdana s'): give --encoding "
        "NAME or --encoding 'PATTERN=NAME', or --encoding auto for the likeliest of "
        "each file"
    )


def test_auto_lists_its_answer_by_file(tmp_path, caplog):
    for name, listed in (("koi8-r", "koi8-r"), ("utf-8", "utf-8-sig")):
        data = (TEXTS["ru"] + "\n").encode(name) * 9
        with caplog.at_level(logging.INFO):
            [book], counts = read(tmp_path, data, "auto")
        assert TEXTS["ru"] in book.paragraphs[0]
        assert counts[f"encoding/{listed}"] == 1
    [message] = caplog.messages
    assert message.endswith("book.txt: koi8-r, by charset-normalizer")


def test_what_counts_first():
    text, name = TEXTS["ru"], "mac_cyrillic"
    data, head = text.encode(name), b"Character set encoding: MacCyrillic\n"
    for_all = encodings.Choice("cp1251", is_for_file=False)
    for_file = encodings.Choice(name, is_for_file=True)
    cases = [
        # bytes, header, choice, encoding
        (text.encode(), b"Character set encoding: cp1251\n", for_file, "utf-8-sig"),
        (data, head.replace(b"MacC", b"mac_c"), for_all, "mac-cyrillic"),
        (data, b"Character set encoding: ISO-8859-1\n", for_file, name),
        (b"\x93caf\xe9\x94", b"Character set encoding: ISO Latin-1\n", None, "cp1252"),
        (b"caf\xe9", b"Character set encoding: Windows Code Page 1252", None, "cp1252"),
        (text.encode("cp1251"), b"Character set encoding: ASCII\n", for_all, "cp1251"),
        ("人".encode("iso2022_jp"), b"", encodings.Choice("iso2022_jp", False), None),
    ]
    for data, head, choice, expected in cases:
        decoded, codec = encodings.decode(data, head=head, choice=choice)
        assert (codec, "\ufffd" in decoded) == (expected or choice.name, False)


@pytest.mark.parametrize(
    ("data", "choice", "message"),
    [
        (b"a \0 b", None, "not plain text: it holds NUL characters"),
        ("Größe".encode("utf-16-le"), None, "convert it with `iconv -f UTF-16LE -t"),
        ("Größe".encode("utf-16-be"), None, "convert it with `iconv -f UTF-16BE -t"),
        ("人".encode("iso2022_jp"), None, "it may be iso2022_jp"),
        ("Größe und “Ma".encode() + b"\xff.", None, "not UTF-8, and no header"),
        (TEXTS["ru"].encode("koi8-r"), "big5", "neither UTF-8 nor big5: give another"),
        (bytes(range(128, 256)) * 20, None, "not UTF-8, and no header"),
    ],
)
def test_damaged_and_unknown_text(data, choice, message):
    choice = choice and encodings.Choice(choice, is_for_file=True)
    with pytest.raises(ValueError, match=message):
        encodings.decode(data, choice=choice)


def test_damaged_text_whose_encoding_is_named():
    # A byte that Windows-1252 does not define is no reason to lose a book.
    for name, data in (("utf-8", b"\xff"), ("cp1252", b"\x81")):
        choice = encodings.Choice(name, is_for_file=False)
        text = "Größe und Maß. " * 20
        decoded, _ = encodings.decode(text.encode(name) + data, choice=choice)
        assert decoded == text + "\ufffd"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(([name], "such as cp1251 or gb18030, or auto") for name in ("klingon", "")),
        *(([name], "that contains ASCII") for name in ("rot13", "utf-16", "cp037")),
        (["ru/*=cp1251"], "--encoding ru/*=cp1251: is for files of --books and --sent"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, b"x", *options)
    assert message in str(error.value)


def test_an_encoding_without_books_is_refused(tmp_path):
    message = "--encoding cp1251: is for files of --books and --sentences, and there ar"
    with pytest.raises(InputError, match=message):
        read(tmp_path, b'{"id": 1, "text": "x"}', "cp1251", kind="jsonl")
