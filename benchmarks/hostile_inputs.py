"""Damaged and hostile inputs for every reader: does one hang, crash or eat memory?

    python benchmarks/hostile_inputs.py --inputs 1000000 --seed 1 \
        --results benchmarks/results/hostile_inputs.md

Takes small healthy files of every kind, damages one of them at a time (bytes, lines, or
values of JSON and YAML) and reads it as the commands do. A reader may accept the input
or refuse it with an `InputError` of one line. Anything else is a fault: another error,
ten seconds without an end, the end of the process, or more memory than 500 MB above
what it has after the healthy input.

Each kind has processes of its own. An input is a function of the seed, its kind and its
number: `--kind KIND --first NUMBER --inputs 1` makes it again, and leaves it in
`--work`. Linux only; needs the repository.
"""

import argparse
import bz2
import contextlib
import csv
import datetime
import gzip
import io
import itertools
import json
import logging
import os
import platform
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bert_keras import config, config_files, files, manifest, run_directory
from bert_keras.data import tfrecords, tokenization
from bert_keras.errors import InputError
from pipelines import documents, filters
from pipelines.inspection import adoption, description
from pipelines.sources import readers
from tpu import cluster

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = REPOSITORY / "tests/golden/before_the_move.tar.xz"
"""A run, data and checkpoints of a BERT of two layers and 16 hidden units."""

HANG_SECONDS = 10
MEMORY_BYTES = 500_000_000


# === Damage ===

