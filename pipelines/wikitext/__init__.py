"""Wikitext -> paragraphs of running text, in time linear in the page; without Beam.

Lists, tables, headings, references, files, categories and most templates are dropped,
as in section 3.1 of the BERT paper. `markup` makes one scan with a stack of open
constructs, `lines` one pass over the remaining text; `templates` knows the few
templates that stand for words.
"""

from collections import Counter

from bert_keras.pipelines.wikitext import lines, markup


def clean(wikitext: str, counts: Counter[str] | None = None) -> list[str]:
    """Returns the running text of a page: paragraphs in order, each on one line. No
    paragraph is empty or a mere fragment. `counts` is incremented whenever a rule drops
    something; docs/data.md lists the rules."""
    counts = Counter() if counts is None else counts
    paragraphs = lines.paragraphs(markup.resolve(wikitext, counts), counts)
    whole = [text for text in paragraphs if not lines.is_fragment(text)]
    if len(whole) < len(paragraphs):
        counts["fragments"] += len(paragraphs) - len(whole)
    return whole
