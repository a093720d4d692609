"""Speed of tokenizers on real text, and their agreement.

    python benchmarks/tokenizer_speed.py --vocab vocab.txt book1.txt book2.txt

One thread each, lower-casing, one paragraph a text, batches of 256 where the tokenizer
takes batches. "first" meets the text for the first time, "again" for the second: a
difference is what the tokenizer remembered. Rates are megabytes of UTF-8 per second of
CPU time. "differ" counts the paragraphs whose ids are not those of the first line.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# One thread: the others have one.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import tensorflow as tf  # noqa: E402
import tensorflow_text as tf_text  # noqa: E402
import tokenizers  # noqa: E402
from official.nlp.tools import tokenization as original  # noqa: E402

from bert_keras.data import tokenization
from bert_keras.export import graph_tokenizer

BATCH_SIZE = 256
Encode = Callable[[list[str]], list[list[int]]]


def main() -> None:
    """Prints a line for each tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="text, UTF-8")
    parser.add_argument("--vocab", required=True, type=Path, help="an uncased one")
    args = parser.parse_args()
    texts = [
        paragraph
        for path in args.files
        for paragraph in path.read_text(encoding="utf-8", errors="ignore").split("\n\n")
        if paragraph.strip()
    ]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{megabytes:.1f} MB in {len(texts):,} paragraphs")
    print(f"{'':42}{'first':>8}{'again':>8}{'differ':>8}")
    expected = None
    for name, encode in candidates(args.vocab):
        first, ids = measure(encode, texts)
        again, _ = measure(encode, texts)
        expected = expected or ids
        differ = sum(a != b for a, b in zip(expected, ids, strict=True))
        rates = f"{megabytes / first:8.2f}{megabytes / again:8.2f}"
        print(f"{name:42}{rates}{differ:8,}", flush=True)


def candidates(vocab: Path) -> Iterator[tuple[str, Encode]]:
    """Name and function of every tokenizer; ours first."""
    vocabulary = tokenization.Vocabulary.load(vocab)
    ours = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    yield "bert_keras.data.tokenization", lambda texts: [ours.encode(t) for t in texts]
    google = original.FullTokenizer(str(vocab), do_lower_case=True)
    yield (
        "the original's (tf-models-official)",
        lambda texts: [
            google.convert_tokens_to_ids(google.tokenize(text)) for text in texts
        ],
    )
    rust = tokenizers.BertWordPieceTokenizer(str(vocab), lowercase=True)
    yield (
        "Hugging Face tokenizers",
        lambda texts: [
            encoding.ids
            for encoding in rust.encode_batch(texts, add_special_tokens=False)
        ],
    )
    graph = graph_tokenizer.GraphTokenizer(vocabulary, do_lower_case=True)
    yield "bert_keras.export.graph_tokenizer", in_graph(graph)
    entries = list(vocabulary.tokens)
    bert = tf_text.BertTokenizer(
        str(vocab), lower_case=True, token_out_type=tf.int32
    ).tokenize
    yield (
        "tensorflow-text BertTokenizer",
        in_graph(lambda texts: bert(texts).merge_dims(1, 2)),
    )
    fast = tf_text.FastBertTokenizer(
        entries, lower_case_nfd_strip_accents=True, token_out_type=tf.int32
    )
    yield "tensorflow-text FastBertTokenizer", in_graph(fast.tokenize)


def in_graph(function: Callable[[tf.Tensor], tf.RaggedTensor]) -> Encode:
    """A function from strings to lists of ids that runs a graph."""
    signature = [tf.TensorSpec([None], tf.string)]
    compiled = tf.function(function, input_signature=signature)
    compiled(tf.constant(["warm up"]))
    return lambda texts: compiled(tf.constant(texts)).to_list()


def measure(encode: Encode, texts: list[str]) -> tuple[float, list[list[int]]]:
    """CPU seconds for all texts, and their ids."""
    ids: list[list[int]] = []
    start = time.process_time()
    for first in range(0, len(texts), BATCH_SIZE):
        ids += encode(texts[first : first + BATCH_SIZE])
    return time.process_time() - start, ids


if __name__ == "__main__":
    main()
