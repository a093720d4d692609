"""What positions that were never trained are best made of, before any step with them.

    python benchmarks/longer_positions.py --checkpoint \
        WORK/runs/seed=12345/checkpoints/step-0000003060.npz --num_trained 128 \
        --examples WORK/examples_512 --num_held_out 4

Scores a pre-training checkpoint on held-out examples longer than those it was trained
on, with the rows of the position table beyond `--num_trained` made in several ways, and
prints a table. WORK is the folder of `benchmarks/compute.py`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import compute
import numpy as np

from bert_keras.training import position_growth


def repeated(table: np.ndarray, num_trained: int) -> np.ndarray:
    """All rows between those of `[CLS]` and of the last `[SEP]`, over and over."""
    rows = np.arange(len(table))
    period = num_trained - 2
    return table[np.where(rows < num_trained, rows, 1 + (rows - 1) % period)]


def reflected(table: np.ndarray, num_trained: int) -> np.ndarray:
    """The same rows, every second time backwards."""
    period = num_trained - 2
    places = np.arange(-1, len(table) - 1) % (2 * period)
    rows = 1 + np.minimum(places, 2 * period - 1 - places)
    rows[0] = 0
    return table[rows]


def stretched(table: np.ndarray, num_trained: int) -> np.ndarray:
    """All trained rows over the whole length, interpolated in between."""
    places = np.linspace(0, num_trained - 1, len(table))
    rows = np.arange(num_trained)
    columns = [np.interp(places, rows, c) for c in table[:num_trained].T]
    return np.stack(columns, axis=1)


def extrapolated(
    table: np.ndarray, num_trained: int, *, variance: float, num_rows: int
) -> np.ndarray:
    """As `grow_positions=extrapolate`, with other constants."""
    kept = position_growth.VARIANCE, position_growth.NUM_ROWS
    position_growth.VARIANCE, position_growth.NUM_ROWS = variance, num_rows
    try:
        return position_growth.extrapolated(
            table, num_trained=num_trained, num_rows=len(table)
        )
    finally:
        position_growth.VARIANCE, position_growth.NUM_ROWS = kept


def ways() -> dict[str, Callable[[np.ndarray, int], np.ndarray]]:
    """Tables by what is said of them; each is given the table and the trained rows."""
    found = {
        "as they were initialised": lambda table, _: table,
        "repeated": repeated,
        "repeated, every second time backwards": reflected,
        "stretched": stretched,
    }
    for variance in (0.7, 0.9, 0.95, 0.99):
        for num_rows in (1, 8):
            name = f"extrapolated, {variance:.0%} of the variance, {num_rows} rows"
            found[name.replace("%", " %")] = (
                lambda table, trained, v=variance, n=num_rows: extrapolated(
                    table, trained, variance=v, num_rows=n
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--num_trained", type=int, required=True)
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--num_held_out", type=int, default=1, help="last shards")
    parser.add_argument("--num_batches", type=int, default=10, help="of 32 examples")
    args = parser.parse_args()
    from bert_keras.inference import fill_mask

    _, network = fill_mask.load_pretrainer(args.checkpoint)
    variable = next(
        v for v in network.variables if v.path.endswith("position_embeddings")
    )
    table = variable.numpy()
    batches = compute.held_out_batches(
        args.examples,
        num_held_out=args.num_held_out,
        batch_size=32,
        num_batches=args.num_batches,
    )
    print(f"| rows from {args.num_trained} | loss | found |\n|---|---|---|", flush=True)
    for name, make in ways().items():
        variable.assign(make(table, args.num_trained))
        found = compute.mean_terms(network, batches)
        accuracy = f"{found['masked_lm_accuracy']:.1%}".replace("%", " %")
        print(f"| {name} | {found['masked_lm_loss']:.3f} | {accuracy} |", flush=True)


if __name__ == "__main__":
    main()
