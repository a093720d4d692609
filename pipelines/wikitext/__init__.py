"""Wikitext -> paragraphs of running text, in time linear in the page.

Lists, tables, headings, references, files, categories and most templates are dropped,
as section 3.1 of the BERT paper has it. `markup` makes one scan with a stack of open
constructs, `lines` one pass over what is left; `templates` knows the few templates that
stand for words. Pure: knows no Beam.
"""

from pipelines.wikitext import lines, markup


def clean(wikitext: str) -> list[str]:
    """Returns the running text of a page.

    Args:
        wikitext: the source of a page.

    Returns:
        Paragraphs in order, each on one line, without markup; none is empty, and
        fragments that are no sentence are left out.
    """
    paragraphs = lines.paragraphs(markup.resolve(wikitext))
    return [text for text in paragraphs if not lines.is_fragment(text)]
