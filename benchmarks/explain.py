"""Whether `bert-keras explain` shows what an answer hangs on: deletion curves.

    python -m benchmarks.explain curves --model RUN --input SST-2/dev.tsv --rows 500 \
        --work DIR --picture docs/pictures/explain.png
    python -m benchmarks.explain captum --model RUN --input SST-2/dev.tsv --rows 50 \
        --work DIR

`curves` takes the most important words of each sentence away and asks again: the share
of the probability of the first answer that is left is the better, the smaller. Words
are masked, as in the baseline of the explanations, or deleted. The orders are those of
integrated gradients, of the attention of [CLS] in the last layer (mean of all heads),
of attention rollout (Abnar and Zuidema, 2020), and random. `captum` compares with
`LayerIntegratedGradients` on the same weights, which `convert` wrote for transformers;
it needs captum, torch and transformers.
"""

# A classifier has labels; captum is not among the packages of the tests.
# pyright: reportOptionalMemberAccess=false, reportMissingImports=false

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import tensorflow as tf

from benchmarks import measuring
from bert_keras.checkpoints import conversion
from bert_keras.inference import attribution, finetuned
from bert_keras.kinds import registry
from bert_keras.pages import drawing

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
ORDERS = {
    "integrated gradients": (drawing.BLUE, "-"),
    "attention of [CLS]": (drawing.VERMILION, "--"),
    "attention rollout": (drawing.GREEN, "-."),
    "random": (drawing.GREY, ":"),
}
NUM_RANDOM = 3
ROWS_PER_BATCH = 64


def read_texts(path: Path, count: int, seed: int = 0) -> list[str]:
    """Returns texts of a file of SST-2, drawn at random."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    chosen = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [rows[place][0].strip() for place in sorted(chosen)]


def load(args: argparse.Namespace, tolerance: float):
    """Returns the model, the texts, and their explanations, made once."""
    model = finetuned.FinetunedModel.load(args.model, precision="float32")
    texts = read_texts(args.input, args.rows)
    data = registry.labelled(model.task.kind).from_python(texts, model.task)

    def explain() -> list:
        explainer = attribution.Explainer(model, data, tolerance=tolerance)
        return [explainer.explain(number) for number in range(len(texts))]

    path = args.work / f"explanations-{args.rows}-{tolerance:g}.json"
    return model, texts, measuring.once(path, explain)


def attention(model, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns the attention of [CLS] to each token, `(length,)` each."""
    features = {"input_ids": np.array([ids], np.int32)}
    layers = model.network.encoder(features, return_attention=True)["attention_probs"]
    means = [layer.numpy()[0].mean(axis=0) for layer in layers]
    rollout = np.eye(len(ids))
    for mean in means:
        rollout = (mean + np.eye(len(ids))) / 2 @ rollout
    return {"attention of [CLS]": means[-1][0], "attention rollout": rollout[0]}


