"""A fine-tuned model's answer to one example: a record for each kind of task.

At its end `finetune` writes the records of its development file, with the right
answers, into the run directory: `dev_answers.jsonl`, an object a line.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.labelled import reading

Computed = Annotated[
    float, pydantic.BeforeValidator(lambda value: math.nan if value is None else value)
]
"""A number that a model computed; NaN is null in its file."""


class Record(pydantic.BaseModel):
    """One example and its answer; unknown keys are ignored when it is read."""

    model_config = pydantic.ConfigDict(frozen=True)
    truth_name: ClassVar[str] = "label"
    """The field with the right answer, which is `None` if the answer is unknown."""


def read_answers(path: Path, record_type: type[Record]) -> list[Record]:
    """Reads `dev_answers.jsonl` of a run; every record must have the right answer."""
    records, expected = [], "an answer as `finetune` writes it"
    for row in reading.read_jsonl(path, expected=expected):
        refusal = f"expected {expected}: "
        try:
            record = record_type.model_validate(row.cells)
        except pydantic.ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"].removeprefix("Value error, ")
            message = f"`{key}`: {message}" if key else message
            raise row.error(refusal + message) from None
        if getattr(record, record.truth_name) is None:
            raise row.error(f"{refusal}`{record.truth_name}`: Field required")
        records.append(record)
    if not records:
        raise InputError(f"{path}: expected the answers of a run, found none")
    return records


def are_finite(records: Iterable[Record]) -> bool:
    """Whether all computed numbers are finite: the model has not overflowed. Numbers
    that are right answers are finite anyway."""
    try:
        for record in records:
            json.dumps(record.model_dump(), allow_nan=False)
    except ValueError:
        return False
    return True