NUMBERS = (0, -1, 1, 2, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, -0.0)
VALUES = (
    *NUMBERS,
    *(None, True, False, "", " ", "x", "\0", "\ud800", "é", "x" * 5000, "../x", "a\nb"),
    *(float("nan"), float("inf"), [], {}, [[]], [None], {"x": 1}, {"": ""}, ["x"] * 99),
)
TOKENS = (
    rb"""
    " ' \ { } [ ] < > & | = : , # - {{ }} [[ ]] {| |} <!-- --> <ref> </ref>
    <page> </page> <text> </text> <nowiki> &amp; &#0; <![CDATA[ ]]> </doc>
    null NaN 1e999 -1 \u0000 \ud800 *a !!int !!bool <<: 2001-99-99 B-PER I- -DOCSTART-
    """.split()
    + [b"", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t"]
    + [b" " * 3000]
    + [b"9" * 5000, b"0x" + b"f" * 5000, b"&a [*a]", b"<!DOCTYPE a [<!ENTITY b 'c'>]>"]
    + [b"<doc id='1'>", b"*** START OF THE PROJECT GUTENBERG EBOOK X ***"]
    + [b"*** END OF THE PROJECT GUT", "\u2028".encode(), "\u0301".encode() * 50]
    + ["好".encode() * 500]
)
NESTS = (
    (b"[", b"]"),
    (b'{"a":', b"}"),
    (b"{{a|", b"}}"),
    (b"[[", b"]]"),
    (b"<b>", b"</b>"),
)


def damage(data: bytes, choose: random.Random, *, name: str) -> bytes:
    """Damages a file once or a few times; the same for the same state of `choose`."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [*BYTES, *LINES]
    if name.endswith((".json", ".jsonl", ".yaml")):
        ways += 3 * [lambda data, choose: change_value(data, choose, name)]
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        data = choose.choice(ways)(data, choose)
    return data


def _place(data: bytes, choose: random.Random) -> int:
    return choose.randrange(len(data) + 1)


def flip_bits(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 4, 32)) if data else 0):
        changed[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def cut(data: bytes, choose: random.Random) -> bytes:
    return data[: _place(data, choose)]


def delete(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    return data[:begin] + data[begin + choose.choice((1, 2, 8, 100, 1000)) :]


def repeat(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    end = begin + choose.choice((1, 4, 20, 200, 2000))
    return data[:end] + data[begin:end] * choose.choice((1, 1, 3, 20)) + data[end:]


def overwrite(data: bytes, choose: random.Random) -> bytes:
    begin, size = _place(data, choose), choose.choice((1, 4, 8, 64, 512))
    new = choose.choice((bytes(size), b"\xff" * size, choose.randbytes(size)))
    return data[:begin] + new + data[begin + size :]


def write_number(data: bytes, choose: random.Random) -> bytes:
    """A length or an offset that claims something else."""
    number = choose.choice(
        (0, 1, 127, 2**16, 2**31 - 1, 2**31, 2**40, 2**63, 2**64 - 1)
    )
    new = struct.pack("<Q", number)[: choose.choice((4, 8))]
    begin = _place(data, choose)
    return data[:begin] + new + data[begin + len(new) :]


def insert(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    return data[:begin] + choose.choice(TOKENS) + data[begin:]


def nest(data: bytes, choose: random.Random) -> bytes:
    opening, closing = choose.choice(NESTS)
    depth = choose.choice((3, 60, 1500))
    begin = _place(data, choose)
    end = choose.choice((0, depth))
    return data[:begin] + opening * depth + closing * end + data[begin:]


def swap_lines(data: bytes, choose: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = choose.randrange(len(lines)), choose.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def drop_line(data: bytes, choose: random.Random) -> bytes:
    lines = data.split(b"\n")
    del lines[choose.randrange(len(lines))]
    return b"\n".join(lines)


def change_field(data: bytes, choose: random.Random) -> bytes:
    """A word of a line becomes a token."""
    lines = data.split(b"\n")
    number = choose.randrange(len(lines))
    separator = choose.choice((b"\t", b" ", b",", b":"))
    fields = lines[number].split(separator)
    fields[choose.randrange(len(fields))] = choose.choice(TOKENS)
    lines[number] = separator.join(fields)
    return b"\n".join(lines)


BYTES = (flip_bits, cut, delete, repeat, overwrite, write_number, insert, nest)
LINES = (swap_lines, drop_line, change_field)


def change_value(data: bytes, choose: random.Random, name: str) -> bytes:
    """A value or key somewhere in JSON or YAML is replaced, removed or doubled."""
    lines = data.split(b"\n") if name.endswith(".jsonl") else [data]
    number = choose.randrange(len(lines))
    is_yaml = name.endswith(".yaml")
    try:
        # What earlier damage made of the file may be no longer readable.
        value = yaml.safe_load(lines[number]) if is_yaml else json.loads(lines[number])
    except Exception:
        return insert(data, choose)
    holder = {"": value}
    places = [(holder, "")]
    for inner, key in places:
        child = inner[key]
        keys = (
            child
            if isinstance(child, dict)
            else range(len(child))
            if (isinstance(child, list))
            else ()
        )
        places += [(child, key) for key in keys]
    inner, key = choose.choice(places)
    way = choose.randrange(6)
    if way == 0 and isinstance(inner, dict):
        del inner[key]
        inner.setdefault("", None)
    elif way == 1 and isinstance(inner, dict):
        inner[choose.choice(("x", "", "a.b", key * 2 if key else "y"))] = inner[key]
    elif way == 2:
        inner[key] = [inner[key]] * choose.choice((1, 2, 50))
    else:
        inner[key] = choose.choice(VALUES)
    try:
        if is_yaml:
            changed = yaml.safe_dump(holder[""]).encode("utf-8", "surrogatepass")
        else:
            changed = json.dumps(holder[""]).encode()
    except (ValueError, RecursionError):
        return insert(data, choose)
    lines[number] = changed
    return b"\n".join(lines)


# === Kinds: healthy files, and the reading of them ===


class Kind(NamedTuple):
    """Files of one kind, and the reader of them."""

    share: int
    """Weight of the kind among the inputs."""
    make: Callable[[Path, Path], None]
    """Fills a folder with healthy files, out of the unpacked `GOLDEN`."""
    read: Callable[[Path], object]
    """Reads a folder as the commands do."""
    damaged: str = "*"
    """Files to damage."""


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
    (folder / "d.xml").write_bytes(b"".join(parts).decode().encode("utf-16"))


def _make_extracted(folder: Path, golden: Path) -> None:
    text = "Ada was a writer.\n\nShe wrote the first program.\n"
    url = "https://xx.wikipedia.org/wiki?curid=1"
    element = f'<doc id="1" url="{url}" title="Ada">\nAda\n\n{text}\n</doc>\n'
    (folder / "wiki_00").write_text(element * 3)
    line = json.dumps({"id": "1", "url": url, "title": "Ada", "text": text})
    (folder / "b.jsonl").write_text(f"{line}\n" * 3)


def _make_books(folder: Path, golden: Path) -> None:
    (folder / "a.txt").write_text(BOOK)
    (folder / "b.txt").write_bytes(BOOK.replace("sun", "Sönne").encode("latin-1"))


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


CONFIGURATIONS = {
    "corpus": config.CorpusConfig,
    "examples": config.ExamplesConfig,
    "pretrain": config.PretrainingConfig,
    "finetune": config.FinetuningConfig,
    "sweep": config.SweepConfig,
}


def _make_configurations(folder: Path, golden: Path) -> None:
    for name, model in CONFIGURATIONS.items():
        config_files.save(model(), folder / f"{name}.yaml")
    (folder / "pretrain.yaml").write_text(
        "global_batch_size: 8\nphases: [{fraction: 0.5}, {fraction: 0.5}]\n"
        "optimizer: &a {learning_rate: 1e-3}\nmodel:\n  hidden_size: 32\n"
        "  num_attention_heads: 2\n"
    )
    (folder / "sweep.yaml").write_text("grid:\n  learning_rate: [5e-5, 3e-5]\n")


def _read_configurations(folder: Path) -> object:
    for name, model in CONFIGURATIONS.items():
        loaded = config_files.load(model, folder / f"{name}.yaml")
        config_files.save(loaded, folder.parent / "saved.yaml")


def _make_settings(folder: Path, golden: Path) -> None:
    (folder / "set.yaml").write_text("phases=[{fraction: 1.0}]")
    (folder / "tf_config.json").write_text(
        '{"cluster": {"worker": ["a:1", "b:1"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    shutil.copy(golden / "google/bert_config.json", folder)


def _read_settings(folder: Path) -> object:
    text = (folder / "set.yaml").read_bytes().decode(errors="surrogateescape")
    config_files.load(config.PretrainingConfig, None, [text])
    text = (folder / "tf_config.json").read_bytes().decode(errors="surrogateescape")
    cluster.cluster_from_tf_config(text)
    return config.read_bert_config(folder / "bert_config.json")


def _make_run(folder: Path, golden: Path) -> None:
    from tensorboard.compat.proto import event_pb2, summary_pb2

    shutil.copytree(
        golden / "run",
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("checkpoints", "*.h5", "logs"),
    )
    for part, name in (("train", "loss"), ("eval", "loss")):
        events = [event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")]
        for step in (5, 10):
            value = summary_pb2.Summary.Value(tag=f"all/{name}", simple_value=0.5)
            summary = summary_pb2.Summary(value=[value])
            events.append(event_pb2.Event(wall_time=2.0, step=step, summary=summary))
        path = folder / "logs" / part / "events.out.tfevents.1.host.1.0.v2"
        path.parent.mkdir(parents=True)
        frames = [tfrecords.frame(event.SerializeToString()) for event in events]
        path.write_bytes(b"".join(frames))


def _read_run(folder: Path) -> object:
    from bert_keras.report import facts, page

    run_directory.read_run(folder, kinds=("pretraining",), verb="pretrain")
    run_directory.read_settings(folder, config.PretrainingConfig)
    run = facts.read_facts(folder)
    return page.render(run, [], None)


def _make_tuned_run(form: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        _make_run(folder, golden)
        for path in (golden / "tuned" / form).iterdir():
            if path.suffix != ".h5":
                shutil.copy(path, folder)

    return make


def _read_tuned_run(folder: Path) -> object:
    from bert_keras.report import facts, page, task_summaries

    kinds = ("classification", "regression", "tagging", "span", "choice")
    run_directory.read_run(folder, kinds=kinds, verb="finetune")
    run_directory.read_settings(folder, config.FinetuningConfig)
    return page.render(
        facts.read_facts(folder), [], task_summaries.read_sections(folder)
    )


def _make_sweep(folder: Path, golden: Path) -> None:
    from bert_keras.sweep import directory, planning

    settings = config_files.load(config.SweepConfig, None, ["grid.batch_size=[8]"])
    command = planning.Command(
        task="text", train="a", dev=("b",), init="c", strategy="cpu"
    )
    runs = planning.plan_runs(settings, command)
    directory.write_plan(folder, ["batch_size"], runs)
    run = directory.run_path(folder, runs[0].name)
    run.mkdir(parents=True)
    for name in ("inputs.json", "task.json", "results.json", "dev_answers.jsonl"):
        shutil.copy(golden / "tuned/text" / name, run)


def _read_sweep(folder: Path) -> object:
    from bert_keras.sweep import directory, scores, summary

    keys, runs = directory.read_plan(folder)
    outcomes = [directory.read_outcome(folder, run, metric="accuracy") for run in runs]
    directory.check_same_inputs(folder, [run.name for run in runs])
    state = summary.State(
        directory=folder,
        task="text",
        keys=tuple(keys),
        ruler=scores.Ruler(metric="accuracy", goal="max", choose="best"),
        outcomes=tuple(outcome for outcome in outcomes if outcome is not None),
        num_runs=len(runs),
    )
    return summary.page(state) + summary.runs_tsv(state)


def _make_claimed(folder: Path, golden: Path) -> None:
    (folder / "inputs.json").write_text('{"seed": 1, "files": ["a", "b"]}')


def _claim(folder: Path) -> object:
    return manifest.claim_output_directory(folder, {"seed": 1, "files": ["a", "b"]})


def _make_vocabulary(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "google/vocab.txt", folder)


def _read_vocabulary(folder: Path) -> object:
    vocabulary = tokenization.Vocabulary.load(folder / "vocab.txt")
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    return tokenizer.encode("Ba be é 好 [MASK]")


def _make_state(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "run/checkpoints/step-0000000012.npz", folder)


def _read_state(folder: Path) -> object:
    from bert_keras.checkpoints import npz_files

    path = folder / "step-0000000012.npz"
    try:
        npz_files.read_arrays(path, list(npz_files.read_headers(path)))
    except npz_files.UnreadableArchive as error:
        raise InputError(str(error)) from None


def _make_checkpoint(source: str, *left_out: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        ignored = shutil.ignore_patterns(*left_out)
        shutil.copytree(golden / source, folder, dirs_exist_ok=True, ignore=ignored)

    return make


def _read_checkpoint(folder: Path) -> object:
    from bert_keras.checkpoints import conversion

    return conversion.read(folder)


def _make_texts(folder: Path, golden: Path) -> None:
    rows = [("text", "label"), ("Ba be bi", "a"), ('Bo, "da" de', "b"), ("Di do", "a")]
    lines = ["\t".join(row) for row in rows]
    (folder / "a.tsv").write_text("\n".join(lines) + "\n")
    with (folder / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, records)))


def _make_tagged(folder: Path, golden: Path) -> None:
    rows = [
        "-DOCSTART- -X- O O",
        "",
        "Ba NN I-NP I-PER",
        "be NN O O",
        "",
        "da X O B-LOC",
    ]
    (folder / "a.txt").write_text("\n".join(rows) + "\n")
    line = json.dumps({"words": ["Ba", "be"], "tags": ["B-PER", "O"]})
    (folder / "b.jsonl").write_text(f"{line}\n{line}\n")


def _make_questions(folder: Path, golden: Path) -> None:
    for name in ("dev.json", "dev.csv"):
        shutil.copy(golden / name, folder)
    row = ["a", "Ba be. Da", "de", "di", "do", "ga", "1"]
    (folder / "c.tsv").write_text("\n".join(["\t".join(row)] * 3))
    answer = {"Value": "da", "Aliases": ["Da", "de"]}
    pages = [{"Filename": "x.txt"}]
    question = {"Question": "Ba?", "QuestionId": "q", "Answer": answer}
    data = {"Data": [question | {"EntityPages": pages}]}
    (folder / "triviaqa.json").write_text(json.dumps(data))
    (folder / "wikipedia").mkdir()
    (folder / "wikipedia/x.txt").write_text("Ba be Da de.")


SETTINGS = {"a.tsv": "text", "b.csv": "text", "c.jsonl": "text"}
TAGGED = {"a.txt": "tagging", "b.jsonl": "tagging"}
QUESTIONS = {"dev.json": "span", "dev.csv": "choice", "c.tsv": "choice"}


def _read_labelled(tasks: dict[str, str]) -> Callable[[Path], object]:
    vocabulary = tokenization.Vocabulary(
        ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "##a", "##e", "d", "i")
    )
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)

    def read(folder: Path) -> object:
        from bert_keras.tasks import catalogue, triviaqa

        for name, task in tasks.items():
            settings = config.FinetuningConfig(task=task, max_seq_length=128)
            data = catalogue.read(folder / name, settings)
            described = data.describe()
            inputs = data.encode(described, tokenizer, settings)
            inputs.batch([0])
            described.model_dump_json()
        if (folder / "triviaqa.json").is_file():
            triviaqa.read_triviaqa(folder / "triviaqa.json", folder)

    return read


def _make_answers(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "dev.json", folder)
    data = json.loads((golden / "dev.json").read_text())
    ids = [
        question["id"]
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    (folder / "predictions.json").write_text(json.dumps(dict.fromkeys(ids, "ba be")))


def _read_answers(folder: Path) -> object:
    from bert_keras.tasks import squad_predictions

    return squad_predictions.score_file(
        folder / "dev.json", folder / "predictions.json"
    )


KINDS: dict[str, Kind] = {
    "dumps": Kind(500, _make_dumps, _read_sources("wikipedia")),
    "packed dumps": Kind(250, _make_packed_dumps, _read_sources("wikipedia")),
    "WikiExtractor": Kind(300, _make_extracted, _read_sources("wikiextractor")),
    "books": Kind(400, _make_books, _read_sources("books")),
    "JSON lines": Kind(400, _make_json_lines, _read_sources("jsonl")),
    "overlap files": Kind(300, _make_overlap, _read_overlap),
    "corpora": Kind(250, _make_corpus, _read_corpus, "[dm]*"),
    "examples": Kind(150, _make_examples, _read_examples, "[em]*"),
    "messages in records": Kind(40, _make_messages, _read_reframed_examples, "e*"),
    "third-party records": Kind(40, _make_third_party_examples, _adopt),
    "configurations": Kind(60, _make_configurations, _read_configurations),
    "--set, TF_CONFIG": Kind(200, _make_settings, _read_settings),
    "pre-trained runs": Kind(30, _make_run, _read_run),
    **{
        f"tuned runs, {form}": Kind(1, _make_tuned_run(form), _read_tuned_run)
        for form in ("text", "tagging", "span", "choice")
    },
    "sweeps": Kind(40, _make_sweep, _read_sweep),
    "inputs.json": Kind(250, _make_claimed, _claim),
    "vocabularies": Kind(400, _make_vocabulary, _read_vocabulary),
    "labelled texts": Kind(150, _make_texts, _read_labelled(SETTINGS)),
    "tagged words": Kind(150, _make_tagged, _read_labelled(TAGGED)),
    "questions, endings": Kind(80, _make_questions, _read_labelled(QUESTIONS)),
    "answers": Kind(120, _make_answers, _read_answers),
    "training states": Kind(250, _make_state, _read_state),
    "native": Kind(20, _make_checkpoint("run", "checkpoints"), _read_checkpoint),
    "Hugging Face": Kind(40, _make_checkpoint("hugging_face"), _read_checkpoint),
    "Google": Kind(20, _make_checkpoint("google"), _read_checkpoint),
    "KerasHub": Kind(10, _make_checkpoint("keras_hub"), _read_checkpoint),
}


# === In a process of its own ===


class Hang(BaseException):
    """An input that is not read within `HANG_SECONDS`."""


def _on_alarm(*_: object) -> None:
    raise Hang


def run_kind(name: str, work: Path, *, seed: int, first: int, stop: int) -> None:
    """Reads the inputs `first` to `stop` of a kind; prints what became of them.

    A line of JSON at the end, and one for each fault at once: if the process ends, the
    number in `work/number` is that of the input that ended it.
    """
    kind = KINDS[name]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for part in ("golden", "healthy", "input"):
        shutil.rmtree(work / part, ignore_errors=True)
        (work / part).mkdir(parents=True)
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(work / "golden", filter="data")
    healthy, folder = work / "healthy", work / "input"
    kind.make(healthy, work / "golden")
    shutil.copytree(healthy, folder, dirs_exist_ok=True)
    # Loads the modules. A healthy input is accepted, or all others mean nothing.
    kind.read(folder)
    contents = {
        path.relative_to(healthy): path.read_bytes()
        for path in sorted(healthy.rglob(kind.damaged))
        if path.is_file()
    }
    everything = {
        path.relative_to(healthy): path.read_bytes()
        for path in healthy.rglob("*")
        if path.is_file()
    }
    before = _kilobytes("VmRSS")
    limit = _kilobytes("VmSize") * 1024 + 2 * MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, _on_alarm)
    outcomes: Counter[str] = Counter()
    worst, worst_number, most_memory = 0.0, first, 0
    with (work / "number").open("wb", buffering=0) as counter:
        for number in range(first, stop):
            os.pwrite(counter.fileno(), f"{number:12}".encode(), 0)
            choose = random.Random(f"{seed}/{name}/{number}")
            place = choose.choice(list(contents))
            data = damage(contents[place], choose, name=place.name)
            (folder / place).write_bytes(data)
            if not number % 100:
                Path("/proc/self/clear_refs").write_text("5")
            start = time.perf_counter()
            outcome, fault = _read_one(kind, folder)
            seconds = time.perf_counter() - start
            grown = _kilobytes("VmHWM") - before if not number % 20 else 0
            most_memory = max(most_memory, grown)
            outcomes[outcome] += 1
            if seconds > worst:
                worst, worst_number = seconds, number
            if fault:
                print(
                    json.dumps({"number": number, "file": str(place), "fault": fault})
                )
            for path, content in everything.items():
                if path == place:
                    (folder / path).write_bytes(content)
    facts = {"worst": worst, "worst_number": worst_number, "memory": most_memory * 1024}
    print(json.dumps({"outcomes": outcomes, **facts}))


def _read_one(kind: Kind, folder: Path) -> tuple[str, str | None]:
    """What became of an input: `read`, `refused` or `fault`; and the fault."""
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            kind.read(folder)
    except InputError as error:
        if "\n" in str(error):
            return "fault", f"a message of several lines: {str(error)[:200]!r}"
        return "refused", None
    except Hang:
        return "fault", f"not read within {HANG_SECONDS} s: {_places()}"
    except Exception as error:
        return "fault", f"{type(error).__name__}: {str(error)[:200]} {_places()}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read", None


def _places() -> str:
    """The innermost lines of ours in a traceback."""
    stack = traceback.extract_tb(sys.exc_info()[2])
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in stack
        if str(REPOSITORY) in frame.filename and ".venv" not in frame.filename
    ]
    return " < ".join(lines[:-4:-1])


def _kilobytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


# === All of them ===


class Outcome(NamedTuple):
    """What became of the inputs of a kind."""

    name: str
    outcomes: Counter[str]
    faults: list[dict[str, Any]]
    worst: float
    worst_number: int
    memory: int
    seconds: float


def run_all(arguments: argparse.Namespace, work: Path) -> Iterator[Outcome]:
    """Runs each kind in processes of its own; one that ends is followed by the next."""
    names = [arguments.kind] if arguments.kind else list(KINDS)
    total = sum(KINDS[name].share for name in names)
    for name in names:
        stop = arguments.first + max(1, arguments.inputs * KINDS[name].share // total)
        first, begin = arguments.first, time.monotonic()
        (work / "number").unlink(missing_ok=True)
        outcomes, faults = Counter[str](), []
        worst, worst_number, memory = 0.0, first, 0
        while first < stop:
            command = [sys.executable, __file__, "--child", "--kind", name]
            command += ["--seed", str(arguments.seed), "--work", str(work)]
            command += ["--first", str(first), "--inputs", str(stop - first)]
            ended = subprocess.run(command, capture_output=True, text=True)
            lines = [json.loads(line) for line in ended.stdout.splitlines()]
            faults += [line for line in lines if "fault" in line]
            last = next((line for line in lines if "outcomes" in line), None)
            if last is not None:
                outcomes.update(last["outcomes"])
                memory = max(memory, last["memory"])
                if last["worst"] > worst:
                    worst, worst_number = last["worst"], last["worst_number"]
                break
            number = (work / "number").read_text() if (work / "number").exists() else ""
            if not number.strip():
                raise RuntimeError(f"{name}: {ended.stderr[-3000:]}")
            why = f"the process ended with {ended.returncode}: {ended.stderr[-300:]}"
            faults.append({"number": int(number), "file": "", "fault": why})
            outcomes.update({"fault": 1, "before a crash": int(number) - first})
            first = int(number) + 1
            (work / "number").unlink()
        seconds = time.monotonic() - begin
        yield Outcome(name, outcomes, faults, worst, worst_number, memory, seconds)


def table(found: list[Outcome]) -> str:
    lines = [
        "| kind | inputs | read | refused | faults | worst, ms | number | memory, MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in found:
        counts = kind.outcomes
        numbers = [sum(counts.values()), counts["read"], counts["refused"]]
        lines.append(
            f"| {kind.name} | "
            + " | ".join(f"{number:,}" for number in [*numbers, counts["fault"]])
            + f" | {kind.worst * 1000:,.0f} | {kind.worst_number:,}"
            + f" | {kind.memory / 1e6:,.0f} |"
        )
    totals = sum((kind.outcomes for kind in found), Counter[str]())
    numbers = [sum(totals.values()), totals["read"], totals["refused"], totals["fault"]]
    worst = max(kind.worst for kind in found) * 1000
    memory = max(kind.memory for kind in found) / 1e6
    shown = " | ".join(f"{number:,}" for number in numbers)
    lines.append(f"| all | {shown} | {worst:,.0f} | | {memory:,.0f} |")
    return "\n".join(lines)


def page(found: list[Outcome], seed: int, minutes: float) -> str:
    return (
        "# Damaged and hostile inputs\n\n"
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, seed {seed}, {minutes:.0f} minutes. Made "
        "by `benchmarks/hostile_inputs.py`, which says what is done to which files. "
        "Memory is what reading adds to a process that has read the healthy files.\n\n"
        f"{table(found)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--results", type=Path, help="file for the table")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        first = arguments.first
        stop = first + arguments.inputs
        run_kind(
            arguments.kind, arguments.work, seed=arguments.seed, first=first, stop=stop
        )
        return
    found = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        for kind in run_all(arguments, arguments.work or Path(temporary)):
            found.append(kind)
            print(f"{kind.name}: {dict(kind.outcomes)} in {kind.seconds:.0f} s")
            seen = set()
            for fault in kind.faults:
                if fault["fault"] not in seen:
                    print("  ", fault["number"], fault["file"], fault["fault"])
                seen.add(fault["fault"])
            if arguments.results:
                minutes = (time.monotonic() - begin) / 60
                arguments.results.write_text(page(found, arguments.seed, minutes))
    print(table(found))


if __name__ == "__main__":
    main()
