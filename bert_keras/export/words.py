"""Where the words of a sentence are, for texts that come without any. No TensorFlow."""

from bert_keras.data import tokenization


def split_words(text: str) -> list[tuple[int, int]]:
    """The places `text[start:end]` of the words, as `text_graph.WordSplitter` has them.

    White space ends a word; a punctuation character or an ideograph is a word of its
    own. So the words are those of `tokenization.basic_tokenize` for cased text, with
    the control characters inside them.
    """
    words: list[tuple[int, int]] = []
    is_open = False
    for place, char in enumerate(text):
        if tokenization.is_dropped(char):
            continue
        is_isolated = tokenization.is_punctuation(char) or tokenization.is_cjk(char)
        is_word = not char.isspace()
        if is_open and is_word and not is_isolated:
            words[-1] = (words[-1][0], place + 1)
        elif is_word:
            words.append((place, place + 1))
        is_open = is_word and not is_isolated
    return words
