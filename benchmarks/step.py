"""Tokens per second of a pre-training step, ours and third-party, interleaved.

    python benchmarks/step.py --results benchmarks/results/step.md

A step is forward and backward pass of masked LM and next sentence (20 predictions in
128 tokens, 76 in 512, gathered before the output layer), dropout 0.1, clipping to a
norm of 1.0 and an AdamW update, on one batch that is in memory already. Each
implementation runs in a process of its own, one at a time, in turns: a machine that
slows down does so for all.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

VOCAB_SIZE = 30522
PRECISIONS = ("float32", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """An encoder and the batch it is trained on."""

    num_layers: int
    hidden_size: int
    num_heads: int
    batch_size: int
    length: int = 128
    """Tokens of a sequence."""

    @property
    def intermediate_size(self) -> int:
        return 4 * self.hidden_size

    @property
    def num_predictions(self) -> int:
        return {128: 20, 512: 76}[self.length]


SIZES = {
    "tiny": Size(num_layers=2, hidden_size=128, num_heads=2, batch_size=64),
    "mini": Size(num_layers=4, hidden_size=256, num_heads=4, batch_size=64),
    "small": Size(num_layers=4, hidden_size=512, num_heads=8, batch_size=64),
    "base": Size(num_layers=12, hidden_size=768, num_heads=12, batch_size=16),
    "base_512": Size(
        num_layers=12, hidden_size=768, num_heads=12, batch_size=4, length=512
    ),
}


def random_batch(size: Size) -> dict[str, np.ndarray]:
    """Full sequences of random tokens, with our names."""
    random = np.random.default_rng(0)
    tokens = (size.batch_size, size.length)
    predictions = (size.batch_size, size.num_predictions)
    columns = np.broadcast_to(np.arange(size.length), tokens)
    return {
        "input_ids": random.integers(1, VOCAB_SIZE, tokens, dtype=np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "segment_ids": np.int32(columns >= size.length // 2),
        "masked_lm_positions": np.sort(
            random.integers(1, size.length, predictions, dtype=np.int32)
        ),
        "masked_lm_ids": random.integers(1, VOCAB_SIZE, predictions, dtype=np.int32),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": random.integers(
            0, 2, (size.batch_size, 1), dtype=np.int32
        ),
        "dropout_seeds": np.arange(size.batch_size, dtype=np.int32),
    }


# === The implementations: each returns a function that makes a step, gives the loss ===


def bert_keras_step(size: Size, precision: str) -> Callable[[], float]:
    """This project's own step, as `bert-keras pretrain` makes it."""
    import tensorflow as tf

    from bert_keras import config
    from bert_keras.model import pretrainer
    from bert_keras.training import learner, optimization

    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    shape = config.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.intermediate_size,
    )
    trained = learner.build_learner(
        lambda: pretrainer.BertPretrainer(shape, seed=1, dtype=precision),
        batch,
        optimizer=lambda: optimization.build_optimizer(
            config.OptimizerConfig(), num_train_steps=1_000_000
        ),
        strategy=tf.distribute.get_strategy(),
        max_grad_norm=1.0,
    )
    step = tf.function(trained.train_step, autograph=False)
    return lambda: float(step(batch)["loss"])


