"""The directory of an index: pieces of texts, their vectors and their words.

A file of texts becomes shards that are named for its bytes: `texts-*.txt` has the
pieces of its texts end to end, `pieces-*.npy` an array of `PIECE`, `vectors-*.npy` a
float16 vector of length 1 for each. So a killed command keeps its whole shards, and
`add` knows which files are in. `words-*`, the BM25 index of all pieces, is made anew
each time. `manifest.json`, written last, lists all files.
"""

import hashlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.core import files, manifest, ownership, progress, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import token_offsets, tokenization
from bert_keras.inference import finetuned, forward
from bert_keras.labelled import reading, similarity, tokenized

logger = logging.getLogger(__name__)

PIECE = np.dtype([(name, "<i8") for name in ("line", "start", "end", "last_byte")])
"""The line of a text in its file, from 1, the characters `start:end` of the text, and
where the piece ends in `texts-*.txt`."""

_PARTS = ("texts-", "pieces-", "vectors-", "words-")
_SHARD_CHARACTERS = 8 << 20
"""Characters of a shard. A text counts as 256 or more: 32,768 texts at most."""


def import_bm25s(verb: str) -> Any:
    """Imports bm25s, and checks that all of the extra `search` is there."""
    # Where JAX is installed, bm25s would start it, threads and all, to sort numbers.
    modules: dict[str, Any] = sys.modules
    jax, modules["jax"] = modules.get("jax"), None
    try:
        for name in ("bm25s", "numkong"):
            requirements.check_installed(name, "search", f"`{verb}` needs the package")
    finally:
        del modules["jax"]
        if jax is not None:
            modules["jax"] = jax
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return modules["bm25s"]


def words_of(text: str, tokenizer: tokenization.Tokenizer) -> list[str]:
    """Returns the pieces of words that BM25 counts: all but punctuation and unknown
    ones. Compounds, and texts without spaces, have pieces in common, if no words."""
    unk, tokens = tokenizer.vocabulary.unk_id, tokenizer.vocabulary.tokens
    words = [tokens[number] for number in tokenizer.encode(text) if number != unk]
    return [word for word in words if any(map(str.isalnum, word))]


def key_of(name: str) -> str:
    """Returns what the names of a shard's files have in common."""
    return name.partition("-")[2].partition(".")[0]


def words_names(key: str) -> dict[str, Any]:
    """Returns the names of the files of a BM25 index, by the arguments of bm25s."""
    names = ("data.npy", "indices.npy", "indptr.npy", "vocab.json", "params.json")
    return {f"{n.partition('.')[0]}_name": f"words-{key}.{n}" for n in names}


def build(
    model_path: str | Path,
    input_paths: Iterable[str],
    output: str | Path,
    *,
    add: bool = False,
    max_seq_length: int | None = None,
) -> manifest.Manifest:
    """Makes an index of all texts of some files, or adds files to it.

    Args:
        input_paths: files or patterns of files, `.txt`, `.tsv`, `.csv`, `.jsonl` or
            `.parquet`; a text is the cell of the column `text`, else `passage`.
        max_seq_length: tokens of a piece at most, with two special ones; `None`: those
            of an input of the model. Longer texts have pieces that overlap by half.
    """
    bm25s = import_bm25s("index")
    files.check_is_local(output, "an index")
    # 1. The files, all read before the work begins: if one is unsound, nothing is made.
    sources = _read_sources(input_paths)
    model = finetuned.FinetunedModel.load_form(model_path, "embedding")
    facts = {"path": os.path.abspath(model_path), "sha256": model.digest()}
    with ownership.owned(output) as owner:
        # 2. A finished index stays as it is, or gets the files that it has not.
        before = _read_finished(output, must_exist=add)
        had: dict[str, Any] = {"files": []} if before is None else before.config
        most = model.settings.max_seq_length
        length = had.get("max_seq_length", most)
        length = length if max_seq_length is None else max_seq_length
        if not 3 <= length <= most:
            raise InputError(
                f"--max_seq_length is from 3 to {most}, the longest input of "
                f"{model_path}, got {length}"
            )
        config = {"model": facts, "max_seq_length": length}
        if before is not None:
            _check_same(output, had, {**config, "sources": sources}, add=add)
        known = {source["sha256"] for source in had["files"]}
        sources = {sha256: s for sha256, s in sources.items() if sha256 not in known}
        if before is not None and not sources:
            logger.info("%s: finished already, with these files", output)
            return before
        total = sum(source.pop("num_characters") for source in sources.values())
        for sha256, source in sources.items():
            name = f"{facts['sha256']} {length} {sha256}"
            source["key"] = hashlib.sha256(name.encode()).hexdigest()[:16]
        config["files"] = [*had["files"], *sources.values()]
        # 3. The shards of each new file, without those that a killed command has left.
        shards = () if before is None else before.shards
        shards = [shard for shard in shards if not shard.name.startswith("words-")]
        writer = _ShardWriter(files.path(output), model, length)
        with progress.Progress(
            "embedding", total=total, unit="characters", read=writer.num_done
        ):
            for source in sources.values():
                for number, block in enumerate(_blocks(source["path"])):
                    owner.check()
                    shards += writer.write(f"{source['key']}-{number:05}", block)
        # 4. The words of all pieces, which give each other weights.
        shards += _write_words(bm25s, files.path(output), shards, model.tokenizer)
        num_pieces, num_files = shards[-1].num_records, len(config["files"])
        finished = manifest.Manifest(kind="index", shards=tuple(shards), config=config)
        manifest.finish_output_directory(output, finished)
        # Earlier words, and shards of commands that were killed and not repeated.
        for name in {*files.list_directory(output)} - {shard.name for shard in shards}:
            if name.startswith(_PARTS):
                files.delete(files.join(output, name))
    logger.info("wrote %s: %d pieces of %d files", output, num_pieces, num_files)
    return finished


