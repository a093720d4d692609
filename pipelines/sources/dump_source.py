"""A MediaWiki dump as a source of Apache Beam, for pipelines of your own.

`corpus` reads the same ranges by `wikipedia.read_pages`.
"""

from collections.abc import Iterator
from typing import Any

from apache_beam.io import iobase, range_trackers

from bert_keras import files
from pipelines.sources import wikipedia


class DumpSource(iobase.BoundedSource):
    """A dump as a Beam source of `Page` and `BadPage`, which runners may split.

    Positions are bytes of the file. A page is read by the range that holds the start of
    its bzip2 stream or, in plain UTF-8, of the page itself, so that each is read once,
    however the file is split. Other files cannot be split: their one position is 0.
    """

    def __init__(self, path: str):
        self._path = path

    def estimate_size(self) -> int:
        return files.size(self._path)

    def split(
        self,
        desired_bundle_size: int,
        start_position: int | None = None,
        stop_position: int | None = None,
    ) -> Iterator[iobase.SourceBundle]:
        tracker = self.get_range_tracker(start_position, stop_position)
        start, stop = tracker.start_position(), tracker.stop_position()
        step = (
            max(desired_bundle_size, 1) if wikipedia.is_splittable(self._path) else stop
        )
        for begin in range(start, stop, max(step, 1)):
            end = min(begin + step, stop)
            yield iobase.SourceBundle(end - begin, self, begin, end)

    def get_range_tracker(
        self, start_position: int | None, stop_position: int | None
    ) -> range_trackers.OffsetRangeTracker:
        stop = self.estimate_size() if stop_position is None else stop_position
        return range_trackers.OffsetRangeTracker(start_position or 0, stop)

    def read(
        self, range_tracker: range_trackers.OffsetRangeTracker
    ) -> Iterator[wikipedia.Page | wikipedia.BadPage]:
        yield from wikipedia.read_range(self._path, range_tracker, lambda _: None)

    def display_data(self) -> dict[str, Any]:
        return {"path": self._path}
