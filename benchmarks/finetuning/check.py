"""Agreement of both implementations: first losses from the same weights.

    python -m benchmarks.finetuning.check --side ours --task SST-2 --train train.tsv \
        --init MODEL --directory check --steps 20
    python -m benchmarks.finetuning.check --side theirs ...the same...

Without dropout, in float32, with the same weights (those of the new head included,
which `ours` writes in their format), the same examples in the same batches (each side
tokenizes and pads by itself) and the same optimizer: AdamW with bias correction, which
is theirs and an option of ours, half of the steps in its warm-up. What is then left
between them is what float32 leaves. `compare.py` runs both sides and
compares.
"""

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras import config, config_files, files, finetuning_config
from bert_keras.tasks import catalogue

FIRST_LOSS = 1e-5
"""Largest relative difference of the first loss: a forward pass in float32."""
GRADIENT_NORM = 1e-4
"""Largest relative difference of the first gradient norm. torch sums squares in
float32: its norm of 590,000 random numbers is 6e-6 too small, ours 6e-9 too large."""
ALL_LOSSES = 1e-3
"""Largest relative difference of any loss: rounding grows from step to step."""
START = "start"
"""Folder of the weights from which both start."""


class Step(NamedTuple):
    """One side's record of a step."""

    loss: float
    gradient_norm: float
    """Gradient norm before clipping."""
    digest: str
    """Hash of the token ids of the batch, padding included."""


class Agreement(NamedTuple):
    """Relative differences between two sides."""

    num_steps: int
    same_inputs: bool
    """Whether all batches have the same tokens."""
    first_loss: float
    first_gradient_norm: float
    largest_loss: float
    """The largest difference of a loss in any step."""

    @property
    def is_close(self) -> bool:
        return (
            self.same_inputs
            and self.first_loss <= FIRST_LOSS
            and self.first_gradient_norm <= GRADIENT_NORM
            and self.largest_loss <= ALL_LOSSES
        )


def compare(ours: Sequence[Step], theirs: Sequence[Step]) -> Agreement:
    """Compares the steps of both sides."""
    pairs = list(zip(ours, theirs, strict=True))
    return Agreement(
        num_steps=len(pairs),
        same_inputs=all(a.digest == b.digest for a, b in pairs),
        first_loss=_difference(ours[0].loss, theirs[0].loss),
        first_gradient_norm=_difference(ours[0].gradient_norm, theirs[0].gradient_norm),
        largest_loss=max(_difference(a.loss, b.loss) for a, b in pairs),
    )


def _difference(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / abs(theirs)


def read_steps(directory: Path, side: str) -> list[Step]:
    rows = json.loads((directory / f"{side}.json").read_text(encoding="utf-8"))
    return [Step(*row) for row in rows]


def digest(input_ids: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(input_ids, "<i4").tobytes()).hexdigest()


def ours(
    settings: finetuning_config.FinetuningConfig,
    *,
    train: Path,
    init: Path,
    directory: Path,
    num_steps: int,
) -> list[Step]:
    """Our steps; writes the first weights and the rows of batches for `theirs`."""
    import tensorflow as tf

    from bert_keras.checkpoints import hugging_face, starting_point, weights
    from bert_keras.data import tokenization
    from bert_keras.model import networks
    from bert_keras.training import learner, optimization, task_batches

    start = starting_point.read_with_tokenizer(init)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    start = dataclasses.replace(
        start, bert_config=start.bert_config.model_copy(update=still)
    )
    data = catalogue.read(train, settings).for_training()
    task = data.describe()
    tokenizer = tokenization.Tokenizer(
        start.vocabulary, do_lower_case=start.do_lower_case
    )
    examples = data.encode(task, tokenizer, settings)
    optimizer = config.OptimizerConfig(
        adamw_mode="corrected",
        epsilon=1e-8,
        learning_rate=settings.learning_rate,
        warmup_steps=num_steps // 2,
        weight_decay_rate=settings.weight_decay_rate,
    )
    tuner = learner.build_learner(
        lambda: networks.build(
            start.bert_config, task, dropout_prob=0.0, seed=settings.seed
        ),
        {name: tf.constant(v) for name, v in examples.batch(np.arange(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            optimizer, num_train_steps=num_steps
        ),
        max_grad_norm=optimizer.max_grad_norm,
        strategy=tf.distribute.get_strategy(),
    )
    starting_point.assign(
        tuner.network, starting_point.tuning_arrays(start, task), path=init
    )
    arrays = weights.from_network(tuner.network)
    (directory / START).mkdir(parents=True, exist_ok=True)
    hugging_face.write(
        dataclasses.replace(start, task=task, arrays=arrays), directory / START
    )
    order = {
        "batch_size": settings.batch_size,
        "by_length": settings.are_batches_by_length(task),
        "seed": settings.seed,
    }
    rows = task_batches.epoch_batches(examples.lengths, epoch=0, **order)[:num_steps]
    _write(directory / "rows.json", [batch.tolist() for batch in rows])
    batches = task_batches.example_batches(examples.lengths, examples.batch, **order)
    # Unknown dimensions: one graph for all lengths.
    step = tf.function(
        tuner.train_step, autograph=False, input_signature=[batches.element_spec]
    )
    found = []
    for batch in batches.take(len(rows)):
        logs = step(batch)
        found.append(
            Step(
                float(logs["loss"]),
                float(logs["gradient_norm"]),
                digest(batch["input_ids"].numpy()),
            )
        )
    return found


def theirs(
    settings: finetuning_config.FinetuningConfig,
    *,
    train: Path,
    directory: Path,
    num_steps: int,
) -> list[Step]:
    """Their steps on the same rows, from the same weights; `ours` has ended."""
    from benchmarks.finetuning import peer

    peer.prepare_torch()
    data = catalogue.read(train, settings).for_training()
    task = data.describe()
    start = directory / START
    examples = peer.make_examples(data, task, start, settings)
    model = peer.load_model(start, task, settings).train()
    trainer = peer.Trainer(
        model, settings, warmup_steps=num_steps // 2, num_train_steps=num_steps
    )
    found = []
    for rows in json.loads((directory / "rows.json").read_text(encoding="utf-8")):
        batch = examples.batch(rows)
        found.append(
            Step(*trainer.step(batch), digest(batch["input_ids"].int().numpy()))
        )
    return found


def _write(path: Path, content: Any) -> None:
    files.write_atomically(path, json.dumps(content).encode())


def still_settings(values: Mapping[str, Any]) -> list[str]:
    """The lines of `--set` for a task's settings, without dropout and in float32."""
    still = {**values, "dropout_prob": 0.0, "precision": "float32"}
    return [f"{name}={value}" for name, value in still.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--side", choices=("ours", "theirs"), required=True)
    parser.add_argument("--task", required=True)
    for name in ("train", "init", "directory"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    settings = config_files.load(
        finetuning_config.FinetuningConfig, None, [f"task={args.task}", *args.set]
    )
    args.directory.mkdir(parents=True, exist_ok=True)
    common = {
        "train": args.train,
        "directory": args.directory,
        "num_steps": args.steps,
    }
    if args.side == "ours":
        steps = ours(settings, init=args.init, **common)
    else:
        steps = theirs(settings, **common)
    _write(args.directory / f"{args.side}.json", steps)


if __name__ == "__main__":
    main()
