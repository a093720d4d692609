"""The fine-tuning of `bert-keras finetune`, by transformers on torch: a process.

    python -m benchmarks.finetuning.peer --task SST-2 --train train.tsv \
        --dev dev.tsv --init MODEL --output_dir runs/1 --set seed=1

Takes the same settings and files and writes a `results.json` of the same form.
Tokenizer, model and loss are those of transformers; the rest is as in its `Trainer`:
torch's fused AdamW, clipping to a norm of 1, inputs shuffled and padded to the longest
of their batch. Only the schedule is the original BERT's, as in this project (see
`rate_of`). Files are read, answers scored and the windows of SQuAD cut by this
project.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from transformers import trainer_pt_utils

from bert_keras import config, config_files, files, finetuning_config, progress
from bert_keras.data import tokenization
from bert_keras.tasks import (
    catalogue,
    dataset,
    forms,
    ner,
    text,
    text_forms,
)

MODELS = {
    "classification": transformers.BertForSequenceClassification,
    "regression": transformers.BertForSequenceClassification,
    "tagging": transformers.BertForTokenClassification,
    "span": transformers.BertForQuestionAnswering,
}
NOT_DECAYED = ("bias", "LayerNorm.weight")
TOKENS_PER_BATCH = 8192
"""Tokens per batch of evaluation."""
IGNORED = -100
"""The label of a token that does not count, in torch."""

Batch = dict[str, torch.Tensor]


class Examples(Protocol):
    """A file's inputs, with the right answers."""

    lengths: Sequence[int]
    """Number of tokens of each input."""

    def batch(self, rows: Sequence[int]) -> Batch:
        """Arguments of their model, labels included, padded to the longest."""

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """Official scores of each input's outputs, `(width,)` or `(length, width)`."""


class _Encoded:
    """Texts as encoded by their tokenizer."""

    def __init__(self, tokenizer: Any, encoded: Any):
        self._tokenizer = tokenizer
        self._encoded = encoded
        self.lengths = [len(ids) for ids in encoded["input_ids"]]

    def word_ids(self, row: int) -> list[int | None]:
        return self._encoded.word_ids(row)

    def batch(self, rows: Sequence[int]) -> Batch:
        columns = self._encoded.items()
        features = [{name: lists[row] for name, lists in columns} for row in rows]
        return dict(self._tokenizer.pad(features, return_tensors="pt"))


class Texts:
    """Texts or pairs of them, with a class or a number each."""

    def __init__(
        self,
        data: text_forms.TextDataset,
        task: config.Task,
        tokenizer: Any,
        settings: finetuning_config.FinetuningConfig,
    ):
        self._data, self._task = data, task
        self._encoded = _Encoded(
            tokenizer,
            tokenizer(
                [row.text for row in data.rows],
                [row.text_pair for row in data.rows] if task.has_text_pair else None,
                truncation="longest_first",
                max_length=settings.max_seq_length,
            ),
        )
        self.lengths = self._encoded.lengths
        self._label_ids = text.label_ids(data.rows, task.labels, path=data.path)

    def batch(self, rows: Sequence[int]) -> Batch:
        labels = torch.from_numpy(self._label_ids[rows])
        # Their loss takes classes as int64 and numbers as float32.
        labels = labels.long() if self._task.labels else labels
        return {**self._encoded.batch(rows), "labels": labels}

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        return text_forms.TextAnswers(
            rows=self._data.rows,
            logits=np.stack(outputs),
            label_ids=self._label_ids,
            task=self._task,
        ).scores()