def probabilities(model, inputs: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the probabilities of the labels, `(len(inputs), num_labels)`."""
    order, found = sorted(range(len(inputs)), key=lambda n: len(inputs[n])), []
    traced = tf.function(lambda features: model.network(features)["logits"])
    for first in range(0, len(order), ROWS_PER_BATCH):
        rows = [inputs[place] for place in order[first : first + ROWS_PER_BATCH]]
        lengths = np.array([len(row) for row in rows])
        width = -(-lengths.max() // 8) * 8
        mask = np.arange(width) < lengths[:, None]
        ids = np.zeros(mask.shape, np.int32)
        ids[mask] = np.concatenate(rows)
        batch = {"input_ids": ids, "input_mask": mask, "segment_ids": 0 * ids}
        found.append(traced({k: tf.constant(v, tf.int32) for k, v in batch.items()}))
    return scipy.special.softmax(np.concatenate(found)[np.argsort(order)], axis=-1)


def print_curves(args: argparse.Namespace) -> None:
    model, texts, explained = load(args, attribution.TOLERANCE)
    rng, vocabulary = np.random.default_rng(1), model.tokenizer.vocabulary
    inputs, keys = [], []
    for number, (text, one) in enumerate(zip(texts, explained, strict=True)):
        pieces = np.array(model.tokenizer.encode(text))
        word_of = np.cumsum(~vocabulary.is_continuation[pieces]) - 1
        values = np.array([word[3] for word in one[4]])
        ids = [vocabulary.cls_id, *pieces, vocabulary.sep_id]
        importances: dict[str, Any] = {"integrated gradients": [values]}
        for name, weights in attention(model, ids).items():
            importances[name] = [np.bincount(word_of, weights[1:-1])]
        shape = (NUM_RANDOM, len(values))
        importances["random"] = rng.random(shape)
        for name, orders in importances.items():
            for order in orders:
                ranked = np.argsort(-np.asarray(order), kind="stable")
                for place, share in enumerate(SHARES):
                    gone = np.isin(word_of, ranked[: round(share * len(values))])
                    masked = np.where(gone, vocabulary.mask_id, pieces)
                    for way, left in (("masked", masked), ("deleted", pieces[~gone])):
                        inputs.append([vocabulary.cls_id, *left, vocabulary.sep_id])
                        keys.append((way, name, number, place))
    found = probabilities(model, inputs)
    labels = [model.task.labels.index(one[1]) for one in explained]
    sums = {}
    for (way, name, number, place), row in zip(keys, found, strict=True):
        sums.setdefault((way, name), np.zeros((len(texts), len(SHARES))))
        sums[way, name][number, place] += row[labels[number]]
    curves = {}
    for (way, name), total in sums.items():
        left = total / total[:, :1]
        area = left[:, 1:].mean(axis=1)
        curves[way, name] = left.mean(axis=0)
        sums[way, name] = area
    rows = [
        [
            f"{way}, {name}",
            *(f"{value:.0%}" for value in curve[1:]),
            f"{sums[way, name].mean():.3f} "
            f"± {sums[way, name].std() / len(texts) ** 0.5:.3f}",
        ]
        for (way, name), curve in curves.items()
    ]
    measuring.print_table(["left", *(f"{s:.0%}" for s in SHARES[1:]), "mean"], rows)
    steps = [one[6] for one in explained]
    print(f"\nsteps: {dict(zip(*np.unique(steps, return_counts=True), strict=True))}")
    if args.picture:
        args.picture.write_bytes(drawing.as_png(draw, curves, len(texts)))


def draw(curves, count: int):
    picture, plot = drawing.new_plot(f"Probability left of {count} answers")
    plot.remove()
    for place, way in enumerate(("masked", "deleted")):
        plot = picture.add_subplot(1, 2, place + 1, title=f"words {way}")
        for name, (colour, style) in ORDERS.items():
            values, label = 100 * curves[way, name], name if not place else None
            shares = 100 * np.array(SHARES)
            plot.plot(shares, values, style, color=colour, label=label, linewidth=2)
        plot.set(ylim=(0, 102), xlabel="per cent of the words")
    picture.axes[0].set_ylabel("per cent of the probability")
    drawing.add_legend(picture)
    return picture


def print_captum(args: argparse.Namespace) -> None:
    import torch
    import transformers
    from captum.attr import LayerIntegratedGradients

    model, texts, explained = load(args, 1e-6)
    theirs = args.work / "theirs"
    if not theirs.is_dir():
        conversion.convert(args.model, theirs, to="hugging_face")
    net = transformers.BertForSequenceClassification.from_pretrained(theirs).eval()
    vocabulary = model.tokenizer.vocabulary

    def score(ids, place):
        logits = net(input_ids=ids).logits
        others = logits.sum(dim=-1) - logits[:, place]
        return logits[:, place] - others / (logits.shape[1] - 1)

    captum, largest, sizes = LayerIntegratedGradients(score, net.bert.embeddings), 0, []
    for text, one in zip(texts, explained, strict=True):
        pieces = model.tokenizer.encode(text)
        ids = torch.tensor([[vocabulary.cls_id, *pieces, vocabulary.sep_id]])
        baseline = ids.clone()
        baseline[:, 1:-1] = vocabulary.mask_id
        values = captum.attribute(
            ids,
            baselines=baseline,
            additional_forward_args=(model.task.labels.index(one[1]),),
            n_steps=args.steps,
            internal_batch_size=16,
            method="gausslegendre",
        )
        of_tokens = values.sum(dim=-1)[0, 1:-1].detach().numpy()
        word_of = np.cumsum(~vocabulary.is_continuation[np.array(pieces)]) - 1
        ours = np.array([word[3] for word in one[4]])
        largest = max(largest, abs(np.bincount(word_of, of_tokens) - ours).max())
        sizes += [*abs(ours)]
    print(
        f"{len(texts)} texts, {len(sizes)} words: largest difference {largest:.1e}, "
        f"mean size of an attribution {np.mean(sizes):.2f}, largest {max(sizes):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("curves", "captum"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--steps", type=int, default=128, help="captum's nodes")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    print(measuring.machine("tensorflow", "keras"))
    {"curves": print_curves, "captum": print_captum}[args.part](args)


if __name__ == "__main__":
    main()
