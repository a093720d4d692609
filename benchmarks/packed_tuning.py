"""Padding of fine-tuning and prediction, and the time of a step with and without.

    python benchmarks/packed_tuning.py --data ../shared/data --results PAGE

First the share of tokens in the positions of all batches of an epoch. Then steps of a
recipe's model on a few batches of an epoch, of all sizes, made in five ways, in turns
in one process. Every way has as many examples a step. Time is the processor's (user and
system), by itself comparable on a machine that others use too. The tables are added to
the end of the page.
"""

import argparse
import datetime
import platform
import resource
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_keras import config, config_files, finetuning_config
from bert_keras.data import tokenization
from bert_keras.inference import forward
from bert_keras.model import networks
from bert_keras.tasks import catalogue, dataset, packed_batches, shapes
from bert_keras.training import task_batches, task_training


class Case(NamedTuple):
    task: str
    path: str
    settings: dict


CASES = {
    "SST-2": Case("SST-2", "glue/SST-2/train.tsv", {}),
    "MRPC": Case("MRPC", "glue/MRPC/train.tsv", {}),
    "STS-B": Case("STS-B", "glue/STS-B/train.tsv", {}),
    "RTE": Case("RTE", "glue/RTE/train.tsv", {}),
    "CoNLL-2003": Case("CoNLL-2003", "ner/conll2003/eng.train", {}),
    "CoNLL-2003, sentences alone": Case(
        "CoNLL-2003", "ner/conll2003/eng.train", {"document_context": False}
    ),
}
LADDER = (64, 128)
"""Fixed lengths of a TPU and of `jit_compile`."""
WAYS = ("by length", "shuffled", "packed", "fixed, by length", "fixed, packed")
SHARES = ("examples", "tokens each", "predict", "predict, fixed", *WAYS)
TIMES = ("examples", *WAYS, "shuffled / packed", "fixed, by length / packed")


class Examples(NamedTuple):
    task: config.Task
    settings: finetuning_config.FinetuningConfig
    inputs: dataset.Inputs
    vocab_size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", default="bert_mini")
    parser.add_argument("--measured", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    found = {name: read(case, arguments.data) for name, case in CASES.items()}
    page = [
        f"\n# Fine-tuning and prediction\n\n{datetime.date.today()}, Python "
        f"{platform.python_version()}, tensorflow {tf.__version__}, keras "
        f"{keras.__version__}, {platform.machine()}.\nMade by "
        "`benchmarks/packed_tuning.py`: batches of 32 examples of at most 128 tokens. "
        "Share of tokens in all positions:\n\n"
    ]
    page += lines([SHARES, *(shares(name, given) for name, given in found.items())])
    print("".join(page), flush=True)
    page.append(
        f"\nProcessor milliseconds for an example in steps of {arguments.recipe}, "
        f"median of {arguments.turns} turns of {arguments.steps} steps each way:\n\n"
    )
    measured = {k: found[k] for k in arguments.measured}
    page += lines([TIMES, *(times(k, v, arguments) for k, v in measured.items())])
    if arguments.results:
        with arguments.results.open("a") as file:
            file.write("".join(page))


def lines(rows) -> Iterator[str]:
    for number, cells in enumerate(rows):
        if number > 1:
            print(*cells, sep=" | ", flush=True)
        yield f"| {' | '.join(cells)} |\n"
        if number == 0:
            yield f"|{' --- |' * len(cells)}\n"


def read(case: Case, folder: Path) -> Examples:
    casing = "cased" if case.task == "CoNLL-2003" else "uncased"
    vocabulary = tokenization.load_vocabulary(
        folder / f"vocab/{casing}_L-12_H-768_A-12/vocab.txt",
        do_lower_case=casing == "uncased",
    )
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=casing == "uncased")
    settings = finetuning_config.FinetuningConfig(task=case.task, **case.settings)
    data = catalogue.read(folder / case.path, settings).for_training()
    task = data.describe()
    inputs = data.encode(task, tokenizer, settings)
    return Examples(task, settings, inputs, len(vocabulary))