class Words:
    """Sentences by themselves, with a tag for each word."""

    def __init__(
        self,
        data: forms.TaggingDataset,
        task: config.Task,
        tokenizer: Any,
        settings: finetuning_config.FinetuningConfig,
    ):
        if settings.document_context:
            raise ValueError("expected document_context=false: it is not theirs")
        self._sentences, self._labels = data.sentences, task.labels
        self._encoded = _Encoded(
            tokenizer,
            tokenizer(
                [list(sentence.words) for sentence in data.sentences],
                is_split_into_words=True,
                truncation=True,
                max_length=settings.max_seq_length,
            ),
        )
        self.lengths = self._encoded.lengths
        ids = ner.label_ids(data.sentences, task.labels, path=data.path)
        ends = np.cumsum([len(sentence.words) for sentence in data.sentences])
        self._label_ids = np.split(ids, ends[:-1])

    def _first_pieces(self, row: int) -> Iterator[tuple[int, int]]:
        """Position and word of each word's first piece."""
        previous = None
        for position, word in enumerate(self._encoded.word_ids(row)):
            if word is not None and word != previous:
                yield position, word
            previous = word

    def batch(self, rows: Sequence[int]) -> Batch:
        batch = self._encoded.batch(rows)
        labels = torch.full_like(batch["input_ids"], IGNORED)
        for place, row in enumerate(rows):
            for position, word in self._first_pieces(row):
                labels[place, position] = int(self._label_ids[row][word])
        return {**batch, "labels": labels}

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        logits = []
        for row, sentence in enumerate(self._sentences):
            # A word without a piece (cut off, or control characters) is tagged O.
            of_words = np.zeros((len(sentence.words), len(self._labels)), np.float32)
            of_words[:, self._labels.index(ner.OUTSIDE)] = 1.0
            for position, word in self._first_pieces(row):
                of_words[word] = outputs[row][position]
            logits.append(of_words)
        return ner.scores(np.concatenate(logits), self._labels, self._sentences)


class Windows:
    """Questions with windows of their texts, as this project cuts them."""

    def __init__(
        self,
        data: forms.SpanDataset,
        task: config.Task,
        inputs: dataset.Inputs,
        settings: finetuning_config.FinetuningConfig,
    ):
        self._data, self._task, self._settings = data, task, settings
        self._inputs = inputs
        self.lengths = inputs.lengths.tolist()

    def batch(self, rows: Sequence[int]) -> Batch:
        names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
        return {
            names.get(name, name): torch.from_numpy(values).long()
            for name, values in self._inputs.batch(np.asarray(rows)).items()
        }

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        # The tokens of all windows are end to end, in the order of the windows.
        return self._data.answer(
            np.concatenate(outputs), self._inputs, self._task, self._settings
        ).scores()


def make_examples(
    data: dataset.Dataset,
    task: config.Task,
    init: Path,
    settings: finetuning_config.FinetuningConfig,
) -> Examples:
    """The inputs of a file that was read, for the model in `init`."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(init)
    if task.kind == "span":
        ours = tokenization.Tokenizer(
            tokenization.Vocabulary.load(init / "vocab.txt"),
            do_lower_case=tokenizer.do_lower_case,
        )
        return Windows(data, task, data.encode(task, ours, settings), settings)
    kind = Words if task.kind == "tagging" else Texts
    return kind(data, task, tokenizer, settings)


def load_model(
    init: Path, task: config.Task, settings: finetuning_config.FinetuningConfig
) -> torch.nn.Module:
    """Their model with the weights of `init`, and a new head if it has none."""
    return MODELS[task.kind].from_pretrained(
        init, num_labels=task.num_labels, classifier_dropout=settings.dropout_prob
    )


def rate_of(step: int, *, warmup_steps: int, num_train_steps: int) -> float:
    """The share of the full rate: linear warm-up, then linear decay that is counted
    from the first step.

    transformers' own is counted from the end of the warm-up: after 10 % of it, all its
    rates are a ninth higher, which by itself gives other scores.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, 1 - step / num_train_steps)


