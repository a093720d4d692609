"""The data line against its peer and against its own promises.

    python benchmarks/data.py --data ../shared/data --work /tmp/data-bench \
        --results benchmarks/results/data.md [--only speed memory flat stages disk]

Sections: `speed` and `memory` compare `examples` with the program of
tf-models-official, on the same text with the same vocabulary; `flat` compares the
memory of 50 MB and of 1 GB of text; `stages` gives the cost of each stage and, from
these, of the English Wikipedia with books; `disk` the size of records; `engines` runs
one command on every engine of this machine and compares the bytes.

Rates are per second of CPU time after imports. Text is that of real books and dumps;
where more is wanted it is repeated under new ids, each paragraph made unique.
"""

import argparse
import bz2
import datetime
import gzip
import hashlib
import importlib.metadata
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import process_tree

BERT_KERAS = [sys.executable, "-m", "bert_keras.cli"]


# Text.


def make_corpus(data: Path, work: Path) -> Path:
    """Documents of the real dumps and books."""
    directory = work / "corpus"
    if not (directory / "manifest.json").exists():
        process_tree.run(
            [
                *(*BERT_KERAS, "corpus", "--workers", "2", "--output", str(directory)),
                *("--wikipedia", f"{data}/wikipedia/*.bz2", f"{data}/wikipedia/*.xml"),
                "--allow_cut_dumps",
                *("--books", f"{data}/books/gutenberg/*.txt"),
            ]
        )
    return directory


