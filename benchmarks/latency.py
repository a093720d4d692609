"""Speed of answers: exports and `predict` beside transformers and others.

    taskset -c 1 python benchmarks/latency.py --work DIR --results results/latency.md \\
        --tuned RUN --vectors DIRECTORY --texts train.tsv

Latency: BERT-BASE with random weights, rows of 128 tokens, one row and 32. The same
weights go through our exports, transformers, torch.compile and ONNX Runtime on
transformers' own export. Throughput: answers of a tuned run and vectors of a
sentence-transformers directory, for the first texts of a file, from strings to numbers.
Each contender has a process of its own. Latencies are medians of processor time, in
turns; throughput is texts by processor second: others on the machine change both less
than wall time, and on one core they are that of an idle machine. DIR keeps models and
figures: given again, it makes only what is missing.
"""

import argparse
import csv
import datetime
import importlib.metadata
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, ROWS = 128, (1, 32)
TURNS = {1: 12, 32: 3}
"""Turns of each contender, by number of rows."""
BATCH_SIZES = (8, 32, 64)
"""Batch sizes that the other side chooses from, on the first texts."""
NUM_TRIED = 500
NAMES = ("input_ids", "input_mask", "segment_ids")

Answer = Callable[[np.ndarray], np.ndarray]
"""From `(rows, LENGTH)` ids to `(rows, 2)` logits."""


# === Models ===


def make_models(work: Path) -> None:
    """A run with random weights, our exports, and transformers' directory and export.

    The file for the verdict on the smaller export has four texts: nothing is read off
    it here.
    """
    from bert_keras import config, export, finetuning_config, run_directory
    from bert_keras.checkpoints import conversion, run_weights
    from bert_keras.data import features, tokenization
    from bert_keras.model import networks

    run = run_directory.Run(
        directory=work / "base",
        task=config.Task(kind="classification", labels=("a", "b"), has_text_pair=False),
        bert_config=config.BertConfig(vocab_size=30522),
        vocabulary=tokenization.Vocabulary(
            (*features.SPECIAL_TOKENS, *(f"word{i}" for i in range(30517)))
        ),
        do_lower_case=True,
    )
    if not run.directory.exists():
        run.directory.mkdir(parents=True)
        settings = finetuning_config.FinetuningConfig(max_seq_length=LENGTH)
        run_directory.describe_run(run, settings)
        network = networks.build(run.bert_config, run.task, seed=0)
        run_weights.finish_run(run, network, {"steps": 0})
    dev = work / "dev.tsv"
    dev.write_text("text\tlabel\nword1\ta\nword2\tb\nword3\ta\nword4\tb\n")
    smaller = {"quantize": "bfloat16", "dev": dev, "max_drop": 100.0}
    for name, options in (
        ("saved_model", {}),
        ("saved_model_bfloat16", smaller),
        ("onnx", {"to": "onnx"}),
    ):
        if not (work / name).exists():
            export.export_model(run.directory, work / name, **options)
    if not (work / "hugging_face").exists():
        conversion.convert(run.directory, work / "hugging_face", to="hugging_face")
    if not (path := work / "transformers.onnx").exists():
        import torch

        torch.onnx.export(
            _transformers_model(work, "float32"),
            tuple(_torch_inputs(np.zeros((2, LENGTH), np.int64)).values()),
            str(path),
            input_names=["input_ids", "attention_mask", "token_type_ids"],
            output_names=["logits"],
            dynamic_axes={
                name: {0: "rows", 1: "length"}
                for name in ("input_ids", "attention_mask", "token_type_ids")
            },
            dynamo=False,
        )


# === Contenders of latency ===


def saved_model(work: Path, name: str) -> Answer:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (its operations)

    model = tf.saved_model.load(str(work / name))
    answer = model.signatures["ids"]
    ones = tf.ones((1, 1), tf.int32)

    def run(ids):
        found = answer(
            input_ids=tf.constant(ids),
            input_mask=tf.broadcast_to(ones, ids.shape),
            segment_ids=tf.zeros(ids.shape, tf.int32),
        )
        # Both classes, as differences of logits are: the signature gives no logits.
        return np.log(found["probabilities"].numpy())

    # Its signatures are gone with it.
    run.model = model
    return run


def our_onnx(work: Path) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(work / "onnx" / "model.onnx")

    def run(ids):
        values = (ids, np.ones_like(ids), np.zeros_like(ids))
        return session.run(["logits"], dict(zip(NAMES, values, strict=True)))[0]

    return run


def their_onnx(work: Path) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(work / "transformers.onnx")

    def run(ids):
        arrays = {k: v.numpy() for k, v in _torch_inputs(ids).items()}
        return session.run(["logits"], arrays)[0]

    return run