def batching(way: str, settings: finetuning_config.FinetuningConfig) -> dict:
    """Arguments of `task_batches.example_batches`."""
    options: dict = {"batch_size": settings.batch_size, "seed": 1}
    options["by_length"] = "by length" in way
    is_fixed = "fixed" in way
    if "packed" in way:
        lengths = packed_batches.row_lengths(settings.max_seq_length)
        multiple = packed_batches.fixed_multiple(settings.batch_size, 1, 1)
        options["packer"] = packed_batches.Packer(
            lengths=lengths[-1:] if is_fixed else lengths,
            row_multiple=multiple if is_fixed else 1,
        )
    elif is_fixed:
        options["padded_length"] = shapes.ladder_length(LADDER)
        options["share"] = shapes.Share(num_rows=settings.batch_size)
    return options


def positions(way: str, given: Examples) -> Iterator[int]:
    """Positions of each batch of an epoch."""
    options = batching(way, given.settings)
    packer, padded = options.pop("packer", None), options.pop("padded_length", int)
    share = options.pop("share", None)
    lengths = given.inputs.lengths
    for rows in task_batches.epoch_batches(lengths, epoch=0, **options):
        if packer is not None:
            plan = packer.plan(lengths[rows])
            yield plan.num_rows * plan.length
        else:
            num_rows = share.num_rows if share else len(rows)
            yield num_rows * padded(int(lengths[rows].max()))


def shares(name: str, given: Examples) -> list[str]:
    lengths = given.inputs.lengths
    cells = [name, f"{lengths.mean():.1f}"]
    for ladder in ((), LADDER):
        batches = forward.Forward(lambda batch: batch["input_ids"], ladder=ladder)
        computed = sum(n * length for _, n, length in batches._batches(given.inputs))
        cells.append(f"{lengths.sum() / computed:.1%}")
    totals = (sum(positions(way, given)) for way in WAYS)
    return [*cells, *(f"{lengths.sum() / total:.1%}" for total in totals)]


def times(name: str, given: Examples, arguments: argparse.Namespace) -> list[str]:
    bert = config_files.load(config.PretrainingConfig, arguments.recipe).model
    bert = bert.with_vocab_size(given.vocab_size)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    learner = task_training.build_learner(
        given.settings,
        lambda: networks.build(bert, given.task, dropout_prob=0.1, seed=1),
        given.inputs,
        strategy=strategy,
    )
    # One graph for each set of features, of shapes as they come.
    step = tf.function(learner.train_step, autograph=False, reduce_retracing=True)
    run = tf.function(lambda batch: strategy.run(step, args=(batch,)), autograph=False)
    ways = {}
    for way in WAYS:
        batches = [
            task_batches.example_batches(
                *(given.inputs.lengths, given.inputs.batch),
                **batching(way, given.settings),
                start_step=number,
            )
            for number in typical(list(positions(way, given)), arguments.steps)
        ]
        compute = run.get_concrete_function(batches[0].element_spec)
        ways[way] = compute, [next(iter(batch)) for batch in batches]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(arguments.turns + 1):
        for way, (compute, batches) in ways.items():
            begin = processor_seconds()
            for batch in batches if turn else batches[:1]:
                float(compute(batch)["loss"])
            if turn:
                used = processor_seconds() - begin
                num_examples = len(batches) * given.settings.batch_size
                seconds[way].append(1e3 * used / num_examples)

    def ratio(way: str, other: str) -> str:
        pairs = zip(seconds[way], seconds[other], strict=True)
        found = sorted(a / b for a, b in pairs)
        middle = statistics.median(found)
        return f"**{middle:.2f}** ({found[0]:.2f} to {found[-1]:.2f})"

    return [
        name,
        *(f"{statistics.median(values):.2f}" for values in seconds.values()),
        ratio("shuffled", "packed"),
        ratio("fixed, by length", "fixed, packed"),
    ]


def typical(sizes: list[int], count: int) -> list[int]:
    """Numbers of batches that stand for all: the middle of each of equal groups."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
