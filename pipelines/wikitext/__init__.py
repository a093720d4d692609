"""Wikitext -> paragraphs of running text, in time linear in the page; without Beam.

Lists, tables, headings, references, files, categories and most templates are dropped,
as in section 3.1 of the BERT paper. `markup` makes one scan with a stack of open
constructs, `lines` one pass over the remaining text; `templates` knows the few
templates that stand for words.
"""

from collections import Counter

from bert_keras.pipelines.wikitext import lines, markup

RULES = {
    "categories": "[[Category:...]]",
    "code": "<pre>, <source>, <syntaxhighlight>",
    "comments": "<!-- ... -->",
    "extensions": "<timeline>, <score>, <imagemap> and other tags that draw something",
    "files": "[[File:...]] with its caption",
    "formulas": "<math>, <chem>, <ce>, <hiero>",
    "fragments": "short paragraphs that are no sentence, and pointers: 'See also ...'",
    "galleries": "<gallery>",
    "headings": "lines of == ... ==, <h1> to <h6>, lines all in bold",
    "horizontal_rules": "lines of ----",
    "language_links": "[[de:...]]",
    "leads": "a paragraph that only announces what was dropped: 'It may refer to:'",
    "lists": "items: lines that begin with * # : or ;, and <ul>, <ol>, <dl>",
    "preformatted": "lines that begin with a space",
    "references": "<ref> and <references>",
    "table_rows": "lines that begin with a bar outside of a table",
    "tables": "{| ... |} and <table>",
    "templates": "{{...}} that stand for no words we know, and parameters {{{...}}}",
    "without_letters": "paragraphs without any letter",
}
"""Names of the counters of `clean`, and what each counts as dropped."""


def clean(wikitext: str, counts: Counter[str] | None = None) -> list[str]:
    """Returns the running text of a page: paragraphs in order, each on one line.

    No paragraph is empty or a mere fragment. `counts` is incremented whenever a rule
    drops something, by the names in `RULES`.
    """
    counts = Counter() if counts is None else counts
    found = lines.paragraphs(markup.resolve(wikitext, counts), counts)
    kept = [paragraph for paragraph in found if not lines.is_fragment(paragraph)]
    if len(kept) < len(found):
        counts["fragments"] += len(found) - len(kept)
    return kept
