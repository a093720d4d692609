"""Stands in for `bert-keras finetune`: what it does is decided by its learning rate.

1: it fails; 2: its loss is not finite; 3: it answers the same to all; 4: it takes ten
minutes; 5: something kills it; 6: it is told to stop. An --init without a file is
refused.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    options, settings = read(sys.argv[2:])
    folder, output = Path(options["--train"]).parent, Path(options["--output_dir"])
    with open(folder / "calls.txt", "a") as calls:
        calls.write(f"{output.name}\n")
    init = Path(options["--init"])
    if not init.is_file():
        print(f"bert-keras finetune: error: {init}: no such checkpoint")
        return 2
    rate, seed = settings["learning_rate"], settings["seed"]
    output.mkdir(parents=True, exist_ok=True)
    (output / "task.json").write_text("{}")
    sha256 = hashlib.sha256(init.read_bytes()).hexdigest()
    (output / "inputs.json").write_text(json.dumps({"init_sha256": sha256}))
    (output / "environment.json").write_text(json.dumps(dict(os.environ)))
    print("step 1/4  loss 0.7", flush=True)
    if rate == 1:
        print("Traceback\nRuntimeError: exploded\n")
        return 1
    if rate == 4:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
        (output / "pid").write_text(str(os.getpid()))
        time.sleep(600)
    if rate == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if rate == 6:
        print("bert-keras finetune: stopped by SIGTERM at step 1")
        return 0
    # Each fold is harder than the one before.
    rate += int(options["--dev"][0]) * 1e-6 if options["--dev"][1:2] == "/" else 0
    write(output, rate, seed, is_tagging=options.get("--task") == "tagging")
    return 0


def read(arguments: list[str]) -> tuple[dict[str, str], dict[str, float]]:
    options, settings = {}, {}
    for name, value in zip(arguments, arguments[1:], strict=False):
        if name == "--set":
            key, _, text = value.partition("=")
            settings[key] = json.loads(text)
        elif name.startswith("--"):
            options[name] = value
    return options, settings


def write(output: Path, rate: float, seed: int, *, is_tagging: bool) -> None:
    """50 answers, of which more are right the nearer the rate is to 3e-5."""
    wrong = 50 if rate > 1 else round(abs(rate - 3e-5) * 1e6) + seed % 3
    labels = ["a"] * 30 + ["b"] * 20
    predictions = [
        label if i % 50 >= wrong else {"a": "b", "b": "a"}[label]
        for i, label in enumerate(labels)
    ]
    if rate == 3:
        predictions = ["a"] * 50
    answers = [
        json.dumps(
            {
                "words": ["ba"],
                "line": line,
                "labels": [label],
                "prediction": [prediction],
            }
            if is_tagging
            else {
                "text": "ba",
                "line": line,
                "label": label,
                "prediction": prediction,
                "probabilities": {"a": 0.5, "b": 0.5},
            }
        )
        for line, (label, prediction) in enumerate(
            zip(labels, predictions, strict=True), start=1
        )
    ]
    (output / "dev_answers.jsonl").write_text("\n".join(answers) + "\n")
    right = sum(map(str.__eq__, labels, predictions))
    results = {
        "seconds": 1.5,
        "train": {"loss": float("nan") if rate == 2 else 0.5},
        "eval": {"loss": 0.6, "accuracy": right / 50, "total": 50},
    }
    (output / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
