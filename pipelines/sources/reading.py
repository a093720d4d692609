"""Files of all sources -> ranges of bytes -> documents.

A file is split into ranges of bytes, which workers read independently. A range yields
a `SourceDocument` for each document and a `Reject` for each unreadable item; items that
are left out on purpose are counted.
"""

import dataclasses
import fnmatch
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import SOURCES, encodings, source

logger = logging.getLogger(__name__)


def find_inputs(
    patterns: Mapping[str, Sequence[str]],
    *,
    allow_cut_dumps: bool = False,
    encoding: Sequence[str] = (),
) -> list[source.Input]:
    """Expands patterns, by source, into files, each once; checks how each begins.
    `encoding` has the options of that name, `NAME`, `auto` or `PATTERN=NAME`."""
    # 1. The files.
    if not any(patterns.values()):
        names = ", --".join(SOURCES)
        raise InputError(f"nothing to read: give at least one of --{names}")
    inputs: dict[tuple[str, str], source.Input] = {}
    for kind, kind_patterns in patterns.items():
        for path in (path for p in kind_patterns for path in _match(kind, p)):
            key = path if files.is_remote(path) else os.path.realpath(path)
            if (kind, key) in inputs:
                continue
            try:
                size = files.size(path)
                other = SOURCES[kind].check(path, allow_cut_dumps=allow_cut_dumps)
            except OSError as error:
                raise _unreadable(path, error) from None
            inputs[kind, key] = source.Input(
                kind=other or kind, path=path, num_bytes=size
            )
    # 2. The encoding of each: that of the first pattern that matches its path, or the
    # end of it, else that of all other files.
    takers = [kind for kind in SOURCES if SOURCES[kind].takes_encodings]
    by_pattern = encodings.parse_options(encoding)
    chosen, unused = [], dict(by_pattern)
    for item in sorted(inputs.values(), key=lambda item: (item.kind, item.path)):
        path = item.path
        matches = (p for p in by_pattern if fnmatch.fnmatch(f"/{path}", f"*/{p}"))
        pattern = next(matches, "")
        name = by_pattern.get(pattern) if item.kind in takers else None
        if name is not None:
            unused.pop(pattern, None)
        if name == encodings.AUTO and (name := encodings.likeliest_of_file(path)):
            logger.info("%s: %s, by charset-normalizer", path, name)
        choice = encodings.Choice(name, is_for_file=bool(pattern)) if name else None
        chosen.append(dataclasses.replace(item, encoding=choice))
    for pattern, name in unused.items():
        option = f"{pattern}={name}" if pattern else name
        raise InputError(
            f"--encoding {option}: is for files of --{' and --'.join(takers)}, and "
            f"{'none matches' if pattern else 'there are none'}; other sources are in "
            "UTF-8"
        )
    return chosen


def fingerprints(inputs: Sequence[source.Input]) -> dict[str, dict[str, Any]]:
    """Returns facts that change with each file, see `files.fingerprint`. The keys are
    kind and name, not path, so that the files may be moved; files of the same name are
    numbered."""
    by_name: dict[str, dict[str, Any]] = {}
    seen: Counter[str] = Counter()
    with progress.Progress(
        "corpus: hash",
        total=sum(files.size(item.path) for item in inputs),
        unit="bytes",
        read=lambda: sum(facts["bytes"] for facts in [*by_name.values()]),
        only_if_long=True,
    ):
        for item in inputs:
            name = f"{item.kind} {files.name_of(item.path)}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" ({seen[name]})"
            by_name[name] = files.fingerprint(item.path)
    return by_name


def split_input(item: source.Input, *, max_bytes: int = 32 << 20) -> list[source.Range]:
    ranges: list[source.Range] = []
    if item.num_bytes > max_bytes:
        ranges = SOURCES[item.kind].split(item, max_bytes)
    return ranges or [source.Range(item, 0, item.num_bytes)]


def read_range(part: source.Range, context: source.Context) -> source.Items:
    """Reads the documents that begin in a range; an `OSError` has the file's name."""
    path, consumed = part.item.path, part.start

    def reach(place: int) -> None:
        nonlocal consumed
        # A reader passes its stop to end a document; the next range counts those bytes.
        before, consumed = consumed, max(consumed, min(place, part.stop))
        if consumed > before:
            context.advance(consumed - before)

    try:
        reporting = dataclasses.replace(context, reach=reach)
        yield from SOURCES[part.item.kind].read(part, reporting)
        reach(part.stop)
        num_bytes = files.size(path)
    except OSError as error:
        # Errors of reading an open file do not say which.
        error.filename = error.filename or path
        raise
    if num_bytes < part.stop:
        raise InputError(
            f"{path}: was truncated while it was being read ({part.stop:,} bytes "
            f"or more before, {num_bytes:,} now): wait until the file is complete, "
            "delete the output directory and run the command again"
        )


def _match(kind: str, pattern: str) -> list[str]:
    try:
        paths = files.match(pattern)
    except OSError as error:
        raise _unreadable(pattern, error) from None
    if paths == [pattern] and os.path.isdir(pattern):
        names = {"wikipedia": "*.bz2", "jsonl": "*.jsonl"}.get(kind, "*.txt")
        raise InputError(
            f"{pattern}: is a directory: give its files, --{kind} "
            f"'{os.path.join(pattern, names)}'"
        )
    if paths != [pattern]:
        paths = [path for path in paths if not os.path.isdir(path)]
    if not paths:
        raise InputError(f"--{kind}: no file matches {pattern!r}")
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{os.fsencode(path)!r}: expected a file name in UTF-8: rename the file"
            ) from None
    return paths


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror or error}")
