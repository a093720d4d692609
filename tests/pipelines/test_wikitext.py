"""The wikitext cleaner: literal cases, whole articles, hostile pages, real dumps."""

import random
import re
from collections import Counter

import pytest

from bert_keras.pipelines import wikitext
from bert_keras.pipelines.sources import dump_pages
from bert_keras.pipelines.wikitext import lines, markup
from tests.pipelines import cost, test_wikitext_pages

# Markup and the paragraphs that are left of it; "⏎" ends a line, "¶" a paragraph.
CASES = """
a b⏎c d⏎⏎e f → a b c d ¶ e f
'''A''' is ''b'' and '''''c'''''. → A is b and c.
Dans l''''Iliade''' et l'''Odyssée'', il → Dans l'Iliade et l'Odyssée, il
[[a]]s, [[b|c]], [[d (e)|]], [[#f|g]], [[:Category:h]] → as, c, d (e), g, Category:h
[[File:a.jpg|thumb|x [[b|c]] [[d]] y]]Text. → Text.
[[Datei:a|b]][[Ficheiro:a]][[ファイル:a.jpg]][[ملف:a]]x → x
x⏎[[Category:a]]⏎[[Kategorie:b]]⏎[[分类:c]] → x
x [[de:y]] [[zh-min-nan:z]] [[simple:z]] → x
[[wikt:a|b]] [[doi:10/x|c]] → b c
[http://a.b c d] e [https://a.b] f [//x y] [mailto:a@b me] → c d e f y me
he [sic] said [so] → he [sic] said [so]
a {{b|c={{d|[[e]]}}}} f → a f
a {{{b|{{c}}}}} {{{{{1}}}|x}} d → a d
{{Infobox⏎| a = b⏎| c = [[d|e]]⏎}}⏎Text. → Text.
It is {{convert|5|km|mi|abbr=on}}, {{convert|2|to|3|C}}, \
{{lang|fr|''mot''}}{{nbsp}}and {{transl|x|y|sort=z}} {{nowrap|a \
b}}{{ndash}}{{frac|1|2}}. → It is 5 km, 2 to 3 °C, mot and y a b–1/2.
au {{XIXe siècle}} et {{s|XX}} → au XIXe siècle et XXe siècle
a⏎{{quote|text=B c.|author=d}}⏎e → a ¶ B c. ¶ e
a<ref>b [[c]] {{d}}</ref>, e<ref name="f" />.<ref name=g>h</ref> → a, e.
a<ref>b c⏎⏎d<ref>e</ref> f → ab c ¶ d f
a⏎* b⏎# c⏎: d⏎; e⏎** f⏎g → a ¶ g
It may be:⏎* a⏎⏎See. The rest:⏎* b⏎⏎So:⏎⏎x → See. The rest: ¶ So: ¶ x
== a ==⏎b⏎=== c ===<!-- d -->⏎e⏎='f'=⏎ → b ¶ e
==a b== The text → The text
a⏎{| class="b"⏎|+ c⏎! d !! e⏎|-⏎| f || {{g}}⏎|}⏎h → a ¶ h
a⏎{|⏎|⏎{|⏎| b⏎|}⏎| c⏎|}⏎d → a ¶ d
a⏎{|⏎| b⏎⏎c → a ¶ c
a<table><tr><td>b</td></tr></table>c<ul><li>d</ul>e → a ¶ c ¶ e
a<!-- b⏎⏎[[c -->d <!-- e → ad e
H<sub>2</sub>O <span style='x'>is</span> <code>w</code> → H2O is w
a<br />b<br>c → a b c
a<blockquote>b</blockquote>c <p>d → a ¶ b ¶ c ¶ d
a <stdio.h> x < y > z <name@host> → a <stdio.h> x < y > z <name@host>
a <math>x [[ {{</math>b <syntaxhighlight lang=c>{{</syntaxhighlight>c \
<gallery>File:a|b</gallery>d<timeline>e</timeline> → a b c d
<nowiki>* [[a]] ''b'' {{c}} &amp;</nowiki> d<nowiki/>e → * [[a]] ''b'' {{c}} &amp; de
a&nbsp;b &ndash; &#8364; &#x41; &lt;c&gt; AT&T &bogus; → a b – € A <c> AT&T &bogus;
__NOTOC__ a __b__ {{DEFAULTSORT:c}} → a __b__
中-{zh-hans:国;zh-hant:國}-人-{x}- → 中国人x
A ({{lang-x|}}; born 1950{{x}} ) was , he said ( ) .⏎⏎(a, {{b}}) “c” → A (born 1950) \
was, he said. ¶ (a) “c”
main() and (, ) do it → main() and do it
'''베를린'''({{llang|de|Berlin}}, {{한자|伯林}})은 독일의 수도({{x}})이다. → \
베를린(Berlin, 伯林)은 독일의 수도이다.
Берлин({{x}}) ベルリン({{x}}) → Берлин ベルリン
 for x in y: z()⏎⏎ short line →
 {{x}}This is a long line of prose, which a template began. It goes on. → This is a \
long line of prose, which a template began. It goes on.
 →
123, 45.⏎⏎— →
a ]] b }} c |} d [[ e {{ f → a b c |} d e f
"""


