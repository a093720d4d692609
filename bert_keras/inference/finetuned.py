"""A tuned model that answers: files, official test sets, texts in Python."""

import contextlib
import functools
import logging
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from bert_keras.checkpoints import (
    conversion,
    native,
    run_directory,
    starting_point,
    weights,
)
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.inference import forward
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.kind import Labelled
from bert_keras.kinds.text import glue
from bert_keras.labelled import answers, dataset, drift, reading
from bert_keras.model import lora

logger = logging.getLogger(__name__)


def build_network(
    checkpoint: weights.Checkpoint,
    path: str | Path,
    *,
    precision: architecture.Precision | None,
    base: keras.Model | None = None,
) -> keras.Model:
    """Builds the network of a checkpoint. For an adapter, the network shares the memory
    of the `base` network's weights, and adds the adapter's changes and head."""
    own = checkpoint.settings
    network = registry.build_network(
        checkpoint.bert_config,
        checkpoint.task,
        # What a training in Python drops: as much as the model's own training did.
        dropout_prob=own.dropout_prob if own else 0.1,
        dtype=precision or (own.precision if own else "float32"),
    )
    if base is None:
        starting_point.assign(network, checkpoint.arrays, path=path)
        return network
    lora.enable(network, checkpoint.changes.adapter)
    head = weights.part(checkpoint.arrays, lambda name: name.startswith("head/"))
    weights.assign(network, {**head, **checkpoint.changes.arrays})
    weights.share_frozen(network, base)
    return network


@dataclass(frozen=True, kw_only=True)
class FinetunedModel:
    """A tuned network, with everything that its answers need."""

    network: keras.Model
    """Built, with its weights."""
    task: tasks.Task
    tokenizer: tokenization.Tokenizer
    settings: finetuning.FinetuningConfig
    """Settings of the run: lengths of inputs, search for answers."""
    decision: tasks.Decision = tasks.LIKELIEST
    """How its numbers become answers."""
    takes_pairs: bool | None = None
    """Whether a text is a pair; `None`: unknown, the input tells."""

    @classmethod
    def load(
        cls, directory: str | Path, *, precision: architecture.Precision | None = None
    ) -> Self:
        """Loads a run of `finetune`, or a tuned checkpoint of any format, to compute in
        `precision`; `None`: as the model was trained, else float32."""
        checkpoint = conversion.read(directory)
        model = cls.from_checkpoint(checkpoint, directory, precision=precision)
        if model is None:
            lacks = "expected a model that was tuned on a task, got one for "
            lacks += checkpoint.task.kind
            if native.tuning_settings(checkpoint) is not None:
                lacks = "has no tokenizer: put its vocab.txt and "
                lacks += "tokenizer_config.json next to it"
            raise InputError(f"{directory}: {lacks}")
        return model

    @classmethod
    def load_form(cls, directory: str | Path, form: str) -> Self:
        """Loads a model that was tuned with `--task FORM`, and refuses any other."""
        model = cls.load(directory)
        kind = registry.labelled(model.task.kind)
        if kind.form != form:
            raise InputError(
                f"{directory}: a model for {kind.name}, expected one from `finetune "
                f"--task {form}`"
            )
        return model

    def digest(self) -> str:
        """Hashes all that its answers depend on, in hex digits."""
        # The task does not use these weights, which are random in each new network.
        unused = registry.find(self.task.kind).unused
        arrays = weights.from_network(self.network)
        arrays = weights.part(arrays, lambda name: not name.startswith(unused))
        task = self.task.model_dump(mode="json")
        return starting_point.digest(self.checkpoint(arrays), arrays, task=task)

    def checkpoint(self, arrays: Mapping[str, np.ndarray]) -> weights.Checkpoint:
        """Returns all that the model has in files but thresholds, with weights
        `arrays`."""
        return weights.Checkpoint(
            bert_config=self.network.config,
            task=self.task,
            arrays=arrays,
            vocabulary=self.tokenizer.vocabulary,
            do_lower_case=self.tokenizer.do_lower_case,
            settings=self.settings,
        )

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: weights.Checkpoint,
        path: str | Path,
        *,
        precision: architecture.Precision | None = None,
        network: keras.Model | None = None,
    ) -> Self | None:
        """Returns a tuned model; `None`: it was not tuned, or has no tokenizer."""
        settings, tokenizer = native.tuning_settings(checkpoint), checkpoint.tokenizer
        if settings is None or tokenizer is None:
            return None
        return cls(
            network=network or build_network(checkpoint, path, precision=precision),
            task=checkpoint.task,
            tokenizer=tokenizer,
            settings=settings,
            decision=checkpoint.decision,
            # Only our own settings come with a task that says it.
            takes_pairs=checkpoint.task.has_text_pair if checkpoint.settings else None,
        )

    def read(
        self, path: str | Path, *, has_labels: bool, task: str | None = None
    ) -> dataset.Dataset:
        """Reads a file of the task that the model was trained on. The file belongs to
        the data set `task`; `None`: the data set of the training."""
        settings = self.settings
        if task is not None:
            settings = settings.model_copy(update={"task": task})
        return catalogue.read(
            path,
            settings,
            has_labels=has_labels,
            has_text_pair=self.takes_pairs,
            reads_text=self.task.reads_text,
        )

    @functools.cached_property
    def _compute(self) -> forward.BatchPredictor:
        # Traced by the first answers, for all others.
        return forward.predictor_for(self.network)

    def answer(self, data: dataset.Dataset) -> dataset.Answers:
        inputs = data.encode(self.task, self.tokenizer, self.settings)
        outputs = self._compute(inputs, title="predicting")
        return data.answer(outputs, inputs, self.task, self.settings)

    def predict(self, examples: Iterable[Any]) -> list[answers.Record]:
        """Answers Python objects, in the forms that `LoadedModel.predict` takes.
        Returns a record for each: the example, its `prediction` and, for instance,
        `probabilities`."""
        data = registry.labelled(self.task.kind).from_python(examples, self.task)
        return list(self.answer(data).records(decision=self.decision))


