"""Arbitrary text shown verbatim in Markdown, and tables. The result looks the same in
GitHub's Markdown, CommonMark and TensorBoard."""

import itertools
import math
import re
import statistics
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_TEXT_LENGTH = 320
"""Characters to show of a long text, approximately."""

MAX_LABEL_LENGTH = 80
"""Characters to show of a long name."""

_NEAREST_BLANK = 20

# Without characters such as "-" that have a meaning only at the beginning of a line.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
# Controls, also of direction, and halves of surrogate pairs, which cannot be written at
# all. Joiners belong to their letters and stay.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A word of more than 60 characters: both its ends are shown.
_UNBROKEN = re.compile("([!-\u024f]{45})[!-\u024f]+([!-\u024f]{15})")


class Mark(NamedTuple):
    """An important stretch of a text."""

    start: int
    end: int
    tag: str = "strong"
    """HTML tag; Markdown's own signs fail next to some punctuation."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table, whose cells are Markdown of one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def percent(share: float) -> str:
    """Writes `0.125` as `12.5 %`; NaN, the share of nothing, as a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def spread(values: Sequence[float], *, digits: int, num_runs: int = 0) -> str:
    """Writes mean and deviation of scores as `0.750 ± 0.010 (n = 2)`: their number if
    fewer than `num_runs` have a score. No score is a dash."""
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text + (f" (n = {len(values)})" if len(values) < num_runs else "")


def literal(text: str, *, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Writes a text as one line of Markdown; a long one loses its middle."""
    return excerpt(text, max_length=max_length)


def escape_signs(token: str) -> str:
    """Escapes every ASCII sign of a token, also those that begin a list."""
    return "".join(
        char if char.isalnum() or ord(char) > 127 else f"&#{ord(char)};"
        for char in token
    )


def excerpt(
    text: str, marks: Sequence[Mark] = (), *, max_length: int = MAX_TEXT_LENGTH
) -> str:
    """Returns the important parts of a text, as one line of Markdown.

    White space becomes single blanks, an invisible character its number, such as
    `\\x00`, and the middle of a very long word an ellipsis. A text of only white space
    is called empty.

    Args:
        marks: stretches to set off and to show with their surroundings; without any,
            the beginning and the end of the text are shown.
        max_length: approximate number of characters to show; more with many marks.
    """
    if not text.strip():
        return "<em>empty</em>"
    windows, shown = _windows(text, marks, max_length), []
    for start, end in windows:
        # Each part of a stretch in the tags of its marks.
        inner = {bound for mark in marks for bound in mark[:2] if start < bound < end}
        parts = []
        for low, high in itertools.pairwise(sorted({start, end} | inner)):
            tags = sorted({m.tag for m in marks if m.start <= low and high <= m.end})
            parts += [f"<{tag}>" for tag in tags]
            part = re.sub(r"\s+", " ", _UNBROKEN.sub(r"\1…\2", text[low:high]))
            # Python writes an invisible character by its number, such as `\x00`.
            part = _INVISIBLE.sub(lambda char: ascii(char[0])[1:-1], part)
            parts.append(_MARKUP.sub(lambda char: f"&#{ord(char[0])};", part))
            parts += [f"</{tag}>" for tag in reversed(tags)]
        shown.append("".join(parts).strip())
    line = " … ".join(shown)
    if windows[0][0] > 0:
        line = f"… {line}"
    if windows[-1][1] < len(text):
        line = f"{line} …"
    # Isolated, so that text from right to left does not move its surroundings.
    is_turned = any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)
    return f"\u2068{line}\u2069" if is_turned else line


def _windows(
    text: str, marks: Sequence[Mark], max_length: int
) -> list[tuple[int, int]]:
    """Returns stretches of the text to show, in order and apart."""
    if len(text) <= max_length:
        return [(0, len(text))]
    if not marks:
        tail = max_length // 4
        head = _at_blank(text, max_length - tail, -1)
        return [(0, head), (_at_blank(text, len(text) - tail, 1), len(text))]
    # Both ends of a long mark; the two windows of a short one are joined.
    half = max_length // 4
    room = max_length - sum(mark.end - mark.start for mark in marks)
    margin = max(_NEAREST_BLANK, room // (2 * len(marks)))
    windows = []
    for start, end, _ in marks:
        low = _at_blank(text, max(0, start - margin), 1, limit=start)
        high = _at_blank(text, min(len(text), end + margin), -1, limit=end)
        first_end = _at_blank(text, min(end, start + half), -1, limit=start)
        last_start = _at_blank(text, max(start, end - half), 1, limit=end)
        windows += [(low, first_end), (last_start, high)]
    # Windows that nearly touch are one.
    joined: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if joined and start <= joined[-1][1] + _NEAREST_BLANK:
            start, previous_end = joined.pop()
            end = max(end, previous_end)
        joined.append((start, end))
    return joined


def _at_blank(text: str, place: int, step: int, *, limit: int | None = None) -> int:
    """Returns a word's nearest end, or `place` if none is near or before `limit`."""
    if place in (0, len(text)):
        return place
    for found in range(place, place + step * _NEAREST_BLANK, step):
        if found == limit or not 0 < found < len(text):
            break
        if text[found if step < 0 else found - 1].isspace():
            return found
    return place