def torch_model(work: Path, precision: str, *, is_compiled: bool = False) -> Answer:
    import torch

    model = _transformers_model(work, precision)
    if is_compiled:
        model = torch.compile(model)

    def run(ids):
        with torch.inference_mode():
            return model(**_torch_inputs(ids)).logits.float().numpy()

    return run


def _transformers_model(work: Path, precision: str) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForSequenceClassification.from_pretrained(
        work / "hugging_face", dtype=getattr(torch, precision)
    ).eval()


def _torch_inputs(ids: np.ndarray) -> dict[str, Any]:
    import torch

    tensor = torch.from_numpy(ids.astype(np.int64))
    return {
        "input_ids": tensor,
        "attention_mask": torch.ones_like(tensor),
        "token_type_ids": torch.zeros_like(tensor),
    }


CONTENDERS: Mapping[str, Callable[[Path], Answer]] = {
    "our SavedModel, float32": lambda work: saved_model(work, "saved_model"),
    "our ONNX, float32": our_onnx,
    "transformers, float32": lambda work: torch_model(work, "float32"),
    "torch.compile, float32": lambda w: torch_model(w, "float32", is_compiled=True),
    "ONNX Runtime on transformers' export": their_onnx,
    "our SavedModel, bfloat16": lambda work: saved_model(work, "saved_model_bfloat16"),
    "transformers, bfloat16": lambda work: torch_model(work, "bfloat16"),
}


# === Contenders of throughput ===


def our_answers(path: str, precision: str) -> Callable:
    from bert_keras.inference import loading

    model = loading.load(path, precision=precision)
    return lambda texts, _: model.predict(texts)


def pipeline(path: str, precision: str) -> Callable:
    import torch
    import transformers

    found = transformers.pipeline(
        "text-classification", model=path, dtype=getattr(torch, precision)
    )
    return lambda texts, size: found(texts, batch_size=size, truncation=True)


def sentence_transformer(path: str, precision: str) -> Callable:
    import sentence_transformers

    options = {"dtype": precision}
    model = sentence_transformers.SentenceTransformer(path, model_kwargs=options)
    return lambda texts, size: model.encode(texts, batch_size=size)


TASKS = {
    "answers": (("`predict`", our_answers), ("transformers' pipeline", pipeline)),
    "vectors": (
        ("`predict`", our_answers),
        ("sentence-transformers", sentence_transformer),
    ),
}
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
"""What transformers and we call them."""


# === Processes and turns ===


class Process:
    """A contender in a process of its own, which waits until it is asked."""

    def __init__(self, *words: object):
        command = [sys.executable, __file__, "serve", *map(str, words)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: Any) -> Any:
        """Raises a `RuntimeError` if the process has died."""
        print(json.dumps(question), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"the process ended: {self._process.args}")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(kind: str, *words: str) -> None:
    """Answers questions on stdin until it ends."""
    answer = serve_latency(*words) if kind == "latency" else serve_texts(*words)
    for line in sys.stdin:
        print("answer", json.dumps(answer(json.loads(line))), flush=True)


def serve_latency(name: str, work: str) -> Callable[[int], dict]:
    run = CONTENDERS[name](Path(work))
    draw = np.random.default_rng(0)
    rows = {n: draw.integers(5, 30522, (n, LENGTH), dtype=np.int32) for n in ROWS}

    def answer(num_rows):
        started = time.process_time()
        found = run(rows[num_rows])
        seconds = time.process_time() - started
        return {"ms": 1000 * seconds, "margins": (found[:, 1] - found[:, 0]).tolist()}

    return answer


def serve_texts(task: str, side: str, path: str, precision: str, texts: str):
    run = TASKS[task][int(side)][1](path, precision)
    rows = json.loads(Path(texts).read_text(encoding="utf-8"))

    def answer(question):
        some = rows[: question["count"]]
        started = time.process_time()
        run(some, question["batch_size"])
        return len(some) / (time.process_time() - started)

    return answer


def measure_latency(work: Path) -> dict[str, dict[str, float]]:
    """Median milliseconds by contender and rows; checks that the answers agree."""
    processes = {name: Process("latency", name, work) for name in CONTENDERS}
    found: dict[str, dict[str, float]] = {name: {} for name in CONTENDERS}
    for rows in ROWS:
        times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        wanted = None
        # The first turn traces, compiles and warms up.
        for turn in range(1 + TURNS[rows]):
            for name, process in processes.items():
                answer = process.ask(rows)
                if turn:
                    times[name].append(answer["ms"])
                    continue
                wanted = wanted or answer["margins"]
                error = np.abs(np.subtract(answer["margins"], wanted)).max()
                if not error < (0.03 if "bfloat16" in name else 1e-4):
                    raise RuntimeError(f"{name} answers differently, by {error}")
        for name, values in times.items():
            found[name][str(rows)] = statistics.median(values)
            print(name, rows, found[name][str(rows)], flush=True)
    for process in processes.values():
        process.close()
    return found


