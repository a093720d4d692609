"""BERT on Keras 3: from raw text to a served model.

The names in `__all__` are the library, see docs/python.md. Each is imported when it is
first used: `import bert_keras` alone loads neither Keras nor TensorFlow.
"""

import importlib
from typing import Any

from bert_keras.model import keras_names

__version__ = "0.1.0"

# By name, because the door imports nothing that stands on it.
_MODULES = {
    "BertConfig": "bert_keras.core.settings.architecture",
    **{
        name: module
        for module, names in keras_names.CLASSES.items()
        for name in names
        # An optimizer is a `BertAdamW`.
        if name.startswith("Bert") and not module.startswith("bert_keras.training")
    },
    "Tokenizer": "bert_keras.data.tokenization",
    "load": "bert_keras.inference.loading",
    "score": "bert_keras.scoring.scored_files",
}

__all__ = ["__version__", *_MODULES]

keras_names.register()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_keras' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
