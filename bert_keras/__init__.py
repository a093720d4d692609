"""BERT on Keras 3: from raw text to a served model.

The names in `__all__` are the library, see docs/python.md. Each is imported when it is
first used: `import bert_keras` alone loads neither Keras nor TensorFlow.
"""

import importlib
from typing import Any

from bert_keras import keras_names

__version__ = "0.1.0"

_MODULES = {
    "BertConfig": "bert_keras.core.settings.architecture",
    "BertEncoder": "bert_keras.model.encoder",
    "BertPretrainer": "bert_keras.model.pretrainer",
    "BertEmbedder": "bert_keras.model.embedder",
    "BertClassifier": "bert_keras.kinds.text.network",
    "BertMultiLabelClassifier": "bert_keras.kinds.text.network",
    "BertTagger": "bert_keras.kinds.tagging.network",
    "BertSpanPredictor": "bert_keras.kinds.span.network",
    "BertChooser": "bert_keras.kinds.choice.network",
    "BertRanker": "bert_keras.kinds.ranking.network",
    "Task": "bert_keras.core.settings.tasks",
    "Tokenizer": "bert_keras.data.tokenization",
    "load": "bert_keras.inference.loading",
    "SearchIndex": "bert_keras.search.searching",
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
