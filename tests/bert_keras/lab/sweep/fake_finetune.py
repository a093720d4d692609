"""Stands in for `bert-keras finetune`.

The learning rate decides what happens. 1: it fails; 2: its loss is not finite; 3: it
answers the same to all; 4: it takes ten minutes; 5: something kills it; 6: it is told
to stop. Others are the better the nearer they are to 3e-5.

A file --init may hold the share of right answers to the dev file with all labels (with
fewer the share is less), and seeds with which the run fails, or `stuck` for one answer
to all. An --init without a file is refused.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

OTHER = {"a": "b", "b": "a"}


def main() -> int:
    options, settings = read(sys.argv[2:])
    output, init = Path(options["--output_dir"]), Path(options["--init"])
    scratch = "--from_scratch" in sys.argv
    with open(Path(options["--train"]).parent / "calls.txt", "a") as calls:
        calls.write(f"{output.name}\n")
    if not init.is_file():
        print(f"bert-keras finetune: error: {init}: no such checkpoint")
        return 2
    rate, seed = settings.get("learning_rate", 3e-5), settings["seed"]
    share, *broken = init.read_text().split()
    output.mkdir(parents=True, exist_ok=True)
    (output / "task.json").write_text("{}")
    sha256 = hashlib.sha256(init.read_bytes()).hexdigest()
    (output / "inputs.json").write_text(json.dumps({"init_sha256": sha256}))
    (output / "environ.json").write_text(json.dumps(dict(os.environ)))
    print("step 1/4  loss 0.7", flush=True)
    if rate == 1 or str(seed) in broken:
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
    fraction = settings.get("train_fraction", 1)
    if share == "weights":
        # Each fold is harder than the one before.
        fold = int(options["--dev"][0]) if options["--dev"][1:2] == "/" else 0
        wrong = 50 if rate > 1 else round(abs(rate - 3e-5) * 1e6) + fold + seed % 3
        labels = ["a"] * 30 + ["b"] * 20
        predictions = [OTHER[x] if i < wrong else x for i, x in enumerate(labels)]
    else:
        chance = 0.5 if scratch else 0.5 + (float(share) - 0.5) * fraction**0.3
        generator = random.Random(f"{seed} {chance}")
        lines = Path(options["--dev"]).read_text().splitlines()[1:]
        labels = [line.split("\t")[1] for line in lines]
        predictions = [x if generator.random() < chance else OTHER[x] for x in labels]
    if rate == 3 or "stuck" in broken:
        predictions = ["a"] * len(labels)
    num_examples = len(Path(options["--train"]).read_text().splitlines()) - 1
    right = sum(map(str.__eq__, labels, predictions))
    results = {
        "seconds": 20.0,
        "num_train_examples": round(num_examples * fraction),
        # In the file a number that is not finite is null.
        "eval": {
            "loss": None if rate == 2 else 0.6,
            "accuracy": right / len(labels),
            "total": len(labels),
        },
    }
    (output / "results.json").write_text(json.dumps(results))
    is_tagging = options.get("--task") == "tagging"
    write_answers(output, labels, predictions, is_tagging=is_tagging)
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


def write_answers(output: Path, labels, predictions, *, is_tagging: bool) -> None:
    with open(output / "dev_answers.jsonl", "w") as file:
        pairs = zip(labels, predictions, strict=True)
        for line, (label, prediction) in enumerate(pairs, start=2):
            answer = {"text": "ba", "line": line, "label": label}
            answer |= {"prediction": prediction, "probabilities": {"a": 0.5, "b": 0.5}}
            if is_tagging:
                answer = {"words": ["ba"], "line": line, "labels": [label]}
                answer["prediction"] = [prediction]
            file.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    sys.exit(main())
