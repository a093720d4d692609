"""The entries of a vocabulary that texts need, in their old order.

The kept entries split the words of the texts into the same pieces as before. The
tokenizer takes the longest entry that fits next. The longest of all entries that fit is
a word's first piece and is kept, and no kept entry is longer. So it is first again, the
next piece begins at the same place, and the same holds for it, and so on to the end. If
nothing fits, the word is `[UNK]`, though entries began it. These entries are kept too:
without `ab`, where `abxq` ends, `a`, `##bx` and `##q` might spell it.

Other text stays possible: single characters, alone and with `##`, are kept if they are
ASCII or in the texts, in either case. They spell any word that has no other characters.
"""

from collections.abc import Iterable, Iterator, Mapping

from bert_keras.data import features, tokenization

_MOST_REMEMBERED = 1 << 18


def kept_ids(
    vocabulary: tokenization.Vocabulary, texts: Iterable[str], *, do_lower_case: bool
) -> list[int]:
    """Returns the ids of entries that texts need, special tokens and single characters
    among them. The ids rise, so `[PAD]` stays first; without any words the result is
    empty. The texts may have any length and are consumed one by one."""
    kept, characters = set[int](), set[str]()
    longest = max(map(len, vocabulary.tokens))
    for word in _words(texts, do_lower_case):
        characters.update(word)
        if len(word) <= tokenization.MAX_INPUT_CHARS_PER_WORD:
            kept.update(_begin(word, vocabulary.ids, longest))
    if not characters:
        return []
    either = {c for char in characters for c in (char, char.lower(), char.upper())}
    prefix = tokenization.CONTINUATION_PREFIX
    for index, token in enumerate(vocabulary.tokens):
        rest = token if token == prefix else token.removeprefix(prefix)
        is_character = len(rest) == 1 and (rest.isascii() or rest in either)
        if is_character or token in features.SPECIAL_TOKENS:
            kept.add(index)
    return sorted(kept)


def _words(texts: Iterable[str], do_lower_case: bool) -> Iterator[str]:
    """Yields the words of all texts, most of them once."""
    seen = set[str]()
    for text in texts:
        for stretch in {*tokenization.split_at_white_space(text)} - seen:
            if len(stretch) <= tokenization.MAX_INPUT_CHARS_PER_WORD:
                seen.add(stretch)
            yield from tokenization.basic_tokenize(stretch, do_lower_case=do_lower_case)
        if len(seen) >= _MOST_REMEMBERED:
            seen.clear()


def _begin(word: str, ids: Mapping[str, int], longest: int) -> Iterator[int]:
    """Yields the ids that the tokenizer takes, from a word's beginning on."""
    start, prefix = 0, ""
    while start < len(word):
        for end in range(min(len(word), start + longest), start, -1):
            found = ids.get(prefix + word[start:end])
            if found is not None:
                break
        else:
            return
        yield found
        start, prefix = end, tokenization.CONTINUATION_PREFIX
