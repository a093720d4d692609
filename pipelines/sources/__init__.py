"""Readers of source files: dumps, books, lines of text, JSON lines."""

KINDS = {
    "wikipedia": "MediaWiki dumps (.xml, .xml.bz2, .xml.gz)",
    "books": "plain-text books, one or many in a file",
    "sentences": "a sentence a line; a blank line or a new file begins a document",
    "jsonl": 'JSON lines of {"id": ..., "text": ...}',
}
"""Kinds of files that `corpus` reads, each an option."""
