"""Tokenizers in Hugging Face's directories: `vocab.txt` or `tokenizer.json`, and
`tokenizer_config.json`.

Text must be split here as it was for the model, so a tokenizer that differs from the
original BERT's is refused, not approximated. A tokenizer that is read may still treat
`[MASK]` and the like as special tokens anywhere in a text, drop private characters, and
not know words of 101 to 200 characters; ours, like the original, does not. Our written
tokenizers do not either, except for special tokens, which others expect in a text. Of
single characters 809 of 1,112,064 differ, 369 in cased text: punctuation and marks that
are new since Unicode 8 or since 14, Python's, and ideographs of extension E. In
lower-cased text, a capital sigma at the end of a word is a final one here, and not
there.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import companions
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import features, tokenization

logger = logging.getLogger(__name__)

_VOCABULARY, _TOKENIZER = "vocab.txt", "tokenizer.json"
_CONFIG = "tokenizer_config.json"

_SPECIAL_TOKENS = {
    "pad_token": features.PAD_TOKEN,
    "unk_token": features.UNK_TOKEN,
    "cls_token": features.CLS_TOKEN,
    "sep_token": features.SEP_TOKEN,
    "mask_token": features.MASK_TOKEN,
}

_REMEDY = (
    "here text would be split in another way than for the model; to read its weights "
    f"alone, remove {_VOCABULARY}, {_TOKENIZER} and {_CONFIG}"
)


def read(
    directory: Path, num_positions: int
) -> tuple[tokenization.Vocabulary | None, bool | None, int | None]:
    """Reads the vocabulary, whether text is lower-cased, and the number of tokens to
    which inputs are cut; each is `None` if no file tells it."""
    # 1. The vocabulary, and a `tokenizer.json` that other classes have written.
    casings, vocabulary = set(), None
    has_vocabulary = (directory / _VOCABULARY).is_file()
    path = directory / _TOKENIZER
    if path.is_file():
        values = files.read_json(path)
        casings.add(_check_tokenizer(values, path))
        if not has_vocabulary:
            vocabulary = _read_vocabulary(values, path)
    if has_vocabulary:
        vocabulary = tokenization.Vocabulary.load(directory / _VOCABULARY)
    # 2. The configuration, which may change how text is split.
    path = directory / _CONFIG
    values = files.read_json(path) if path.is_file() else {}
    name = values.get("tokenizer_class") or "BertTokenizer"
    # Tokenizers that split text as BERT's; the last two may be any tokenizer.json.
    known = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
    known += ("PreTrainedTokenizer", "TokenizersBackend")
    if str(name).removesuffix("Fast") not in known:
        raise InputError(f"{path}: expected a BertTokenizer, found {name}: {_REMEDY}")
    for key, expected in _SPECIAL_TOKENS.items():
        token = values.get(key, expected)
        token = token.get("content") if isinstance(token, dict) else token
        if token not in (None, expected):
            raise InputError(f"{path}: {key} is {token!r}, not {expected!r}: {_REMEDY}")
    lowercase = values.get("do_lower_case")
    expected = {"do_basic_tokenize": True, "tokenize_chinese_chars": True}
    # Theirs lower-cases by default.
    expected["strip_accents"] = lowercase is not False
    _check_flags(values, path, {"do_lower_case": None, **expected})
    casings.add(lowercase)
    # 3. Both must agree, and `None` says nothing.
    casings.discard(None)
    if len(casings) > 1:
        raise InputError(
            f"{directory}: {_TOKENIZER} and {_CONFIG} do not agree on whether text is "
            "lower-cased: correct the one that is wrong"
        )
    # A published model has as many tokens as positions or, for "no limit", a number of
    # 30 digits; only a lower number was chosen.
    length = values.get("model_max_length")
    is_chosen = isinstance(length, int) and 4 <= length < num_positions
    return vocabulary, next(iter(casings), None), int(length) if is_chosen else None


def _check_tokenizer(values: Mapping[str, Any], path: Path) -> bool:
    normalizer, pre_tokenizer, model = (
        _part(values, key) for key in ("normalizer", "pre_tokenizer", "model")
    )
    # The normalizer that `describe` writes is a sequence of two, theirs is one.
    is_ours = next((x for x in (True, False) if normalizer == _normalizer(x)), None)
    kind = "BertNormalizer" if is_ours is not None else normalizer.get("type")
    prefix = model.get("continuing_subword_prefix")
    requirements = {
        "normalizer": (kind, "BertNormalizer"),
        "pre_tokenizer": (pre_tokenizer.get("type"), "BertPreTokenizer"),
        # Early files lack it.
        "model": (model.get("type", "WordPiece"), "WordPiece"),
        "unk_token": (model.get("unk_token"), features.UNK_TOKEN),
        "continuing_subword_prefix": (prefix, tokenization.CONTINUATION_PREFIX),
    }
    for key, (value, expected) in requirements.items():
        if value != expected:
            raise InputError(f"{path}: {key} is {value!r}, not {expected!r}: {_REMEDY}")
    if is_ours is not None:
        return is_ours
    lowercase = normalizer.get("lowercase") is True
    expected = {"strip_accents": lowercase, "clean_text": True}
    expected["handle_chinese_chars"] = True
    _check_flags(normalizer, path, {"lowercase": None, **expected})
    return lowercase


def _part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = values.get(key)
    return part if isinstance(part, dict) else {}


def _check_flags(
    values: Mapping[str, Any], path: Path, expected: Mapping[str, bool | None]
) -> None:
    """Checks the flags that a file has; either value of those that expect `None`."""
    for key, flag in expected.items():
        value = values.get(key)
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{path}: {key} is {value!r}, expected true or false")
        if None not in (value, flag) and value != flag:
            raise InputError(
                f"{path}: {key} is {value}, with the original BERT it is {flag}: "
                + _REMEDY
            )


def _read_vocabulary(values: Mapping[str, Any], path: Path) -> tokenization.Vocabulary:
    ids = _part(values, "model").get("vocab")
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise InputError(f"{path}: expected model.vocab, from tokens to their numbers")
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    if [ids[token] for token in tokens] != list(range(len(ids))):
        raise InputError(
            f"{path}: model.vocab has {len(ids)} tokens, whose numbers are not those "
            f"from 0 to {len(ids) - 1}: number them without gaps"
        )
    # The published Chinese vocabulary contains a line separator. Their tokenizers read
    # it as the end of a line and save an empty token. No text contains either.
    tokens = tuple(token or "\u2028" for token in tokens)
    try:
        return tokenization.Vocabulary(tokens)
    except InputError as error:
        raise InputError(f"{path}: model.vocab: {error}") from None


def write(checkpoint: weights.Checkpoint, directory: Path) -> None:
    """Writes all three files, if there is a vocabulary."""
    if checkpoint.vocabulary is None:
        return
    companions.check_casing_is_known(checkpoint)
    values = {
        # Their `BertTokenizer` reads the vocabulary alone.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": checkpoint.do_lower_case,
        # Longer texts are cut as in the run: another cut may give another answer.
        "model_max_length": checkpoint.max_seq_length
        or checkpoint.bert_config.max_position_embeddings,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        **_SPECIAL_TOKENS,
    }
    checkpoint.vocabulary.save(directory / _VOCABULARY)
    files.write_json(directory / _CONFIG, values)
    described = describe(checkpoint.vocabulary, do_lower_case=checkpoint.do_lower_case)
    files.write_json(directory / _TOKENIZER, described)


def describe(
    vocabulary: tokenization.Vocabulary, *, do_lower_case: bool
) -> dict[str, Any]:
    """Returns a `tokenizer.json` as the package `tokenizers` reads it."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first, second = (
        [
            {"Sequence": {"id": name, "type_id": number}},
            {"SpecialToken": {"id": features.SEP_TOKEN, "type_id": number}},
        ]
        for number, name in enumerate("AB")
    )
    first.insert(0, {"SpecialToken": {"id": features.CLS_TOKEN, "type_id": 0}})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[token], "content": token, **plain, "special": True}
            for token in _SPECIAL_TOKENS.values()
        ],
        "normalizer": _normalizer(do_lower_case),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]}
                for token in (features.CLS_TOKEN, features.SEP_TOKEN)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": features.UNK_TOKEN,
            "continuing_subword_prefix": "##",
            # As the original; theirs has 100 where nothing is said.
            "max_input_chars_per_word": 200,
            "vocab": ids,
        },
    }


def _normalizer(do_lower_case: bool) -> dict[str, Any]:
    # `tokenization.is_dropped` as a regular expression.
    pattern = {"Regex": r"(?![\t\n\r])[\p{Cc}\p{Cf}\uFFFD]"}
    dropped = {"type": "Replace", "pattern": pattern, "content": ""}
    rest = {
        "type": "BertNormalizer",
        "clean_text": False,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": do_lower_case,
    }
    return {"type": "Sequence", "normalizers": [dropped, rest]}
