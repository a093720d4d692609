"""The promise of a tuned run: `bert-keras calibrate`."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.inference import finetuned
from bert_keras.kinds import registry, splits
from bert_keras.labelled import dataset, drift
from bert_keras.pages import pictures
from bert_keras.trust import thresholds

logger = logging.getLogger(__name__)

MOST_ROWS = 1_000_000
"""Beyond so many rows, an error asks for less rather than for more rows."""


def calibrate(
    model_dir: str | Path,
    data: str | Path | None,
    *,
    precision: float,
    confidence: float,
    by_label: bool = False,
) -> tasks.Calibration:
    """Writes `calibration.json` into a run: a temperature, and the lowest threshold at
    which at least the share `precision` of the answers given is right, in at least the
    share `confidence` of all choices of rows; `thresholds` says why.

    Args:
        data: labelled rows, drawn as the texts to come will be, that neither training
            nor the choice of the checkpoint has seen; `None`, or the training file:
            those that `finetune --calibrate` set aside.
        by_label: a threshold for each label of texts, so that of the answers with each
            one the share `precision` is right.

    Raises an `InputError` if the rows are too few for the promise, if no threshold
    keeps it, or if the kind of the run has no probabilities of answers.
    """
    for name, share in (("precision", precision), ("confidence", confidence)):
        if not 0 < share < 1:
            raise InputError(
                f"--{name}: expected a share between 0 and 1, such as 0.95, got {share}"
            )
    # 1. Read the run and the rows.
    directory = files.path(model_dir)
    run_directory.read_task(directory, kinds=registry.LABELLED, verb="finetune")
    path, part = _rows_new_to(directory, data)
    try:
        run_directory.read_calibration(directory)
    except InputError as error:
        logger.warning("%s; it is deleted", error)
        (directory / run_directory.CALIBRATION_NAME).unlink()
    model = finetuned.FinetunedModel.load(directory)
    rows = model.read(path, has_labels=True)
    rows = splits.split(rows, part)[1] if part else rows
    rows.describe()
    # 2. Answer the rows, and compute the promise.
    kind = registry.labelled(model.task.kind)
    answers, promise = model.answer(rows), None
    candidates = answers.candidates()
    if by_label and (candidates is None or candidates.labels is None):
        raise InputError(
            f"{directory}: --by_label: a model for {model.task.kind}, expected one for "
            "labels of texts"
        )
    common = {"precision": precision, "confidence": confidence}
    try:
        if candidates is not None:
            is_first = in_first_part(rows.keys())
            noun = kind.several or "rows"
            promise = _with_threshold(
                *(candidates, is_first, noun), by_label=by_label, **common
            )
        elif (distances := answers.distances()) is not None:
            promise = _with_interval(distances, **common)
    except InputError as error:
        options = f"--precision {precision:g} --confidence {confidence:g}"
        raise InputError(f"{path}: {options}: {error}") from None
    if promise is None:
        raise InputError(
            f"{directory}: a model for {model.task.kind}, expected one for labels of "
            "texts, numbers, entities, answers within a text, or ranking"
        )
    # 3. Write the promise beside the weights that it is for, with the likeness of the
    # rows, by which `predict` notices others.
    temperature = promise.get("temperature", 1.0)
    measured = drift.measure(rows, answers, model.tokenizer, temperature=temperature)
    num_different, needed = len({*rows.keys()}), thresholds.fewest_rows(**common)
    if num_different < needed:
        logger.warning(
            "%s: the rows are about %d different things, fewer than the %d that the "
            "promise needs: it is only for texts that repeat as often",
            *(path, num_different, needed),
        )
    calibration = tasks.Calibration(
        data_sha256=splits.file_hash(path),
        examples=kind.answered or kind.examples,
        several=kind.several,
        inputs=measured.describe(),
        **common,
        **promise,
    )
    run_directory.write_calibration(directory, calibration)
    return calibration


def _with_threshold(
    candidates: dataset.Candidates,
    is_first: np.ndarray,
    noun: str,
    *,
    by_label: bool,
    **common: float,
) -> dict[str, Any]:
    """Chooses a temperature and a grid on the first part, and tests on the second; a
    text's answers are all in one part."""
    _check_finite(candidates.logits.max(axis=-1))
    if candidates.texts is not None:
        is_first = is_first[candidates.texts]
    parts = [candidates.take(part) for part in (is_first, ~is_first)]
    most = 1 if by_label else thresholds.most_counted(parts[0])
    num_rows, needed = int((~is_first).sum()), most * thresholds.fewest_rows(**common)
    if num_rows < needed or not is_first.any():
        least = math.ceil(1.1 * needed / (1 - thresholds.FIRST_PART))
        raise InputError(
            f"needs {'about ' * (most > 1)}{needed} {noun} to test the promise, beside "
            f"a quarter for the temperature: give {least} {noun} or more, got "
            f"{len(is_first)}"
        )
    temperature = thresholds.fit_temperature(parts[0])
    first, second = (part.answered(temperature) for part in parts)
    promise = {
        "temperature": temperature,
        "num_rows": num_rows,
        "before": pictures.reliability_bins(*parts[1].answered(1.0)[:2]),
        "after": pictures.reliability_bins(*second[:2]),
    }
    # 1. A threshold for each label.
    if by_label:
        limits, counts, lacking = {}, {}, []
        by_name = thresholds.choose_by_label(parts[0], parts[1], temperature, **common)
        for label, tested in by_name.items():
            index, columns = tested.lowest, (tested.num_answered, tested.num_wrong)
            given, wrong = (0 if index is None else int(c[index]) for c in columns)
            counts[label] = (int(columns[0][-1]), given, wrong)
            if index is None:
                lacking.append(f"{label} ({counts[label][0]} {noun})")
            else:
                limits[label] = float(tested.thresholds[index])
        message = "too few or too often wrong: " + ", ".join(lacking)
        if not limits:
            raise InputError(
                f"{message}; give more {noun}, or ask for less --precision"
            )
        if lacking:
            logger.warning("without a promise, so never given, as %s", message)
        _, answered, wrong = map(sum, zip(*counts.values(), strict=True))
        totals = {"num_answered": answered, "num_wrong": wrong}
        return promise | totals | {"label_thresholds": limits, "by_label": counts}
    # 2. One for all.
    tested = thresholds.choose_threshold(first, second, **common)
    if (index := tested.lowest) is None:
        raise InputError(_advice(tested, most, noun, **common))
    shares = tested.num_answered / num_rows
    right = 1 - tested.num_wrong / np.maximum(tested.num_answered, 1)
    return promise | {
        "threshold": float(tested.thresholds[index]),
        "most_counted": most,
        "num_answered": int(tested.num_answered[index]),
        "num_wrong": int(tested.num_wrong[index]),
        "curve": tuple(zip(shares.tolist(), right.tolist(), strict=True)),
    }


