"""What positions that were never trained are best made of, before any step with them.

    python -m benchmarks.longer_positions --num_trained 128 --checkpoint \
        WORK/runs/RUN/checkpoints/step-0000003060.safetensors \
        --examples WORK/examples_512 --num_held_out 4

Scores a pre-training checkpoint on held-out examples longer than those it was trained
on, with the rows of the position table beyond `--num_trained` made in several ways.
WORK is the folder of `benchmarks/compute.py`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import compute, measuring
from bert_keras.training.pretraining import position_growth


def repeated(table: np.ndarray, num_trained: int) -> np.ndarray:
    """Repeats all rows between those of `[CLS]` and of the last `[SEP]`."""
    rows = np.arange(len(table))
    period = num_trained - 2
    return table[np.where(rows < num_trained, rows, 1 + (rows - 1) % period)]


WAYS = {
    "as they were initialised": lambda table, _: table,
    "repeated": repeated,
    "extrapolated": lambda table, num_trained: position_growth.extrapolated(
        table, num_trained=num_trained, num_rows=len(table)
    ),
}


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    from bert_keras.inference import fill_mask

    _, network = fill_mask.load_pretrainer(args.checkpoint)
    (variable,) = (
        v for v in network.variables if v.path.endswith("position_embeddings")
    )
    table = variable.numpy()
    sizes = {"batch_size": 32, "num_batches": args.num_batches}
    batches = compute.held_out_batches(
        args.examples, num_held_out=args.num_held_out, **sizes
    )
    for name, make in WAYS.items():
        variable.assign(make(table, args.num_trained))
        terms = compute.mean_terms(network, batches)
        accuracy = f"{100 * terms['masked_lm_accuracy']:.1f} %"
        yield [name, f"{terms['masked_lm_loss']:.3f}", accuracy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--num_trained", type=int, required=True)
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--num_held_out", type=int, default=1, help="last shards")
    parser.add_argument("--num_batches", type=int, default=10, help="of 32 examples")
    args = parser.parse_args()
    header = [f"rows from {args.num_trained}", "loss", "found"]
    measuring.print_table(header, rows(args))


if __name__ == "__main__":
    main()
