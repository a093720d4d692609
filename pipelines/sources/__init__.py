"""Sources of a corpus: dumps, books, lines of text, JSON lines."""

from bert_keras.pipelines.sources.books import Books
from bert_keras.pipelines.sources.json_lines import JsonLines
from bert_keras.pipelines.sources.sentences import Sentences
from bert_keras.pipelines.sources.source import Source
from bert_keras.pipelines.sources.wikipedia import Wikipedia

SOURCES: dict[str, Source] = {
    source.name: source for source in (Wikipedia(), Books(), Sentences(), JsonLines())
}
"""Sources by name, each an option of `corpus`."""
