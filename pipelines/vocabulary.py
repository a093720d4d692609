"""Pipeline 2: documents -> word counts -> WordPiece vocabulary.

Words are counted in Beam; one machine then learns the pieces with tensorflow-text's
learner, which is plain Python: it is loaded by its file, without TensorFlow.
"""

import functools
import importlib.util
import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from bert_keras import features, manifest, tokenization
from bert_keras.errors import InputError
from pipelines import documents, runners

logger = logging.getLogger(__name__)

WORDS_PER_ENTRY = 10
"""The learner sees this many words for each entry, the most frequent ones. Ten times
as many make no difference that shows; its time grows with them."""

CHARACTER_COVERAGE = 0.99995
"""Share of the text that the alphabet spells; rarer characters are not learnt, since
each costs two entries and hardly any text would train them."""

MAX_WORD_LENGTH = 50
"""Characters; longer words teach nothing."""

# Where the original's vocabularies have them: unused entries are room for users.
RESERVED_TOKENS = (
    features.PAD_TOKEN,
    *(f"[unused{i}]" for i in range(99)),
    features.UNK_TOKEN,
    features.CLS_TOKEN,
    features.SEP_TOKEN,
    features.MASK_TOKEN,
)

_LEARNER_PATH = "tools/wordpiece_vocab/wordpiece_tokenizer_learner_lib.py"
# A little over the wanted size is near enough; the rarest pieces are cut.
_SLACK = 0.02
_MAX_CHUNKS_IN_MEMORY = 1_000_000


def build_vocabulary(
    corpus_dir: str | Path,
    output_path: str | Path,
    *,
    vocab_size: int,
    do_lower_case: bool,
    options: PipelineOptions,
) -> None:
    """Writes a vocabulary of exactly `vocab_size` entries, learnt from documents.

    The same documents give the same bytes. For the order, see `assemble`.

    Args:
        corpus_dir: made by `corpus`.
        output_path: the file to write; must not exist.
        vocab_size: entries, reserved ones included.
        do_lower_case: lower-case words and strip accents.

    Raises:
        InputError: the output exists, an unfinished or changed corpus, one without
            words, a `vocab_size` below what characters alone take, no learner.
    """
    output_path = Path(output_path)
    if output_path.exists():
        raise InputError(
            f"{output_path}: exists already; choose another --output or delete it"
        )
    learner = _load_learner()
    corpus = manifest.read_manifest(
        corpus_dir, kind="documents", verb="bert-keras corpus"
    )
    manifest.verify_shards(corpus_dir, corpus)
    output_path.parent.mkdir(parents=True, exist_ok=True)
    words_path = output_path.with_name(f".{output_path.name}.words.tmp")
    shards = [str(Path(corpus_dir) / shard.name) for shard in corpus.shards]
    try:
        runners.run(
            functools.partial(
                _add_word_count,
                shards=shards,
                words_path=str(words_path),
                num_words=WORDS_PER_ENTRY * vocab_size,
                do_lower_case=do_lower_case,
            ),
            options=options,
            title="vocab: counting words",
            total=corpus.num_records,
            unit="documents",
        )
        words = dict(json.loads(words_path.read_bytes()))
    finally:
        words_path.unlink(missing_ok=True)
    if not words:
        raise InputError(f"{corpus_dir}: no words in it; give `corpus` more text")
    tokens = learn_vocabulary(
        words, vocab_size=vocab_size, do_lower_case=do_lower_case, learner=learner
    )
    tokenization.Vocabulary(tuple(tokens)).save(output_path)


# Counting.


def _add_word_count(
    pipeline: beam.Pipeline,
    heartbeat: runners.Heartbeat,
    *,
    shards: Sequence[str],
    words_path: str,
    num_words: int,
    do_lower_case: bool,
) -> None:
    """Writes the `num_words` most frequent words with their counts, as JSON pairs."""
    _ = (
        pipeline
        | "DocumentShards" >> beam.Create(shards)
        # Without it, all shards go to the one worker that created the list.
        | "SpreadShards" >> beam.Reshuffle()
        | "CountWords" >> beam.ParDo(CountWords(heartbeat, do_lower_case=do_lower_case))
        | "SumCounts" >> beam.CombinePerKey(sum)
        # What is rare stays with the workers: a large corpus has millions of words.
        | "MostFrequent" >> beam.combiners.Top.Of(num_words, key=_frequency)
        | "Save" >> beam.Map(_save_words, words_path)
    )