def _read_sources(patterns: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Reads all texts of files, and returns the facts of each file by its hash."""
    sources: dict[str, dict[str, Any]] = {}
    for pattern in patterns:
        if not (paths := files.match(pattern)):
            raise InputError(f"{pattern}: no such file: expected files of texts")
        for path in paths:
            sha256 = files.sha256(path)
            size = sum(len(text) for _, text in _read_texts(path))
            facts = {"path": path, "sha256": sha256, "num_characters": size}
            # A copy under another name is in already.
            sources.setdefault(sha256, facts)
    return sources


def _read_finished(output: str | Path, *, must_exist: bool) -> manifest.Manifest | None:
    """Reads the manifest of an index; `None`: it is new, or unfinished."""
    names = files.list_directory(output)
    if must_exist or manifest.MANIFEST_NAME in names:
        return manifest.read_manifest(output, kind="index")
    if others := [name for name in names if not name.startswith((".", *_PARTS))]:
        raise InputError(
            f"{output}: has {others[0]!r}, which is of no index: choose another "
            "directory"
        )
    return None


def _check_same(
    output: str | Path, had: Mapping[str, Any], now: Mapping[str, Any], *, add: bool
) -> None:
    """Refuses what does not fit a finished index."""
    known = {source["path"]: source["sha256"] for source in had["files"]}
    for sha256, source in now["sources"].items():
        if known.get(source["path"], sha256) != sha256:
            raise InputError(
                f"{source['path']}: has changed since it was indexed: index all files "
                "into a new directory, or give this one a new name to keep both"
            )
    for is_other, problem in (
        (had["model"]["sha256"] != now["model"]["sha256"], "of another model"),
        (had["max_seq_length"] != now["max_seq_length"], "of other pieces"),
        (not add and {*known.values()} != {*now["sources"]}, "of other files"),
    ):
        if is_other:
            way_out = "add files with --add" if problem == "of other files" else ""
            raise InputError(
                f"{output}: an index {problem}: {way_out or 'choose another directory'}"
            )


def _read_texts(path: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each row of a file."""
    row = None
    for row in reading.read_rows(files.path(path)):
        is_passage = "passage" in row.cells and "text" not in row.cells
        yield row.line, row.string("passage" if is_passage else "text", key=None)
    if row is None:
        reading.at_least_one(files.path(path), ())


def _blocks(path: str) -> Iterator[list[tuple[int, str]]]:
    """Yields the texts of each shard, which depend on nothing but the file."""
    block, size = [], 0
    for line, text in _read_texts(path):
        block.append((line, text))
        size += max(len(text), 256)
        if size >= _SHARD_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


class _ShardWriter:
    """Cuts texts into pieces, and writes shards of these with their vectors."""

    def __init__(self, output: Path, model: finetuned.FinetunedModel, length: int):
        self._output = output
        self._tokenizer = token_offsets.OffsetTokenizer(model.tokenizer)
        self._compute = forward.predictor_for(model.network)
        self._room, self._step = length - 2, tasks.window_stride(length, None)
        # Characters of the shards before and of this one, which has so many pieces.
        self._num_before, self._num_now, self._num_pieces = 0, 0, 1

    def num_done(self) -> int:
        """Returns the number of characters that are done."""
        share = self._compute.num_done / self._num_pieces
        return self._num_before + int(self._num_now * share)

    def write(self, key: str, block: list[tuple[int, str]]) -> list[manifest.Shard]:
        """Writes the shard of some texts, each with its line, unless it is whole."""
        names = [f"texts-{key}.txt", f"pieces-{key}.npy", f"vectors-{key}.npy"]
        self._compute.num_done, self._num_now = 0, sum(len(text) for _, text in block)
        # The vectors are written last.
        if not files.exists(self._output / names[-1]):
            texts, pieces, inputs = self._cut(block)
            self._num_pieces = max(len(pieces), 1)
            vectors = np.zeros((0, 1), np.float32)
            if len(pieces):
                vectors = similarity.unit_length(self._compute(inputs, title=None))
            if not np.isfinite(vectors).all():
                raise InputError(
                    "the model's vectors are not finite, so nothing can be found by "
                    "them: take an earlier checkpoint, or train again at a lower rate"
                )
            files.write_atomically(self._output / names[0], texts)
            arrays = (pieces, vectors.astype(np.float16))
            for name, array in zip(names[1:], arrays, strict=True):
                # Not `np.save` to the file: its error of a full disk has no number.
                np.save(buffer := io.BytesIO(), array)
                files.write_atomically(self._output / name, buffer.getvalue())
        self._num_before, self._num_now = self._num_before + self._num_now, 0
        num_pieces = len(np.load(self._output / names[1]))
        return [_shard(self._output / name, num_pieces) for name in names]

    def _cut(
        self, block: list[tuple[int, str]]
    ) -> tuple[bytes, np.ndarray, tokenized.LabelledInputs]:
        """Returns the pieces of some texts, end to end, their places and their ids."""
        vocabulary = self._tokenizer.tokenizer.vocabulary
        parts, places, inputs, num_bytes = [], [], [], 0
        for line, text in block:
            ids, starts, ends = self._tokenizer.encode(text)
            spans = tokenized.window_spans(len(ids), self._room, self._step)
            # A text without tokens has no piece.
            for begin, end in spans if len(ids) else ():
                start, stop = int(starts[begin]), int(ends[end - 1])
                parts.append(text[start:stop].encode())
                num_bytes += len(parts[-1])
                places.append((line, start, stop, num_bytes))
                piece = [vocabulary.cls_id, *ids[begin:end], vocabulary.sep_id]
                inputs.append((piece, [0] * len(piece)))
        joined = tokenized.TokenizedTexts.join(inputs)
        batches = tokenized.LabelledInputs(texts=joined, labels={})
        return b"".join(parts), np.array(places, PIECE), batches


def _write_words(
    bm25s: Any,
    output: Path,
    shards: list[manifest.Shard],
    tokenizer: tokenization.Tokenizer,
) -> list[manifest.Shard]:
    """Writes the BM25 index of the pieces of all shards, in their order."""
    # Numbers by first appearance: bm25s would number a set of words, whose order is
    # another one in each process.
    numbers: dict[str, int] = {}
    pieces: list[list[int]] = []
    keys = [key_of(s.name) for s in shards if s.name.startswith("pieces-")]
    for key in keys:
        texts = files.read_bytes(output / f"texts-{key}.txt")
        ends = np.load(output / f"pieces-{key}.npy")["last_byte"].tolist()
        for first, last in zip([0, *ends], ends, strict=False):
            words = words_of(texts[first:last].decode(), tokenizer)
            pieces.append([numbers.setdefault(w, len(numbers)) for w in words])
    if not any(pieces):
        raise InputError(f"{output}: the files have no word: nothing can be found")
    index = bm25s.BM25()
    index.index((pieces, numbers), show_progress=False)
    # An index keeps its own words until its manifest names the new ones.
    digest = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() as directory:
        index.save(directory, show_progress=False, **words_names(digest))
        names = files.list_directory(directory)
        for name in names:
            data = files.read_bytes(files.join(directory, name))
            files.write_atomically(output / name, data)
    return [_shard(output / name, len(pieces)) for name in names]


def _shard(path: Path, num_records: int) -> manifest.Shard:
    facts = files.fingerprint(path)
    size, sha256 = facts["bytes"], facts["sha256"]
    return manifest.Shard(
        name=path.name, num_records=num_records, num_bytes=size, sha256=sha256
    )
