"""Speed of answers: exports and `predict` beside transformers and others.

    taskset -c 1 python -m benchmarks.latency --work DIR --tuned RUN \
        --vectors DIRECTORY --texts train.tsv [--count 2000]

Latency: BERT-BASE with random weights, rows of 128 tokens, one row and 32. The same
weights go through our exports, transformers, torch.compile and ONNX Runtime on
transformers' own export. Throughput: answers of a tuned run and vectors of a
sentence-transformers directory, for the first texts of a file, from strings to numbers.
Each contender has a process of its own. Latencies are medians of processor time, in
turns; throughput is texts by processor second. DIR keeps models and figures: given
again, it makes only what is missing.
"""

import argparse
import contextlib
import csv
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measuring
from bert_keras.kinds import registry

MODULE = "benchmarks.latency"
LENGTH, ROWS = 128, (1, 32)
TURNS = {1: 12, 32: 3}
"""Turns of each contender, by number of rows."""
BATCH_SIZES = (8, 32, 64)
"""Batch sizes that the other side chooses from, on the first texts."""
NUM_TRIED = 500
NAMES = ("input_ids", "input_mask", "segment_ids")
THEIR_NAMES = ["input_ids", "attention_mask", "token_type_ids"]

Answer = Callable[[np.ndarray], np.ndarray]
"""From `(rows, LENGTH)` ids to `(rows, 2)` logits."""


# Models.


def make_models(work: Path) -> None:
    """Makes a run with random weights, our exports, and transformers' own.

    The file for the verdict on the smaller export has four texts: the verdict is not
    used here.
    """
    from bert_keras import export
    from bert_keras.checkpoints import conversion, run_directory, weights
    from bert_keras.core.settings import architecture, finetuning, tasks
    from bert_keras.data import features, tokenization

    run = run_directory.Run(
        directory=work / "base",
        task=tasks.Task(kind="classification", labels=("a", "b"), has_text_pair=False),
        bert_config=architecture.BertConfig(vocab_size=30522),
        vocabulary=tokenization.Vocabulary(
            (*features.SPECIAL_TOKENS, *(f"word{i}" for i in range(30517)))
        ),
        do_lower_case=True,
    )
    if not run.directory.exists():
        run.directory.mkdir(parents=True)
        settings = finetuning.FinetuningConfig(max_seq_length=LENGTH)
        run_directory.describe_run(run, settings)
        network = registry.build_network(run.bert_config, run.task, seed=0)
        weights.finish_run(run, network, {"steps": 0})
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
            input_names=THEIR_NAMES,
            output_names=["logits"],
            dynamic_axes=dict.fromkeys(THEIR_NAMES, {0: "rows", 1: "length"}),
            dynamo=False,
        )


# Contenders of latency.


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


def onnx_model(path: Path, make_inputs: Callable) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda ids: session.run(["logits"], dict(make_inputs(ids)))[0]


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
    values = tensor, torch.ones_like(tensor), torch.zeros_like(tensor)
    return dict(zip(THEIR_NAMES, values, strict=True))


CONTENDERS: Mapping[str, Callable[[Path], Answer]] = {
    "our SavedModel, float32": lambda work: saved_model(work, "saved_model"),
    "our ONNX, float32": lambda work: onnx_model(
        work / "onnx/model.onnx",
        lambda ids: zip(
            NAMES, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True
        ),
    ),
    "transformers, float32": lambda work: torch_model(work, "float32"),
    "torch.compile, float32": lambda w: torch_model(w, "float32", is_compiled=True),
    "ONNX Runtime on transformers' export": lambda work: onnx_model(
        work / "transformers.onnx",
        lambda ids: ((name, x.numpy()) for name, x in _torch_inputs(ids).items()),
    ),
    "our SavedModel, bfloat16": lambda work: saved_model(work, "saved_model_bfloat16"),
    "transformers, bfloat16": lambda work: torch_model(work, "bfloat16"),
}


# Contenders of throughput.


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


# Processes and turns.


def make_answer(kind: str, *words: str) -> Callable[[Any], Any]:
    makers = {"prepare": prepare, "latency": answer_latency, "texts": answer_texts}
    return makers[kind](*words)


def prepare(work: str) -> Callable[[Any], None]:
    return lambda _: make_models(Path(work))