class CountWords(beam.DoFn):
    """Path of a documents shard -> (word, count), in parts to be summed."""

    def __init__(self, heartbeat: runners.Heartbeat, *, do_lower_case: bool):
        self._heartbeat = heartbeat
        self._do_lower_case = do_lower_case

    def process(self, path: str) -> Iterator[tuple[str, int]]:
        # Distinct stretches are few: splitting each into words once saves the time.
        chunks: Counter[str] = Counter()
        for document in documents.read_shard(path):
            for paragraph in document["paragraphs"]:
                for sentence in paragraph:
                    chunks.update(tokenization.split_at_white_space(sentence))
            self._heartbeat.add(1)
            if len(chunks) >= _MAX_CHUNKS_IN_MEMORY:
                yield from count_words(chunks, do_lower_case=self._do_lower_case)
                chunks.clear()
        yield from count_words(chunks, do_lower_case=self._do_lower_case)


def count_words(
    chunks: Mapping[str, int], *, do_lower_case: bool
) -> Iterator[tuple[str, int]]:
    """Counts of stretches between white space -> counts of words."""
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word in tokenization.basic_tokenize(chunk, do_lower_case=do_lower_case):
            words[word] += count
    yield from words.items()


def _frequency(word_count: tuple[str, int]) -> tuple[int, str]:
    word, count = word_count
    return count, word


def _save_words(words: list[tuple[str, int]], path: str) -> None:
    manifest.write_atomically(path, json.dumps(words).encode())


# Learning.


def learn_vocabulary(
    words: Mapping[str, int],
    *,
    vocab_size: int,
    do_lower_case: bool,
    learner: ModuleType,
) -> list[str]:
    """Learns a vocabulary of exactly `vocab_size` entries from counts of words.

    Raises:
        InputError: `vocab_size` has no room for the alphabet.
    """
    characters = alphabet(words, do_lower_case=do_lower_case)
    least = len(RESERVED_TOKENS) + len(characters)
    if vocab_size < least:
        raise InputError(
            f"--vocab_size {vocab_size} is too small: special tokens and the "
            f"characters of this text alone take {least} entries; give at least that"
        )
    spelt = [
        (word, count)
        for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0]))
        if len(word) <= MAX_WORD_LENGTH and characters.issuperset(word)
    ]
    learn = functools.partial(_learn_pieces, learner, spelt)
    pieces = find_pieces(
        learn, num_pieces=vocab_size - least, counts=[count for _, count in spelt]
    )
    return assemble(characters, pieces, words=spelt, vocab_size=vocab_size)


