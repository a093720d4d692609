"""Why a tuned run answers as it does: `bert-keras explain`.

The explanations are checked on the texts that they explain: where the words with the
highest attributions become [MASK], the score must fall by more than where as many words
at random do (Samek et al., 2017). The page begins with the result.
"""

import html
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
from bert_keras.inference import attribution, finetuned
from bert_keras.kinds import registry, splits
from bert_keras.pages import html as pages

SHARES = (0.1, 0.2, 0.3, 0.5)
"""Shares of the words that are masked."""

NUM_RANDOM_ORDERS = 4

FEWEST_TEXTS = 10
"""Fewer texts say nothing about their explanations."""

MOST_SHOWN = 500
"""Answers on a page."""

_INVISIBLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def explain(
    model_dir: str | Path,
    input_path: str | Path,
    output_path: str | Path,
    *,
    label: str | None = None,
) -> list[str]:
    """Explains a run's answers to a file as `predict` takes it, or the score of a
    `label`: in JSON lines, a new file named `.jsonl`, and in a page beside it, named
    `.html`. Returns lines to print."""
    lines_path = files.new_file(output_path)
    if lines_path.suffix != ".jsonl":
        raise InputError(f"--output {output_path}: expected a name that ends in .jsonl")
    # A call that was killed may have left its page.
    page_path = lines_path.with_suffix(".html")
    if not (files.exists(page_path) and b"<title>Why" in files.read_bytes(page_path)):
        files.new_file(page_path)
    model = finetuned.FinetunedModel.load(model_dir, precision="float32")
    kind = registry.labelled(model.task.kind)
    with finetuned.input_file(input_path, kind) as path:
        data = model.read(path, has_labels=False)
    try:
        explainer = attribution.Explainer(model, data, label=label)
    except InputError as error:
        raise InputError(f"{model_dir}: {error}") from None
    explanations, losses = [], []
    with progress.Progress(
        "explaining",
        total=len(explainer),
        unit="answers",
        read=lambda: len(explanations),
        only_if_long=True,
    ):
        for number in range(len(explainer)):
            explanation = explainer.explain(number)
            losses += deletion_losses(explainer, number, explanation)
            explanations.append(explanation)
    judgement = verdict(np.array(losses).reshape(-1, 2, len(SHARES)))
    page = draw_page(explanations, judgement, title=data.path.name)
    lines = map(record, range(1, len(explanations) + 1), explanations)
    content = "".join(f"{files.to_json(line)}\n" for line in lines)
    # The page is whole where the lines are there. It is of these lines, also where
    # another call was killed, or is under way.
    if not files.exists(page_path) or files.read_bytes(page_path) != page:
        files.write_atomically(files.new_file(page_path), page)
    files.write_atomically(files.new_file(lines_path), content.encode())
    steps = [explanation.steps for explanation in explanations]
    error = 100 * max(one.completeness_error for one in explanations)
    return [
        f"{len(steps):,} explanations in {lines_path} and {page_path}",
        f"completeness error up to {error:.2f} %, {min(steps)} to {max(steps)} steps",
        judgement,
    ]


def deletion_losses(
    explainer: attribution.Explainer, number: int, explanation: attribution.Explanation
) -> list[np.ndarray]:
    """Returns by how much the score of an answer falls without each of `SHARES` of its
    words, the highest attributions first and at random, `(2, len(SHARES))`; [] for
    fewer than two words."""
    values = np.array([word.attribution for word in explanation.words], float)
    is_read = ~np.isnan(values)
    if (count := is_read.sum()) < 2:
        return []
    # The rank of each word in each order; those that were not read come last.
    rng = np.random.default_rng(splits.number_of("\0".join(explanation.texts)))
    keys = np.stack([-values, *rng.random((NUM_RANDOM_ORDERS, len(values)))])
    keys = np.where(is_read, keys, np.inf)
    ranks = keys.argsort(axis=1, kind="stable").argsort(axis=1)
    counts = np.maximum(1, np.round(np.array(SHARES) * count))
    is_masked = ranks[:, None] < counts[:, None]
    scores = explainer.scores_without(number, is_masked.reshape(-1, len(values)))
    lost = explanation.score - scores.reshape(len(ranks), -1)
    return [np.stack([lost[0], lost[1:].mean(axis=0)])]


