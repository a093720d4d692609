"""Files of questions as data sets."""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

from bert_keras.core.settings import tasks
from bert_keras.kinds.span import squad, squad_predictions, triviaqa
from bert_keras.labelled import dataset

logger = logging.getLogger(__name__)

_MAX_SHOWN = 10
"""Questions that are skipped to list."""


@dataclass(frozen=True, kw_only=True)
class SpanDataset(dataset.Dataset):
    """Rows of `squad.Question`."""

    has_impossible: bool
    """Whether questions may have no answer."""

    def keys(self) -> list[str]:
        return [question.context for question in self.rows]

    def contents(self) -> dataset.Contents:
        return dataset.Contents(
            [(question.question, question.context) for question in self.rows],
            [frozenset(a.text for a in question.answers) for question in self.rows],
            labels=["answer" if q.answers else "no answer" for q in self.rows],
        )

    def files(self, answers, *, suffix, threshold=None) -> dict[str, str]:
        return answers.files(threshold=threshold)

    def for_training(self) -> "SpanDataset":
        rows = [question for question in self.rows if question.can_be_learnt]
        return dataclasses.replace(self, rows=rows)

    def describe(self) -> tasks.Task:
        return tasks.Task(
            kind="span",
            name=self.name,
            has_text_pair=True,
            has_impossible=self.has_impossible,
        )

    def encode(self, task, tokenizer, settings) -> squad.Windows:
        length = settings.max_seq_length
        return squad.featurize(
            self.rows, tokenizer, settings.span, max_seq_length=length
        )

    def answer(self, outputs, inputs, task, settings) -> squad_predictions.SpanAnswers:
        answers = squad_predictions.predict(
            self.rows,
            inputs,
            settings.span,
            start_logits=outputs[:, 0],
            end_logits=outputs[:, 1],
            has_impossible=task.has_impossible,
        )
        return dataclasses.replace(answers, has_impossible=self.has_impossible)


def read(path: Path, name: str | None, *, has_answers: bool) -> SpanDataset:
    """Reads a file of questions in the layout of the data set `name`."""
    if name == "TriviaQA":
        evidence = path.parent.parent / "evidence"
        questions = triviaqa.read_triviaqa(path, evidence, has_answers=has_answers)
    else:
        questions = squad.read_squad(path, has_answers=has_answers)
    if questions.num_repaired_answers:
        logger.warning(
            "%s: %d answers were not where the file says, but in one other place",
            *(path, questions.num_repaired_answers),
        )
    if skipped := questions.skipped:
        lines, more = [*skipped[:_MAX_SHOWN]], len(skipped) - _MAX_SHOWN
        lines += [f"and {more} more"] if more > 0 else []
        logger.warning(
            "%s: %d questions without a text that has the answer, not trained on:%s",
            *(path, len(skipped), "".join(f"\n  {line}" for line in lines)),
        )
    return SpanDataset(
        path=path,
        rows=questions.questions,
        has_labels=has_answers,
        has_impossible=questions.has_impossible,
        name=name,
    )
