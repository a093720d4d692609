"""Pages that are dropped and, above all, pages that must not be; evaluation lines."""

import json
import random
import re
import time

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines import filters
from bert_keras.pipelines.sources import dump_pages

DISAMBIGUATION, LIST = "disambiguation page", "list page"


@pytest.mark.parametrize(
    "title",
    [
        *("Atlas (disambiguation)", "Adler (Begriffsklärung)", "Mars (homonymie) "),
        *(
            "Mercurio (desambiguación)",
            "EU (曖昧さ回避)",
            "苹果（消歧义）",
            "Мир (значения)",
        ),
        "Superorganism (album) (disambiguation)",
    ],
)
def test_titles_of_disambiguation_pages(title):
    assert filters.title_reason(title) == DISAMBIGUATION


@pytest.mark.parametrize(
    "title",
    [
        *("List of pinnipeds", "Lists of black holes", "Outline of Dresden"),
        *("Index of Turkey biography-related articles", "Index of law topics"),
        *("Liste der Planeten", "Liste deutscher Museen", "Liste des pays du monde"),
        *(
            "Liste d'écoles",
            "Lista de presidentes",
            "Lista dos reis",
            "Lijst van rivieren",
        ),
        *("Список городов", "Lista över sjöar", "Luettelo järvistä", "Seznam měst"),
        *(
            "国の一覧",
            "国の一覧 (大陸別)",
            "中国城市列表",
            "대통령 목록",
            "Nehirler listesi",
        ),
    ],
)
def test_titles_of_lists(title):
    assert filters.title_reason(title) == LIST


@pytest.mark.parametrize(
    "title",
    [
        # Names, and words that happen to begin alike.
        *(
            "Listed buildings in Beckbury",
            "Lister Hospital (Chelsea)",
            "List",
            "Listronotus",
        ),
        *(
            "The List of Adrian Messenger",
            "Index of refraction",
            "Index of Economic Freedom",
        ),
        *("Outline of a Theory of Practice", "Список Шиндлера", "Liste Pilz"),
        *(
            "Liste électorale",
            "Liste noire",
            "Lista de espera",
            "Seznam",
            "Schindlerlijst",
        ),
        *("Animalia (book)", "Abstract (law)", "Disambiguation", "一覧表", "目録"),
        # Prose, often: what is left of others is too short to be kept.
        *(
            "Timeline of Belgrade history",
            "Glossary of chess",
            "Kanye West discography",
        ),
    ],
)
def test_titles_of_articles(title):
    assert filters.title_reason(title) is None


@pytest.mark.parametrize(
    "wikitext",
    [
        *(
            "{{disambig}}",
            "x\n{{Disambiguation|geo|surname}}\n",
            "{{ hndis |Gore, Al}}",
        ),
        *("{{geodis}}", "{{Begriffsklärung}}", "{{Homonymie}}", "{{desambiguación}}"),
        *(
            "{{неоднозначность}}",
            "{{曖昧さ回避}}",
            "{{Aimai}}",
            "{{dp}}",
            "{{3LCdisambig\n}}",
        ),
        *("{{Human_name_disambiguation}}", "{{disambig<!-- a -->}}", "__DISAMBIG__"),
        "<!-- {{a}} --> {{a|{{b|{{disambig}}}}}} <nowiki>{{c}}</nowiki>",
    ],
)
def test_templates_of_disambiguation_pages(wikitext):
    assert filters.page_reason("Alien", f"* [[A]]\n{wikitext}\n[[Category:A]]") == (
        DISAMBIGUATION
    )


@pytest.mark.parametrize(
    "wikitext",
    [
        # Notes that lead to such pages, requests for one, other templates.
        *("{{Begriffsklärungshinweis}}", "{{Voir homonymes|A}}", "{{要曖昧さ回避}}"),
        *("{{disambiguation needed}}", "{{R from incomplete disambiguation}}"),
        *("{{other uses}}", "{{Nota disambigua|a}}", "{{dp|4}}", "{{dp |4}}"),
        *(
            "{{Set index article|snakes}}",
            "{{surname}}",
            "{{AEX}}",
            "disambig",
            "{disambig}",
        ),
        *("{{x|disambig}}", "{{x|template=disambig}}"),
        # Not shown, so not in force.
        *(
            "<!-- {{disambig}} -->",
            "<nowiki>{{disambig}}</nowiki>",
            "<!-- {{disambig}}",
        ),
    ],
)
def test_other_templates_are_left_alone(wikitext):
    assert filters.page_reason("Alien", f"{wikitext}\nAn article.") is None


def test_the_title_goes_before_the_text():
    assert filters.page_reason("List of A (disambiguation)", "") == DISAMBIGUATION
    assert filters.page_reason("List of A", "{{disambig}}") == LIST