def answer_latency(name: str, work: str) -> Callable[[int], dict]:
    run = CONTENDERS[name](Path(work))
    draw = np.random.default_rng(0)
    rows = {n: draw.integers(5, 30522, (n, LENGTH), dtype=np.int32) for n in ROWS}

    def answer(num_rows: int) -> dict:
        logits: list[np.ndarray] = []
        times = measuring.timed(lambda: logits.append(run(rows[num_rows])))
        margins = (logits[0][:, 1] - logits[0][:, 0]).tolist()
        return {"ms": 1000 * times.cpu, "margins": margins}

    return answer


def answer_texts(task: str, side: str, path: str, precision: str, texts: str):
    run = TASKS[task][int(side)][1](path, precision)
    rows = json.loads(Path(texts).read_text(encoding="utf-8"))

    def answer(question: list[int]) -> float:
        count, size = question
        return len(rows[:count]) / measuring.timed(lambda: run(rows[:count], size)).cpu

    return answer


def measure_latency(work: Path) -> dict[str, list[float]]:
    """Returns median milliseconds by contender; checks that the answers agree."""
    medians: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(measuring.Worker(MODULE, "latency", name, work))
            for name in CONTENDERS
        }
        for rows in ROWS:
            # The first turn traces, compiles and warms up.
            first, *turns = [
                {name: worker.ask(rows) for name, worker in workers.items()}
                for _ in range(1 + TURNS[rows])
            ]
            expected = next(iter(first.values()))["margins"]
            for name, answer in first.items():
                error = np.abs(np.subtract(answer["margins"], expected)).max()
                if not error < (0.03 if "bfloat16" in name else 1e-4):
                    raise RuntimeError(f"{name} answers differently, by {error}")
                milliseconds = [turn[name]["ms"] for turn in turns]
                medians[name].append(statistics.median(milliseconds))
    return medians


def measure_texts(paths: Mapping[str, Any], texts: Path, count: int) -> Iterator[list]:
    """Yields a row for each task and precision, the other side with its best batch."""
    for task, precision in itertools.product(TASKS, PRECISIONS):
        names = (PRECISIONS[precision], precision)
        with contextlib.ExitStack() as stack:
            ours, theirs = (
                stack.enter_context(
                    measuring.Worker(
                        *(MODULE, "texts", task, side, paths[task][side], name, texts)
                    )
                )
                for side, name in enumerate(names)
            )
            tried = {size: theirs.ask([NUM_TRIED, size]) for size in BATCH_SIZES}
            size = max(tried, key=tried.__getitem__)
            ours.ask([NUM_TRIED, size])
            rates = [side.ask([count, size]) for side in (ours, theirs)]
        other = f"{rates[1]:.0f} ({TASKS[task][1][0]}, batches of {size})"
        times = f"{rates[0] / rates[1]:.2f}"
        yield [f"{task}, {precision}", f"{rates[0]:.0f}", other, times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option in ("--work", "--texts"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--tuned", required=True, help="run on single texts")
    parser.add_argument("--vectors", required=True, help="of sentence-transformers")
    parser.add_argument("--column", default="sentence", help="of the texts")
    parser.add_argument("--count", type=int, default=10_000)
    args = parser.parse_args()
    work = args.work
    work.mkdir(parents=True, exist_ok=True)
    measuring.ask_once(MODULE, "prepare", work)
    if not (theirs := work / "tuned").exists():
        words = ("convert", "--input", args.tuned, "--output", theirs)
        measuring.bert_keras(*words, "--to", "hugging_face")
    with args.texts.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = itertools.islice(reader, args.count)
        texts = [row[args.column].strip() for row in rows]
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    packages = ("tensorflow", "torch", "transformers", "sentence-transformers")
    print(measuring.machine(*packages, "onnxruntime"))
    latency = measuring.once(work / "latency.json", lambda: measure_latency(work))
    rows = [
        [name, *(f"{ms:.0f}" for ms in medians)] for name, medians in latency.items()
    ]
    measuring.print_table(["ms", *(f"{n} row(s)" for n in ROWS)], rows)
    paths = {"answers": (args.tuned, theirs), "vectors": (args.vectors, args.vectors)}
    rows = measuring.once(
        work / "throughput.json",
        lambda: list(measure_texts(paths, work / "texts.json", len(texts))),
    )
    header = [
        f"{len(texts):,} texts, by CPU second",
        "`predict`",
        "the others",
        "times",
    ]
    measuring.print_table(header, rows)


if __name__ == "__main__":
    measuring.start(main, make_answer)
