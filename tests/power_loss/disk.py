"""What a disk may hold after the power failed in the middle of a command.

The model is that of a journal: names change in the order of the calls, and the content
of a file is certain when it was synced. Of what was written after that, nothing may be
there (`dropped`), half of it (`torn`), or all (`whole`, as after a killed process).
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LOSSES = ("dropped", "torn", "whole")


class State(NamedTuple):
    """The contents of a directory: bytes by the name of a file, `None` of a folder."""

    moment: str
    contents: dict[str, bytes | None]
    damaged: frozenset[str]
    """Files that do not have what was written into them."""

    def digest(self) -> str:
        """Returns the same for states that differ in temporary files alone."""
        items = [
            (name, content)
            for name, content in sorted(self.contents.items())
            if not name.endswith(".tmp") and ".heartbeats/" not in name
        ]
        return hashlib.sha256(repr(items).encode()).hexdigest()

    def write(self, directory: Path) -> None:
        directory.mkdir()
        for name, content in sorted(self.contents.items()):
            path = directory / name
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)


def after_loss(written: bytes, synced: bytes | None, loss: str) -> bytes:
    """Returns what is left of a file, whose last synced content is `synced`."""
    if loss == "whole" or written == synced:
        return written
    if loss == "dropped":
        return synced or b""
    begun = len(synced) if synced is not None and written.startswith(synced) else 0
    return written[: (begun + len(written)) // 2]


def states(records: Path) -> Iterator[State]:
    """Yields all states that the disk may have after a loss of power, each once."""
    synced: dict[int, bytes] = {}
    seen = set()
    for line in (records / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        written = {
            name: None if file is None else (file[0], (records / file[1]).read_bytes())
            for name, file in record["names"].items()
        }
        inodes = {file[0]: file[1] for file in written.values() if file}
        synced = {inode: data for inode, data in synced.items() if inode in inodes}
        synced |= {i: inodes[i] for i in record["synced"] if i in inodes}
        for loss in LOSSES:
            contents = {
                name: file and after_loss(file[1], synced.get(file[0]), loss)
                for name, file in written.items()
            }
            damaged = {n for n, f in written.items() if f and f[1] != contents[n]}
            moment = f"{loss}, {record['event']}"
            state = State(moment, contents, frozenset(damaged))
            if (digest := state.digest()) not in seen:
                seen.add(digest)
                yield state
