"""How fast batches come out of real examples, and how fast models eat them.

    python -m benchmarks.input_speed --corpus DIR --vocab vocab.txt --work DIR

Makes examples of 128 and 512 tokens for static and for dynamic masking with
`bert-keras examples` (existing ones are kept), draws batches in a loop of a compiled
function, as training does, and throws them away. Beside it, models train on one batch
over and over, so that they wait for nothing. All take turns; figures are medians. On a
shared machine, CPU time is the steadier clock.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from benchmarks import measuring
from bert_keras.core import manifest
from bert_keras.core.settings import loading
from bert_keras.core.settings.pretraining import PretrainingConfig
from bert_keras.data import features, tokenization
from bert_keras.model import pretrainer
from bert_keras.training.pretraining import record_batches
from bert_keras.training.step import learner, optimization, replicas

BATCH_SIZES = {128: 64, 512: 16}
RECIPES = ("bert_tiny", "bert_mini")


def make_batches(args: argparse.Namespace, kind: str, length: int) -> tf.data.Dataset:
    """Returns batches as `bert-keras pretrain` reads them; makes missing examples."""
    directory = args.work / f"{kind}_{length}"
    if not (directory / manifest.MANIFEST_NAME).exists():
        measuring.bert_keras(
            *("examples", "--corpus", args.corpus, "--vocab", args.vocab),
            *("--output", directory, "--max_seq_length", length, "--num_shards", 64),
            *("--set", f"masking={kind}", "--set", "dupe_factor=1"),
        )
    found = manifest.read_manifest(directory, kind="examples")
    vocabulary = tokenization.Vocabulary.load(directory / "vocab.txt")
    source = record_batches.RecordBatches(
        config=features.examples_config(found.config, origin="manifest"),
        vocabulary=vocabulary,
        batch_size=BATCH_SIZES[length],
        shuffle_buffer_size=20_000,
        seed=1,
    )
    shards = record_batches.read_shards(directory, found)
    return source.to_train(shards, start_step=0)


def drawing(batches: tf.data.Dataset, num_batches: int) -> Callable[[], None]:
    """Returns a function that draws batches and throws them away."""
    iterator = iter(batches)

    @tf.function
    def draw(iterator):
        for _ in tf.range(num_batches):
            next(iterator)

    return lambda: draw(iterator)


def training(
    recipe: str, examples: tf.data.Dataset, args: argparse.Namespace
) -> Callable[[], None]:
    """Returns a function that trains a model for some steps on one batch."""
    settings = loading.load(PretrainingConfig, recipe)
    vocabulary = tokenization.Vocabulary.load(args.vocab)
    bert_config = settings.model.with_vocab_size(len(vocabulary))
    (batch,) = examples.take(1)
    trained = learner.build_learner(
        lambda: pretrainer.BertPretrainer(bert_config, seed=1, dtype=args.precision),
        batch,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer, num_train_steps=settings.num_train_steps
        ),
        strategy=tf.distribute.get_strategy(),
        max_grad_norm=settings.optimizer.max_grad_norm,
    )
    batches = tf.data.Dataset.from_tensors(batch).repeat()
    return lambda: trained.make_steps(
        batches, replicas.optimizer_step(trained) + args.steps
    )


def rows(
    times: Mapping[tuple[str, int], measuring.Times], args: argparse.Namespace
) -> Iterator[list[str]]:
    for (name, length), took in times.items():
        num_steps = args.steps if name in RECIPES else args.batches
        count = num_steps * BATCH_SIZES[length]
        rates = count / took.wall, count * length / took.wall, count / took.cpu
        cells = [*(f"{rate:,.0f}" for rate in rates), f"{1e6 * took.cpu / count:.1f}"]
        yield [f"{name}, {length} tokens", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, type=Path)
    parser.add_argument("--vocab", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path, help="for the examples")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=500, help="drawn per turn")
    parser.add_argument("--steps", type=int, default=4, help="of a model per turn")
    parser.add_argument("--precision", default="mixed_bfloat16")
    args = parser.parse_args()
    subjects = {}
    for length in BATCH_SIZES:
        for kind in ("static", "dynamic"):
            batches = make_batches(args, kind, length)
            subjects[kind, length] = drawing(batches, args.batches)
        for recipe in RECIPES:
            subjects[recipe, length] = training(recipe, batches, args)
    times = measuring.medians_in_turns(subjects, args.turns)
    print(measuring.machine("tensorflow"))
    header = ["", "examples/s", "tokens/s", "examples/CPU s", "CPU µs per example"]
    measuring.print_table(header, rows(times, args))


if __name__ == "__main__":
    main()
