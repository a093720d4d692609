"""Trained models in Python: `bert_keras.load`."""

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert_keras.checkpoints import adapters, conversion, native, weights
from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import architecture, tasks
from bert_keras.data import tokenization
from bert_keras.inference import attribution, finetuned
from bert_keras.kinds import registry
from bert_keras.labelled import answers, tokenized
from bert_keras.model import encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A network with its weights, and everything that turns text into its inputs."""

    network: keras.Model
    """Built; of the class for `task`, such as `BertClassifier`."""
    task: tasks.Task
    """Its task: `task.kind`, `task.labels`."""
    tokenizer: tokenization.Tokenizer | None
    """`None`: the files hold no vocabulary, or do not say whether it is cased."""
    tuned: finetuned.FinetunedModel | None
    """For answers; `None`: not tuned on a task."""
    path: str | Path
    adapter: tasks.Adapter | None = None
    """Of changes that the network has beside the kernels of its base."""

    @property
    def takes_pairs(self) -> bool | None:
        """Whether `predict` needs pairs of texts; `None`: the files do not say."""
        return None if self.tuned is None else self.tuned.takes_pairs

    @property
    def config(self) -> architecture.BertConfig:
        return self.network.config

    @functools.cached_property
    def encoder(self) -> encoder.BertEncoder:
        """The network's encoder, which may be all of it.

        A network that does not use the pooler, such as one for vectors of texts,
        freezes it. This encoder is then a copy, whose pooler is trainable.
        """
        own = getattr(self.network, "encoder", self.network)
        if own.pooler.trainable or self.adapter is not None:
            return own
        copy = type(own).from_config(own.get_config())
        copy.build()
        for weight, value in zip(copy.weights, own.weights, strict=True):
            weight.assign(value)
        return copy

    def encode(
        self,
        texts: Iterable[Any],
        *,
        max_seq_length: int | None = None,
        long_texts: str = "cut",
    ) -> dict[str, np.ndarray]:
        """Returns the features of texts, for a call of `network`: `input_ids`,
        `input_mask` and `segment_ids`, each `(len(texts), sequence_length)` int32,
        padded to the longest.

        Args:
            texts: strings, or pairs of strings; at least one.
            max_seq_length: tokens at most, with special ones; `None`: the encoder's.
            long_texts: how to shorten longer texts: `cut` or `head_tail`, see
                `core.settings.finetuning.FinetuningConfig`.
        """
        if self.tokenizer is None:
            raise InputError(
                "the checkpoint has no vocabulary, or does not say whether it is "
                "lower-cased: put its vocab.txt and tokenizer_config.json next to it"
            )
        check_choice("`long_texts`", long_texts, ("cut", "head_tail"))
        texts = _listed(texts)
        # Any kind of texts has the same rows; a regression needs no names of labels.
        task = tasks.Task(kind="regression", has_text_pair=_are_pairs(texts))
        rows = registry.labelled(task.kind).from_python(texts, task).rows
        inputs = tokenized.tokenize(
            (row[:2] for row in rows),
            self.tokenizer,
            max_seq_length=max_seq_length or self.config.max_position_embeddings,
            keeps_tail=long_texts == "head_tail",
        )
        return inputs.batch(np.arange(len(rows)))

    def predict(self, texts: Iterable[Any]) -> list[answers.Record]:
        """Answers texts as `bert-keras predict` does. Thresholds, and the promise of
        `calibrate`, are left out once `fit` has changed the weights they belong to.

        Args:
            texts: one for each answer. For `classification` and `regression`: strings
                or pairs of strings. For `tagging`: lists of words, or strings. For
                `span`: questions, each with its context. For `choice`: texts, each with
                a list of four endings.

        Returns:
            A record for each text: the text, its `prediction` (label, number, tags,
            answer, number of the ending) and, where the task has them, `probabilities`.
        """
        texts = _listed(texts)
        model = self._answering(texts, "predict")
        return model.predict(texts) if texts else []

    def explain(
        self, texts: Iterable[Any], *, label: str | None = None
    ) -> list[attribution.Explanation]:
        """Explains the answers to texts, given as `predict` takes them, or the score of
        a `label`: one explanation for each, for `ranking` one for each passage. The
        network computes in float32, see `load`."""
        texts = _listed(texts)
        model = self._answering(texts, "explain")
        if not texts:
            return []
        data = registry.labelled(model.task.kind).from_python(texts, model.task)
        explainer = attribution.Explainer(model, data, label=label)
        return [explainer.explain(example) for example in range(len(explainer))]

    def _answering(self, texts: list[Any], method: str) -> finetuned.FinetunedModel:
        """Returns the model that answers `texts`."""
        if self.tuned is None:
            raise InputError(
                f"`{method}` needs a model that was tuned on a task, but this one is "
                f"for {self.task.kind}: call `encoder(encode(texts))` for its vectors"
            )
        if keras.backend.backend() != "tensorflow":
            raise InputError(
                f"`{method}` needs TensorFlow, but Keras runs on "
                f"{keras.backend.backend()}: call `network(encode(texts))` instead"
            )
        model = self.tuned
        # Only `compile` gives a network an optimizer, which counts its steps.
        optimizer = getattr(self.network, "optimizer", None)
        if optimizer is not None and int(optimizer.iterations):
            model = dataclasses.replace(model, decision=tasks.LIKELIEST)
        if model.takes_pairs is None:
            task = self.task.model_copy(update={"has_text_pair": _are_pairs(texts)})
            model = dataclasses.replace(model, task=task)
        return model

    def save(self, directory: str | Path) -> None:
        """Writes a model for a task as a finished run, which `load` and the commands
        take. It has the weights that `network` has now, and no thresholds, which were
        chosen for other weights."""
        if self.tuned is None:
            raise InputError(
                f"`save` needs a model for a task, but this one is for {self.task.kind}"
                ": give `load` a `task`, or run `bert-keras pretrain --init`"
            )
        arrays = weights.from_network(self.network)
        if self.adapter is not None:
            arrays = adapters.with_changes(arrays, arrays, self.adapter)
        files.check_is_new(directory := files.path(directory).absolute())
        with files.new_directory(directory) as temporary:
            native.write(self.tuned.checkpoint(arrays), temporary)


def _listed(texts: Iterable[Any]) -> list[Any]:
    if isinstance(texts, str):
        raise InputError("expected a list of texts, got one string: put it into a list")
    return list(texts)


def _are_pairs(texts: list[Any]) -> bool:
    return bool(texts) and not isinstance(texts[0], str)


def load(
    path: str | Path | LoadedModel,
    *,
    task: tasks.Task | None = None,
    precision: architecture.Precision | None = None,
    adapter: str | Path | None = None,
) -> LoadedModel:
    """Loads a trained model, to compute in `precision`; `None`: as a tuned run was
    trained, else float32. With a `task`, the encoder gets a new head for it, with
    random weights, whatever head the model has.

    `path` is a finished run directory, a `checkpoints/step-....safetensors` of one that
    may still train, or a directory of Google, Hugging Face, KerasHub or the Model
    Garden. With an `adapter`, a run with `lora_rank` or a directory of peft, `path` is
    its base, or the loaded base, whose weights all its adapters then share in memory.
    """
    base = None
    if adapter is not None:
        if task is not None:
            raise InputError("an adapter has its own task: leave `task` out")
        is_loaded = isinstance(path, LoadedModel)
        base = path if is_loaded else load(path, precision=precision)
        if base.adapter is not None:
            raise InputError(f"{base.path}: an adapter, expected the base of {adapter}")
        path, precision = adapter, base.network.dtype_policy.name
    source = conversion.read(path, base=base and base.path)
    if task is not None:
        kind = registry.labelled(task.kind)
        if kind.has_labels != bool(task.labels):
            expected = "no `labels`" if task.labels else "`labels`"
            raise InputError(f"a task of the kind {task.kind} has {expected}")
        pairs = {"has_text_pair": task.has_text_pair or kind.has_text_pair}
        source = dataclasses.replace(
            source,
            task=task.model_copy(update=pairs),
            arrays=weights.part(source.arrays, lambda n: n.startswith("encoder/")),
            settings=None,
            decision=tasks.LIKELIEST,
        )
    network = finetuned.build_network(
        source, path, precision=precision, base=base and base.network
    )
    return LoadedModel(
        network=network,
        task=source.task,
        tokenizer=source.tokenizer,
        tuned=finetuned.FinetunedModel.from_checkpoint(source, path, network=network),
        path=path,
        adapter=source.changes.adapter if base else None,
    )
