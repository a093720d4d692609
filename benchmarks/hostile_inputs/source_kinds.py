"""Dumps, text, corpora, records and vocabularies as inputs."""

import bz2
import contextlib
import gzip
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile_inputs.reading import Kind
from bert_keras import files, manifest
from bert_keras.data import tfrecords, tokenization
from bert_keras.errors import InputError
from bert_keras.pipelines import documents, filters
from bert_keras.pipelines.inspection import adoption, description
from bert_keras.pipelines.sources import readers

PAGE = (
    "<page><title>{title}</title><ns>0</ns><id>{n}</id><revision><id>9</id>"
    "<timestamp>2020-01-01T00:00:00Z</timestamp><model>wikitext</model>"
    "<text>{text}</text></revision></page>\n"
)
WIKITEXT = (
    "'''Ada''' (born {{birth date|1815}}) was a [[mathematician|writer]] of [[London]]."
    "&lt;ref name=a>A note.&lt;/ref>\n\n== Life ==\n* one\n{| class=x\n| a || b\n|}\n"
    "She wrote the first program {{citation needed|date=May}}; see [http://x.org it]. "
    "&lt;!-- hidden --> &lt;math>x^2&lt;/math> {{lang|de|Wort}} was a word.\n"
)
HEAD = (
    '<?xml version="1.0" encoding="utf-8"?>\n<mediawiki version="0.10">\n<siteinfo>'
    "<dbname>xxwiki</dbname><namespaces><namespace key='0'/></namespaces></siteinfo>\n"
)
BOOK = (
    "Title: A Book\n\n*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***\n\n"
    "CONTENTS\n\nCHAPTER I\n\nIt was a fine day, and the sun\n"
    "shone on the sea. [Illustration]\n\n"
    "     5\nA second paragraph_ of text.[1]\n\n[1] A note.\n\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***\nLicence.\n"
)


def _pages(number: int) -> list[bytes]:
    pages = [PAGE.format(title=f"T{n}", n=n, text=WIKITEXT) for n in range(number)]
    return [page.encode() for page in pages]


def _make_dumps(folder: Path, golden: Path) -> None:
    (folder / "a.xml").write_bytes(
        HEAD.encode() + b"".join(_pages(3)) + b"</mediawiki>"
    )


def _make_packed_dumps(folder: Path, golden: Path) -> None:
    parts = [HEAD.encode(), *_pages(3), b"</mediawiki>"]
    (folder / "a.xml.bz2").write_bytes(b"".join(map(bz2.compress, parts)))
    (folder / "b.xml.bz2").write_bytes(bz2.compress(b"".join(parts)))
    (folder / "c.xml.gz").write_bytes(gzip.compress(b"".join(parts), mtime=0))


def _make_books(folder: Path, golden: Path) -> None:
    (folder / "a.txt").write_text(BOOK)
    (folder / "b.txt").write_bytes(BOOK.replace("sun", "Sönne").encode("latin-1"))


def _make_lines(folder: Path, golden: Path) -> None:
    lines = "it was a fine day .\nshe shone .\n\n" * 20
    (folder / "a.txt").write_text(lines)
    (folder / "b.txt").write_bytes(lines.replace("sh", "\xe9").encode("latin-1"))


def _make_json_lines(folder: Path, golden: Path) -> None:
    line = json.dumps({"id": 1, "text": "Some words.\n\nMore.", "title": "A"}) + "\n"
    (folder / "a.jsonl").write_text(line * 3)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(line.encode() * 3, mtime=0))


