"""Texts with entities as Doccano, Label Studio, Prodigy and spaCy write them, in the
form of `ner.FORM`; docs/tasks.md has a record of each.

All of them count Unicode code points. No TensorFlow.
"""

import collections
import functools
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_keras.labelled import reading

logger = logging.getLogger(__name__)

_KEYS = ("entities", "spans", "annotations", "label", "labels")
"""Keys of the entities, of which the first record has one."""

_WARNINGS = {
    "left out": "records were rejected, ignored or not finished: left out",
    "several": "texts have several annotations: the first counts, or `ground_truth`",
}


def in_own_form(
    rows: Iterable[reading.Row], *, has_tags: bool
) -> Iterator[reading.Row]:
    """Yields records with `text` and `entities` for those of a tool, others unchanged.

    Records that a person rejected, ignored or did not finish are left out, with a
    warning. Without `has_tags` none is left out, and no entities are read.
    """
    first, path, counts = None, None, collections.Counter()
    for row in rows:
        # 1. The key of the entities, the same in all records.
        path, record = row.path, _with_text(row)
        key = next((k for k in _KEYS if k in record), None)
        first = first or key or ("spans" if "answer" in record else None)
        if not has_tags or first is None or "words" in record:
            yield row._replace(cells=record)
            continue
        if key not in (first, None):
            raise row.error(f"expected {first!r} as in the first record, got {key!r}")
        # 2. The entities. Prodigy may leave empty `spans` out.
        is_prodigy = first == "spans" and "answer" in record
        spans = record.get(first, [] if is_prodigy else None)
        is_left_out = is_prodigy and record["answer"] != "accept"
        if first == "annotations":
            spans = _label_studio_entities(row, record, counts)
            is_left_out = spans is None
        if is_left_out:
            counts["left out"] += 1
            continue
        if not isinstance(spans, list):
            raise row.error(
                f"expected {first!r} with a list, [] if there are none, got "
                f"{spans!r:.60}"
            )
        spans = [*map(_with_own_keys, spans)]
        yield row._replace(cells={**record, "entities": spans})
    for name, count in (+counts).items():
        logger.warning("%s: %d %s", path, count, _WARNINGS[name])


def _with_text(row: reading.Row) -> dict[str, Any]:
    match row.cells:
        case [str() as text, dict() as facts]:
            return {"text": text, **facts}
        case list() as values:
            raise row.error(f"expected an object, got {values!r:.60}")
        case {"text": _}:
            return row.cells
        case {"data": {"text": text}} | {"data": str() as text}:
            return {**row.cells, "text": text}
        case {"data": dict() as data} if len(data) == 1:
            # A name of the user's own.
            return {**row.cells, "text": next(iter(data.values()))}
    return row.cells


def _with_own_keys(span: Any) -> Any:
    match span:
        case {"start_offset": start, "end_offset": end}:
            return {**span, "start": start, "end": end}
        case [start, end, label, *_]:
            return {"start": start, "end": end, "label": label}
    return span


def _label_studio_entities(
    row: reading.Row, record: dict[str, Any], counts: collections.Counter
) -> list[dict[str, Any]] | None:
    """Returns the entities of a text; `None`: no annotation is finished."""
    # Line ends and blanks of a quoted entity are not always those of the text.
    letters = functools.partial(re.sub, r"\\[nrt]|\s", "")
    try:
        text = record["text"]
        finished = [a for a in record["annotations"] if not a.get("was_cancelled")]
        best = max(finished, key=lambda a: bool(a.get("ground_truth")), default={})
        # Relations have no value, and choices no labels.
        values = [result.get("value", {}) for result in best.get("result", ())]
        others = {k for v in values for k in v if k.endswith("labels")} - {"labels"}
        spans = [{**v, "label": label} for v in values for label in v.get("labels", ())]
        for span in spans:
            quoted = span.get("text")
            if quoted and letters(quoted) != letters(text[span["start"] : span["end"]]):
                raise row.error(
                    f"the entity {quoted!r:.60} is not in its place {span['start']:d}; "
                    "Label Studio before 2022 counted UTF-16 units: export it again"
                )
    except (AttributeError, KeyError, TypeError):
        raise row.error("expected `annotations` as Label Studio has them") from None
    if others:
        raise row.error(f"expected `labels` of plain text, got {min(others)!r}")
    counts["several"] += len(finished) > 1
    return spans if finished else None