def documents_of(directory: Path) -> Iterator[dict]:
    """Documents in the order of their shards."""
    for path in sorted(directory.glob("documents-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def parts(documents: Iterator[dict], num_sentences: int = 200) -> Iterator[dict]:
    """Books cut into chapters of some hundred sentences, documents of a page's size."""
    for document in documents:
        part, size, number = [], 0, 0
        for paragraph in [*document["paragraphs"], None]:
            if part and (paragraph is None or size >= num_sentences):
                yield {
                    **document,
                    "id": f"{document['id']}/{number}",
                    "paragraphs": part,
                }
                part, size, number = [], 0, number + 1
            if paragraph is not None:
                part.append(paragraph)
                size += len(paragraph)


def repeated(source: Path, num_bytes: int) -> Iterator[dict]:
    """Documents of a given size in bytes, each paragraph unique by a number."""
    copy = 0
    while num_bytes > 0:
        for document in parts(documents_of(source)):
            paragraphs = [[*p, f"Copy {copy}."] for p in document["paragraphs"]]
            num_bytes -= sum(len(s) + 1 for p in paragraphs for s in p)
            yield {
                **document,
                "id": f"{copy}:{document['id']}",
                "paragraphs": paragraphs,
            }
            if num_bytes <= 0:
                return
        copy += 1


def write_jsonl(documents: Iterator[dict], directory: Path, *, num_files: int) -> None:
    """Writes documents as input of `corpus --jsonl`."""
    directory.mkdir(parents=True)
    files = [open(directory / f"{n:02}.jsonl", "w") for n in range(num_files)]
    for number, document in enumerate(documents):
        text = "\n\n".join(" ".join(p) for p in document["paragraphs"])
        line = {"id": document["id"], "text": text, "source": document["source"]}
        files[number % num_files].write(json.dumps(line, ensure_ascii=False) + "\n")
    for file in files:
        file.close()


def sized_corpus(work: Path, source: Path, megabytes: int) -> Path:
    """A corpus of about a given size in megabytes, made by `corpus --jsonl`."""
    directory = work / f"corpus-{megabytes}"
    if not (directory / "manifest.json").exists():
        inputs = work / f"jsonl-{megabytes}"
        shutil.rmtree(inputs, ignore_errors=True)
        documents = repeated(source, megabytes * 10**6)
        write_jsonl(documents, inputs, num_files=max(1, megabytes // 25))
        process_tree.run(
            [
                *(*BERT_KERAS, "corpus", "--workers", "2"),
                *("--jsonl", f"{inputs}/*.jsonl", "--output", str(directory)),
            ]
        )
    return directory


def write_sentences(corpus: Path, path: Path) -> None:
    """The peer's input: a sentence a line, a blank line after each document."""
    with open(path, "w", encoding="utf-8") as file:
        for document in documents_of(corpus):
            for paragraph in document["paragraphs"]:
                file.writelines(f"{sentence}\n" for sentence in paragraph)
            file.write("\n")


# What runs in a process of its own, and prints one line of JSON at its end.


def own_examples(corpus: str, vocab: str, dupe_factor: str, output: str) -> None:
    """Our `examples` in one process: one graph on Beam's in-memory runner."""
    from bert_keras.config import ExamplesConfig
    from bert_keras.pipelines import examples
    from bert_keras.pipelines.engine import engines

    engine = engines.make_engine(["--runner=FnApiRunner"])
    start = time.process_time()
    made = examples.build_examples(
        corpus,
        vocab,
        output,
        config=ExamplesConfig(dupe_factor=int(dupe_factor)),
        do_lower_case=True,
        num_shards=None,
        engine=engine,
    )
    seconds = time.process_time() - start
    print(json.dumps({"num": made.num_records, "cpu_seconds": seconds}))


def peer_examples(sentences: str, vocab: str, dupe_factor: str, output: str) -> None:
    """The program of tf-models-official, with the same settings."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from official.nlp.data import create_pretraining_data as original
    from official.nlp.tools import tokenization

    start = time.process_time()
    tokenizer = tokenization.FullTokenizer(vocab_file=vocab, do_lower_case=True)
    instances = original.create_training_instances(
        [sentences],
        tokenizer,
        original.get_processor_text_fn(False, True),
        128,
        int(dupe_factor),
        0.1,
        0.15,
        20,
        random.Random(12345),
    )
    original.write_instance_to_example_files(
        instances, tokenizer, 128, 20, [output], False, False
    )
    seconds = time.process_time() - start
    print(json.dumps({"num": len(instances), "cpu_seconds": seconds}))


def own_stages(data: str) -> None:
    """CPU seconds of `corpus` on the English dumps, stage by stage."""
    from bert_keras.pipelines import duplicates, sentences, wikitext
    from bert_keras.pipelines.sources import readers, wikipedia

    paths = sorted(Path(data, "wikipedia").glob("enwiki*.bz2"))
    timed: Counter[str] = Counter()
    size: Counter[str] = Counter()

    def clock(name: str, call: Callable[[], object], num_bytes: int = 0) -> object:
        start = time.process_time()
        result = call()
        timed[name] += time.process_time() - start
        size[name] += num_bytes
        return result

    for path in paths:
        for item in readers.find_inputs({"wikipedia": [str(path)]}):
            pages = clock(
                "read", lambda item=item: list(wikipedia.read_pages(item.path))
            )
            articles = [p for p in pages if isinstance(p, wikipedia.Page)]
            wikitexts = [p.text for p in articles if p.namespace == 0]
            size["read"] += sum(len(p.text.encode()) for p in articles)
            cleaned = clock(
                "clean",
                lambda texts=wikitexts: [wikitext.clean(text) for text in texts],
                sum(len(text.encode()) for text in wikitexts),
            )
            num_bytes = sum(len(p.encode()) for page in cleaned for p in page)
            clock(
                "split into sentences",
                lambda c=cleaned: [sentences.split_sentences(p) for d in c for p in d],
                num_bytes,
            )
            clock(
                "hash paragraphs",
                lambda c=cleaned: [
                    duplicates.paragraph_hashes(
                        d, (duplicates.is_long(p, 10) for p in d)
                    )
                    for d in c
                ],
                num_bytes,
            )
    print(json.dumps({"seconds": timed, "bytes": size}))


CHILDREN = {f.__name__: f for f in (own_examples, peer_examples, own_stages)}


def child(name: str, *arguments: object) -> tuple[dict, process_tree.Measured]:
    """Runs one of the functions above in a process of its own."""
    command = [sys.executable, __file__, "--child", name, *map(str, arguments)]
    measured = process_tree.run(command)
    return json.loads(measured.output.splitlines()[-1]), measured


# Sections: each gives lines of markdown.


def speed(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """Examples per CPU second, against the peer."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    corpus = sized_corpus(work, make_corpus(data, work), 20)
    write_sentences(corpus, work / "sentences.txt")
    yield "| dupe | ours, examples/CPU s | tf-models-official | ratio (median, range) |"
    yield "|---|---|---|---|"
    for dupe_factor in (1, 5):
        rates = {"own": [], "peer": []}
        for _ in range(num_runs):
            shutil.rmtree(work / "own", ignore_errors=True)
            for who, name, given in (
                ("own", "own_examples", corpus),
                ("peer", "peer_examples", work / "sentences.txt"),
            ):
                made, _ = child(name, given, vocab, dupe_factor, work / who)
                rates[who].append(made["num"] / made["cpu_seconds"])
        ratios = [a / b for a, b in zip(rates["own"], rates["peer"], strict=True)]
        yield (
            f"| {dupe_factor} | {statistics.median(rates['own']):,.0f} | "
            f"{statistics.median(rates['peer']):,.0f} | "
            f"{statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}) |"
        )
    yield ""
    yield (
        f"20 MB of text, length 128, one process each, {num_runs} runs in turn; ours "
        "is one Beam graph on the in-memory runner, with reading, checks and writing."
    )


def memory(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """Peak memory on 100 MB of text, against the peer."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    corpus = sized_corpus(work, make_corpus(data, work), 100)
    write_sentences(corpus, work / "sentences.txt")
    own = examples_command(corpus, vocab, work / "own", dupe_factor=1)
    _, peer = child("peer_examples", work / "sentences.txt", vocab, 1, work / "peer")
    yield "| 100 MB of text, dupe 1 | peak MB |"
    yield "|---|---|"
    yield f"| `bert-keras examples`, all processes | {own.peak_megabytes:,.0f} |"
    yield f"| tf-models-official | {peer.peak_megabytes:,.0f} |"
    yield f"| ratio | {own.peak_megabytes / peer.peak_megabytes:.3f} |"


def examples_command(
    corpus: Path, vocab: Path, output: Path, *, dupe_factor: int, more: tuple = ()
) -> process_tree.Measured:
    """`bert-keras examples` as a user runs it."""
    shutil.rmtree(output, ignore_errors=True)
    return process_tree.run(
        [
            *(*BERT_KERAS, "examples", "--corpus", str(corpus), "--vocab", str(vocab)),
            *("--set", f"dupe_factor={dupe_factor}", "--output", str(output)),
            *more,
        ]
    )


def flat(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """Peak memory of both commands for 50 MB and 1 GB of text."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    source = make_corpus(data, work)
    yield "| text | corpus, peak MB | CPU s | examples (dupe 1), peak MB | CPU s |"
    yield "|---|---|---|---|---|"
    for megabytes in (50, 1000):
        inputs, output = work / f"flat-{megabytes}", work / "flat"
        if not inputs.exists():
            documents = repeated(source, megabytes * 10**6)
            write_jsonl(documents, inputs, num_files=megabytes // 25)
        shutil.rmtree(output, ignore_errors=True)
        command = [*BERT_KERAS, "corpus", "--jsonl", f"{inputs}/*.jsonl"]
        made = process_tree.run([*command, "--output", str(output)])
        examples = examples_command(output, vocab, work / "own", dupe_factor=1)
        yield (
            f"| {megabytes} MB | {made.peak_megabytes:,.0f} | "
            f"{made.cpu_seconds:,.0f} | "
            f"{examples.peak_megabytes:,.0f} | {examples.cpu_seconds:,.0f} |"
        )
        shutil.rmtree(inputs)
    yield ""
    yield "One worker, the default `--memory_limit`; all processes together."


# English Wikipedia with books: what the figures are scaled to.
WIKIPEDIA_XML_GB, WIKITEXT_GB, TEXT_GB = 100, 75, 21


def stages(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """CPU seconds of each stage, extrapolated to 3.3 billion words."""
    runs = [child("own_stages", data)[0] for _ in range(num_runs)]
    yield "| stage of `corpus` | MB per CPU s | GB at full scale | core hours |"
    yield "|---|---|---|---|"
    scale = {
        "read": WIKITEXT_GB,
        "clean": WIKITEXT_GB,
        "split into sentences": TEXT_GB,
        "hash paragraphs": TEXT_GB,
    }
    for name, gigabytes in scale.items():
        rate = statistics.median(r["bytes"][name] / r["seconds"][name] for r in runs)
        hours = gigabytes * 1e9 / rate / 3600
        yield f"| {name} | {rate / 1e6:.1f} | {gigabytes} | {hours:.2f} |"
    yield from whole_commands(data, work)


def whole_commands(data: Path, work: Path) -> Iterator[str]:
    """The commands as users run them, scaled up."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    yield ""
    yield "| command, whole | CPU s | measured on | scaled to | core hours |"
    yield "|---|---|---|---|---|"
    # The wikitext of a few dumps, copied, so that starting up weighs little.
    dumps = work / "dumps"
    shutil.rmtree(dumps, ignore_errors=True)
    dumps.mkdir(parents=True)
    sources = sorted((data / "wikipedia").glob("enwiki*.bz2"))
    for copy in range(8):
        for path in sources:
            shutil.copy(path, dumps / f"{copy}-{path.name}")
    made = process_tree.run(
        [
            *(*BERT_KERAS, "corpus", "--wikipedia", f"{dumps}/*.bz2"),
            *("--output", str(fresh(work / "wikipedia"))),
        ]
    )
    megabytes = 8 * sum(xml_bytes(path) for path in sources) / 1e6
    rows = [("corpus --wikipedia", made, megabytes, WIKIPEDIA_XML_GB, "XML")]
    corpus = sized_corpus(work, make_corpus(data, work), 100)
    counted = process_tree.run(
        [
            *(*BERT_KERAS, "vocab", "--corpus", str(corpus), "--vocab_size", "30522"),
            *("--output", str(fresh(work / "vocab.txt"))),
        ]
    )
    rows.append(("vocab, as if learning grew too", counted, 100, TEXT_GB, "text"))
    for dupe_factor in (1, 10):
        made = examples_command(corpus, vocab, work / "own", dupe_factor=dupe_factor)
        rows.append((f"examples, dupe {dupe_factor}", made, 100, TEXT_GB, "text"))
    yield from (scaled(*row) for row in rows)
    total = sum(core_hours(*row[1:4]) for row in rows if row[0] != "examples, dupe 1")
    yield ""
    yield (
        "3.3 billion words (25 GB of bz2, about 100 GB of XML, 75 GB of wikitext, "
        f"21 GB of text), all three commands at dupe 10: {total:.1f} core hours. Each "
        "part was measured and scaled up; nobody has run the whole."
    )


def core_hours(made: process_tree.Measured, megabytes: float, gigabytes: int) -> float:
    """Measurements on some megabytes, scaled to gigabytes."""
    return made.cpu_seconds / megabytes * gigabytes * 1000 / 3600


def scaled(
    name: str, made: process_tree.Measured, megabytes: float, gigabytes: int, of: str
) -> str:
    """A row: measured on some megabytes, scaled to gigabytes."""
    return (
        f"| {name} | {made.cpu_seconds:.0f} | {megabytes:.0f} MB {of} | "
        f"{gigabytes} GB | {core_hours(made, megabytes, gigabytes):.1f} |"
    )


def xml_bytes(path: Path) -> int:
    """Unpacked size of a dump."""
    return len(bz2.decompress(path.read_bytes()))


def fresh(path: Path) -> Path:
    """A path where nothing exists."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    return path


def disk(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """Bytes of records per million tokens of text."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    corpus = sized_corpus(work, make_corpus(data, work), 20)
    yield "| records | MB per million tokens of text | of static, dupe 10 |"
    yield "|---|---|---|"
    static = None
    for name, settings in (
        ("static, dupe 10", ("dupe_factor=10",)),
        ("static, dupe 10, gzip", ("dupe_factor=10", "compression=gzip")),
        ("dynamic", ("dupe_factor=1", "masking=dynamic")),
        ("dynamic, gzip", ("dupe_factor=1", "masking=dynamic", "compression=gzip")),
    ):
        more = tuple(word for setting in settings[1:] for word in ("--set", setting))
        dupe_factor = int(settings[0].partition("=")[2])
        output = work / "own"
        examples_command(corpus, vocab, output, dupe_factor=dupe_factor, more=more)
        made = json.loads((output / "manifest.json").read_text())
        num_bytes = sum(shard["num_bytes"] for shard in made["shards"])
        per_million = num_bytes / made["counters"]["tokens"]
        static = static or per_million
        yield f"| {name} | {per_million:.1f} | 1 / {static / per_million:.1f} |"


PORTABLE = "--runner=PortableRunner --job_endpoint=embed --environment_type=LOOPBACK"
ENGINES = {
    "passes": "",
    "passes, 4 workers": "--workers 4",
    "passes of 1 MB, 2 workers": "--workers 2",
    "FnApiRunner": "-- --runner=FnApiRunner",
    "FnApiRunner, 2 processes": "--workers 2 -- --runner=FnApiRunner",
    "FnApiRunner, 4 processes": "--workers 4 -- --runner=FnApiRunner",
    "BundleBasedDirectRunner": "-- --runner=BundleBasedDirectRunner",
    "PortableRunner, LOOPBACK": f"-- {PORTABLE}",
}
SMALL_PASSES = (
    "import sys; from bert_keras import cli\n"
    "from bert_keras.pipelines.engine import passes\n"
    "passes.PASS_BYTES = 1_000_000\n"
    "sys.exit(cli.main(sys.argv[1:]))"
)


def engines(data: Path, work: Path, num_runs: int) -> Iterator[str]:
    """The same bytes from every engine."""
    vocab = data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    corpus = sized_corpus(work, make_corpus(data, work), 20)
    output = work / "own"
    command = ["examples", "--corpus", str(corpus), "--vocab", str(vocab)]
    command += ["--output", str(output), "--set", "dupe_factor=1"]
    yield "| `examples`, 20 MB of text | wall s | CPU s | peak MB | sha256 of all |"
    yield "|---|---|---|---|---|"
    for name, words in ENGINES.items():
        program = [sys.executable, "-c", SMALL_PASSES]
        program = program if "1 MB" in name else BERT_KERAS
        fresh(output)
        made = process_tree.run([*program, *command, *words.split()])
        yield (
            f"| {name} | {made.seconds:.0f} | {made.cpu_seconds:.0f} | "
            f"{made.peak_megabytes:,.0f} | {sha256_of(output)} |"
        )
    fresh(output)
    num_kills = kill_and_repeat([sys.executable, "-c", SMALL_PASSES, *command])
    name = f"passes of 1 MB, killed {num_kills} times"
    yield f"| {name} | | | | {sha256_of(output)} |"
    yield ""
    yield (
        "`tests/engines` compares these, workers in another environment, and the real "
        "`DataflowRunner` on a stand-in of the service, too."
    )


def sha256_of(directory: Path) -> str:
    """The first digits of one digest of all shards."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.tfrecord")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kill_and_repeat(command: list[str]) -> int:
    """Kills a command with SIGKILL after 3, 4, ... seconds, until it is done before."""
    num_kills = 0
    while True:
        process = subprocess.Popen(command)
        try:
            if process.wait(timeout=3 + num_kills):
                sys.exit("the command that was killed fails when run again")
            return num_kills
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            num_kills += 1


SECTIONS = {f.__name__: f for f in (speed, memory, flat, stages, disk, engines)}


def main() -> None:
    """Runs sections, and writes the page after each."""
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="real data sets")
    parser.add_argument("--work", type=Path, required=True, help="a directory")
    parser.add_argument("--results", type=Path, required=True, help="page to write")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("apache-beam", "numpy", "tf-models-official")
    )
    lines = [
        "# The data line",
        "",
        f"{datetime.date.today()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {versions}. Made by `benchmarks/data.py`.",
    ]
    for name in args.only:
        lines += ["", f"## {SECTIONS[name].__doc__}", ""]
        lines += SECTIONS[name](args.data, args.work, args.runs)
        args.results.parent.mkdir(parents=True, exist_ok=True)
        args.results.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
