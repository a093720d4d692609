"""What is left out of a corpus: pages that only list links. Pure: knows no Beam.

Pages are judged by title and templates: what cleaning leaves of a list looks like
sparse prose. Disambiguation pages, lists, indexes of articles and outlines go.
Timelines, glossaries, discographies and set indexes stay: many are written in sentences
(the article Anaconda is a set index), and of those that are not, cleaning leaves so
little that they fall to the least length of a document.
"""

import re

DISAMBIGUATION_PAGE = "disambiguation page"
LIST_PAGE = "list page"

# === Pages ===


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.replace("\n", "|").split("|"))


# In brackets at the end of a title, as each Wikipedia has it.
_DISAMBIGUATION_TITLES = _names(
    """disambiguation|begriffsklärung|homonymie|desambiguación|desambiguação
    desambiguació|disambigua|doorverwijspagina|ujednoznacznienie|значения|значение
    значення|пояснение|olika betydelser|flertydig|andre betydninger|täsmennyssivu
    rozcestník|rozlišovacia stránka|egyértelműsítő lap|dezambiguizare|anlam ayrımı
    توضيح|ابهام‌زدایی|פירושונים|曖昧さ回避|消歧义|消歧義|동음이의|định hướng|disambiguasi
    apartigilo|argipen|вишезначна одредница|razdvojba|αποσαφήνιση|zeimeibu škiršona
    zeimeibu škieršona"""
)

# What marks a page itself; not the notes that lead to such a page, as
# `{{Begriffsklärungshinweis}}` and `{{Voir homonymes}}` do.
_DISAMBIGUATION_TEMPLATES = _names(
    """disambig|disambiguation|disambiguation page|disambiguation cleanup
    disambig-cleanup|disamb|disam|dab|dmbox|tladisambig|tlad|2lcdisambig|3lcdisambig
    4ladisambig|4ccdisambig|5ladisambig|hndis|hndisambig|hndis-cleanup|geodis|geodab
    geodisambig|geo-dis|roaddis|road disambiguation|schooldis|school disambiguation
    school disambig|hospitaldis|hospital disambiguation|mathdab|math dab|numberdis
    number disambiguation|number disambig|human name disambiguation
    human name disambiguation cleanup|place name disambiguation
    airport disambiguation|airport disambig|biology disambiguation
    call sign disambiguation|callsigndis|caselaw disambiguation
    chinese title disambiguation|church disambiguation|genus disambiguation
    letter-number combination disambiguation|letter-numbercombdisambig
    letter disambiguation|mathematical disambiguation|military unit disambiguation
    mil-unit-dis|molecular formula disambiguation|molformdisambig
    music disambiguation|opus number disambiguation|phonetics disambiguation
    portal disambiguation|species latin name disambiguation|latindisambig
    species latin name abbreviation disambiguation|surname disambiguation
    synagogue disambiguation|taxonomic authority disambiguation
    taxonomy disambiguation|template disambiguation|wp disambig
    begriffsklärung|begriffsklaerung|homonymie|homonyme|bandeau d'homonymie
    personnes homonymes|villes homonymes|communes françaises homonymes
    communes homonymes|cantons homonymes|films homonymes|batailles homonymes
    guerres homonymes|gouvernements homonymes|saints homonymes|unités homonymes
    édifices religieux homonymes|desambiguación|desambiguacion|desambig
    desambiguação|desambiguacao|desambiguació|disambigua|doorverwijspagina|dpintro
    dp}|ujednoznacznienie|strona ujednoznaczniająca|неоднозначность|многозначность
    список однофамильцев|неоднозначність|багатозначність|disambigg|gren|förgrening
    förgreningssida|namnförgrening|ortnamnsförgrening|flertydig|peker|pekerside
    fleirtyding|täsmennyssivu|täsmennys|rozcestník|rozlišovacia stránka
    egyért|egyértelműsítő lap|dezambiguizare|anlam ayrımı|anlamayrım|توضيح
    صفحة توضيح|ابهام‌زدایی|ابهام زدایی|פירושונים|曖昧さ回避|aimai
    人名の曖昧さ回避|地名の曖昧さ回避|人名曖昧さ回避|地名曖昧さ回避|消歧义|消歧義
    消歧义页|消歧義頁|消歧義页|동음이의|동명이인|định hướng|trang định hướng
    disambiguasi|apartigilo|argipen|пояснение|вишезначна одредница|razdvojba
    αποσαφήνιση|nuorodinis straipsnis|nozīmju atdalīšana|täpsustuslehekülg
    zeimeibu škiršona|zeimeibu škieršona"""
)

_TITLE_NOTE = re.compile(r"[(（]([^()（）]+)[)）]\s*$")
# A word that begins small tells lists from names: `Список Шиндлера` is a film, `Liste
# électorale` an article.
_LIST_TITLE = re.compile(
    "|".join(
        (
            r"Lists? of |Index of .*\b(?:articles|topics)$|Outline of (?!an? )",
            r"Listen? (?:der|von|vom|aller|[a-zäöü]\w*er) ",
            r"Listes? (?:de |des |du |d['’])",
            r"Listas? (?:de \w+s\b|d[ao]s |dei |degli |delle )",
            r"Llistes? (?:de \w+s\b|dels )|Listo de ",
            r"Lijst van |Lista över |Liste over |Luettelo ",
            r"Список [а-я]|Списък (?:на|с) |Seznam [a-zčřšžúá]|Zoznam [a-zčšž]",
            r"Danh sách |Daftar ",
            r".*(?:一覧|列表| 목록| listesi)\s*(?:[(（][^()（）]+[)）])?$",
        )
    )
)
_TEMPLATE = re.compile(r"\{\{\s*([^{}|<\n]{2,60}\}?)")
_NOT_SHOWN = re.compile(
    r"<!--.*?(?:-->|\Z)|<nowiki>.*?(?:</nowiki>|\Z)", re.DOTALL | re.IGNORECASE
)
_SWITCH = "__DISAMBIG__"


def page_reason(title: str, wikitext: str) -> str | None:
    """Why a page is no article: `DISAMBIGUATION_PAGE`, `LIST_PAGE` or None.

    Args:
        title: of a page in the article namespace.
        wikitext: of the page, with its templates.
    """
    reason = title_reason(title)
    if reason is None and _marks_disambiguation(wikitext):
        # Once more without what is not shown; rarely needed, so only now.
        if _marks_disambiguation(_NOT_SHOWN.sub("", wikitext)):
            return DISAMBIGUATION_PAGE
    return reason


def title_reason(title: str) -> str | None:
    """`page_reason` for sources that have no wikitext any more."""
    note = _TITLE_NOTE.search(title)
    if note and note[1].strip().lower() in _DISAMBIGUATION_TITLES:
        return DISAMBIGUATION_PAGE
    return LIST_PAGE if _LIST_TITLE.match(title) else None


def _marks_disambiguation(wikitext: str) -> bool:
    if _SWITCH in wikitext:
        return True
    for name in set(_TEMPLATE.findall(wikitext)):
        name = " ".join(name.lower().replace("_", " ").split())
        # Dutch pages have `dp` without arguments; elsewhere it takes some.
        if name.removesuffix("}").rstrip() in _DISAMBIGUATION_TEMPLATES:
            return True
        if name in _DISAMBIGUATION_TEMPLATES:
            return True
    return False
