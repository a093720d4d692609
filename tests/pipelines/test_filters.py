"""Pages that are dropped and, above all, pages that must not be."""

import time

import pytest

from pipelines import filters, wikipedia

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
    for page in wikipedia.read_pages(str(shared_data / "wikipedia" / name)):
        # The last page of enwik8 is cut.
        is_page = isinstance(page, wikipedia.Page)
        if is_page and page.namespace == 0 and not page.is_redirect:
            if reason := filters.page_reason(page.title, page.text):
                dropped.setdefault(reason, set()).add(page.title)
    assert dropped == DROPPED[name]
