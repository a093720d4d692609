"""Statistics of the examples, against the original's program.

Google's algorithm as tf-models-official ships it makes examples of the same documents.
Lengths, split points, numbers of masks, what masks show, labels and the number of
examples must be distributed alike. Not copied, and so kept out of the comparison or
allowed for, are these of its faults:

- a random next segment from the document itself, called random (there are enough
  documents here for that to be rare);
- n-gram masking whose sizes come from an unseeded generator, so that no seed gives
  the same examples again; ours come from the seed;
- a `##` piece at the start of a segment that is joined to a word before it. (This one
  is google-research/bert's; tf-models-official does as we do.)

One difference is on purpose: tf-models-official chooses what becomes of a token once
for a whole word, google-research/bert and we choose it for each piece.
"""

import random
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, tokenization
from bert_keras.pipelines import buckets, instances

CLS, SEP, MASK = 2, 3, 4
WORDS = (f"{'##' if token % 3 == 0 else ''}{token}" for token in range(5, 1000))
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
CONFIG = ExamplesConfig(max_seq_length=64, short_seq_prob=0.3)
NUM_RUNS = 10_000


def piece(token):
    names = {CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}
    prefix = "##" if VOCABULARY.is_continuation[token] else ""
    return names.get(token, f"{prefix}{token}")


def make_documents():
    rng = random.Random(0)
    return [
        [
            [rng.randrange(5, 1000) for _ in range(rng.choice([1, 3, 8, 15, 40]))]
            for _ in range(rng.randrange(8, 16))
        ]
        for _ in range(50)
    ]


def described(ids, true_ids, first_length, positions, is_random_next):
    """What is compared of one example."""
    shown = ids[positions]
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return {
        "length": len(ids),
        "first length": first_length,
        "masks": len(positions),
        "label": int(is_random_next),
        "label and length": (int(is_random_next), len(ids) // 8),
        "[MASK]": int((shown == MASK).sum()),
        "kept": int((shown == true_ids[positions]).sum()),
        "position of a mask": int(positions[0]) // 4 if len(positions) else -1,
        "longest run": max(map(len, runs)),
        "runs": len(runs),
    }


def our_runs(config):
    """For each seed, what becomes of the first document."""
    bucket = [
        instances.Document(
            id=str(number),
            source="x",
            token_ids=[token for sentence in document for token in sentence],
            sentence_ends=list(accumulate(map(len, document))),
        )
        for number, document in enumerate(make_documents())
    ]
    borders = instances.sentence_borders(bucket)
    made, sizes = [], []
    for seed in range(NUM_RUNS):
        pairs = instances.make_pairs(
            0,
            borders,
            sources=["x"] * len(bucket),
            peers=range(len(bucket)),
            config=config,
            rng=instances.document_rng(seed, "0", 0),
            counts=Counter(),
        )
        sizes.append(len(pairs))
        made += pairs
    *offsets, labels, seeds = (np.array(column) for column in zip(*made, strict=True))
    batch = buckets.make_batch(
        np.array([token for one in bucket for token in one.token_ids]),
        instances.Spans(*offsets, labels.astype(bool), seeds.astype(np.uint64)),
        vocabulary=VOCABULARY,
        config=config,
    )
    masked = batch.masked
    made = [
        described(
            masked["input_ids"][row, :length],
            batch.true_ids[row, :length],
            int(batch.first_lengths[row]),
            masked["masked_lm_positions"][row, masked["masked_lm_weights"][row] > 0],
            batch.is_random_next[row],
        )
        for row, length in enumerate(batch.lengths)
    ]
    ends = list(accumulate(sizes))
    return [made[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def their_runs(config):
    data = pytest.importorskip(
        "official.nlp.data.create_pretraining_data",
        reason="compares with tf-models-official",
    )
    texts = [[[piece(t) for t in s] for s in document] for document in make_documents()]
    vocab_words = [piece(token) for token in range(len(VOCABULARY))]
    ids = {word: token for token, word in enumerate(vocab_words)}
    random.seed(0)  # Sizes of runs come from this one.
    runs = []
    for seed in range(NUM_RUNS):
        made = data.create_instances_from_document(
            texts,
            0,
            config.max_seq_length,
            config.short_seq_prob,
            config.masked_lm_prob,
            config.num_predictions,
            vocab_words,
            random.Random(seed),
            config.do_whole_word_mask,
            config.max_ngram_size if config.max_ngram_size > 1 else None,
        )
        runs.append([])
        for one in made:
            shown = np.array([ids[token] for token in one.tokens])
            true_ids = shown.copy()
            positions = np.array(one.masked_lm_positions, int)
            true_ids[positions] = [ids[token] for token in one.masked_lm_labels]
            first, label = one.segment_ids.index(1), one.is_random_next
            runs[-1].append(described(shown, true_ids, first, positions, label))
    return runs


def assert_same_distribution(ours, theirs, what):
    """Chi-square of two samples; values that are rare in both are one class."""
    stats = pytest.importorskip("scipy.stats", reason="needs a chi-square test")
    table = Counter(ours), Counter(theirs)
    common = [v for v in table[0] | table[1] if sum(t[v] for t in table) > 20]
    rows = [[counts[value] for value in common] for counts in table]
    rest = [t.total() - sum(row) for t, row in zip(table, rows, strict=True)]
    if sum(rest):
        rows = [[*row, more] for row, more in zip(rows, rest, strict=True)]
    assert len(rows[0]) > 1, what
    # Some thirty comparisons: all pass with a probability of 0.97 if all is right.
    assert stats.chi2_contingency(rows).pvalue > 0.001, what


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_whole_word_mask": True},
        {"do_whole_word_mask": True, "max_ngram_size": 3},
    ],
    ids=str,
)
def test_examples_are_distributed_as_those_of_tf_models(settings):
    config = CONFIG.model_copy(update=settings)
    ours, theirs = our_runs(config), their_runs(config)
    assert_same_distribution(map(len, ours), map(len, theirs), "examples")
    # One example of each run: those of one run depend on each other.
    rng = random.Random(1)
    ours = [rng.choice(made) for made in ours]
    theirs = [rng.choice(made) for made in theirs]
    by_word = {"[MASK]", "kept"} if settings == {"do_whole_word_mask": True} else {}
    for what in ours[0]:
        if what not in by_word:
            samples = ([example[what] for example in made] for made in (ours, theirs))
            assert_same_distribution(*samples, what)
