"""The data line against its peer, and its cost and memory at scale.

    python -m benchmarks.data SECTION... --data ../shared/data --work DIR [--runs 3]

Sections: `speed` and `memory` compare `examples` with the program of
tf-models-official, on the same text with the same vocabulary; `flat` compares the
memory of 50 MB and of 1 GB of text; `stages` gives the cost of the English
Wikipedia with books from that of parts; `disk` the size of records.

Rates are per second of CPU time after imports. Text is that of real books and dumps;
larger text is the same repeated under new ids, each paragraph made unique.
"""

import argparse
import bz2
import gzip
import json
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import measuring

VOCAB = "vocab/uncased_L-12_H-768_A-12/vocab.txt"


# Text.


def make_corpus(data: Path, work: Path) -> Path:
    """Makes the documents of the real dumps and books."""
    directory = work / "corpus"
    if not (directory / "manifest.json").exists():
        dumps = f"{data}/wikipedia/*.bz2", f"{data}/wikipedia/*.xml"
        measuring.bert_keras(
            *("corpus", "--workers", "2", "--output", directory),
            *("--wikipedia", *dumps, "--allow_cut_dumps"),
            *("--books", f"{data}/books/gutenberg/*.txt"),
        )
    return directory


def documents_of(directory: Path) -> Iterator[dict]:
    """Yields documents in the order of their shards."""
    for path in sorted(directory.glob("documents-*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def parts(documents: Iterator[dict], num_sentences: int = 200) -> Iterator[dict]:
    """Cuts books into chapters of some hundred sentences, the size of a page."""
    for document in documents:
        part, size, number = [], 0, 0
        for paragraph in [*document["paragraphs"], None]:
            if part and (paragraph is None or size >= num_sentences):
                name = f"{document['id']}/{number}"
                yield {**document, "id": name, "paragraphs": part}
                part, size, number = [], 0, number + 1
            if paragraph is not None:
                part.append(paragraph)
                size += len(paragraph)


def repeated(source: Path, num_bytes: int) -> Iterator[dict]:
    """Yields documents of a given size in bytes, each paragraph unique by a number."""
    copy = 0
    while num_bytes > 0:
        for document in parts(documents_of(source)):
            paragraphs = [[*p, f"Copy {copy}."] for p in document["paragraphs"]]
            num_bytes -= sum(len(s) + 1 for p in paragraphs for s in p)
            name = f"{copy}:{document['id']}"
            yield {**document, "id": name, "paragraphs": paragraphs}
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


def sized_corpus(data: Path, work: Path, megabytes: int) -> Path:
    """Makes a corpus of about a given size in megabytes by `corpus --jsonl`."""
    directory = work / f"corpus-{megabytes}"
    if not (directory / "manifest.json").exists():
        inputs = work / f"jsonl-{megabytes}"
        shutil.rmtree(inputs, ignore_errors=True)
        documents = repeated(make_corpus(data, work), megabytes * 10**6)
        write_jsonl(documents, inputs, num_files=max(1, megabytes // 25))
        measuring.bert_keras(
            *("corpus", "--workers", "2"),
            *("--jsonl", f"{inputs}/*.jsonl", "--output", directory),
        )
    return directory


def write_sentences(corpus: Path, path: Path) -> Path:
    """Writes the peer's input: a sentence a line, a blank line after each document."""
    with open(path, "w", encoding="utf-8") as file:
        for document in documents_of(corpus):
            for paragraph in document["paragraphs"]:
                file.writelines(f"{sentence}\n" for sentence in paragraph)
            file.write("\n")
    return path


# Work in a process of its own, which prints one line of JSON at its end.


def own_examples(corpus: str, vocab: str, dupe_factor: str, output: str) -> None:
    """Runs our `examples` in one process: one graph on Beam's in-memory runner."""
    from bert_keras.core.settings.pipelines import ExamplesConfig
    from bert_keras.pipelines import examples
    from bert_keras.pipelines.engine import engines

    engine = engines.make_engine(["--runner=FnApiRunner"])
    start = time.process_time()
    manifest = examples.build_examples(
        *(corpus, vocab, output),
        config=ExamplesConfig(dupe_factor=int(dupe_factor)),
        do_lower_case=True,
        num_shards=None,
        engine=engine,
    )
    seconds = time.process_time() - start
    print(json.dumps({"num": manifest.num_records, "cpu_seconds": seconds}))


def peer_examples(sentences: str, vocab: str, dupe_factor: str, output: str) -> None:
    """Runs the program of tf-models-official, with the same settings."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from official.nlp.data import create_pretraining_data as original
    from official.nlp.tools import tokenization

    start = time.process_time()
    tokenizer = tokenization.FullTokenizer(vocab_file=vocab, do_lower_case=True)
    instances = original.create_training_instances(
        *([sentences], tokenizer, original.get_processor_text_fn(False, True)),
        *(128, int(dupe_factor), 0.1, 0.15, 20, random.Random(12345)),
    )
    original.write_instance_to_example_files(
        instances, tokenizer, 128, 20, [output], False, False
    )
    seconds = time.process_time() - start
    print(json.dumps({"num": len(instances), "cpu_seconds": seconds}))


def own_reading(data: str) -> None:
    """Measures wikitext per CPU second of reading pages, mostly unpacking."""
    from bert_keras.pipelines.sources import dump_pages

    paths = sorted(Path(data, "wikipedia").glob("enwiki*.bz2"))
    pages: list = []
    times = measuring.timed(
        lambda: pages.extend(
            page
            for path in paths
            for page in dump_pages.read_pages(path, allow_cut=True)
        )
    )
    texts = [page.text for page in pages if isinstance(page, dump_pages.Page)]
    print(json.dumps(sum(len(text.encode()) for text in texts) / times.cpu))


def child(function: Callable, *words: object) -> tuple[Any, measuring.Measured]:
    """Runs one of the functions above in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.data", "--child", function.__name__)
    measured = measuring.run(*command, *words)
    return json.loads(measured.output.splitlines()[-1]), measured


def examples_command(corpus: Path, data: Path, output: Path, *settings: str):
    """Runs `bert-keras examples` as a user does; returns its cost."""
    return measuring.bert_keras(
        *("examples", "--corpus", corpus, "--vocab", data / VOCAB),
        *(*measuring.set_options(settings), "--output", fresh(output)),
    )


def fresh(path: Path) -> Path:
    """Returns a path where nothing exists."""
    shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
    return path


# Sections: each prints a table.


def speed(data: Path, work: Path, num_runs: int) -> None:
    """Prints examples per CPU second of 20 MB of text, length 128, against the peer."""
    corpus = sized_corpus(data, work, 20)
    text = write_sentences(corpus, work / "sentences.txt")
    rows = []
    for dupe in (1, 5):
        rates: dict[Callable, list[float]] = {own_examples: [], peer_examples: []}
        for _ in range(num_runs):
            for function, source in ((own_examples, corpus), (peer_examples, text)):
                output = fresh(work / function.__name__)
                found, _ = child(function, source, data / VOCAB, dupe, output)
                rates[function].append(found["num"] / found["cpu_seconds"])
        own, peer = rates.values()
        ratios = [a / b for a, b in zip(own, peer, strict=True)]
        medians = [statistics.median(values) for values in (own, peer, ratios)]
        spread = f"({min(ratios):.1f} to {max(ratios):.1f})"
        ratio = f"{medians[2]:.1f} {spread}"
        rows.append([dupe, f"{medians[0]:,.0f}", f"{medians[1]:,.0f}", ratio])
    header = ["dupe", "ours, examples/CPU s", "tf-models-official", "ratio (range)"]
    measuring.print_table(header, rows)


def memory(data: Path, work: Path, _: int) -> None:
    """Prints peak memory on 100 MB of text, against the peer."""
    corpus = sized_corpus(data, work, 100)
    text = write_sentences(corpus, work / "sentences.txt")
    own = examples_command(corpus, data, work / "own", "dupe_factor=1")
    _, peer = child(peer_examples, text, data / VOCAB, 1, fresh(work / "peer"))
    peaks = own.peak_megabytes, peer.peak_megabytes
    names = "`bert-keras examples`, all processes", "tf-models-official"
    rows = [[name, f"{peak:,.0f}"] for name, peak in zip(names, peaks, strict=True)]
    measuring.print_table(["100 MB of text, dupe 1", "peak MB"], rows)


def flat(data: Path, work: Path, _: int) -> None:
    """Prints peak memory of both commands, one worker, for 50 MB and 1 GB of text."""
    source, rows = make_corpus(data, work), []
    for megabytes in (50, 1000):
        inputs, output = fresh(work / f"flat-{megabytes}"), fresh(work / "flat")
        documents = repeated(source, megabytes * 10**6)
        write_jsonl(documents, inputs, num_files=megabytes // 25)
        words = ("corpus", "--jsonl", f"{inputs}/*.jsonl", "--output", output)
        costs = [
            measuring.bert_keras(*words),
            examples_command(output, data, work / "own", "dupe_factor=1"),
        ]
        cells = [f"{n:,.0f}" for c in costs for n in (c.peak_megabytes, c.cpu_seconds)]
        rows.append([f"{megabytes} MB", *cells])
        shutil.rmtree(inputs)
    header = ["text", "corpus, peak MB", "CPU s", "examples (dupe 1), peak MB", "CPU s"]
    measuring.print_table(header, rows)


# English Wikipedia with books, 3.3 billion words: 25 GB of bz2.
WIKIPEDIA_XML_GB, WIKITEXT_GB, TEXT_GB = 100, 75, 21


def stages(data: Path, work: Path, num_runs: int) -> None:
    """Prints the cost of reading and of all commands, scaled to 3.3 billion words."""
    rates = [child(own_reading, data)[0] for _ in range(num_runs)]
    hours = WIKITEXT_GB * 1e9 / statistics.median(rates) / 3600
    print(f"Reading of {WIKITEXT_GB} GB of wikitext: {hours:.2f} core hours.")
    header = ["command, whole", "CPU s", "measured on", "scaled to", "core hours"]
    measuring.print_table(header, command_rows(data, work))


def command_rows(data: Path, work: Path) -> Iterator[list[str]]:
    """Runs the commands as users do; the last row is the sum at dupe 10."""
    # The wikitext of a few dumps, copied, so that starting up weighs little.
    dumps = fresh(work / "dumps")
    dumps.mkdir(parents=True)
    sources = sorted((data / "wikipedia").glob("enwiki*.bz2"))
    for copy in range(8):
        for path in sources:
            shutil.copy(path, dumps / f"{copy}-{path.name}")
    xml = 8 * sum(len(bz2.decompress(p.read_bytes())) for p in sources) / 1e6
    words = ("corpus", "--wikipedia", f"{dumps}/*.bz2")
    cost = measuring.bert_keras(*words, "--output", fresh(work / "wikipedia"))
    costs = [("corpus --wikipedia", cost, xml, WIKIPEDIA_XML_GB, "XML")]
    corpus = sized_corpus(data, work, 100)
    words = ("vocab", "--corpus", corpus, "--vocab_size", "30522")
    cost = measuring.bert_keras(*words, "--output", fresh(work / "vocab.txt"))
    costs.append(("vocab, as if learning grew too", cost, 100, TEXT_GB, "text"))
    for dupe in (1, 10):
        cost = examples_command(corpus, data, work / "own", f"dupe_factor={dupe}")
        costs.append((f"examples, dupe {dupe}", cost, 100, TEXT_GB, "text"))
    total = 0.0
    for name, cost, megabytes, gigabytes, kind in costs:
        hours = cost.cpu_seconds / megabytes * gigabytes * 1000 / 3600
        total += hours if name != "examples, dupe 1" else 0
        size = f"{megabytes:.0f} MB {kind}"
        yield [name, f"{cost.cpu_seconds:.0f}", size, f"{gigabytes} GB", f"{hours:.1f}"]
    yield ["all three, dupe 10", "", "", "", f"{total:.1f}"]


def disk(data: Path, work: Path, _: int) -> None:
    """Prints bytes of records per million tokens of text."""
    corpus, rows, static = sized_corpus(data, work, 20), [], None
    for name, settings in (
        ("static, dupe 10", ("dupe_factor=10",)),
        ("static, dupe 10, gzip", ("dupe_factor=10", "compression=gzip")),
        ("dynamic", ("dupe_factor=1", "masking=dynamic")),
        ("dynamic, gzip", ("dupe_factor=1", "masking=dynamic", "compression=gzip")),
    ):
        examples_command(corpus, data, work / "own", *settings)
        manifest = json.loads((work / "own/manifest.json").read_text())
        num_bytes = sum(shard["num_bytes"] for shard in manifest["shards"])
        size = num_bytes / manifest["counters"]["tokens"]
        static = static or size
        rows.append([name, f"{size:.1f}", f"1 / {static / size:.1f}"])
    header = ["records", "MB per million tokens of text", "of static, dupe 10"]
    measuring.print_table(header, rows)


CHILDREN = {f.__name__: f for f in (own_examples, peer_examples, own_reading)}
SECTIONS = {f.__name__: f for f in (speed, memory, flat, stages, disk)}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--data", type=Path, required=True, help="real data sets")
    parser.add_argument("--work", type=Path, required=True, help="a directory")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print(measuring.machine("apache-beam", "numpy", "tf-models-official"))
    for name in args.sections:
        SECTIONS[name](args.data, args.work, args.runs)


if __name__ == "__main__":
    main()