@pytest.mark.parametrize("case", CASES.strip("\n").split("\n"))
def test_cases(case):
    source, _, expected = case.partition(" →")
    counts = Counter()
    resolved = markup.resolve(source.replace("⏎", "\n"), counts)
    paragraphs = lines.paragraphs(resolved, counts)
    assert " ¶ ".join(paragraphs) == expected.removeprefix(" ")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "Let f be continuous; then there is a point with:\n"
            ":<math>f(x)=0</math>.\n::<math>g</math>\nSo it is.",
            ["Let f be continuous; then there is a point with:", "So it is."],
        ),
        ("It may be:\n: one <math>x</math>\n* two", ["It may be:"]),
        ("It may refer to:\n* <math>x</math>", []),
        ("[[Energy|<math>E</math>]] is it: <math>E</math>.", ["Energy is it:."]),
        ("A value {{nowrap|<math>x</math>}} is here.", ["A value is here."]),
    ],
)
def test_the_sentence_before_an_indented_formula_stays(source, expected):
    assert wikitext.clean(source) == expected


def test_fragments_are_no_paragraphs():
    source = (
        "It is.\n\nPrint E-book\n\n493. Peach\n\nSee also: [[x]].\n\nHe asked:\n\n…"
    )
    assert wikitext.clean(source) == ["It is.", "He asked:"]
    assert wikitext.clean("long " * 13) == [("long " * 13).strip()]