def measure_texts(paths: Mapping[str, Any], texts: Path, count: int) -> dict:
    """Texts a second by task, side and precision, and the other side's batch size.

    Raises:
        RuntimeError: a process has died.
    """
    found = {}
    for task, precision in itertools.product(TASKS, PRECISIONS):
        sides = [
            Process("texts", task, side, paths[task][side], name, texts)
            for side, name in enumerate((PRECISIONS[precision], precision))
        ]
        tried = {
            size: sides[1].ask({"count": NUM_TRIED, "batch_size": size})
            for size in BATCH_SIZES
        }
        size = max(tried, key=tried.__getitem__)
        sides[0].ask({"count": NUM_TRIED, "batch_size": None})
        question = {"count": count, "batch_size": size}
        key = f"{task}, {precision}"
        found[key] = [*(side.ask(question) for side in sides), size]
        print(key, found[key], flush=True)
        for side in sides:
            side.close()
    return found


# === The page ===


def page(latency: Mapping[str, Mapping[str, float]], texts: Mapping, count: int) -> str:
    from bert_keras.report import markdown

    packages = ("tensorflow", "torch", "transformers", "sentence-transformers")
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in (*packages, "onnxruntime")
    )
    cores = len(os.sched_getaffinity(0))
    rows = [
        [name, *(f"{milliseconds[str(n)]:.0f}" for n in ROWS)]
        for name, milliseconds in latency.items()
    ]
    return "\n".join(
        [
            "# Speed of answers",
            "",
            f"{datetime.date.today().isoformat()}: {cores} core(s), {_processor()}, "
            f"{versions}. Made by `benchmarks/latency.py`.",
            "",
            f"BERT-BASE, rows of {LENGTH} tokens, milliseconds of processor "
            f"time, medians of {' and '.join(str(TURNS[n]) for n in ROWS)} turns:",
            "",
            markdown.table(["", *(f"{n} row(s)" for n in ROWS)], rows),
            "",
            *(_throughput(texts, count) if texts else ()),
        ]
    )


def _throughput(texts: Mapping[str, Any], count: int) -> list[str]:
    from bert_keras.report import markdown

    rows = [
        [
            key,
            f"{ours:.0f}",
            f"{theirs:.0f} ({TASKS[key.partition(',')[0]][1][0]}, batches of {size})",
            f"{ours / theirs:.2f}",
        ]
        for key, (ours, theirs, size) in texts.items()
    ]
    return [
        f"{count:,} texts, from strings to answers or vectors, texts by processor "
        "second:",
        "",
        markdown.table(["", "`predict`", "the others", "times"], rows),
        "",
    ]


def once(path: Path, measure: Callable[[], dict]) -> dict:
    """Figures of a file, which are measured unless it is there."""
    if not path.exists():
        path.write_text(json.dumps(measure()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option in ("--work", "--results", "--texts"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--tuned", required=True, help="run on single texts")
    parser.add_argument("--vectors", required=True, help="of sentence-transformers")
    parser.add_argument("--column", default="sentence", help="of the texts")
    parser.add_argument("--count", type=int, default=10_000)
    arguments = parser.parse_args()
    work = arguments.work
    subprocess.run([sys.executable, __file__, "prepare", str(work)], check=True)
    if not (theirs := work / "tuned").exists():
        command = [sys.executable, "-m", "bert_keras.cli", "convert"]
        command += ["--input", arguments.tuned, "--output", str(theirs)]
        subprocess.run([*command, "--to", "hugging_face"], check=True)
    with arguments.texts.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = itertools.islice(reader, arguments.count)
        texts = [row[arguments.column].strip() for row in rows]
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    latency = once(work / "latency.json", lambda: measure_latency(work))
    paths = {
        "answers": (arguments.tuned, theirs),
        "vectors": (arguments.vectors, arguments.vectors),
    }
    found = once(
        work / "throughput.json",
        lambda: measure_texts(paths, work / "texts.json", len(texts)),
    )
    arguments.results.write_text(page(latency, found, len(texts)), encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", *words]:
            serve(*words)
        case ["prepare", work]:
            make_models(Path(work))
        case _:
            main()
