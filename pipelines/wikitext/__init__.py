"""Wikitext -> paragraphs of running text, in time linear in the page; without Beam.

Lists, tables, headings, references, files, categories and most templates are dropped,
as in section 3.1 of the BERT paper. `markup` makes one scan with a stack of open
constructs, `lines` one pass over the remaining text; `templates` knows the few
templates that stand for words.
"""

from bert_keras.pipelines.wikitext.lines import clean as clean
