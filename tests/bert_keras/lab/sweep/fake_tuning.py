"""Stands in for `bert-keras finetune`: its --init holds how many answers are right.

The file has the share of the right answers with all labels; with fewer it is less. With
the seeds that it also may hold, the run fails; with `stuck` it gives one answer to all.
Without that file it is refused.
"""

import json
import random
import sys
from pathlib import Path


def main() -> int:
    arguments = sys.argv[2:]
    settings, options = {}, {}
    for name, value in zip(arguments, arguments[1:], strict=False):
        if name == "--set":
            key, _, text = value.partition("=")
            settings[key] = json.loads(text)
        elif name.startswith("--"):
            options[name] = value
    output = Path(options["--output_dir"])
    if not Path(options["--init"]).is_file():
        print(f"bert-keras finetune: error: {options['--init']}: no such checkpoint")
        return 2
    with open(Path(options["--train"]).parent / "calls.txt", "a") as calls:
        scratch = " from scratch" * ("--from_scratch" in arguments)
        calls.write(f"{options['--init']} {output.name}{scratch}\n")
    share, *broken = Path(options["--init"]).read_text().split()
    output.mkdir(parents=True, exist_ok=True)
    (output / "task.json").write_text("{}")
    (output / "inputs.json").write_text("{}")
    if str(settings["seed"]) in broken:
        print("RuntimeError: exploded")
        return 1
    fraction = settings["train_fraction"]
    share = 0.5 if scratch else 0.5 + (float(share) - 0.5) * fraction**0.3
    generator = random.Random(f"{settings['seed']} {share}")
    lines = Path(options["--dev"]).read_text().splitlines()[1:]
    records, right = [], 0
    for number, line in enumerate(lines, start=2):
        text, label = line.split("\t")
        is_right = generator.random() < share
        given = label if is_right else {"a": "b", "b": "a"}[label]
        if "stuck" in broken:
            given, is_right = "a", label == "a"
        right += is_right
        records.append(
            {
                "text": text,
                "line": number,
                "label": label,
                "prediction": given,
                "probabilities": {"a": 0.5, "b": 0.5},
            }
        )
    text = "".join(json.dumps(record) + "\n" for record in records)
    (output / "dev_answers.jsonl").write_text(text)
    rows = len(Path(options["--train"]).read_text().splitlines()) - 1
    results = {
        "seconds": 20.0,
        "num_train_examples": round(rows * fraction),
        "train": {"loss": 0.5},
        "eval": {"loss": 0.6, "accuracy": right / len(records)},
    }
    (output / "results.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