class Trainer:
    """Makes steps: forward, backward, clipping, AdamW, schedule."""

    def __init__(
        self,
        model: torch.nn.Module,
        settings: finetuning_config.FinetuningConfig,
        *,
        warmup_steps: int,
        num_train_steps: int,
    ):
        self._model = model
        self._autocast = autocast(settings)
        named = list(model.named_parameters())
        others = [p for name, p in named if name.endswith(NOT_DECAYED)]
        decayed = [p for name, p in named if not name.endswith(NOT_DECAYED)]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay_rate},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            fused=True,
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer,
            functools.partial(
                rate_of, warmup_steps=warmup_steps, num_train_steps=num_train_steps
            ),
        )

    def step(self, batch: Batch) -> tuple[float, float]:
        """Loss and norm of the gradient before clipping."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        return loss.item(), norm.item()


def autocast(settings: finetuning_config.FinetuningConfig) -> Callable[[], Any]:
    if settings.precision == "mixed_bfloat16":
        return lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext


def training_batches(
    examples: Examples,
    settings: finetuning_config.FinetuningConfig,
    *,
    by_length: bool = False,
) -> Iterator[Batch]:
    """Endless shuffled batches, with every input once per epoch.

    Args:
        examples: to train on.
        settings: with the size of a batch.
        by_length: put inputs of about one length together, an option of their trainer.
    """
    sampler = torch.utils.data.RandomSampler(range(len(examples.lengths)))
    if by_length:
        sampler = trainer_pt_utils.LengthGroupedSampler(
            settings.batch_size, lengths=list(examples.lengths)
        )
    loader = torch.utils.data.DataLoader(
        range(len(examples.lengths)),
        batch_size=settings.batch_size,
        sampler=sampler,
        collate_fn=examples.batch,
    )
    while True:
        yield from loader


def evaluate(
    model: torch.nn.Module,
    examples: Examples,
    settings: finetuning_config.FinetuningConfig,
) -> dict[str, float]:
    """Official scores; in batches of inputs that are alike in length."""
    model.eval()
    outputs: list[np.ndarray] = [np.zeros(0)] * len(examples.lengths)
    rest = sorted(range(len(outputs)), key=lambda row: -examples.lengths[row])
    num_done = 0
    with (
        torch.inference_mode(),
        autocast(settings)(),
        progress.Progress(
            "evaluating",
            total=len(outputs),
            unit="inputs",
            read=lambda: num_done,
            only_if_long=True,
        ),
    ):
        while rest:
            num_rows = max(1, TOKENS_PER_BATCH // examples.lengths[rest[0]])
            rows, rest = rest[:num_rows], rest[num_rows:]
            found = _logits(model(**examples.batch(rows)))
            for row, logits in zip(rows, found, strict=True):
                if logits.ndim == 2:  # Of tokens, padding among them.
                    logits = logits[: examples.lengths[row]]
                outputs[row] = logits
            num_done += len(rows)
    return examples.scores(outputs)


def _logits(found: Any) -> np.ndarray:
    if "start_logits" in found:
        logits = torch.stack([found.start_logits, found.end_logits], dim=-1)
    else:
        logits = found.logits
    return logits.float().numpy()


def finetune(
    settings: finetuning_config.FinetuningConfig, *, train: Path, dev: Path, init: Path
) -> dict[str, Any]:
    """Trains and scores; returns what `results.json` holds."""
    transformers.set_seed(settings.seed)
    train_data, dev_data = (catalogue.read(path, settings) for path in (train, dev))
    train_data = train_data.for_training()
    task = train_data.describe()
    examples = make_examples(train_data, task, init, settings)
    steps_per_epoch = math.ceil(len(examples.lengths) / settings.batch_size)
    num_steps = max(1, round(settings.num_train_epochs * steps_per_epoch))
    model = load_model(init, task, settings).train()
    trainer = Trainer(
        model,
        settings,
        warmup_steps=int(settings.warmup_proportion * num_steps),
        num_train_steps=num_steps,
    )
    batches, num_done, losses = training_batches(examples, settings), 0, []
    start = time.monotonic()
    with progress.Progress(
        f"{settings.task} by transformers",
        total=num_steps * settings.batch_size,
        unit="examples",
        read=lambda: num_done * settings.batch_size,
    ):
        for batch in batches:
            losses.append(trainer.step(batch)[0])
            num_done += 1
            if num_done == num_steps:
                break
    scores = evaluate(model, make_examples(dev_data, task, init, settings), settings)
    return {
        "steps": num_steps,
        "seconds": round(time.monotonic() - start, 1),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_train_examples": len(train_data),
        "num_eval_examples": len(dev_data),
        "train": {"loss": losses[-1]},
        "eval": scores,
    }


def prepare_torch() -> None:
    """Uses all cores, and silences warnings about weights that are new on purpose."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("train", "dev", "init", "output_dir"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    settings = config_files.load(
        finetuning_config.FinetuningConfig, None, [f"task={args.task}", *args.set]
    )
    prepare_torch()
    results = finetune(settings, train=args.train, dev=args.dev, init=args.init)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    content = json.dumps(results, indent=2) + "\n"
    files.write_atomically(args.output_dir / "results.json", content.encode())


if __name__ == "__main__":
    main()
