"""`bert_config.json` and `vocab.txt`, the files next to Google's checkpoints.

They do not say whether text is lower-cased. The letters of a vocabulary show it; where
they do not, a `tokenizer_config.json` that someone added says it.
"""

import contextlib
from pathlib import Path

from bert_keras.checkpoints import run_directory, weights
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, loading
from bert_keras.data import tokenization

# A run directory uses the same names.
CONFIG_NAME = run_directory.BERT_CONFIG_NAME
VOCABULARY_NAME = run_directory.VOCABULARY_NAME
TOKENIZER_CONFIG_NAME = run_directory.TOKENIZER_CONFIG_NAME

ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu"}
"""Our names to Google's, whose GELU is the tanh form."""


def read_config(directory: Path) -> architecture.BertConfig:
    """Reads `bert_config.json`; its `gelu` is our `gelu_tanh`."""
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise InputError(
            f"{path}: missing: copy {CONFIG_NAME} and {VOCABULARY_NAME} from the "
            "checkpoint's release into this directory; a training of Model Garden has "
            "the sizes in its params.yaml"
        )
    bert_config = loading.read_bert_config(path)
    ours = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    hidden_act = ours.get(bert_config.hidden_act, bert_config.hidden_act)
    return bert_config.model_copy(update={"hidden_act": hidden_act})


def read_tokenizer(
    directory: Path,
) -> tuple[tokenization.Vocabulary | None, bool | None]:
    """Reads `vocab.txt`, if present, and `do_lower_case`, if any file tells it."""
    path = directory / VOCABULARY_NAME
    vocabulary = tokenization.Vocabulary.load(path) if path.is_file() else None
    path = directory / TOKENIZER_CONFIG_NAME
    value = files.read_json(path).get("do_lower_case") if path.is_file() else None
    if isinstance(value, bool):
        return vocabulary, value
    return vocabulary, None if vocabulary is None else casing_of(vocabulary)


def casing_of(vocabulary: tokenization.Vocabulary) -> bool | None:
    """Returns the only `do_lower_case` that fits a vocabulary; `None`: both do."""
    fitting = []
    for do_lower_case in (True, False):
        with contextlib.suppress(InputError):
            tokenization.check_casing(vocabulary, do_lower_case)
            fitting.append(do_lower_case)
    return fitting[0] if len(fitting) == 1 else None


def check_casing_is_known(
    checkpoint: weights.Checkpoint, *, path: str | Path | None = None
) -> None:
    if checkpoint.do_lower_case is None:
        raise InputError(
            (f"{path}: nothing in it says" if path else "the checkpoint does not say")
            + f" whether text is lower-cased: put a {TOKENIZER_CONFIG_NAME} with "
            '{"do_lower_case": true}, or false, next to it'
        )


def write(checkpoint: weights.Checkpoint, directory: Path) -> None:
    """Writes both files, and `tokenizer_config.json` if the letters leave a doubt."""
    values = checkpoint.bert_config.model_dump(exclude={"attention"})
    values["hidden_act"] = ACTIVATIONS[checkpoint.bert_config.hidden_act]
    files.write_json(directory / CONFIG_NAME, values, sort_keys=True)
    if (vocabulary := checkpoint.vocabulary) is None:
        return
    vocabulary.save(directory / VOCABULARY_NAME)
    casing = {"do_lower_case": checkpoint.do_lower_case}
    if checkpoint.do_lower_case not in (None, casing_of(vocabulary)):
        # Google's code ignores it; `read_tokenizer` does not.
        files.write_json(directory / TOKENIZER_CONFIG_NAME, casing, indent=None)
