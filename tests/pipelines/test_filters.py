"""Pages that are dropped and, above all, pages that must not be; evaluation lines."""

import json
import random
import re

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines import filters
from bert_keras.pipelines.sources import dump_pages
from tests.pipelines import cost

DISAMBIGUATION, LIST = "disambiguation page", "list page"

TITLES = {
    DISAMBIGUATION: """
Atlas (disambiguation)|Adler (Begriffsklärung)|Mars (homonymie) |EU (曖昧さ回避)
Mercurio (desambiguación)|苹果（消歧义）|Мир (значения)|List of A (disambiguation)
Superorganism (album) (disambiguation)""",
    LIST: """
List of pinnipeds|Lists of black holes|Outline of Dresden|Index of law topics
Index of Turkey biography-related articles|Liste der Planeten|Liste deutscher Museen
Liste des pays du monde|Liste d'écoles|Lista de presidentes|Lista dos reis
Lijst van rivieren|Список городов|Lista över sjöar|Luettelo järvistä|Seznam měst
国の一覧|国の一覧 (大陸別)|中国城市列表|대통령 목록|Nehirler listesi""",
    # Names, and words that happen to begin alike. The last three are often prose: what
    # is left of others is too short to be kept.
    None: """
Listed buildings in Beckbury|Lister Hospital (Chelsea)|List|Listronotus|Liste Pilz
The List of Adrian Messenger|Index of refraction|Index of Economic Freedom|Seznam
Outline of a Theory of Practice|Список Шиндлера|Liste électorale|Liste noire|一覧表
Lista de espera|Schindlerlijst|Animalia (book)|Abstract (law)|Disambiguation|目録
Timeline of Belgrade history|Glossary of chess|Kanye West discography""",
}


def names(table):
    return re.split(r"[|\n]", table.removeprefix("\n"))


def test_titles():
    for reason, table in TITLES.items():
        titles = names(table)
        found = {title: filters.page_reason(title, "text") for title in titles}
        assert found == dict.fromkeys(titles, reason)
    # The title goes before the text.
    assert filters.page_reason("List of pinnipeds", "{{disambig}}") == LIST


def texts(table):
    return re.split(r" ;\s", table)


@pytest.mark.parametrize(
    "wikitext",
    texts(
        "{{disambig}} ; x\n{{Disambiguation|geo|surname}}\n ; {{ hndis |Gore, Al}} ; "
        "{{geodis}} ; {{Begriffsklärung}} ; {{Homonymie}} ; {{desambiguación}} ; "
        "{{неоднозначность}} ; {{曖昧さ回避}} ; {{Aimai}} ; {{dp}} ; "
        "{{3LCdisambig\n}} ; {{Human_name_disambiguation}} ; {{disambig<!-- a -->}} ; "
        "__DISAMBIG__ ; <!-- {{a}} --> {{a|{{b|{{disambig}}}}}} <nowiki>{{c}}</nowiki>"
    ),
)
def test_templates_of_disambiguation_pages(wikitext):
    page = f"* [[A]]\n{wikitext}\n[[Category:A]]"
    assert filters.page_reason("Alien", page) == DISAMBIGUATION


@pytest.mark.parametrize(
    "wikitext",
    texts(
        # Notes that lead to such pages, requests for one, other templates.
        "{{Begriffsklärungshinweis}} ; {{Voir homonymes|A}} ; {{要曖昧さ回避}} ; "
        "{{disambiguation needed}} ; {{R from incomplete disambiguation}} ; "
        "{{other uses}} ; {{Nota disambigua|a}} ; {{dp|4}} ; {{dp |4}} ; {{surname}} ; "
        "{{Set index article|snakes}} ; {{AEX}} ; disambig ; {disambig} ; "
        "{{x|disambig}} ; {{x|template=disambig}} ; "
        # Not shown, so not in force.
        "<!-- {{disambig}} --> ; <nowiki>{{disambig}}</nowiki> ; <!-- {{disambig}}"
    ),
)
def test_other_templates_are_left_alone(wikitext):
    assert filters.page_reason("Alien", f"{wikitext}\nAn article.") is None


@pytest.mark.parametrize(
    ("piece", "begin"),
    [
        *(("{{", ""), ("{{ \t", ""), ("{{dab|", ""), ("x", ""), ("<!--", "{{dab}}")),
        *(("<nowiki>", "{{dab}}"), ("(", ""), ("(a", ""), ("一覧 ", ""), (" ", "{{")),
    ],
)
def test_hostile_pages_cost_no_more_than_others(piece, begin):
    cost.assert_linear(lambda t: filters.page_reason(t, t), lambda n: begin + piece * n)


