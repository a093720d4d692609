"""The directory of an index: pieces of texts, their vectors and their words.

A file of texts becomes shards that are named for its bytes and for the model. No shard
depends on another file, so a killed command keeps its whole shards, and `add` writes
those of new files alone. `manifest.json`, written last, lists all files. Packages for
BM25 keep weights, which any new text changes; a shard has the counts instead, of which
`searching` makes the weights of a question's words.
"""

import array
import hashlib
import io
import itertools
import logging
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files, manifest, ownership, progress, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import corpora, token_offsets
from bert_keras.inference import finetuned, forward
from bert_keras.labelled import reading, similarity, tokenized
from bert_keras.search import approximate

logger = logging.getLogger(__name__)

_PIECE_FIELDS = ("row", "start", "end", "last_byte", "num_words")
PIECE = np.dtype([(name, "<i8") for name in _PIECE_FIELDS])
"""The place of a text in `Shard.names`, the characters `start:end` of the text, where
the piece ends in `Shard.texts`, and its number of words."""
POSTING = np.dtype([(name, "<i4") for name in ("word", "piece", "count")])
"""How often a word, a piece of the vocabulary, is in a piece of the shard."""

SHARD, CLUSTERS = "shard-", "clusters-"
"""Beginnings of the names of an index's files."""
_SHARD_CHARACTERS = 8 << 20
"""Characters of a shard. A text counts as 256 or more: 32,768 texts at most."""
_NAME_CHARACTERS = 200
_MAPPED_BYTES = 1 << 20
"""Smaller shards are read, not mapped: a process may have a thousand maps of files."""


class Shard(NamedTuple):
    """The arrays of a shard. Its file has them end to end, each as a `.npy` file."""

    pieces: np.ndarray
    """`(num_pieces,)` of `PIECE`."""
    words: np.ndarray
    """`(num_postings,)` of `POSTING`, in order. Punctuation and unknown words are left
    out. Compounds, and texts without spaces, have such words in common."""
    names: np.ndarray
    """`(num_texts,)`: lines of the file, from 1, int32; titles of documents."""
    vectors: np.ndarray
    """`(num_pieces, size)` float16, of length 1."""
    texts: np.ndarray
    """`(num_bytes,)` uint8: the pieces in UTF-8, end to end."""


