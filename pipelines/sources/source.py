"""A source: a kind of file that `corpus` reads, and what it gives.

A new source is a file beside this one and a line in `sources/__init__.py`. Sources are
cheap to import, since the command line takes its options from them: heavy modules are
imported in their methods.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from bert_keras.core import files
from bert_keras.pipelines.sources import encodings, multistream


@dataclass(frozen=True, kw_only=True)
class Input:
    kind: str
    """Name of a source."""
    path: str
    num_bytes: int
    encoding: encodings.Choice | None = None
    """`None`: `--encoding` says nothing of this file."""


@dataclass(frozen=True)
class Range:
    """A part of a file: the documents that begin at `start` or later, before `stop`."""

    item: Input
    start: int
    """In bytes of the file, that is, compressed."""
    stop: int
    pieces: tuple[tuple[int, int, int], ...] = ()
    """The `book_cutter.Piece`s of books in this part. Empty: `read` finds them."""


class SourceDocument(NamedTuple):
    """A document of a source, not yet split into sentences."""

    id: str
    source: str
    title: str
    paragraphs: Sequence[str | Sequence[str]]
    """Texts or, where the source has sentences, lists of sentences."""
    rank: str = ""
    """Among documents with the same id, the greatest rank wins."""


class Reject(NamedTuple):
    file: str
    item: str
    """Page id, place in the file or nothing."""
    title: str
    reason: str


Items = Iterator[SourceDocument | Reject]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The options of a reader, and where it reports."""

    drop_lists: bool = True
    """Whether disambiguation and list pages of Wikipedia are left out."""
    allow_cut_dumps: bool = False
    """Whether dumps may end before `</mediawiki>`."""
    advance: Callable[[int], object] = lambda _: None
    """Called with the number of bytes of the range just consumed."""
    reach: Callable[[int], object] = lambda _: None
    """A source calls it with the place in the file up to which it has read; set by
    `reading.read_range`, which calls `advance`."""
    counts: Counter[str] = field(default_factory=Counter)


class Source(Protocol):
    """A kind of file, and how it becomes documents."""

    name: ClassVar[str]
    """The option of the command line, and of `Input` and `Range`."""
    description: ClassVar[str]
    """For the help text."""
    takes_encodings: ClassVar[bool] = False
    """Whether its files may be in other encodings than UTF-8."""
    step: ClassVar[int] = 1
    """Bytes at whose multiples `split` divides."""

    def check(self, path: str, *, allow_cut_dumps: bool) -> str | None:
        """Finds at once what would otherwise stop the job later. With
        `allow_cut_dumps`, dumps may end before `</mediawiki>`. Returns the name of
        another source if that one has to read the file."""
        ...

    def split(self, item: Input, max_bytes: int) -> list[Range]:
        """Divides a file of more than `max_bytes` into ranges for several workers.
        Returns no range of a file that one worker has to read as a whole: here of those
        that are compressed."""
        with files.open_to_read(item.path) as file:
            if multistream.compression(file) is not None:
                return []
        return even_ranges(item, max_bytes, step=self.step)

    def read(self, part: Range, context: Context) -> Items:
        """Reads the documents that begin in a range. Counts `items_read` for each item,
        and `dropped/` with the reason for each item left out on purpose. A file too
        damaged for a `Reject` raises `InputError`."""
        ...


def even_ranges(item: Input, max_bytes: int, *, step: int = 1) -> list[Range]:
    """Divides a file into ranges of equal size, at multiples of `step` bytes."""
    count = -(-item.num_bytes // max_bytes)
    starts = {item.num_bytes * n // count // step * step for n in range(count)}
    bounds = itertools.pairwise([*sorted(starts), item.num_bytes])
    return [Range(item, start, stop) for start, stop in bounds]
