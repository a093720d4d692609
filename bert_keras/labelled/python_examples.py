"""Examples that were given as Python objects, to be answered."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bert_keras.core.errors import InputError


def read(
    examples: Iterable[Any], row: Callable[[Any, int], Any], *, expected: str
) -> dict[str, Any]:
    """Returns fields of a data set of one or more examples without labels; errors
    describe the `expected` example. `row` makes a row from an example and its number,
    from 1, and raises a `TypeError` or `ValueError` for an example of another shape."""
    rows = []
    for number, example in enumerate(examples, start=1):
        try:
            rows.append(row(example, number))
        except (TypeError, ValueError):
            raise InputError(
                f"example {number}: expected {expected}, got {example!r:.80}"
            ) from None
    if not rows:
        raise InputError("expected at least one example, got none")
    # A name in place of a path of their file.
    return {"path": Path("examples in Python"), "rows": rows, "has_labels": False}


def strings(values: Any) -> tuple[str, ...]:
    """Returns several strings as a tuple; a single string raises a `TypeError`."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError
    return tuple(values)