# Pages of a size in proportion to n.
HOSTILE = {
    "open links": lambda n: "[[a|" * n,
    "links in links": lambda n: "[[a|" * n + "]]" * n,
    "links with text in links": lambda n: "[[a|bbbb " * n + "]]" * n,
    "bars in links": lambda n: "[[a|" * 60 + "b|" * n + "]]" * 60,
    "files with links": lambda n: "[[File:a|b [[c]] " * n + "]]" * n,
    "open external links": lambda n: "[http://a b " * n,
    "open brackets": lambda n: "[" * n,
    "closed brackets": lambda n: "]" * n,
    "open templates": lambda n: "{{a|" * n,
    "templates in templates": lambda n: "{{a|" * n + "}}" * n,
    "templates that keep much": lambda n: "{{date|" * 60 + "1|" * n + "}}" * 60,
    "digits in templates": lambda n: "{{nowrap|" * 60 + "1" * n + "}}" * 60,
    "braces": lambda n: "{{{{{a}}" * n,
    "open tables": lambda n: "{|\n" * n,
    "tables in tables": lambda n: "{|\n" * n + "\n|}" * n,
    "large table": lambda n: "{|\n" + "|-\n| a || b\n" * n + "|}",
    "templates and links crossed": lambda n: "{{[[" * n + "}}" * n + "]]" * n,
    "all crossed": lambda n: "[[a|<div>{{b|[[c" * n + "]]}}" * n,
    "open references": lambda n: "<ref>" * n,
    "open and closed references": lambda n: "<ref><ref/>" * n,
    "references closed in part": lambda n: "<ref/x>" * n,
    "ends of references": lambda n: "<ref>" + "</ref " * n,
    "open mathematics": lambda n: "<math><ref>" * n,
    "blocks in blocks": lambda n: "<div>" * n + "</div>" * n,
    "HTML tables in tables": lambda n: "<table>" * n + "</table>" * n,
    "HTML lists in lists": lambda n: "<ul><li>" * n,
    "open tags": lambda n: "<a " * n,
    "a long tag": lambda n: "<" + "a" * n,
    "open comments": lambda n: "<!--" * n,
    "comments in comments": lambda n: "<!--" * n + "-->" * n,
    "markup in nowiki": lambda n: "<nowiki>" + "[[&" * n + "</nowiki>",
    "variants": lambda n: "-{" * n + "-{a|b;c:d}-" * n,
    "quotes": lambda n: "'' ''' " * n,
    "uneven quotes": lambda n: "'''a " * (2 * n + 1) + "''b",
    "round brackets": lambda n: "(" * n + ")" * n,
    "empty brackets": lambda n: "( , " * n + " )" * n,
    "commas": lambda n: "(" + "," * n + ")" + " ," * n,
    "spaces": lambda n: " " * n + "x",
    "lines": lambda n: "\n" * n + "\n:" * n + "\n \t" * n,
    "equals signs": lambda n: "= " * n + "\n=" + "a=" * n + " " * n + "x",
    "headings in bold": lambda n: "'''a'''\n" * n,
    "entities": lambda n: "&amp;" * n + "&#" * n + "&a" * n,
    "a lead of many lists": lambda n: "a" * 4 * n + ". b:\n" + "* c\n" * n,
    "leads of a list": lambda n: "a b:\n\n" * n + "* c\n" * n,
    "pages of prose": lambda n: (" a b. c" * 20 + "\n") * (n // 8),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_cost_of_hostile_pages_grows_with_their_size(name):
    cost.assert_linear(wikitext.clean, HOSTILE[name])


SOUP = (
    "[[ ]] [ ] {{ }} {{{ }}} | \n \n\n {| |} |- ! '' ''' ''''' = == <ref> </ref> "
    "<ref/> <math> </math> <nowiki> </nowiki> <!-- --> <br> <div> <table> </table> "
    "<li> -{ }- &amp; &nbsp; &#xD800; &#0; ( ) , . : * # ; - __TOC__ [http://x File: "
    "Category: lang|fr| convert|5|km 1= a b é 漢 。 \x00 \ud800 \u200e \t"
).split(" ")


def test_any_soup_of_markup_is_cleaned():
    rng = random.Random(0)
    counts = Counter()
    for _ in range(4000):
        source = "".join(rng.choices(SOUP, k=40))
        for paragraph in wikitext.clean(source, counts):
            assert paragraph == " ".join(paragraph.split()) != ""
            assert re.search(r"[^\W\d_]", paragraph)
    assert set(counts) < test_wikitext_pages.RULES
    assert min(counts.values()) > 0


def test_every_white_space_becomes_one_space():
    spaces = {chr(code) for code in range(0x110000) if chr(code).isspace()} - {"\n"}
    assert len(spaces) > 20
    for space in spaces:
        assert wikitext.clean(f"a{space}{space}b.{space}") == ["a b."]
    for entity in ("&nbsp;", "&#160;", "&#x2009;", "&thinsp;", "&#10;", "&emsp;"):
        assert wikitext.clean(f"a{entity}{entity} b.") == ["a b."]


# Not the one in UTF-16.
DUMPS = ("*.bz2", "*.xml", "other_languages/[!b]*")
# What markup looks like where it is left in a text.
RESIDUE = {
    "link": r"\[\[|\]\]",
    "template": r"\{\{|\}\}",
    "table": r"\{\||\|\}|\|\||\|-",
    "bar": r"\|",
    "bold or italic": r"''",
    "heading": r"^=|==\s*$",
    "tag": r"</?[a-z]+[ />]|<!--|-->",
    "entity": r"&(?:[a-zA-Z]+|#\d+);",
    "magic word": r"__[A-Z]{3,}__|DEFAULTSORT|#REDIRECT",
    "file or category": r"^(?:File|Image|Category|Datei|Bild|Kategorie|Fichier|Файл|"
    r"Catégorie|Категория|ファイル|画像|Bestand|ملف|تصنيف|Kategoreja)\s*:",
    "attribute": r"\b(?:align|style|colspan|rowspan|bgcolor|class|cellpadding)\s*=",
    "picture": r"\b\d+px\b|thumb\|",
    "variant": r"-\{|\}-",
    "external link": r"\[(?:https?:)?//",
    "line prefix": r"^[*#:;|!]",
    "signature": r"~~~",
    "hole": r"\( | \)|\(\)|（）|\(,|,\)|  | [,.](?: |$)|,,",
}
# What looks like it and is text.
GENUINE = {
    ("ASCII", "bar"): "the characters of ASCII",
    ("Axiom of choice", "template"): "sets of sets",
    ("Arithmetic mean", "entity"): "how to write a mean in HTML",
    ("A", "entity"): "how to write an A in HTML",
    ("Afghanistan", "bar"): "slip of an author: (Pashto |...)",
    ("Alfons Maria Jakob", "bar"): "slip of an author: [Germany|German]",
    ("Petanks", "bar"): "slip of an author: [volūda|praņciskai",
    ("Asteroid", "bar"): "a row of links for navigation, parted by bars",
    ("Angst", "bar"): "the end of a verse",
    ("文脈自由文法", "bar"): "grammar: A | B",
    ("ゲーム", "bar"): "(無|有)",
    ("コンピュータゲーム", "bar"): "(無|有)",
    ("封神演義", "file or category"): "a link to a category in a sentence",
}


def articles(folder, patterns):
    for pattern in patterns:
        for path in sorted((folder / "wikipedia").glob(pattern)):
            for page in dump_pages.read_pages(str(path), allow_cut=True):
                is_page = isinstance(page, dump_pages.Page)
                if is_page and page.namespace == 0 and not page.is_redirect:
                    yield page


@pytest.mark.slow
def test_no_markup_is_left_in_real_dumps(shared_data):
    residue = [(name, re.compile(pattern)) for name, pattern in RESIDUE.items()]
    num_words = 0
    left = {}
    counts = Counter()
    for page in articles(shared_data, DUMPS):
        for paragraph in wikitext.clean(page.text, counts):
            num_words += paragraph.count(" ") + 1
            for name, pattern in residue:
                if pattern.search(paragraph):
                    left[page.title, name] = paragraph
    assert {key: left[key] for key in left if key not in GENUINE} == {}
    assert set(GENUINE) <= set(left)
    assert num_words > 1_500_000
    assert set(counts) <= test_wikitext_pages.RULES


def word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text))


