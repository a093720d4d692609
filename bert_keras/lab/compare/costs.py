"""Size and speed of tuned models and floors, on the same texts of the dev file."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.settings import strict
from bert_keras.lab.compare import floors
from bert_keras.labelled import dataset

NUM_SINGLE = 50
"""Texts that are asked one by one."""

BATCH_SIZE = 32
NUM_BATCHES = 6

_NUM_WARM = 3


class Answerer(NamedTuple):
    """A tuned model or a floor, ready to answer."""

    answer: Callable[[dataset.Dataset], object]
    """From texts to outputs."""
    num_bytes: int
    """Weights in a file."""
    num_parameters: int | None = None


class Costs(strict.StrictModel):
    """Size and speed."""

    num_bytes: int
    num_parameters: int | None
    milliseconds_single: float
    """Median time of one text."""
    examples_per_second: float
    """Of batches of `BATCH_SIZE`, median."""


class _AllCosts(strict.StrictModel):
    """Costs by contender, measured together."""

    costs: dict[str, Costs]


def open_run(run_dir: Path) -> Answerer:
    """A tuned model, as `predict` runs it: from text to output.

    Raises:
        InputError: no finished run.
    """
    # Not at the top: a comparison that finds all measured loads no TensorFlow.
    from bert_keras.inference import finetuned, forward

    model = finetuned.FinetunedModel.load(run_dir)
    # Its trace is that of all batches.
    run = forward.predictor_for(model.network)

    def answer(data: dataset.Dataset) -> object:
        inputs = data.encode(model.task, model.tokenizer, model.settings)
        return run(inputs, title=None)

    results = run_directory.read_results(run_dir) or {}
    return Answerer(
        answer,
        num_bytes=(run_dir / run_directory.WEIGHTS_NAME).stat().st_size,
        num_parameters=results.get("num_parameters"),
    )


def of_floor(floor: floors.Floor) -> Answerer:
    """A floor."""
    return Answerer(floor.answer, num_bytes=floor.num_bytes)


def read_or_measure(
    path: Path, contenders: Mapping[str, Callable[[], Answerer]], dev: dataset.Dataset
) -> dict[str, Costs]:
    """Costs from a file; or of all, measured together and written there.

    Measured at different times they would not compare where a machine has other work.

    Args:
        path: of the file.
        contenders: by name, what makes each ready.
        dev: labelled examples.
    """
    if path.is_file():
        found = strict.build_config(_AllCosts, files.read_json(path), origin=path)
        if contenders.keys() <= found.costs.keys():
            return found.costs
    ready = {name: make() for name, make in contenders.items()}
    single = _times(ready, dev, size=1, count=NUM_SINGLE)
    batches = _times(ready, dev, size=BATCH_SIZE, count=NUM_BATCHES)
    size = min(BATCH_SIZE, len(dev))
    measured = {
        name: Costs(
            num_bytes=answerer.num_bytes,
            num_parameters=answerer.num_parameters,
            milliseconds_single=1000 * statistics.median(single[name]),
            examples_per_second=size / statistics.median(batches[name]),
        )
        for name, answerer in ready.items()
    }
    files.write_json(path, _AllCosts(costs=measured).model_dump(mode="json"))
    return measured


def _times(
    ready: Mapping[str, Answerer], dev: dataset.Dataset, *, size: int, count: int
) -> dict[str, list[float]]:
    """Seconds of each of some batches, which all answer in turns.

    The dev file is repeated where it is short.
    """
    rows = itertools.cycle(range(len(dev)))
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(count + _NUM_WARM):
        data = dev.subset(list(itertools.islice(rows, min(size, len(dev)))))
        for name, answerer in ready.items():
            start = time.perf_counter()
            answerer.answer(data)
            seconds[name].append(time.perf_counter() - start)
    return {name: values[_NUM_WARM:] for name, values in seconds.items()}
