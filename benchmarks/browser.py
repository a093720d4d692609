"""Answers of transformers.js beside those of `predict`, for trained models.

    python -m benchmarks.browser MODEL INPUTS --work DIR --node_modules DIR [--limit N]

INPUTS has a JSON list a line, of what a model is asked: `[text]`, `[text, text]`,
`[question, passage]` or `[question, [passage, ...]]`. MODEL is exported to DIR, and
Node answers the inputs in float32 and in 8 bits. Prints a row of the table in
docs/serving.md for each: inputs whose answer differs (label, entities, span, the best
passage, the likeliest word), and the greatest difference of a number (probability or
score; of vectors 1 minus the cosine) among the answers that agree.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.inference import fill_mask, finetuned

SCRIPT = Path(__file__).parents[1] / "tests/bert_keras/export/browser/answers.mjs"


def expected_answers(model: Path, inputs: list[list]) -> Iterator[tuple[Any, Any]]:
    """Yields what is answered to each input, and the numbers of the answer."""
    kind = conversion.read(model).task.kind
    if kind == "pretraining":
        fill = fill_mask.FillMask(model)
        for [text] in inputs:
            yield of_masks([[g._asdict() for g in gs] for gs in fill(text)])
        return
    trained = finetuned.FinetunedModel.load(model, precision="float32")
    questions = [x[0] if len(x) == 1 else tuple(x) for x in inputs]
    for record in trained.predict(questions):
        values, prediction = record.model_dump(), record.prediction
        if "entities" in values:
            yield of_entities(values["entities"])
        elif "probability" in values:
            yield prediction, [record.probability]
        elif "scores" in values:
            yield prediction[0], [*record.scores]
        elif "probabilities" in values:
            chosen = prediction if isinstance(prediction, str) else sorted(prediction)
            yield chosen, [*record.probabilities.values()]
        else:
            yield None, prediction if isinstance(prediction, float) else [*prediction]


def of_masks(masks: list[list[dict]]) -> tuple[Any, Any]:
    return [g[0]["token"] for g in masks], [g[0]["probability"] for g in masks]


def of_entities(entities: list[dict]) -> tuple[Any, Any]:
    chosen = [[e["label"], e["start"], e["end"]] for e in entities]
    return chosen, [e["probability"] for e in entities]


def of_answer(answer: Any) -> tuple[Any, Any]:
    """Does the same for an answer of `answers.js`."""
    if isinstance(answer, list):
        return of_masks(answer)
    if "entities" in answer:
        return of_entities(answer["entities"])
    if "answer" in answer:
        return answer["answer"], [answer["probability"]]
    if "ranking" in answer:
        return answer["ranking"][0], answer["scores"]
    if "probabilities" in answer:
        chosen = answer.get("label", sorted(answer.get("labels", ())))
        return chosen, [*answer["probabilities"].values()]
    return None, answer.get("embedding", answer.get("score"))


def ask(page: Path, dtype: str, inputs: Path, node_modules: Path) -> list:
    library = node_modules / "@huggingface/transformers/dist/transformers.node.mjs"
    answers = page.with_name(f"answers_{dtype}.jsonl")
    command = ("node", SCRIPT, library, page, dtype, inputs, answers)
    subprocess.run([*map(str, command)], check=True)
    with answers.open(encoding="utf-8") as lines:
        return [json.loads(line)["answer"] for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--node_modules", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1000)
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    lines = options.inputs.read_text(encoding="utf-8").splitlines()[: options.limit]
    asked = work / "inputs.jsonl"
    asked.write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = work / "page"
    if not page.exists():
        export.export_model(options.model, page, to="transformers_js")
    expected = [*expected_answers(options.model, [json.loads(x) for x in lines])]
    for dtype in ("fp32", "q8"):
        answers = ask(page, dtype, asked, options.node_modules.absolute())
        wrong, greatest = [], 0.0
        for line, answer, (chosen, numbers) in zip(
            lines, answers, expected, strict=True
        ):
            actual, actual_numbers = of_answer(answer)
            if actual != chosen:
                wrong.append({"input": json.loads(line), "is": actual, "was": chosen})
                continue
            a, b = np.atleast_1d(actual_numbers), np.atleast_1d(numbers)
            if "embedding" in answer:
                distance = 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            else:
                distance = np.abs(a - b).max(initial=0)
            greatest = max(greatest, float(distance))
        (work / f"differences_{dtype}.json").write_text(json.dumps(wrong, indent=1))
        print(f"| {dtype} | {len(wrong)} of {len(lines)} | {greatest:.1e} |")


if __name__ == "__main__":
    main()