def _read_sources(kind: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        count = Counter[str]()
        paths = [str(path) for path in sorted(folder.iterdir())]
        for item in readers.find_inputs({kind: paths}):
            for part in readers.split_input(item, max_bytes=3000):
                ranges = readers.read_range(
                    part, lambda _: None, lambda name, n=1: count.update({name: n})
                )
                for found in ranges:
                    if isinstance(found, readers.SourceDocument):
                        json.dumps(found).encode()
        return count

    return read


def _make_overlap(folder: Path, golden: Path) -> None:
    line = (
        "one two three four five six seven eight nine ten eleven twelve thirteen words"
    )
    (folder / "a.txt").write_text(f"{line}\n")
    (folder / "b.tsv").write_text(f"id\ttext\n1\t{line}\n")
    (folder / "c.csv").write_text(f'id,text\n1,"{line}"\n')
    (folder / "d.json").write_text(json.dumps({"data": [{"context": line}]}))
    (folder / "e.jsonl").write_text(json.dumps({"text": line}) + "\n")


def _read_overlap(folder: Path) -> object:
    return filters.read_overlap([str(path) for path in sorted(folder.iterdir())])


def _make_corpus(folder: Path, golden: Path) -> None:
    shutil.copytree(golden / "corpus", folder, dirs_exist_ok=True)


def _read_corpus(folder: Path) -> object:
    made = manifest.read_manifest(folder, kind="documents", verb="bert-keras corpus")
    with contextlib.suppress(InputError):
        manifest.verify_shards(folder, made, hashes=False)
    # A size may be right by chance.
    for path in sorted(folder.glob("documents*")):
        with contextlib.suppress(InputError):
            list(documents.read_shard(path))


def _make_examples(folder: Path, golden: Path) -> None:
    shutil.copytree(golden / "examples", folder, dirs_exist_ok=True)
    for path in folder.glob("*.tfrecord"):
        with path.open("rb") as file:
            frames = list(itertools.islice(tfrecords.read_frames(file), 3))
        path.write_bytes(b"".join(map(tfrecords.frame, frames)))
    _describe_shards(folder)


def _describe_shards(folder: Path) -> None:
    """Makes a manifest that fits the shards."""
    values = json.loads((folder / "manifest.json").read_text())
    for shard in values["shards"]:
        path = folder / shard["name"]
        shard["num_bytes"], shard["sha256"] = path.stat().st_size, files.sha256(path)
        with path.open("rb") as file:
            shard["num_records"] = sum(1 for _ in tfrecords.read_frames(file))
    (folder / "manifest.json").write_text(json.dumps(values))


def _read_examples(folder: Path) -> object:
    return list(
        description.describe_all(
            folder, vocab_path=None, json_path=None, tensorboard_dir=None
        )
    )


def _read_reframed_examples(folder: Path) -> object:
    """Messages that are damaged within sound records."""
    framed = folder.parent / "framed"
    shutil.copytree(folder, framed, dirs_exist_ok=True)
    for path in framed.glob("*.tfrecord"):
        path.write_bytes(tfrecords.frame(path.read_bytes()))
    _describe_shards(framed)
    return _read_examples(framed)


def _make_messages(folder: Path, golden: Path) -> None:
    _make_examples(folder, golden)
    for path in folder.glob("*.tfrecord"):
        with path.open("rb") as file:
            path.write_bytes(next(iter(tfrecords.read_frames(file))))


def _make_third_party_examples(folder: Path, golden: Path) -> None:
    _make_examples(folder, golden)
    (folder / "manifest.json").unlink()
    (folder / "inputs.json").unlink()


def _adopt(folder: Path) -> object:
    try:
        return adoption.adopt_examples(folder, folder / "vocab.txt", do_lower_case=True)
    finally:
        for name in ("manifest.json", "inputs.json"):
            (folder / name).unlink(missing_ok=True)


def _make_vocabulary(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "google/vocab.txt", folder)


def _read_vocabulary(folder: Path) -> object:
    vocabulary = tokenization.Vocabulary.load(folder / "vocab.txt")
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    return tokenizer.encode("Ba be é 好 [MASK]")


KINDS = {
    "dumps": Kind(80_000, _make_dumps, _read_sources("wikipedia")),
    "packed dumps": Kind(
        50_000, _make_packed_dumps, _read_sources("wikipedia"), alone=True
    ),
    "lines of text": Kind(60_000, _make_lines, _read_sources("sentences"), alone=True),
    "books": Kind(90_000, _make_books, _read_sources("books"), alone=True),
    "JSON lines": Kind(60_000, _make_json_lines, _read_sources("jsonl"), alone=True),
    "overlap files": Kind(70_000, _make_overlap, _read_overlap, alone=True),
    "corpora": Kind(50_000, _make_corpus, _read_corpus, "[dm]*"),
    "examples": Kind(35_000, _make_examples, _read_examples, "[em]*"),
    "messages in records": Kind(12_000, _make_messages, _read_reframed_examples, "e*"),
    "third-party records": Kind(12_000, _make_third_party_examples, _adopt),
    "vocabularies": Kind(60_000, _make_vocabulary, _read_vocabulary),
}