def verdict(losses: np.ndarray) -> str:
    """Judges `deletion_losses` of all answers, `(num_answers, 2, len(SHARES))`, in a
    sentence: the explanations are better than random ones if the mean gain is 1.645
    standard errors above 0, one-sided 95 %."""
    count = len(losses)
    if count < FEWEST_TEXTS:
        return (
            "These explanations were not compared with random ones, for which "
            f"{FEWEST_TEXTS} answers to texts of two words are needed, got {count}."
        )
    gains = (losses[:, 0] - losses[:, 1]).mean(axis=1)
    claim = "These explanations are no better than random ones: do not rely on them"
    if gains.mean() > 1.645 * gains.std(ddof=1) / math.sqrt(count):
        claim = "The words with the highest attributions matter more than random words"
    # A zero added makes 0.00 of -0.00.
    means = losses.mean(axis=0).round(2) + 0.0
    curve = ", ".join(
        f"{ours:.2f} (random: {random:.2f}) without {100 * share:.0f} % of the words"
        for share, ours, random in zip(SHARES, *means, strict=True)
    )
    return f"{claim}. Mean loss of {count:,} scores: {curve}."


def record(number: int, explanation: attribution.Explanation) -> dict[str, Any]:
    """Returns a line of the file."""
    texts = explanation.texts
    words = [
        {**word._asdict(), "word": texts[word.text][word.start : word.end]}
        for word in explanation.words
    ]
    line = json.dumps({"number": number, **explanation._asdict(), "words": words})
    # Further digits would depend on the machine.
    return json.loads(line, parse_float=lambda digits: round(float(digits), 4))


def draw_page(
    explanations: Sequence[attribution.Explanation], judgement: str, *, title: str
) -> bytes:
    """Returns the page of the first `MOST_SHOWN` explanations, in UTF-8."""

    def literal(text: str) -> str:
        return html.escape(_INVISIBLE.sub("\ufffd", text))

    body = []
    for number, one in enumerate(explanations[:MOST_SHOWN], start=1):
        body.append(
            f"<article>\n<h2><small>{number}</small> {literal(one.answer)}</h2>\n"
            f'<p class="facts">score {one.score:.3f}, of the baseline '
            f"{one.baseline_score:.3f}; completeness error "
            f"{100 * one.completeness_error:.2f} %, {one.steps} steps</p>"
        )
        # The texts, with their words in five strengths.
        largest = max((abs(w.attribution or 0) for w in one.words), default=0) or 1
        for place, text in enumerate(one.texts):
            parts, done = [], 0
            for _, start, end, value in (w for w in one.words if w.text == place):
                form = "unread"
                if value is not None:
                    form = "for" if value > 0 else "against"
                    form += f" l{round(5 * abs(value) / largest)}"
                # Two words may share a character that became several.
                start, end = max(start, done), max(end, done)
                word = f'<span class="{form}">{literal(text[start:end])}</span>'
                parts += [literal(text[done:start]), word]
                done = end
            parts.append(literal(text[done:]))
            body.append(f'<p class="text" dir="auto">{"".join(parts)}</p>')
        body.append("</article>")
    template = resources.files("bert_keras.trust").joinpath("page.html")
    shown = f"The first {MOST_SHOWN} of {len(explanations):,} answers are shown."
    return pages.fill(
        template.read_text(encoding="utf-8"),
        title=literal(title),
        sentence=judgement,
        shown=shown if len(explanations) > MOST_SHOWN else "",
        body="\n".join(body),
    )