# All pages of the real dumps that are dropped, looked at one by one: no article.
DROPPED = {
    "enwiki-2022-excerpt-pages-articles.xml.bz2": {
        DISAMBIGUATION: """
Alien|Ada|Asterism|Aberdeen (disambiguation)|Animal (disambiguation)
Argument (disambiguation)|Asia Minor (disambiguation)|Atlas (disambiguation)
Austin (disambiguation)""",
        LIST: "\nList of Atlas Shrugged characters|List of anthropologists",
    },
    "enwik8-first-4154399-bytes.xml": {
        DISAMBIGUATION: """
Alien|America|Austin|Albert Arnold Gore|Ada|Argument|AM|Aa River|Archie|Asterism
Architecture (disambiguation)|Aberdeen (disambiguation)|Animal (disambiguation)
Atlas (disambiguation)|Altenberg""",
        LIST: "\nList of anthropologists",
    },
    "other_languages/jawiki-2022-excerpt-pages-articles.xml.bz2": {
        DISAMBIGUATION: "\nEU (曖昧さ回避)|地理|タイ|サンバ|フォスター|ゴスペル",
        LIST: """
国の一覧|社会学者の一覧|音楽のジャンル一覧|日本の漫画作品一覧|ゲームのタイトル一覧
ミュージシャン一覧 (グループ)|ゲーム会社一覧|内閣総理大臣の一覧|国の一覧 (大陸別)
東京を舞台とした映画作品一覧""",
    },
    "other_languages/dewiki-minidump.xml.bz2": {},
    "other_languages/frwiki-minidump.xml.bz2": {},
    "other_languages/arwiki-minidump.xml.bz2": {},
    "other_languages/nlwiki-20140927-pages-articles-sample.xml": {},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "excerpt" in name else [])
        for name in DROPPED
    ],
)
def test_drops_no_article_of_real_dumps(shared_data, name):
    dropped = {}
    path = str(shared_data / "wikipedia" / name)
    for page in dump_pages.read_pages(path, allow_cut=True):
        # The last page of enwik8 is cut.
        is_page = isinstance(page, dump_pages.Page)
        if is_page and page.namespace == 0 and not page.is_redirect:
            if reason := filters.page_reason(page.title, page.text):
                dropped.setdefault(reason, set()).add(page.title)
    assert dropped == {reason: {*names(t)} for reason, t in DROPPED[name].items()}


# Overlap with evaluation files.

LINE = "The quick brown fox jumps over the lazy dog."
FOUND = "the quick brown fox jumps over the lazy dog"
CHANGES = [("lazy", "laziest"), ("fox ", ""), ("The", "he"), (".", "s"), (" dog.", "")]
CAT = " ".join("吾輩は猫である名前")
THAI = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ"


def overlap_of(lines):
    return filters.Overlap(filters.compared_lines(lines))


def naive(lines, paragraphs):
    """The first line in a document, the shortest of those that begin there."""

    def spaced(text):
        words = re.findall(r"[a-z0-9]+", text.lower())
        return " " + " ".join(words) + " ", len(words)

    document, _ = spaced("\n".join(paragraphs))
    found = []
    for line in lines:
        words, num_words = spaced(line)
        if num_words >= 8 and words in document:
            found.append((document.index(words), num_words, words.strip()))
    return min(found)[-1] if found else None


def test_finds_what_a_naive_search_finds():
    rng = random.Random(2)
    found = []
    for _ in range(150):
        # Lines that begin alike, of which a document has one further than another.
        starts = [rng.choices("abc", k=8) for _ in range(3)]
        ends = [rng.choices("abx", k=rng.randint(0, 3)) for _ in range(8)]
        lines = [" ".join(rng.choice(starts) + rng.choice(ends)) for _ in range(6)]
        lines += ["a b c", " ".join(starts[0][:7])]
        words = rng.choices("abcx", k=rng.randint(0, 40))
        words += rng.choice(starts) + rng.choices("abx", k=rng.randint(0, 9))
        cut = rng.randint(0, len(words))
        paragraphs = [" ".join(words[:cut]), " ".join(words[cut:])]
        expected = naive(lines, paragraphs)
        assert overlap_of(lines).find(paragraphs) == expected
        found.append(expected and expected.count(" ") + 1)
    # Lines of all lengths, and documents without any.
    assert set(found) == {None, 8, 9, 10, 11}


