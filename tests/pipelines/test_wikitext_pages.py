"""Golden pages: for each rule a page of ours, and the whole text that is left of it.

`tests/data/wikitext/<name>.wikitext` is the page, `<name>.txt` its paragraphs, one on
each line. They were read, not only recorded.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from bert_keras.pipelines import wikitext

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = REPOSITORY / "tests" / "data" / "wikitext"

_, LIST = (REPOSITORY / "docs/data.md").read_text().split("The rules for wikitext are:")
RULES = set(re.findall(r"^\| `(\w+)` \| ", LIST.partition("\n## ")[0], re.MULTILINE))

# What is dropped of each page, by rule.
DROPPED = """
chinese_and_japanese: categories 2, files 1, headings 1, horizontal_rules 1, lists 1, \
references 2, templates 3
french: categories 1, headings 1, language_links 1, references 3, templates 2
german: categories 1, headings 1, references 1, tables 1, templates 1
headings_and_lines: comments 1, fragments 3, headings 6, preformatted 2, \
without_letters 1
html_and_entities: templates 2
links_and_files: categories 2, files 6, language_links 3, references 2, templates 1
quotes: templates 3
raw_text: code 3, comments 2, extensions 2, formulas 3, galleries 1
references: headings 1, references 9, templates 2
signatures: lists 1, templates 1
tables_and_lists: galleries 1, horizontal_rules 1, leads 1, lists 10, table_rows 3, \
tables 5
templates: files 1, templates 13
unclosed: fragments 1, preformatted 1, references 1
"""
COUNTS = {
    name: {rule: int(number) for rule, number in re.findall(r"(\w+) (\d+)", counts)}
    for name, counts in re.findall(r"(\w+): (.*)", DROPPED)
}


@pytest.mark.parametrize("name", COUNTS)
def test_page(name):
    source = (PAGES / f"{name}.wikitext").read_text(encoding="utf-8")
    expected = (PAGES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    counts = Counter()
    assert wikitext.clean(source, counts) == expected
    assert counts == COUNTS[name]
    # The report changes nothing, and adds to what is in it already.
    assert wikitext.clean(source) == expected
    wikitext.clean(source, counts)
    assert counts == {rule: 2 * count for rule, count in COUNTS[name].items()}


def test_pages_are_all_tested_and_each_rule_has_one():
    assert {path.stem for path in PAGES.iterdir()} == set(COUNTS)
    rules = {rule for counts in COUNTS.values() for rule in counts}
    assert rules == RULES


def test_spaces_at_the_ends_of_lines_make_no_difference():
    for name in ("templates", "tables_and_lists", "references"):
        source = (PAGES / f"{name}.wikitext").read_text(encoding="utf-8")
        assert wikitext.clean(source.replace("\n", " \n")) == wikitext.clean(source)