@pytest.mark.parametrize(
    "text",
    [
        *("{{" * 500_000, "{{ \t" * 250_000, "{{dab|" * 160_000, "x" * 1_000_000),
        *("{{dab}}" + "<!--" * 250_000, "{{dab}}" + "<nowiki>" * 120_000),
        *("(" * 1_000_000, "(a" * 500_000, "一覧 " * 300_000, "{{" + " " * 1_000_000),
    ],
    ids=range(10),
)
def test_hostile_pages_cost_no_more_than_others(text):
    start = time.process_time()
    filters.page_reason(text, text)
    assert time.process_time() - start < 1


# All pages of the real dumps that are dropped, looked at one by one: no article.
DROPPED = {
    "enwiki-2022-excerpt-pages-articles.xml.bz2": {
        DISAMBIGUATION: {
            *("Alien", "Ada", "Asterism", "Aberdeen (disambiguation)"),
            *("Animal (disambiguation)", "Argument (disambiguation)"),
            *("Asia Minor (disambiguation)", "Atlas (disambiguation)"),
            "Austin (disambiguation)",
        },
        LIST: {"List of Atlas Shrugged characters", "List of anthropologists"},
    },
    "enwik8-first-4154399-bytes.xml": {
        DISAMBIGUATION: {
            *("Alien", "America", "Austin", "Albert Arnold Gore", "Ada", "Argument"),
            *("Architecture (disambiguation)", "Aberdeen (disambiguation)", "AM"),
            *("Animal (disambiguation)", "Aa River", "Atlas (disambiguation)"),
            *("Asterism", "Altenberg", "Archie"),
        },
        LIST: {"List of anthropologists"},
    },
    "other_languages/jawiki-2022-excerpt-pages-articles.xml.bz2": {
        DISAMBIGUATION: {
            *("EU (曖昧さ回避)", "地理", "タイ", "サンバ", "フォスター", "ゴスペル"),
        },
        LIST: {
            *("国の一覧", "社会学者の一覧", "音楽のジャンル一覧", "日本の漫画作品一覧"),
            *(
                "ミュージシャン一覧 (グループ)",
                "ゲームのタイトル一覧",
                "ゲーム会社一覧",
            ),
            *(
                "内閣総理大臣の一覧",
                "国の一覧 (大陸別)",
                "東京を舞台とした映画作品一覧",
            ),
        },
    },
    "other_languages/dewiki-minidump.xml.bz2": {},
    "other_languages/frwiki-minidump.xml.bz2": {},
    "other_languages/arwiki-minidump.xml.bz2": {},
    "other_languages/nlwiki-20140927-pages-articles-sample.xml": {},
}


@pytest.mark.parametrize("name", DROPPED)
def test_drops_no_article_of_real_dumps(shared_data, name):
    dropped = {}
    for page in dump_pages.read_pages(str(shared_data / "wikipedia" / name)):
        # The last page of enwik8 is cut.
        is_page = isinstance(page, dump_pages.Page)
        if is_page and page.namespace == 0 and not page.is_redirect:
            if reason := filters.page_reason(page.title, page.text):
                dropped.setdefault(reason, set()).add(page.title)
    assert dropped == DROPPED[name]


# Overlap with evaluation files.

LINE = "The quick brown fox jumps over the lazy dog."
FOUND = "the quick brown fox jumps over the lazy dog"


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
    for _ in range(400):
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
        overlap = filters.make_overlap(lines)
        assert overlap.find(paragraphs) == expected
        again = filters.Overlap.from_bytes(overlap.to_bytes())
        assert again.find(paragraphs) == expected
        assert again.sha256 == overlap.sha256
        found.append(expected and expected.count(" ") + 1)
    # Lines of all lengths, and documents without any.
    assert set(found) == {None, 8, 9, 10, 11}


@pytest.mark.parametrize(
    "paragraphs",
    [
        *([LINE], ["x", f"So: \u201c{LINE}\u201d, he said."], [LINE.upper()]),
        *(["THE QUICK", "brown-fox jumps, over\tthe lazy", "dog"], [f"{LINE}s {LINE}"]),
    ],
)
def test_case_punctuation_and_white_space_do_not_matter(paragraphs):
    assert filters.make_overlap([LINE, "too short"]).find(paragraphs) == FOUND


@pytest.mark.parametrize(
    "paragraphs",
    [
        *([], [""], ["The quick brown fox"], [LINE.replace("lazy", "laziest")]),
        *([LINE.replace("fox ", "")], [LINE[1:]], [f"{LINE[:-1]}s"], ["too short"]),
    ],
)
def test_a_part_of_a_line_is_no_overlap(paragraphs):
    assert filters.make_overlap([LINE, "too short"]).find(paragraphs) is None
    assert filters.make_overlap([]).find(paragraphs) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("He doesn 't like the 90 's \"music\" .", "He doesn't like the 90's ‘music’."),
        # Accents of one code point and of two.
        (
            "Café é est là un deux trois cinq",
            "CAFE\u0301 E\u0301 est la\u0300 un deux trois cinq",
        ),
        ("吾輩は猫である名前。", "「吾輩は、猫である名前」と"),
    ],
)
def test_text_that_was_tokenised_before_and_other_scripts(line, text):
    found = filters.make_overlap([line]).find(["before", text, "after"])
    assert found == " ".join(filters.normalise(text.strip("と")))


