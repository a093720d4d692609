"""Recipes that end the plateau of a small BERT's pre-training, each alone.

    python benchmarks/plateau.py --work plateau --picture benchmarks/results/plateau.png

The text is the demo's. Each row is a run of `bert-keras pretrain --config demo` with
other settings, resumed if it was interrupted and not repeated if it is there, of some
500 processor seconds.

The picture shows held-out accuracy by step and, of the first and the last row, the head
that looks most at the token before or after its own.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import figure

import bert_keras
from bert_keras import demo, files, run_directory
from bert_keras.model import encoder
from bert_keras.report import drawing, facts

PAPER = {"optimizer.name": "adamw", "optimizer.learning_rate": 1e-3}
SMALL_SCALE = {"model.initializer_range": 0.02}
LONG = {"model.max_position_embeddings": 128}
ROWS = {
    "before": (
        128,
        {"global_batch_size": 32, "num_train_steps": 3000}
        | {"optimizer.warmup_steps": 300}
        | PAPER
        | SMALL_SCALE
        | LONG,
    ),
    "scale_0.02": (64, SMALL_SCALE),
    "adam": (64, PAPER),
    "adam_scale_0.02": (64, PAPER | SMALL_SCALE),
    "128_tokens": (
        128,
        {"num_train_steps": 4000, "optimizer.warmup_steps": 400} | LONG,
    ),
    "demo": (64, {}),
}
"""Length of the examples, and settings that depart from the demo's recipe."""
LEFT_AT = 0.18
"""Accuracy at which the plateau counts as left."""
SENTENCE = "returns a new array with the same shape and type as a given array ."


def make_examples(directory: Path, length: int) -> Path:
    """The demo's examples of a length, made by the demo's own commands."""
    text, examples = directory / "text", directory / f"examples_{length}"
    if not text.exists():
        with files.new_directory(text) as made:
            demo.write_texts(made)
    corpus, vocab, last = demo.commands(directory)[:3]
    changed = {"64": str(length), last[-1]: str(examples)}
    for command in (corpus, vocab, [changed.get(word, word) for word in last]):
        if not Path(command[command.index("--output") + 1]).exists():
            run_verb(command)
    return examples


def run_verb(command: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "bert_keras.cli", *command], check=True)


def pretrain(name: str, directory: Path) -> facts.Facts:
    """Trains a row's model, unless that is done."""
    length, settings = ROWS[name]
    output = directory / name
    if not (output / run_directory.RESULTS_NAME).exists():
        examples = make_examples(directory, length)
        options = [f"--set {key}={value}" for key, value in settings.items()]
        line = f"pretrain --config demo --examples {examples} --output_dir {output}"
        run_verb(shlex.split(" ".join([line, *options])))
    return facts.read_facts(output)


def neighbour_head(run: Path) -> tuple[np.ndarray, list[str], float]:
    """The head that attends most to one neighbour.

    Returns:
        Its map, `(num_tokens, num_tokens)`, the tokens, and the mean probability of the
        token before, or of that after, whichever is larger.
    """
    loaded = bert_keras.load(run)
    tokens = ["[CLS]", *loaded.tokenizer.tokenize(SENTENCE), "[SEP]"]
    ids = np.array([[loaded.tokenizer.vocabulary.ids[t] for t in tokens]], "int32")
    outputs = loaded.network.encoder(
        encoder.complete({"input_ids": ids}), return_attention=True
    )
    maps = np.concatenate(
        [np.asarray(layer[0]) for layer in outputs["attention_probs"]]
    )
    shares = [
        (np.diagonal(head, offset).mean(), index)
        for index, head in enumerate(maps)
        for offset in (-1, 1)
    ]
    share, index = max(shares)
    return maps[index], tokens, float(share)


def draw(runs: Mapping[str, facts.Facts], heads: Sequence[tuple]) -> figure.Figure:
    """Curves at the left, a map of attention for the first and for the last row."""
    picture = figure.Figure(figsize=(18, 5.5), layout="constrained")
    plot, *maps = picture.subplots(1, 3, width_ratios=(1.3, 1, 1))
    for name, run in runs.items():
        curve = facts.find_curve(run.eval, "masked_lm_accuracy")
        plot.plot(curve.steps, 100 * curve.values, "o-", label=name)
    plot.set_xlabel("step")
    plot.set_ylabel("held-out masked tokens found (%)")
    plot.set_ylim(0)
    plot.legend()
    names = [next(iter(runs)), list(runs)[-1]]
    for axes, (head, tokens, share), name in zip(maps, heads, names, strict=True):
        axes.imshow(head, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(tokens)), tokens, rotation=90)
        axes.set_yticks(range(len(tokens)), tokens)
        axes.grid(False)
        axes.set_title(f"{name}: {share:.0%} on one neighbour", fontsize=12)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="for runs and data")
    parser.add_argument("--picture", type=Path, required=True, help="PNG to write")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS), help="default: all"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    runs = {name: pretrain(name, args.work) for name in args.rows}
    heads = [neighbour_head(args.work / args.rows[place]) for place in (0, -1)]
    args.picture.write_bytes(drawing.as_png(lambda: draw(runs, heads), dpi=80))
    print("| | held-out loss | accuracy | 18 % passed by step | minutes |")
    print("|---|---|---|---|---|")
    for name, run in runs.items():
        accuracy = facts.find_curve(run.eval, "masked_lm_accuracy")
        left = accuracy.steps[accuracy.values >= LEFT_AT]
        scores = run.results["eval"]
        print(
            f"| {name} | {scores['masked_lm_loss']:.3f} "
            f"| {scores['masked_lm_accuracy']:.1%} "
            f"| {left[0] if len(left) else 'never'} "
            f"| {run.results['seconds'] / 60:.1f} |"
        )


if __name__ == "__main__":
    main()