def read_shard(path: Path) -> Shard:
    """Reads a shard, or maps its file into memory."""
    with open(path, "rb") as file:
        data: Any = file.read(_MAPPED_BYTES)
        if len(data) == _MAPPED_BYTES:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.seek(0)
        arrays = []
        for _ in Shard._fields:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            arrays.append(np.ndarray(shape, dtype, data, file.tell()))
            file.seek(arrays[-1].nbytes, os.SEEK_CUR)
    return Shard(*arrays)


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
            `.parquet`; a text is the cell of the column `text`, else `passage`. Or
            directories that `corpus` made, whose documents are the texts.
        max_seq_length: tokens of a piece at most, with two special ones; `None`: those
            of an input of the model. Longer texts have pieces that overlap by half.
    """
    for name in ("numkong", "faiss"):
        requirements.check_installed(name, "search", "`index` needs the package")
    files.check_is_local(output, "an index")
    # 1. The files, all read before the work begins: if one is unsound, nothing is made.
    sources = _read_sources(input_paths)
    model = finetuned.FinetunedModel.load_form(model_path, "embedding")
    most = model.settings.max_seq_length
    length = most if max_seq_length is None else max_seq_length
    if not 3 <= length <= most:
        raise InputError(
            f"--max_seq_length is from 3 to {most}, the longest input of {model_path}, "
            f"got {length}"
        )
    config: dict[str, Any] = {
        "model": {"path": os.path.abspath(model_path), "sha256": model.digest()},
        "max_seq_length": length,
        "files": {key: path for key, (path, _) in sources.items()},
    }
    with ownership.owned(output) as owner:
        # 2. A finished index stays as it is, or gets the files that it has not.
        before = _read_before(output, config, add=add)
        had = before.config["files"]
        new = {key: source for key, source in sources.items() if key not in had}
        if not new:
            logger.info("%s: finished already, with these files", output)
            return before
        config["files"] |= had
        # 3. The shards of each new file. Their names say all that they depend on.
        name = f"{SHARD}{config['model']['sha256'][:16]}-{length}"
        shards = [s for s in before.shards if s.name.startswith(SHARD)]
        for path in _write_shards(
            files.join(output, name), new, model, max_seq_length=length
        ):
            owner.check()
            num_pieces = len(read_shard(path).pieces)
            shards.append(manifest.Shard.of_file(path, num_pieces))
        arrays = [read_shard(files.path(output) / shard.name) for shard in shards]
        if not any(len(shard.words) for shard in arrays):
            raise InputError(f"{output}: the files have no word: nothing can be found")
        # 4. Clusters of vectors, if there are so many that an exact search takes long.
        if sum(len(shard.pieces) for shard in arrays) >= approximate.LEAST_VECTORS:
            digest = hashlib.sha256(" ".join(s.name for s in shards).encode())
            path = files.path(output) / f"{CLUSTERS}{digest.hexdigest()[:16]}"
            vectors = [shard.vectors for shard in arrays]
            if not files.exists(path):
                approximate.write(path, vectors)
            config["approximate"] = facts = approximate.measure(path, vectors)
            recall = f"finds {facts['recall_at_10']:.1%} of the ten nearest vectors"
            logger.info("a search of %d clusters %s", facts["num_clusters"], recall)
            shards.append(manifest.Shard.of_file(path, 0))
        finished = manifest.Manifest(kind="index", shards=tuple(shards), config=config)
        manifest.finish_output_directory(output, finished)
        # Shards of commands that were killed and not repeated.
        for name in {*files.list_directory(output)} - {shard.name for shard in shards}:
            if name.startswith((SHARD, CLUSTERS)):
                files.delete(files.join(output, name))
    logger.info("wrote %s: %d pieces", output, finished.num_records)
    return finished


def _read_sources(patterns: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Reads all texts of files, and returns the path of each file and its number of
    characters by the hash of its bytes."""
    sources: dict[str, tuple[str, int]] = {}
    for pattern in patterns:
        if not (matches := files.match(pattern)):
            raise InputError(f"{pattern}: no such file: expected files of texts")
        hashes: dict[str, str | None] = {}
        for path in matches:
            if corpora.is_corpus(path):
                # Their hashes were checked just now.
                shards = corpora.open_corpus(path).shards
                hashes |= {files.join(path, s.name): s.sha256 for s in shards}
            else:
                hashes[path] = None
        for path, sha256 in hashes.items():
            size = sum(len(text) for block in _blocks(path) for _, text in block)
            # A copy under another name is in already.
            sources.setdefault((sha256 or files.sha256(path))[:16], (path, size))
    if not sources:  # of a corpus without documents
        raise InputError("--input has no text: nothing could be found")
    return sources


def _read_before(
    output: str | Path, config: Mapping[str, Any], *, add: bool
) -> manifest.Manifest:
    """Reads the manifest of an index if `config` fits it; a new one's is empty."""
    names = files.list_directory(output)
    if not add and manifest.MANIFEST_NAME not in names:
        ours = (".", SHARD, CLUSTERS)
        if others := [name for name in names if not name.startswith(ours)]:
            raise InputError(
                f"{output}: has {others[0]!r}, which is of no index: choose another "
                "directory"
            )
        return manifest.Manifest(kind="index", shards=(), config={"files": {}})
    before = manifest.read_manifest(output, kind="index")
    had, problem = before.config, None
    known = {path: key for key, path in had["files"].items()}
    changed = [p for key, p in config["files"].items() if known.get(p, key) != key]
    if had["model"]["sha256"] != config["model"]["sha256"]:
        problem = "an index of another model: choose another directory"
    elif (length := had["max_seq_length"]) != config["max_seq_length"]:
        problem = f"an index of other pieces: give --max_seq_length {length}"
    elif changed:
        problem = (
            f"{changed[0]} has changed since it was indexed: index all files into a "
            "new directory, or give this one a new name to keep both"
        )
    elif not add and had["files"].keys() != config["files"].keys():
        problem = "an index of other files: add files with --add"
    if problem is not None:
        raise InputError(f"{output}: {problem}")
    return before