def test_lines_of_scripts_without_spaces():
    line = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ"
    overlap = filters.make_overlap([line])
    assert overlap.find([f"ทุกคนรู้ว่า{line}ต่างมีเหตุผล"]) == " ".join(
        filters.normalise(line)
    )
    assert overlap.find([line[:-1], line[1:]]) is None
    # Seven words: they would occur by chance.
    assert not len(filters.make_overlap([line[:28]]).heads)
    assert len(filters.make_overlap([line[:40]]).heads)


def test_its_digest_tells_the_lines_and_nothing_else():
    lines = [f"{LINE} {i}" for i in range(50)]
    digest = filters.make_overlap(lines).sha256
    assert filters.make_overlap([*lines[::-1], lines[3], "too short"]).sha256 == digest
    assert filters.make_overlap(lines[1:]).sha256 != digest
    assert re.fullmatch("[0-9a-f]{64}", digest)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_reads_lines_fields_and_strings(tmp_path):
    letters = "a b c d e f g "
    quoted = f'1,"{letters}""q"", r\n{letters}s"\r\n'
    squad = {
        "data": [
            {
                "title": f"{letters} title",
                "paragraphs": [
                    {
                        "context": f"{LINE} Short one. {LINE[:-1]}s.\n{LINE}",
                        "qas": [
                            {
                                "id": f"{letters} id",
                                "question": f"{letters}?",
                                "answers": [
                                    {"text": f"{letters} x", "answer_start": 1}
                                ],
                            }
                        ],
                    }
                ],
            }
        ]
    }
    expected = {
        write(tmp_path / "a.txt", f"\ufeff{LINE}\r\n\nx\n"): [LINE, "", "x"],
        write(tmp_path / "a.tsv", f'1\t"{LINE}\tx\ny'): ["1", f'"{LINE}', "x", "y"],
        write(tmp_path / "a.csv", quoted): ["1", f'{letters}"q", r\n{letters}s'],
        write(tmp_path / "a.JSON", json.dumps(squad)): [
            *(f"{letters} title", LINE, "Short one.", f"{LINE[:-1]}s.", LINE),
            f"{letters}?",
        ],
        write(tmp_path / "a.jsonl", f'{{"b": ["{LINE}", 1, null]}}\n\n"x"'): [
            LINE,
            "x",
        ],
    }
    for path, lines in expected.items():
        assert filters.read_lines(path) == lines
    patterns = [str(tmp_path / "*.[Jt]*"), str(tmp_path / "a.csv"), *expected]
    every = filters.make_overlap(sum(expected.values(), []))
    assert filters.read_overlap(patterns).sha256 == every.sha256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tokens",
            LINE.encode(),
            "evaluation files are .txt, .tsv, .csv, .json, .jsonl",
        ),
        ("a", LINE.encode(), "told by their names; write its text into a .txt file"),
        ("a.txt", b"caf\xe9 " * 9, "expected UTF-8 text .*: .*can't decode byte 0xe9"),
        ("a.tsv", b"a b c d e f g h\0", "expected UTF-8 text .*: it holds NUL"),
        ("a.json", b'{"a": ', "expected UTF-8 text of the kind .*: Expecting value"),
        ("a.json", b"[" * 200_000, "expected UTF-8 text of the kind .*recursion"),
        ("a.txt", b"token O\ntoken O\n", "no line of at least 8 words, so nothing"),
    ],
)
def test_refuses_what_it_cannot_compare(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        filters.read_overlap([str(tmp_path / name)])


def test_refuses_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="--exclude_overlap_with: no file matches"):
        filters.read_overlap([str(tmp_path / "none.txt")])
    with pytest.raises(InputError, match="a.txt: cannot be read: Is a directory"):
        (tmp_path / "a.txt").mkdir()
        filters.read_overlap([str(tmp_path / "a.txt")])


def test_real_evaluation_files(shared_data):
    """GLUE and SQuAD against the articles that SQuAD was made from."""
    squad = shared_data / "squad/v1.1/dev-v1.1.json"
    overlap = filters.read_overlap([str(squad), str(shared_data / "glue/RTE/dev.tsv")])
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    for article in articles:
        # As another version of the article would be: half of each paragraph is new.
        texts = [p["context"][: len(p["context"]) // 2] for p in article["paragraphs"]]
        assert overlap.find(texts)
    book = (shared_data / "books/gutenberg/pg345.txt").read_text(encoding="utf-8")
    assert overlap.find(book.split("\n\n")) is None
