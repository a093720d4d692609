"""Size and speed of tuned models and floors, each on the same texts of the dev file."""

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bert_keras import files, run_directory, strict_model
from bert_keras.compare import floors
from bert_keras.tasks import dataset

NUM_SINGLE = 50
"""Texts that are asked one by one."""

BATCH_SIZE = 32
NUM_BATCHES = 6

_NUM_WARM = 3


class Costs(strict_model.StrictModel):
    """Size and speed of answers."""

    num_bytes: int
    """Weights in a file."""
    num_parameters: int | None = None
    milliseconds_single: float
    """Median time of one text."""
    examples_per_second: float
    """Of batches of `BATCH_SIZE`, median."""


def measure_run(run_dir: Path, dev: dataset.Dataset) -> Costs:
    """A tuned model, as `predict` runs it: from text to answer, on this machine.

    Raises:
        InputError: no finished run.
    """
    # Not at the top: a comparison that finds all measured loads no TensorFlow.
    from bert_keras.inference import forward, tuned

    model = tuned.TunedModel.load(run_dir)
    # Its trace is that of all batches.
    run = forward.of_task(model.network)

    def answer(data: dataset.Dataset) -> None:
        run(data.encode(model.task, model.tokenizer, model.settings), title=None)

    results = run_directory.read_results(run_dir) or {}
    return _measure(
        answer,
        dev,
        num_bytes=(run_dir / run_directory.WEIGHTS_NAME).stat().st_size,
        num_parameters=results.get("num_parameters"),
    )


def measure_floor(floor: floors.Floor, dev: dataset.Dataset) -> Costs:
    """A floor."""
    return _measure(floor.answer, dev, num_bytes=floor.num_bytes, num_parameters=None)


def _measure(
    answer: Callable[[dataset.Dataset], object],
    dev: dataset.Dataset,
    *,
    num_bytes: int,
    num_parameters: int | None,
) -> Costs:
    single = _times(answer, dev, size=1, count=NUM_SINGLE)
    batches = _times(answer, dev, size=BATCH_SIZE, count=NUM_BATCHES)
    size = min(BATCH_SIZE, len(dev))
    return Costs(
        num_bytes=num_bytes,
        num_parameters=num_parameters,
        milliseconds_single=1000 * statistics.median(single),
        examples_per_second=size / statistics.median(batches),
    )


def _times(
    answer: Callable[[dataset.Dataset], object],
    dev: dataset.Dataset,
    *,
    size: int,
    count: int,
) -> list[float]:
    """Seconds of each of some batches, the dev file repeated where it is short."""
    rows = itertools.cycle(range(len(dev)))
    seconds = []
    for _ in range(count + _NUM_WARM):
        data = dev.subset(list(itertools.islice(rows, min(size, len(dev)))))
        start = time.perf_counter()
        answer(data)
        seconds.append(time.perf_counter() - start)
    return seconds[_NUM_WARM:]


def read_or_measure(path: Path, measure: Callable[[], Costs]) -> Costs:
    """Costs from a file, or measured and written there."""
    if path.is_file():
        return strict_model.build_config(Costs, files.read_json(path), origin=path)
    found = measure()
    files.write_json(path, found.model_dump(mode="json"))
    return found