def _write_shards(
    beginning: str,
    sources: Mapping[str, tuple[str, int]],
    model: finetuned.FinetunedModel,
    *,
    max_seq_length: int,
) -> Iterator[Path]:
    """Writes the shards of files, without those that a killed command has left, and
    yields their paths."""
    tokenizer = token_offsets.OffsetTokenizer(model.tokenizer)
    compute = forward.predictor_for(model.network)
    num_done, per_input = 0, 0.0
    with progress.Progress(
        "embedding",
        total=sum(num_characters for _, num_characters in sources.values()),
        unit="characters",
        read=lambda: num_done + int(per_input * compute.num_done),
    ):
        for key, (source, _) in sources.items():
            paths = []
            for number, block in enumerate(_blocks(source)):
                path = files.path(f"{beginning}-{key}-{number:05}")
                size = sum(len(text) for _, text in block)
                if not files.exists(path):
                    pieces, words, texts, inputs = _cut(
                        [text for _, text in block], tokenizer, max_seq_length
                    )
                    # Empty texts have no piece.
                    if not len(pieces):
                        continue
                    compute.num_done, per_input = 0, size / len(pieces)
                    vectors = similarity.unit_length(compute(inputs, title=None))
                    if not np.isfinite(vectors).all():
                        raise InputError(
                            "the model's vectors are not finite, so nothing can be "
                            "found by them: take an earlier checkpoint, or train again "
                            "at a lower rate"
                        )
                    # Not `np.save` to the file: its error of a full disk has no number.
                    buffer = io.BytesIO()
                    names: Any = [name for name, _ in block]
                    dtype = np.int32 if isinstance(names[0], int) else None
                    names, vectors = np.array(names, dtype), vectors.astype(np.float16)
                    for array in Shard(pieces, words, names, vectors, texts):
                        np.save(buffer, array)
                    files.write_atomically(path, buffer.getvalue())
                num_done, per_input = num_done + size, 0.0
                paths.append(path)
                yield path
            if files.sha256(source)[:16] != key:
                for path in paths:
                    files.delete(path)
                raise InputError(
                    f"{source}: has changed while it was indexed: run the same command "
                    "again"
                )


def _blocks(path: str) -> Iterator[list[tuple[int | str, str]]]:
    """Yields the texts of each shard of a file, as `_texts` does."""
    block, size = [], 0
    for name, text in _texts(path):
        block.append((name, text))
        size += max(len(text), 256)
        if size >= _SHARD_CHARACTERS:
            yield block
            block, size = [], 0
    yield block


def _texts(path: str) -> Iterator[tuple[int | str, str]]:
    """Yields the line or the title of each text of a file, and the text."""
    if path.endswith(".jsonl.gz"):
        for document in corpora.read_shard(path):
            # In one line. Names of a shard take as much memory as the longest.
            name = " ".join((document.get("title") or "").split()) or document["id"]
            text = "\n".join(map(" ".join, document["paragraphs"]))
            # Half a surrogate pair, of a corpus made by others, is no text.
            name, text = (t.encode(errors="replace").decode() for t in (name, text))
            yield name[:_NAME_CHARACTERS], text
        return
    rows = reading.read_rows(files.path(path))
    first = reading.at_least_one(files.path(path), itertools.islice(rows, 1))
    for row in itertools.chain(first, rows):
        is_passage = "passage" in row.cells and "text" not in row.cells
        yield row.line, row.string("passage" if is_passage else "text", key=None)


def _cut(
    block: list[str], tokenizer: token_offsets.OffsetTokenizer, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tokenized.LabelledInputs]:
    """Cuts texts into pieces. Returns the arrays of their shard, without vectors, and
    their inputs."""
    vocabulary = tokenizer.tokenizer.vocabulary
    is_word = np.array([any(map(str.isalnum, token)) for token in vocabulary.tokens])
    is_word[vocabulary.unk_id] = False
    texts, words, places, inputs = bytearray(), array.array("q"), [], []
    room, step = length - 2, tasks.window_stride(length, None)
    for row, text in enumerate(block):
        ids, starts, ends = tokenizer.encode(text)
        # A text without tokens has no piece.
        for begin, end in (
            tokenized.window_spans(len(ids), room, step) if ids.size else ()
        ):
            start, stop, tokens = int(starts[begin]), int(ends[end - 1]), ids[begin:end]
            texts += text[start:stop].encode()
            words.extend(tokens[is_word[tokens]].tolist())
            places.append((row, start, stop, len(texts), is_word[tokens].sum()))
            piece = [vocabulary.cls_id, *tokens, vocabulary.sep_id]
            inputs.append((piece, [0] * len(piece)))
    pieces = np.array(places, PIECE)
    rows = np.repeat(np.arange(len(pieces)), pieces["num_words"])
    keys, counts = np.unique(np.asarray(words) * len(pieces) + rows, return_counts=True)
    postings = np.empty(len(keys), POSTING)
    postings["word"], postings["piece"] = np.divmod(keys, max(len(pieces), 1))
    postings["count"] = counts
    joined = tokenized.TokenizedTexts.join(inputs)
    batches = tokenized.LabelledInputs(texts=joined, labels={})
    return pieces, postings, np.frombuffer(texts, np.uint8), batches
