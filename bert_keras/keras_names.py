"""Names under which Keras finds our classes in `.keras` files, without importing them.

`keras.saving.load_model` knows a class only by its registered name, and the decorator
that registers the class runs when its module is imported. So a stand-in is registered
for each class as soon as Keras is imported, and imports the class when a file has it.
This module itself imports neither Keras nor TensorFlow.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from typing import Any, NamedTuple

_SHARED_CLASSES = {
    "bert_keras.model.bilstm": ("BiLSTM",),
    "bert_keras.model.dropout": ("Dropout",),
    "bert_keras.model.embedder": ("BertEmbedder",),
    "bert_keras.model.encoder": ("BertEncoder",),
    "bert_keras.model.heads": (
        *("ClassificationHead", "LayerMix"),
        *("MaskedLanguageModelHead", "NextSentenceHead"),
    ),
    "bert_keras.model.layers": (
        *("Embeddings", "FeedForward", "LayerNorm"),
        *("SelfAttention", "TransformerLayer"),
    ),
    "bert_keras.model.pretrainer": ("BertPretrainer",),
    "bert_keras.training.step.optimization": (
        *("BertAdamW", "Lamb", "Muon", "WarmupDecay"),
    ),
}
"""Classes that a `.keras` file may hold and that belong to no kind, by module."""


def classes() -> dict[str, tuple[str, ...]]:
    """Returns all classes that a `.keras` file may hold, by module."""
    from bert_keras.kinds import registry

    return {**_SHARED_CLASSES, **registry.KERAS_CLASSES}


def register() -> None:
    """Registers all classes, now or when Keras is imported."""
    if "keras" in sys.modules:
        _register_stand_ins()
    elif not any(isinstance(finder, _KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KerasFinder())


class _StandIn(NamedTuple):
    """A class of ours for Keras, which asks it for nothing but `from_config`."""

    module: str
    name: str

    def from_config(self, config: dict[str, Any]) -> Any:
        own_class = getattr(importlib.import_module(self.module), self.name)
        return own_class.from_config(config)


def _register_stand_ins() -> None:
    known = sys.modules["keras"].saving.get_custom_objects()
    for module, names in classes().items():
        for name in names:
            # A class that was imported already has registered itself.
            known.setdefault(f"bert_keras>{name}", _StandIn(module, name))


class _KerasFinder(importlib.abc.MetaPathFinder):
    """Finds Keras where Python does, and registers our classes after its import."""

    def find_spec(self, fullname, path, target=None):
        if fullname != "keras":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                _register_stand_ins()

            spec.loader.exec_module = execute_and_register
        return spec