def model_garden_step(size: Size, precision: str) -> Callable[[], float]:
    """tf-models-official: its encoder, heads and optimizer on tf_keras."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import optimization
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy(precision)
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "input_mask",
        "input_type_ids": "segment_ids",
        "masked_lm_positions": "masked_lm_positions",
    }
    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    inputs = {theirs: batch[ours] for theirs, ours in names.items()}
    encoder = networks.BertEncoderV2(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        inner_dim=size.intermediate_size,
    )
    model = models.BertPretrainerV2(
        encoder_network=encoder,
        classification_heads=[
            layers.ClassificationHead(
                inner_dim=size.hidden_size, num_classes=2, name="next_sentence"
            )
        ],
    )
    model(inputs)
    optimizer = optimization.AdamWeightDecay(
        learning_rate=1e-4,
        weight_decay_rate=0.01,
        epsilon=1e-6,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=1.0,
    )

    def mean_loss(labels, logits):
        logits = tf.cast(logits, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(losses)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = mean_loss(batch["masked_lm_ids"], outputs["mlm_logits"])
            labels = batch["next_sentence_labels"][:, 0]
            loss += mean_loss(labels, outputs["next_sentence"])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    return lambda: float(step())


def transformers_step(size: Size, precision: str) -> Callable[[], float]:
    """transformers on torch, only the masked positions put through the head."""
    import torch
    import transformers

    torch.set_num_threads(num_cores())
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            intermediate_size=size.intermediate_size,
            attn_implementation="sdpa",
        )
    ).train()
    batch = {
        name: torch.tensor(value).long()
        for name, value in random_batch(size).items()
        if value.dtype == np.int32
    }
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=1e-4,
        eps=1e-6,
        weight_decay=0.01,
    )
    rows = torch.arange(size.batch_size)[:, None]
    cross_entropy = torch.nn.functional.cross_entropy

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        low = precision == "mixed_bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            # Without a mask, as the sequences are full: its fastest attention.
            outputs = model.bert(
                input_ids=batch["input_ids"], token_type_ids=batch["segment_ids"]
            )
            masked = outputs.last_hidden_state[rows, batch["masked_lm_positions"]]
            logits, sentences = model.cls(masked, outputs.pooler_output)
        loss = cross_entropy(
            logits.float().reshape(-1, VOCAB_SIZE), batch["masked_lm_ids"].flatten()
        ) + cross_entropy(sentences.float(), batch["next_sentence_labels"][:, 0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def keras_hub_step(size: Size, precision: str) -> Callable[[], float]:
    """keras-hub's masked language model; it has no next-sentence prediction."""
    import keras
    import keras_hub
    import tensorflow as tf

    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCAB_SIZE,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        hidden_dim=size.hidden_size,
        intermediate_dim=size.intermediate_size,
        dtype=precision,
    )
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
        jit_compile=False,
    )
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }

    def step() -> float:
        logs = model.train_on_batch(inputs, batch["masked_lm_ids"], return_dict=True)
        return float(logs["loss"])

    return step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """The implementations."""

    package: str
    make_step: Callable[[Size, str], Callable[[], float]]
    note: str


IMPLEMENTATIONS = {
    "bert_keras": Implementation(
        package="bert-keras", make_step=bert_keras_step, note="this project"
    ),
    "official": Implementation(
        package="tf-models-official",
        make_step=model_garden_step,
        note="BertPretrainerV2",
    ),
    "keras_hub": Implementation(
        package="keras-hub", make_step=keras_hub_step, note="without next sentence"
    ),
    "transformers": Implementation(
        package="transformers",
        make_step=transformers_step,
        note="torch, sdpa; positions gathered by hand, which it does not do itself",
    ),
}


# === The processes ===