BLOCK_TAGS = "table ref references gallery math pre timeline source ul ol imagemap"


def other_parsers_words(source: str) -> tuple[Counter[str], Counter[str]]:
    """All words of a page, and those of its prose, as mwparserfromhell has them.

    It drops neither lists, headings, tables, references nor captions. For its prose,
    they are taken out of its own tree, or (as it does not know how far they go) where a
    line begins with a mark; and so are lines that are too short to tell.
    """
    mwparserfromhell = pytest.importorskip("mwparserfromhell")
    code = mwparserfromhell.parse(source)
    words = word_counts(code.strip_code(normalize=True, collapse=True))
    dropped = code.filter_templates(recursive=False) + code.filter_comments()
    dropped += code.filter_tags(
        matches=lambda tag: str(tag.tag).strip().lower() in BLOCK_TAGS.split()
    )
    dropped += code.filter_wikilinks(matches=lambda link: ":" in str(link.title)[:12])
    for node in dropped:
        if code.contains(node):
            code.remove(node)
    long = [line for line in str(code).split("\n") if len(line) > 100]
    long = [line for line in long if line[0] not in "*#:;|!="]
    prose = mwparserfromhell.parse("\n".join(long))
    return words, word_counts(prose.strip_code(normalize=True, collapse=True))


@pytest.mark.reference
@pytest.mark.parametrize(
    "dumps",
    [
        ("enwiki-mini*", "other_languages/nl*"),
        pytest.param(DUMPS, marks=pytest.mark.slow),
    ],
)
def test_words_are_those_of_another_parser(shared_data, dumps):
    num_ours = num_found = num_prose = num_kept = 0
    # Its time is not linear in the page.
    pages = [p for p in articles(shared_data, dumps) if 2000 < len(p.text) < 40_000]
    for page in pages:
        ours = word_counts(" ".join(wikitext.clean(page.text)))
        theirs, prose = other_parsers_words(page.text)
        num_ours += ours.total()
        num_found += (ours & theirs).total()
        num_prose += prose.total()
        num_kept += (prose & ours).total()
    assert num_ours > 5_000
    # What they lack are the words of templates, such as numbers with their units.
    assert num_found >= 0.99 * num_ours
    # What we lack are lines that only announce a list, or are no sentence.
    assert num_kept >= 0.985 * num_prose
