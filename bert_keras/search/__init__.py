"""An index of own texts, and the search in it by words, by vectors or by both."""
