"""The fine-tuning of `bert-keras finetune`, by transformers on torch: a process.

    python -m benchmarks.finetuning_peer --task SST-2 --train train.tsv \
        --dev dev.tsv --init MODEL --output_dir runs/1 --set seed=1

Takes the same settings and files and writes a `results.json` of the same form.
Tokenizer, model and loss are those of transformers; the rest is as in its `Trainer`:
torch's fused AdamW, clipping to a norm of 1, inputs shuffled and padded to the longest
of their batch. Only the schedule is the original BERT's, as in this project (see
`Trainer`). Files are read and answers scored by this project.
"""

import argparse
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import trainer_pt_utils

from benchmarks import measuring
from bert_keras.core import files
from bert_keras.core.settings import finetuning, loading, tasks
from bert_keras.kinds import catalogue
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.tagging import tag_schemes
from bert_keras.kinds.text import text_forms
from bert_keras.labelled import dataset

MODELS = {
    "classification": transformers.BertForSequenceClassification,
    "regression": transformers.BertForSequenceClassification,
    "tagging": transformers.BertForTokenClassification,
}
NOT_DECAYED = ("bias", "LayerNorm.weight")
TOKENS_PER_BATCH = 8192
"""Tokens per batch of evaluation."""
IGNORED = -100
"""The label of a token that does not count, in torch."""

Batch = dict[str, torch.Tensor]
Settings = finetuning.FinetuningConfig


class Examples:
    """The inputs of a file as encoded by their tokenizer, with the right answers."""

    def __init__(self, tokenizer: Any, task: tasks.Task, encoded: Any):
        self._tokenizer, self._task, self._encoded = tokenizer, task, encoded
        self.lengths = [len(ids) for ids in encoded["input_ids"]]
        """Number of tokens of each input."""

    def batch(self, rows: Sequence[int]) -> Batch:
        """Returns arguments of their model, padded to the longest, with labels."""
        columns = self._encoded.items()
        features = [{name: lists[row] for name, lists in columns} for row in rows]
        return dict(self._tokenizer.pad(features, return_tensors="pt"))


class Texts(Examples):
    """Texts or pairs of them, with a class or a number each."""

    def __init__(
        self,
        data: text_forms.TextDataset,
        task: tasks.Task,
        tokenizer: Any,
        settings: Settings,
    ):
        pairs = [row.text_pair for row in data.rows] if task.has_text_pair else None
        options = {"truncation": "longest_first", "max_length": settings.max_seq_length}
        encoded = tokenizer([row.text for row in data.rows], pairs, **options)
        super().__init__(tokenizer, task, encoded)
        self._rows = data.rows
        self._label_ids = data.targets(task)

    def batch(self, rows: Sequence[int]) -> Batch:
        labels = torch.from_numpy(self._label_ids[rows])
        # Their loss takes classes as int64 and numbers as float32.
        labels = labels.long() if self._task.labels else labels
        return {**super().batch(rows), "labels": labels}

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns official scores of outputs, `(width,)` each."""
        return text_forms.TextAnswers(
            rows=self._rows,
            logits=np.stack(outputs),
            targets=self._label_ids,
            task=self._task,
        ).scores()


class Words(Examples):
    """Sentences by themselves, with a tag for each word."""

    def __init__(
        self,
        data: tagging_data.TaggingDataset,
        task: tasks.Task,
        tokenizer: Any,
        settings: Settings,
    ):
        if settings.document_context:
            raise ValueError("expected document_context=false: it is not theirs")
        self._sentences = data.rows
        words = [list(sentence.words) for sentence in data.rows]
        options = {"truncation": True, "max_length": settings.max_seq_length}
        encoded = tokenizer(words, is_split_into_words=True, **options)
        super().__init__(tokenizer, task, encoded)
        ids = tagging_data.label_ids(data.rows, task.labels, path=data.path)
        self._label_ids = np.split(ids, np.cumsum([len(w) for w in words])[:-1])

    def _first_pieces(self, row: int) -> Iterator[tuple[int, int]]:
        """Yields position and word of each word's first piece."""
        previous = None
        for position, word in enumerate(self._encoded.word_ids(row)):
            if word is not None and word != previous:
                yield position, word
            previous = word

    def batch(self, rows: Sequence[int]) -> Batch:
        batch = super().batch(rows)
        labels = torch.full_like(batch["input_ids"], IGNORED)
        for place, row in enumerate(rows):
            for position, word in self._first_pieces(row):
                labels[place, position] = int(self._label_ids[row][word])
        return {**batch, "labels": labels}

    def scores(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """Returns official scores of outputs, `(length, width)` each."""
        logits, labels = [], self._task.labels
        for row, sentence in enumerate(self._sentences):
            # A word without a piece (cut off, or control characters) is tagged O.
            of_words = np.zeros((len(sentence.words), len(labels)), np.float32)
            of_words[:, labels.index(tag_schemes.OUTSIDE)] = 1.0
            for position, word in self._first_pieces(row):
                of_words[word] = outputs[row][position]
            logits.append(of_words)
        return tagging_data.TaggingAnswers(
            sentences=self._sentences, word_logits=np.concatenate(logits), labels=labels
        ).scores()


def make_examples(
    data: dataset.Dataset, task: tasks.Task, init: Path, settings: Settings
) -> Texts | Words:
    """Returns the inputs of a file, for the model in `init`."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(init)
    kind = Words if task.kind == "tagging" else Texts
    return kind(data, task, tokenizer, settings)


def load_model(init: Path, task: tasks.Task, settings: Settings) -> torch.nn.Module:
    """Returns their model with the weights of `init`, and a new head if it has none."""
    return MODELS[task.kind].from_pretrained(
        init, num_labels=task.num_labels, classifier_dropout=settings.dropout_prob
    )


class Trainer:
    """Makes steps: forward, backward, clipping, AdamW, schedule.

    The schedule is a linear warm-up, then a linear decay that is counted from the first
    step. transformers' own is counted from the end of the warm-up: after 10 % of it,
    all its rates are a ninth higher, which by itself gives other scores.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: Settings,
        *,
        warmup_steps: int,
        num_train_steps: int,
    ):
        self._model, self._autocast = model, autocast(settings)
        named = list(model.named_parameters())
        others = [p for name, p in named if name.endswith(NOT_DECAYED)]
        decayed = [p for name, p in named if not name.endswith(NOT_DECAYED)]
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay_rate},
            {"params": others, "weight_decay": 0.0},
        ]
        rate = settings.learning_rate
        self._optimizer = torch.optim.AdamW(groups, lr=rate, fused=True)

        def share(step: int) -> float:
            if step < warmup_steps:
                return step / warmup_steps
            return max(0.0, 1 - step / num_train_steps)

        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, share)

    def step(self, batch: Batch) -> tuple[float, float]:
        """Returns loss and norm of the gradient before clipping."""
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        return loss.item(), norm.item()


