"""Asks an exported model what the original is asked in Python, and compares."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.export import formats
from bert_keras.inference import fill_mask, finetuned
from bert_keras.kinds import registry, served

TEXTS = (
    "",
    "[MASK]",
    "The quick [MASK] fox[MASK]s over the lazy dog, doesn't it?",
    "Ein naïver Ångström-Käfer … ΟΔΥΣΣΕΥΣ fährt nach İstanbul № 42!",
    "日本語とひらがな, 한국어, русский, العربية 🙂 \u200b\ufffd\x00\ttab",
    "long " * 600,
)


def check_saved_model(model: served.ServedModel, directory: Path) -> None:
    """Raises a `RuntimeError` if a SavedModel answers strings otherwise than Python
    does, or one of its other signatures otherwise than before it was written."""
    exported = tf.saved_model.load(str(directory)).signatures
    for name, signature in model.signatures().items():
        questions = _questions(signature.inputs)
        if name == served.IDS:
            questions = ids_of_texts(model)
        answers = served.as_arrays(
            exported[name](**{key: tf.constant(v) for key, v in questions.items()})
        )
        if name == served.STRINGS:
            expected = _answers_in_python(model, questions)
            for row, outputs in enumerate(model.expected_outputs(expected)):
                of_row = {key: values[row] for key, values in answers.items()}
                _check_close(of_row, outputs, dtype=model.dtype)
        else:
            expected = signature.function(*map(tf.constant, questions.values()))
            # Orders and choices follow from numbers, which may be near to each other.
            numbers = {k: v for k, v in expected.items() if v.dtype.is_floating}
            _check_close(answers, served.as_arrays(numbers), dtype=model.dtype)


def check_numbers(model: served.ServedModel, run: formats.Run) -> None:
    """Raises a `RuntimeError` if `run`, from ids to numbers, is not `model.compute`."""
    ids = ids_of_texts(model)
    # The endings of an example have one length, that of the longest.
    inputs = [spec.name for spec in model.id_specs[: len(served.INPUT_NAMES)]]
    lengths = ids[inputs[1]].sum(axis=-1)
    lengths = lengths.reshape(len(lengths), -1).max(axis=1)
    batches = [ids]
    # The shortest texts once more, alone and without padding.
    for row in np.argsort(lengths, kind="stable")[:3]:
        ends = dict.fromkeys(ids, 1) | dict.fromkeys(inputs, lengths[row])
        batches.append({k: v[row : row + 1, ..., : ends[k]] for k, v in ids.items()})
    for batch in batches:
        expected = model.compute({k: tf.constant(v) for k, v in batch.items()})
        _check_close(run(batch), served.as_arrays(expected), dtype=model.dtype)


def ids_of_texts(model: served.ServedModel) -> dict[str, np.ndarray]:
    ids = model.encode(*map(tf.constant, _questions(model.string_specs).values()))
    return {spec.name: ids[spec.name].numpy() for spec in model.id_specs}


def _questions(specs: Sequence[tf.TensorSpec]) -> dict[str, list[Any]]:
    """Returns strings for the inputs of a signature, with a row for each of `TEXTS`;
    the texts of a row differ."""
    questions = {}
    for number, spec in enumerate(specs):
        texts = [*TEXTS[number:], *TEXTS[:number]]
        # Python answers examples with four endings.
        questions[spec.name] = (
            texts if spec.shape.rank == 1 else [texts[:4]] * len(texts)
        )
    return questions


def _answers_in_python(model: served.ServedModel, questions: Mapping[str, Any]) -> Any:
    trained = model.trained
    examples = [*zip(*questions.values(), strict=True)]
    if len(questions) == 1:
        [examples] = questions.values()
    if trained.settings is None:
        # A pre-trained model guesses words; none where Python refuses a text that an
        # export answers: without a mask, or with more tokens than an input has.
        fill, guesses = fill_mask.FillMask(trained.path), []
        for text in examples:
            guesses.append([])
            with contextlib.suppress(InputError):
                guesses[-1] = fill(text, top_k=model.top_k)
        return guesses

    def network(features, training):
        numbers = model.compute(features)
        # To Python, the vectors of a text's tokens are its answer too.
        vectors = numbers.get("token_embeddings")
        return numbers if vectors is None else {"embedding": vectors}

    original = finetuned.FinetunedModel(
        network=network,
        task=trained.task,
        tokenizer=trained.tokenizer,
        settings=trained.settings,
        decision=trained.decision,
    )
    kind = registry.labelled(trained.task.kind)
    return original.answer(kind.from_python(examples, trained.task))


def _check_close(
    outputs: Mapping[str, Any], expected: Mapping[str, Any], *, dtype: str
) -> None:
    """Raises a `RuntimeError` if outputs, but for their padding, are not as expected.
    Arrays of strings follow from numbers and are not compared."""
    for name, values in expected.items():
        values, actual = np.asarray(values), np.asarray(outputs[name])
        if values.dtype == object:
            continue
        actual = actual[tuple(map(slice, values.shape))]
        # In half precision numbers depend on what else is in a batch. A score has no
        # scale but its own size.
        tolerances = {"float32": 1e-5, "bfloat16": 2.0**-4, "float16": 2.0**-7}
        tolerance, difference = tolerances[dtype], np.inf
        if values.dtype.type is np.bytes_:
            difference = float(actual != values)
        elif actual.shape == values.shape:
            difference = np.abs(actual - values).max(initial=0)
            tolerance *= np.abs(values).max(initial=1)
        # NaN fails this too.
        if not difference <= tolerance:
            raise RuntimeError(
                f"the exported model answers differently, by up to {difference:.3g} in "
                f"{name}: nothing was written"
            )
