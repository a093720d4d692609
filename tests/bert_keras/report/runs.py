"""Run directories as trainings leave them."""

import json
from pathlib import Path

import yaml

from bert_keras.core import files
from bert_keras.core.settings import finetuning, pretraining


def write_process(
    directory: Path,
    values: dict[str, dict[int, float | str]],
    *,
    start_step: int = 0,
    begin: float = 1000.0,
) -> Path:
    """Logs numbers and texts, by tag and step, as a process that starts at second
    `begin` and logs each step a second after the one before; returns the log."""
    steps = sorted({step for of_tag in values.values() for step in of_tag})
    lines = [{"step": start_step, "time": begin, "start": "1c7a90d2"}]
    for number, step in enumerate(steps, start=1):
        here = {tag: of_tag[step] for tag, of_tag in values.items() if step in of_tag}
        lines.append({"step": step, "time": begin + number, **here})
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "scalars.jsonl"
    with log.open("a") as file:
        file.writelines(files.to_json(line) + "\n" for line in lines)
    return log


def pretraining_run(directory: Path, *, results: dict):
    """A run in two phases, killed after step 30 and taken up after step 20."""
    settings = pretraining.PretrainingConfig(
        num_train_steps=40,
        global_batch_size=4,
        optimizer={"warmup_steps": 2},
        phases=({"fraction": 0.5}, {"fraction": 0.5, "global_batch_size": 2}),
        precision="float32",
    )
    inputs = {"examples_sha256": ["ab" * 32, "cd" * 32]}
    write_settings(directory, settings, kind="pretraining", inputs=inputs)
    first = {
        "loss/loss": {1: 3, 10: 2.5},
        "speed/sequences_per_second": {10: 20.0, 20: 24.0},
        "speed/tokens_per_second": {10: 160.0, 20: 192.0},
    }
    second = {
        "loss/loss": {21: 2, 40: 1.5},
        "optimizer/skipped_steps": {21: 0, 40: 1},
        "speed/sequences_per_second": {30: 10.0, 40: 11.0},
        "speed/tokens_per_second": {30: 160.0, 40: 176.0},
    }
    write_process(directory / "logs/train", first)
    write_process(directory / "logs/train", second, start_step=20, begin=2000)
    evaluations = {
        "loss/masked_lm_loss": {20: 1.0, 30: 2.0, 40: 2.5},
        "accuracy/masked_lm_accuracy": {20: 0.75, 30: 0.25, 40: 0.5},
    }
    write_process(directory / "logs/eval", evaluations)
    texts = {
        "masked_lm/example_02": {40: "worse **[1]**"},
        "masked_lm/example_04": {40: "one too many"},
        "masked_lm/example_03": {40: "third"},
        "masked_lm/example_01": {20: "old", 40: "better"},
    }
    write_process(directory / "logs/panels", texts)
    (directory / "results.json").write_text(json.dumps(results))


def write_settings(directory: Path, settings, *, kind: str, inputs: dict) -> None:
    directory.mkdir()
    values = settings.model_dump(mode="json")
    (directory / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    labels = None if kind == "pretraining" else ["no", "y|s"]
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 30522}
    contents = {"task": {"kind": kind, "labels": labels}, "inputs": inputs}
    for name, content in (contents | {"bert_config": sizes}).items():
        (directory / f"{name}.json").write_text(json.dumps(content))


RESULTS = {
    "steps": 40,
    "seconds": 3.0,
    "skipped_steps": 1,
    "num_parameters": 1234567,
    "num_replicas": 2,
    "eval": {"masked_lm_accuracy": 0.5},
    "eval_baseline": {"commonest_token": "the", "masked_lm_accuracy": 0.0625},
}

ANSWER = {
    "text": "a <b> | c",
    "text_pair": "d",
    "line": 2,
    "label": "0",
    "prediction": "1",
    "probabilities": {"0": 0.25, "1": 0.75},
}
EVALUATION = {"f1": 0.5, "best_f1_thresh": -1.5, "dev2_total": 3, "num_unknown": 0}


def finished_run(directory: Path, **changes) -> Path:
    """A fine-tuning with one curve and one answer."""
    settings = finetuning.FinetuningConfig(task="MRPC", num_train_epochs=1)
    write_settings(directory, settings, kind="classification", inputs={})
    task = {"kind": "classification", "name": "MRPC", "labels": ["0", "1"]}
    contents = {
        "task.json": json.dumps(task),
        "results.json": json.dumps({"steps": 7, "eval": EVALUATION}),
        "dev_answers.jsonl": json.dumps(ANSWER | changes) + "\n",
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
    write_process(directory / "logs/train", {"loss/loss": {7: 0.5}})
    return directory