def alphabet(words: Mapping[str, int], *, do_lower_case: bool) -> set[str]:
    """The characters that vocabularies hold, and their forms inside words.

    All of printable ASCII: text met later has signs that running text lacks, and
    `check_casing` can tell by the letters. And the most frequent characters, which
    together make up `CHARACTER_COVERAGE` of the text. Punctuation and ideographs are
    always words of their own, so they have no form with `##`.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    characters = {chr(code_point) for code_point in range(ord("!"), ord("~") + 1)}
    if do_lower_case:
        characters = {char.lower() for char in characters}
    missing = sum(counts.values()) * CHARACTER_COVERAGE
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing <= 0:
            break
        missing -= count
        characters.add(char)
    inner = {
        tokenization.CONTINUATION_PREFIX + char
        for char in characters
        if not (tokenization.is_punctuation(char) or tokenization.is_cjk(char))
    }
    return characters | inner


def find_pieces(
    learn: Callable[[int], list[str]], *, num_pieces: int, counts: Sequence[int]
) -> list[str]:
    """Finds the threshold at which the learner gives just enough pieces.

    The learner's own search starts from a count of ten million, takes many more steps
    and ends anywhere about the wanted size.

    Args:
        learn: a threshold -> all pieces that occur as often, most frequent first.
        num_pieces: how many are wanted.
        counts: of the words, descending; the first guess is taken from them.

    Returns:
        At least `num_pieces` pieces and few more, or all there are if they are fewer.
    """
    if not counts:
        return []
    lowest = max(2, counts[-1])
    threshold = max(lowest, counts[min(num_pieces, len(counts) - 1)])
    enough: tuple[int, int] | None = None
    short: tuple[int, int] | None = None
    best: list[str] = []
    while True:
        pieces = learn(threshold)
        if len(pieces) >= num_pieces:
            best, enough = pieces, (threshold, len(pieces))
            if len(pieces) <= num_pieces * (1 + _SLACK):
                return best
        elif threshold == lowest:
            return pieces
        else:
            short = threshold, len(pieces)
        if enough and short and short[0] - enough[0] <= 1:
            return best
        threshold = max(lowest, _next_threshold(enough, short, num_pieces))


def _next_threshold(
    enough: tuple[int, int] | None, short: tuple[int, int] | None, num_pieces: int
) -> int:
    """The next threshold to try, given the closest (threshold, pieces) on both sides.

    Between two, it interpolates: by Zipf's law, the logarithm of the number of pieces
    falls about linearly with the logarithm of the threshold.
    """
    if short is None:
        return 2 * enough[0]
    if enough is None:
        return short[0] // 2
    target = num_pieces * (1 + _SLACK / 2)
    span = math.log(enough[1] / max(short[1], 1))
    share = min(max(math.log(enough[1] / target) / span, 0.1), 0.9)
    guess = round(enough[0] * (short[0] / enough[0]) ** share)
    return min(max(guess, enough[0] + 1), short[0] - 1)


def _learn_pieces(
    learner: ModuleType, words: Sequence[tuple[str, int]], threshold: int
) -> list[str]:
    """All pieces longer than a character that occur `threshold` times or more."""
    started = time.monotonic()
    entries = learner.learn(
        words,
        vocab_size=0,
        reserved_tokens=[],
        # Equal bounds: one step of its search.
        upper_thresh=threshold,
        lower_thresh=threshold,
        max_token_length=MAX_WORD_LENGTH,
        # The alphabet has been chosen already.
        max_unique_chars=sys.maxunicode,
        joiner=tokenization.CONTINUATION_PREFIX,
    )
    prefix = tokenization.CONTINUATION_PREFIX
    pieces = [entry for entry in entries if len(entry.removeprefix(prefix)) > 1]
    logger.info(
        "vocab: %s pieces occur %s times or more in %s words (%.0f s)",
        f"{len(pieces):,}",
        f"{threshold:,}",
        f"{len(words):,}",
        time.monotonic() - started,
    )
    return pieces


def assemble(
    characters: set[str],
    pieces: Sequence[str],
    *,
    words: Sequence[tuple[str, int]],
    vocab_size: int,
) -> list[str]:
    """Puts entries in order and cuts or fills them to exactly `vocab_size`.

    The order: reserved tokens, characters by code point, then those with `##`, then
    pieces by falling frequency. If pieces are too few, whole words follow, the most
    frequent first, and then more `[unusedN]`.
    """
    prefix = tokenization.CONTINUATION_PREFIX
    spelling = sorted(characters, key=lambda entry: (entry.startswith(prefix), entry))
    entries = dict.fromkeys([*RESERVED_TOKENS, *spelling, *pieces])
    for word, _ in words:
        if len(entries) >= vocab_size:
            break
        entries.setdefault(word)
    tokens = list(entries)[:vocab_size]
    num_unused = vocab_size - len(tokens)
    if num_unused:
        logger.warning(
            "vocab: the text gives only %s entries; %s are filled with [unused] ones: "
            "give more text or a smaller --vocab_size",
            f"{len(tokens):,}",
            f"{num_unused:,}",
        )
    return tokens + [f"[unused{99 + i}]" for i in range(num_unused)]


def _load_learner() -> ModuleType:
    """Loads the learner's one module: its package would import all of TensorFlow."""
    package = importlib.util.find_spec("tensorflow_text")
    if package is None or package.origin is None:
        raise InputError(
            "learning a vocabulary takes tensorflow-text, which is not installed: "
            "pip install 'bert-keras[train]'"
        )
    path = Path(package.origin).parent / _LEARNER_PATH
    spec = importlib.util.spec_from_file_location("wordpiece_learner", path)
    learner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(learner)
    return learner
