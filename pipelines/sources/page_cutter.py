"""Text in chunks -> `<page>...</page>`, without parsing it and without files."""

from collections.abc import Iterator

_MAX_PAGE_BYTES = 1 << 26
_OPEN, _CLOSE = b"<page>", b"</page>"

Cut = tuple[bytes, str | None]
"""A whole page and `None`, or a part of a page and its problem."""


class PageCutter:
    """Cuts `<page>...</page>` that begin from `skip` to before `stop` out of chunks."""

    def __init__(self, *, offset: int = 0, skip: int = 0, stop: int | None = None):
        self.skip = skip
        self.stop = stop
        self._begin = offset
        self._buffer = bytearray()
        self._opened: int | None = None
        self._scanned = 0

    @property
    def offset(self) -> int:
        return self._begin + len(self._buffer)

    @property
    def is_open(self) -> bool:
        """Whether a page, or a tag that may open one, has begun but not ended."""
        return self._opened is not None or any(
            self._buffer.endswith(_OPEN[:length]) for length in range(1, len(_OPEN))
        )

    @property
    def is_finished(self) -> bool:
        """Whether no further text can give a page."""
        return self.stop is not None and not self.is_open

    def feed(self, chunk: bytes) -> Iterator[Cut]:
        buffer = self._buffer
        # A tag may lie across two chunks.
        position = max(len(buffer) - len(_CLOSE) + 1, self._scanned)
        buffer += chunk
        while (name := buffer.find(b"page>", position)) >= 0:
            position = self._scanned = name + len(b"page>")
            if buffer.startswith(_OPEN, name - 1) and name > 0:
                if self._opened is not None:
                    yield self._take(name - 1), "no </page>"
                self._opened = name - 1 if self._may_open(name - 1) else None
            elif buffer.startswith(_CLOSE, name - 2) and name > 1:
                if self._opened is not None:
                    yield self._take(self._scanned), None
        if self._opened is not None and len(buffer) - self._opened > _MAX_PAGE_BYTES:
            yield self._take(self._opened + 4096), "longer than 64 MiB"
        self._trim()

    def cut_off(self, reason: str) -> Iterator[Cut]:
        """Ends an open page; the next chunk does not continue it."""
        if self._opened is not None:
            yield self._take(len(self._buffer)), reason
        self._begin = self.offset
        self._buffer.clear()
        self._scanned = 0

    def _may_open(self, position: int) -> bool:
        offset = self._begin + position
        return offset >= self.skip and (self.stop is None or offset < self.stop)

    def _take(self, end: int) -> bytes:
        page = bytes(memoryview(self._buffer)[self._opened : end])
        self._opened = None
        return page

    def _trim(self) -> None:
        keep = self._opened
        if keep is None:
            keep = max(len(self._buffer) - len(_CLOSE) + 1, self._scanned)
        else:
            self._opened = 0
        keep = min(keep, len(self._buffer))
        del self._buffer[:keep]
        self._begin += keep
        self._scanned = max(self._scanned - keep, 0)