@pytest.mark.parametrize(
    ("line", "paragraphs", "found"),
    [
        # Case, punctuation and white space do not matter.
        *((LINE, [text], FOUND) for text in (LINE, LINE.upper(), f"{LINE}s {LINE}")),
        (LINE, ["x", f"So: \u201c{LINE}\u201d, he said."], FOUND),
        (LINE, ["THE QUICK", "brown-fox jumps, over\tthe lazy", "dog"], FOUND),
        # A part of a line is no overlap.
        *((LINE, paragraphs, None) for paragraphs in ([], [""], ["too short"])),
        *((LINE, [LINE.replace(*change)], None) for change in CHANGES),
        # Text that was tokenised before, accents of one code point and of two, and
        # scripts without spaces, where seven words would occur by chance.
        (
            "He doesn 't like the 90 's \"music\" .",
            ["before", "He doesn't like the 90's ‘music’.", "after"],
            "he doesn t like the 90 s music",
        ),
        (
            "Café é est là un deux trois cinq",
            ["CAFE\u0301 E\u0301 est la\u0300 un deux trois cinq"],
            "café é est là un deux trois cinq",
        ),
        (
            "吾輩は猫である名前。",
            ["「吾輩は、猫である名前」と"],
            "吾 輩 は 猫 で あ る 名 前",
        ),
        (THAI, [f"ทุกคนรู้ว่า{THAI}ต่างมีเหตุผล"], " ".join(THAI)),
        (THAI, [THAI[:-1], THAI[1:]], None),
        (THAI[:40], [THAI], " ".join(THAI[:40])),
        (THAI[:28], [THAI], None),
    ],
)
def test_overlap_of_a_line(line, paragraphs, found):
    assert overlap_of([line, "too short"]).find(paragraphs) == found
    assert overlap_of([]).find(paragraphs) is None


def test_its_digest_tells_the_lines_and_nothing_else():
    lines = [f"{LINE} {i}" for i in range(50)]
    digest = overlap_of(lines).sha256
    assert overlap_of([*lines[::-1], lines[3], "too short"]).sha256 == digest
    assert overlap_of(lines[1:]).sha256 != digest
    assert re.fullmatch("[0-9a-f]{64}", digest)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_reads_lines_fields_and_strings(tmp_path):
    letters = "a b c d e f g "
    quoted = f'1,"{letters}""q"", r\n{letters}s"\r\n'
    answer = {"text": f"{letters} x", "answer_start": 1}
    question = {"id": f"{letters} id", "question": f"{letters}?", "answers": [answer]}
    context = f"{LINE} Short one. {LINE[:-1]}s.\n{LINE}"
    paragraph = {"context": context, "qas": [question]}
    article = {"title": f"{letters} title", "paragraphs": [paragraph]}
    jsonl = f'{{"b": ["{LINE}", 1, null]}}\n\n"x"'
    expected = {
        write(tmp_path / "a.txt", f"\ufeff{LINE}\r\n\nx\n"): [LINE, "", "x"],
        write(tmp_path / "a.tsv", f'1\t"{LINE}\tx\ny'): ["1", f'"{LINE}', "x", "y"],
        write(tmp_path / "a.csv", quoted): ["1", f'{letters}"q", r\n{letters}s'],
        write(tmp_path / "a.JSON", json.dumps({"data": [article]})): [
            *(f"{letters} title", LINE, "Short one.", f"{LINE[:-1]}s.", LINE),
            f"{letters}?",
        ],
        write(tmp_path / "a.jsonl", jsonl): [LINE, "x"],
    }
    for path, lines in expected.items():
        assert filters.read_lines(path) == lines
    patterns = [str(tmp_path / "*.[Jt]*"), str(tmp_path / "a.csv"), *expected]
    every = filters.compared_lines(sum(expected.values(), []))
    assert filters.read_evaluation_files(patterns) == every


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tokens", b"", "evaluation files are .txt, .tsv, .csv, .json, .jsonl"),
        ("a", b"", "told by their names; write its text into a .txt file"),
        ("a.txt", b"caf\xe9 " * 9, "a.txt: line 1: not UTF-8: save it as UTF-8"),
        ("a.tsv", b"a b c d e f g h\0", "expected UTF-8 text .*: it holds NUL"),
        ("a.json", b'{"a": ', "expected UTF-8 text of the kind .*: Expecting value"),
        ("a.json", b"[" * 200_000, "expected UTF-8 text of the kind .*recursion"),
        ("a.txt", b"token O\ntoken O\n", "no line of at least 8 words, so nothing"),
        ("none.txt", None, "--exclude_overlap_with: no file matches"),
    ],
)
def test_refuses_what_it_cannot_compare(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match=message):
        filters.read_evaluation_files([str(tmp_path / name)])
    with pytest.raises(InputError, match="folder.txt: .* cannot read it: Is a"):
        filters.read_evaluation_files([str(tmp_path / "folder.txt")])