def _with_interval(distances: np.ndarray, **common: float) -> dict[str, Any]:
    _check_finite(distances)
    count, needed = len(distances), thresholds.fewest_rows(**common)
    if count < needed:
        raise InputError(
            f"needs {needed} rows to test the promise: give {needed} or more, got "
            f"{count}"
        )
    width = thresholds.half_width(distances, **common)
    # A little wider, as other formats compute in float32.
    width = float(f"{width * (1 + 1e-5):.6g}")
    num_wrong = int((distances > width).sum())
    counts = {"num_rows": count, "num_answered": count, "num_wrong": num_wrong}
    return {"half_width": width, **counts}


def _check_finite(numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        raise InputError("the model's numbers are not finite: nothing was written")


def in_first_part(keys: Sequence[str]) -> np.ndarray:
    """Returns which rows are of the first part, `(num_rows,)` bool: those with a low
    hash of what they are about and of how many rows before them are about the same.

    Rows are parted one by one, unlike those of `--dev 10%`: both parts must be samples
    of all texts to come, of which the commonest may be many. The hash is another than
    that of `--dev`, whose parts may be parted again.
    """
    counts, first = Counter(), []
    for key in keys:
        number = splits.number_of(f"calibrate {counts[key]} {key}")
        first.append(number < thresholds.FIRST_PART * 2.0**64)
        counts[key] += 1
    return np.array(first, bool)


def _rows_new_to(
    directory: Path, data: str | Path | None
) -> tuple[Path, splits.Part | None]:
    """Returns a file of rows that a run has not seen, and the part that they are of its
    training file; `None`: they are the whole file."""
    settings = run_directory.read_settings(directory, finetuning.FinetuningConfig)
    part = splits.calibration_part(settings) if settings else None
    if data is None and part is None:
        raise InputError(
            f"{directory}: `finetune --calibrate` set no rows aside: give rows that "
            "the run has not seen with --data"
        )
    inputs = directory / run_directory.INPUTS_NAME
    recorded = files.read_json(inputs) if inputs.is_file() else {}
    results = run_directory.read_results(directory) or {}
    path = files.path(data or results.get("environment", {}).get("train", ""))
    digest = splits.file_hash(path) if data or path.is_file() else ""
    is_trained_on = digest == recorded.get("train_sha256")
    if part and is_trained_on:
        return path, part
    if data is None:
        raise InputError(
            f"{path}: is not the training file of {directory} any more, in which "
            f"--calibrate {part and part.name} are: give it, or other rows, with --data"
        )
    if is_trained_on or digest in (recorded.get("dev_sha256") or []):
        raise InputError(
            f"--data {path}: the run was {'trained' if is_trained_on else 'evaluated'} "
            "on this very file, which says too much good of it: give labelled rows "
            "that it has not seen"
        )
    return path, None


def _advice(
    tested: thresholds.Tested, most: int, noun: str, precision: float, confidence: float
) -> str:
    """Returns what to do if no threshold keeps the promise."""
    answered, wrong = tested.num_answered, tested.num_wrong
    num_rows, share = answered[-1], 1 - wrong / np.maximum(answered, 1)
    is_enough = answered >= most * thresholds.fewest_rows(precision, confidence)
    best = int(np.where(is_enough, share, 0).argmax())
    facts = (
        f"of the {answered[best]} surest of {num_rows} answers {wrong[best]} are "
        f"wrong ({1 - share[best]:.1%}), which is "
    )
    # As if the same came again and again, all answers of a text wrong at once.
    factors = np.arange(2, max(2, MOST_ROWS // num_rows))
    counts = factors * answered[best] // most, factors * wrong[best] // most
    is_sure = thresholds.p_values(*counts, precision) <= (1 - confidence) / 3
    if share[best] > precision and is_sure.any():
        rows = factors[is_sure.argmax()] * num_rows / (1 - thresholds.FIRST_PART)
        rows = float(f"{rows:.1g}")
        return f"{facts}too few to be sure of: give about {rows:,.0f} {noun}"
    return f"{facts}too many: ask for less --precision, or tune a better model"
