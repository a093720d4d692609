"""Files that people have, read as documents: dumps, extracted text, books, JSON."""
