"""Memory, open files and processors of this machine."""

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from bert_keras.tpu.doctor.findings import Finding

_MIN_MEMORY = 2 << 30
"""TensorFlow takes 0.6 GB, BASE with its optimizer 1.3 GB."""
_MIN_OPEN_FILES = 1024
"""A shuffle on disk, or 1,000 shards of examples, read at once."""


def examine(root: Path = Path("/")) -> Iterator[Finding]:
    """Memory that is free, and how many files a process may open."""
    yield _memory(root)
    yield _open_files()


def _memory(root: Path) -> Finding:
    text = (root / "proc/meminfo").read_text()
    free = int(re.findall(r"MemAvailable: +(\d+) kB", text)[0]) << 10
    limit, used = (
        _number(root / f"sys/fs/cgroup/memory.{n}") for n in ("max", "current")
    )
    # A container's own limit: the machine may have more.
    if limit is not None:
        free = min(free, limit - (used or 0))
    told = f"{free / 1e9:.1f} GB free, {os.cpu_count()} processors"
    if free < _MIN_MEMORY:
        least = f"{_MIN_MEMORY / 1e9:.1f} GB"
        fix = "ps ax --sort=-rss --format pid,rss,args | head"
        return Finding("memory", "problem", f"{told}, {least} are needed", fix)
    return Finding("memory", "ok", told)


def _number(path: Path) -> int | None:
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isdigit() else None


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES:
        return Finding("open files", "ok", f"{soft} at once")
    return Finding(
        "open files",
        "problem",
        f"{soft} at once, {_MIN_OPEN_FILES} are needed",
        f"ulimit -n {hard if hard > soft else 65536}",
    )