def work(name: str, size: Size, precision: str) -> None:
    """Answers each line of standard input, a number of steps, with their seconds.

    The line is the number of steps; the answer wall seconds, CPU seconds, last loss,
    and the process's peak resident memory, MiB.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the packages print goes elsewhere.
    step = IMPLEMENTATIONS[name].make_step(size, precision)
    for line in sys.stdin:
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            loss = step()
        seconds = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu_start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(seconds, cpu_seconds, loss, peak, file=answers, flush=True)


class Worker:
    """A process that makes steps of one implementation on request."""

    def __init__(self, name: str, size_name: str, precision: str) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", name, size_name, precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, num_steps: int) -> tuple[float, ...]:
        """Wall seconds, CPU seconds, last loss and peak memory of some steps."""
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            sys.exit(f"{self._name} failed:\n{self._errors.read()[-3000:]}")
        return tuple(float(value) for value in answer.split())

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """Medians over the rounds."""

    tokens_per_second: float
    tokens_per_cpu_second: float
    last_loss: float
    peak_mib: float


def measure(
    names: list[str], size_name: str, precision: str, *, rounds: int, seconds: float
) -> dict[str, Speed]:
    """The speed of each implementation, in turns of about a given time."""
    workers = {name: Worker(name, size_name, precision) for name in names}
    num_steps = {}
    for name, worker in workers.items():
        worker.run(2)  # Traces, compiles, allocates.
        num_steps[name] = max(1, round(seconds / worker.run(1)[0]))
    turns = {name: [] for name in names}
    for _ in range(rounds):
        for name, worker in workers.items():
            turns[name].append(worker.run(num_steps[name]))
    for worker in workers.values():
        worker.stop()
    speeds = {}
    for name in names:
        size = SIZES[size_name]
        tokens = num_steps[name] * size.batch_size * size.length
        walls, cpus, losses, peaks = zip(*turns[name], strict=True)
        speeds[name] = Speed(
            tokens_per_second=tokens / statistics.median(walls),
            tokens_per_cpu_second=tokens / statistics.median(cpus),
            last_loss=losses[-1],
            peak_mib=peaks[-1],
        )
    return speeds


# === The page ===


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    name = next(line for line in lines if line.startswith("model name"))
    units = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
    return f"{name.partition(':')[2].strip()} ({', '.join(units) or 'no bfloat16'})"


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(IMPLEMENTATIONS[name].package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def heading(arguments: argparse.Namespace) -> str:
    packages = [x.package for n, x in IMPLEMENTATIONS.items() if is_installed(n)]
    packages += ["tensorflow", "keras", "torch"]
    versions = [f"{p} {importlib.metadata.version(p)}" for p in packages]
    missing = [x.package for n, x in IMPLEMENTATIONS.items() if not is_installed(n)]
    notes = [f"{x.package}: {x.note}" for x in IMPLEMENTATIONS.values()]
    return "\n".join(
        [
            "# Tokens per second of a pre-training step",
            "",
            "    python benchmarks/step.py --results benchmarks/results/step.md",
            "",
            f"{datetime.date.today()}, {num_cores()} cores of {processor()}, "
            f"Python {platform.python_version()}, {', '.join(versions)}.",
            f"Not installed: {', '.join(missing) or 'none'}. {'; '.join(notes)}.",
            "",
            "20 predictions in 128 tokens, 76 in 512; masked LM and next sentence, "
            "dropout 0.1, clipping, AdamW. Medians "
            f"of {arguments.rounds} turns; in brackets how many times as fast as this "
            "project.",
            "",
            "Tokens per second; tokens per second of processor time (in brackets the "
            "ratio too); peak resident memory of the process.",
        ]
    )


def row(size_name: str, precision: str, speeds: dict[str, Speed]) -> str:
    size = SIZES[size_name]
    cells = [f"{size_name}, {size.batch_size} x {size.length}", precision]
    ours = speeds.get("bert_keras")
    for name in IMPLEMENTATIONS:
        if name not in speeds:
            cells.append("-")
            continue
        speed = speeds[name]
        brackets = ["", ""]
        if ours and name != "bert_keras":
            ratios = (
                speed.tokens_per_second / ours.tokens_per_second,
                speed.tokens_per_cpu_second / ours.tokens_per_cpu_second,
            )
            brackets = [f" ({ratio:.2f})" for ratio in ratios]
        cells.append(
            f"{speed.tokens_per_second:,.0f}{brackets[0]}; "
            f"{speed.tokens_per_cpu_second:,.0f}{brackets[1]}; "
            f"{speed.peak_mib:,.0f} MiB"
        )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS
    )
    parser.add_argument(
        "--implementations",
        nargs="+",
        choices=IMPLEMENTATIONS,
        default=[name for name in IMPLEMENTATIONS if is_installed(name)],
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        name, size_name, precision = arguments.worker
        work(name, SIZES[size_name], precision)
        return
    packages = [IMPLEMENTATIONS[name].package for name in IMPLEMENTATIONS]
    lines = [
        heading(arguments),
        "",
        "| model | precision | " + " | ".join(packages) + " |",
        "|" + "---|" * (2 + len(packages)),
    ]
    print("\n".join(lines), flush=True)
    for size_name in arguments.sizes:
        for precision in arguments.precisions:
            speeds = measure(
                arguments.implementations,
                size_name,
                precision,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
            )
            lines.append(row(size_name, precision, speeds))
            print(lines[-1], flush=True)
            if arguments.results:
                arguments.results.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