def evaluate(model_dir: str | Path, input_path: str | Path) -> dict[str, float | int]:
    tuned = FinetunedModel.load(model_dir)
    data = tuned.read(input_path, has_labels=True)
    answers, decision = tuned.answer(data), tuned.decision
    scores = answers.scores(decision=decision) | answers.promise_scores(decision)
    logger.info("%s: %d examples are scored; no file is written", input_path, len(data))
    return {"num_examples": len(data), **scores}


def predict(
    model_dir: str | Path, input_path: str | Path, output_path: str | Path
) -> None:
    """Writes a tuned model's answers to a file, see `dataset.Dataset.files`.

    A single file of answers becomes `output_path`, with the columns of the input;
    several go into that directory. Labels of the input are not used. A path `-` means
    standard input, or standard output in the form of the input; of several files the
    first is printed, which has the predictions.
    """
    is_printed = str(output_path) == "-"
    output_path = Path("-") if is_printed else files.new_file(output_path)
    reading.check_output_name(output_path)
    tuned = FinetunedModel.load(model_dir)
    kind = registry.labelled(tuned.task.kind)
    if chosen := tuned.decision.label_thresholds:
        listed = ", ".join(f"{name} {value:.3g}" for name, value in chosen.items())
        logger.info("a text has a label from this probability on: %s", listed)
    with input_file(input_path, kind) as path:
        data = tuned.read(path, has_labels=False)
        answers, decision = tuned.answer(data), tuned.decision
        contents = data.files(
            answers,
            suffix=(path if is_printed else output_path).suffix.lower(),
            decision=decision,
        )
    if isinstance(decision, tasks.Calibration) and decision.inputs:
        measured = drift.measure(
            data, answers, tuned.tokenizer, temperature=decision.temperature
        )
        if differences := measured.differences(decision.inputs):
            logger.warning(
                "the input is unlike the rows that the run was calibrated on: %s; what "
                "`bert-keras calibrate` promised may not hold for it",
                ", ".join(differences),
            )
    content, *others = contents.values()
    if is_printed:
        sys.stdout.write(content)
        return
    if others:
        _write_directory(output_path, contents)
    else:
        files.write_atomically(output_path, content.encode())
    logger.info("answers to %d examples in %s", len(data), output_path)


@contextlib.contextmanager
def input_file(path: str | Path, kind: Labelled) -> Iterator[Path]:
    """Yields the file of a path; for `-` a copy of standard input. JSON lines are
    recognised; else the file is of the usual form of the kind of task."""
    if str(path) != "-":
        yield files.path(path)
        return
    content = sys.stdin.buffer.read()
    is_json_lines = ".jsonl" in kind.suffixes and content.lstrip().startswith(b"{")
    suffix = ".jsonl" if is_json_lines else kind.suffixes[0]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / f"standard_input{suffix}"
        copy.write_bytes(content)
        try:
            yield copy
        except InputError as error:
            message = str(error).replace(str(copy), "standard input")
            raise InputError(message) from None


def submit_glue(
    model_dirs: Sequence[str | Path], data: str | Path, output_path: str | Path
) -> None:
    """Answers GLUE's test files, in the folder `data`, in the leaderboard's format.

    Args:
        model_dirs: runs, at most one for each task. The MNLI run answers AX too.
        output_path: directory to make for the tables; or a `.zip` to upload, which
            needs a run for every task.
    """
    output_path = files.new_file(output_path)
    if output_path.suffix == ".zip":
        read_task = functools.partial(
            run_directory.read_task, kinds=registry.LABELLED, verb="finetune"
        )
        glue.check_is_whole([read_task(path).name for path in model_dirs])
    tables: dict[str, str] = {}
    for model_dir in model_dirs:
        model = FinetunedModel.load(model_dir)
        if model.task.name not in glue.TASKS:
            raise InputError(
                f"{model_dir}: a run on {model.settings.task}, expected one on a task "
                "of GLUE"
            )
        for name, task in glue.TASKS.items():
            if (task.same_model_as or name) != model.task.name:
                continue
            paths = glue.find_files(data, name, task.submissions)
            for split, path in paths.items():
                file_name = task.submissions[split].file_name
                if file_name in tables:
                    raise InputError(f"{model_dir}: a second run on {name}: give one")
                answers = model.answer(model.read(path, has_labels=False, task=name))
                tables[file_name] = glue.submission_tsv(name, answers.logits)
    if output_path.suffix == ".zip":
        files.write_atomically(output_path, glue.submission_zip(tables))
    else:
        _write_directory(output_path, tables)
    logger.info("%d tables in %s", len(tables), output_path)


def _write_directory(path: Path, contents: Mapping[str, str]) -> None:
    path.mkdir()
    for name, content in contents.items():
        files.write_atomically(path / name, content.encode())