def autocast(settings: Settings) -> Callable[[], Any]:
    if settings.precision == "mixed_bfloat16":
        return lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext


def training_batches(
    examples: Examples, settings: Settings, *, by_length: bool = False
) -> Iterator[Batch]:
    """Yields shuffled batches without end, with every input once per epoch.

    Args:
        examples: to train on.
        settings: with the size of a batch.
        by_length: put inputs of about one length together, an option of their trainer.
    """
    rows, size = range(len(examples.lengths)), settings.batch_size
    sampler = torch.utils.data.RandomSampler(rows)
    if by_length:
        lengths = list(examples.lengths)
        sampler = trainer_pt_utils.LengthGroupedSampler(size, lengths=lengths)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=size, sampler=sampler, collate_fn=examples.batch
    )
    while True:
        yield from loader


def evaluate(
    model: torch.nn.Module, examples: Texts | Words, settings: Settings
) -> dict[str, float]:
    """Returns official scores; batches have inputs that are alike in length."""
    model.eval()
    outputs: list[np.ndarray] = [np.zeros(0)] * len(examples.lengths)
    rest = sorted(range(len(outputs)), key=lambda row: -examples.lengths[row])
    with torch.inference_mode(), autocast(settings)():
        while rest:
            num_rows = max(1, TOKENS_PER_BATCH // examples.lengths[rest[0]])
            rows, rest = rest[:num_rows], rest[num_rows:]
            found = model(**examples.batch(rows)).logits.float().numpy()
            for row, logits in zip(rows, found, strict=True):
                if logits.ndim == 2:  # Of tokens, padding among them.
                    logits = logits[: examples.lengths[row]]
                outputs[row] = logits
    return examples.scores(outputs)


def finetune(
    settings: Settings, *, train: Path, dev: Path, init: Path
) -> dict[str, Any]:
    """Trains and scores; returns the content of `results.json`."""
    transformers.set_seed(settings.seed)
    train_data, dev_data = (catalogue.read(path, settings) for path in (train, dev))
    train_data = train_data.for_training()
    task = train_data.describe()
    examples = make_examples(train_data, task, init, settings)
    steps_per_epoch = math.ceil(len(examples.lengths) / settings.batch_size)
    num_steps = max(1, round(settings.num_train_epochs * steps_per_epoch))
    warmup_steps = int(settings.warmup_proportion * num_steps)
    model = load_model(init, task, settings).train()
    trainer = Trainer(
        model, settings, warmup_steps=warmup_steps, num_train_steps=num_steps
    )
    start = time.monotonic()
    for batch in itertools.islice(training_batches(examples, settings), num_steps):
        loss, _ = trainer.step(batch)
    scores = evaluate(model, make_examples(dev_data, task, init, settings), settings)
    seconds = round(time.monotonic() - start, 1)
    train_results = {"steps": num_steps, "seconds": seconds, "train": {"loss": loss}}
    return {**train_results, "eval": scores}


def prepare_torch() -> None:
    """Uses all cores, and silences warnings about weights that are new on purpose."""
    torch.set_num_threads(measuring.num_cores())
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("train", "dev", "init", "output_dir"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    settings = loading.load(Settings, None, [f"task={args.task}", *args.set])
    prepare_torch()
    results = finetune(settings, train=args.train, dev=args.dev, init=args.init)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    files.write_json(args.output_dir / "results.json", results)


if __name__ == "__main__":
    main()
