"""Strings into ONNX: where onnxruntime-extensions' BertTokenizer is not our tokenizer.

    pip install onnxruntime-extensions==0.15.2
    python -m benchmarks.onnx_strings --golden ../shared/data/tokenization \
        --vocabularies ../shared/data/vocab

Asks both for the ids of every code point within a word, with a vocabulary that holds
every character, so that no difference hides in an `[UNK]`; and of the golden texts with
their own vocabularies. The operator takes one text or one pair, no batch.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_extensions

from benchmarks import measuring
from bert_keras.data import features, tokenization

_AT_ONCE = 256
"""Code points in one text; only a text with a difference is asked about one by one."""

_VOCABULARIES = {
    "uncased": "uncased_L-12_H-768_A-12",
    "cased": "cased_L-12_H-768_A-12",
    "chinese": "chinese_L-12_H-768_A-12",
    "multi_cased": "multi_cased_L-12_H-768_A-12",
}
"""Of the golden files."""


def in_onnx(
    vocabulary: tokenization.Vocabulary,
    *,
    do_lower_case: bool,
    do_basic_tokenize: bool = True,
) -> Callable[[str], list[int]]:
    """Returns the operator: a text's ids without `[CLS]` and `[SEP]`.

    `strip_accents` is on where letters become small, as in the original. Without
    `do_basic_tokenize` it only splits at spaces, then words into pieces.
    """
    node = onnx.helper.make_node(
        "BertTokenizer",
        ["text"],
        ["input_ids", "token_type_ids", "attention_mask"],
        domain="ai.onnx.contrib",
        vocab_file="\n".join(vocabulary.tokens).encode(),
        do_lower_case=int(do_lower_case),
        do_basic_tokenize=int(do_basic_tokenize),
        strip_accents=int(do_lower_case),
    )
    text = onnx.helper.make_tensor_value_info("text", onnx.TensorProto.STRING, [None])
    ids = onnx.helper.make_tensor_value_info(
        "input_ids", onnx.TensorProto.INT64, [None]
    )
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "tokenizer", [text], [ids]),
        opset_imports=[
            onnx.helper.make_opsetid("", 17),
            onnx.helper.make_opsetid("ai.onnx.contrib", 1),
        ],
        ir_version=8,
    )
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def encode(text: str) -> list[int]:
        (found,) = session.run(["input_ids"], {"text": np.array([text], object)})
        return found[1:-1].tolist()

    return encode


def every_character() -> tokenization.Vocabulary:
    """Returns a vocabulary with an entry for every character that can be one."""
    kept = [c for c in map(chr, _code_points()) if c not in "\n" and c == c.strip()]
    continued = [tokenization.CONTINUATION_PREFIX + c for c in kept]
    return tokenization.Vocabulary((*features.SPECIAL_TOKENS, *kept, *continued))


def _code_points() -> Iterator[int]:
    surrogates = range(0xD800, 0xE000)
    return (c for c in range(sys.maxunicode + 1) if c not in surrogates)


def differing(
    ours: Callable[[str], Sequence[int]], theirs: Callable[[str], Sequence[int]]
) -> list[int]:
    """Returns code points in the middle of a word whose ids differ."""
    found, all_points = [], list(_code_points())
    for first in range(0, len(all_points), _AT_ONCE):
        points = all_points[first : first + _AT_ONCE]
        words = [f"a{chr(point)}b" for point in points]
        if _same(ours, theirs, " ".join(words)):
            continue
        found += [
            point
            for point, word in zip(points, words, strict=True)
            if not _same(ours, theirs, word)
        ]
    return found


def _same(ours: Callable, theirs: Callable, text: str) -> bool:
    try:
        return list(ours(text)) == theirs(text)
    except Exception:  # whatever the runtime raises: no ids are other ids
        return False


def code_point_rows() -> Iterator[list[str]]:
    characters, total = every_character(), sum(1 for _ in _code_points())
    for name, lower in (("uncased", True), ("cased", False)):
        ours = tokenization.Tokenizer(characters, do_lower_case=lower)
        points = differing(ours.encode, in_onnx(characters, do_lower_case=lower))
        yield [name, f"{len(points):,} of {total:,}"]


def golden_rows(golden: Path, vocabularies: Path) -> Iterator[list[object]]:
    for name, folder in _VOCABULARIES.items():
        vocabulary = tokenization.Vocabulary.load(vocabularies / folder / "vocab.txt")
        lower = name in ("uncased", "chinese")
        ours = tokenization.Tokenizer(vocabulary, do_lower_case=lower)
        theirs = in_onnx(vocabulary, do_lower_case=lower)
        of_words = in_onnx(vocabulary, do_lower_case=False, do_basic_tokenize=False)
        lines = (golden / f"{name}.jsonl").read_text("utf-8").splitlines()
        cases = list(map(json.loads, lines))
        ways = (
            lambda case, encode=ours.encode: encode(case["text"]),
            lambda case, encode=theirs: encode(case["text"]),
            lambda case, encode=of_words: encode(" ".join(case["basic_tokens"])),
        )
        counts = [sum(case["ids"] != way(case) for case in cases) for way in ways]
        yield [name, len(cases), *counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--vocabularies", type=Path, required=True)
    args = parser.parse_args()
    print(measuring.machine("onnxruntime-extensions", "onnxruntime"))
    header = ["every code point within a word", "differ"]
    measuring.print_table(header, code_point_rows())
    header = ["golden texts", "", "ours differs", "BertTokenizer differs"]
    header.append("given the right words, it still differs")
    measuring.print_table(header, golden_rows(args.golden, args.vocabularies))


if __name__ == "__main__":
    main()
