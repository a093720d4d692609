"""Labels of a training file that are probably wrong: `bert-keras check-labels`.

Each label is judged by a model that was tuned on the other folds of the file, see
`confident_learning`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import starting_point
from bert_keras.core import files, manifest, ownership
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import finetuning
from bert_keras.inference import finetuned
from bert_keras.kinds import catalogue, splits
from bert_keras.labelled import dataset, reading
from bert_keras.pages import html, markdown
from bert_keras.training import finetune
from bert_keras.trust import confident_learning

logger = logging.getLogger(__name__)

TABLE_NAME, PAGE_NAME = "suspects.tsv", "suspects.html"
COLUMNS: tuple[str, ...] = ("line", "action", "reason", "label", "likelier")
COLUMNS += ("p(label)", "p(likelier)", "text")

ACTIONS = ("keep", "drop", "relabel")
"""What becomes of a row in the file to train on; relabelled with the likelier label.
The first one until a person decides: a model is wrong, too."""

NUM_SHOWN = 500
"""Rows on the page; the table has all."""


def check_labels(
    settings: finetuning.FinetuningConfig,
    *,
    train: str | Path,
    init: starting_point.Init,
    folds: int,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> list[str]:
    """Writes a table and a page of the labels of a training file that are probably
    wrong, and a file to train on. Returns lines about them.

    A second call resumes an unfinished check. In a finished directory it keeps the
    table, and follows its column `action`, which people may edit: one of `ACTIONS`.
    """
    # 1. Refuse before expensive work.
    path, directory = files.path(train), files.path(output_dir)
    kind = catalogue.find(settings)
    if not kind.judges_labels:
        raise InputError(
            f"--task {settings.task}: the labels of a task of kind {kind.name} are no "
            "classes that can be mistaken: --task text, tagging or span"
        )
    if folds < 2:
        raise InputError(f"--folds: expected 2 or more, got {folds}")
    data = kind.read(path, settings)
    data.for_training().describe()
    keys, rows = data.keys(), []
    for number in range(folds):
        part = splits.Part("", number / folds, (number + 1) / folds)
        rows.append([row for row, key in enumerate(keys) if part.holds(key)])
    if not all(rows):
        raise InputError(
            f"{path}: {len(data)} {kind.examples}, which are about {len({*keys})} "
            f"different things, leave a part of --folds {folds} empty: give more, or "
            "fewer folds"
        )
    with ownership.owned(directory):
        made_by = {"made_by": "bert-keras check-labels", "folds": folds}
        manifest.claim_output_directory(directory, made_by)
        # 2. A model for each fold, which judges the labels that it has not seen.
        judged = []
        for number, held_out in enumerate(rows, start=1):
            logger.info("fold %d of %d", number, folds)
            run = directory / f"folds/{number}"
            options = {"init": init, "from_scratch": False, "strategy": strategy}
            options |= {"train": train, "dev": [f"{number}/{folds}"], "output_dir": run}
            finetune.finetune(settings, kind, **options)
            model = finetuned.FinetunedModel.load(run)
            part = model.answer(data.subset(held_out)).judged_labels()
            judged.append(part._replace(rows=np.array(held_out)[part.rows]))
        # 3. The table, the page and the file to train on.
        suspects = list_suspects(data, *join_folds(judged))
        return write(directory, data, kind.examples, suspects)


def join_folds(
    folds: Sequence[dataset.JudgedLabels],
) -> tuple[dataset.JudgedLabels, np.ndarray]:
    """Returns the labels of all folds in the order of the file, and which of them are
    labels in another fold, too: without one, a model cannot know the label."""
    # 1. How many folds have each class.
    numbers = np.repeat(np.arange(len(folds)), [len(fold.rows) for fold in folds])
    judged = dataset.JudgedLabels(*map(np.concatenate, zip(*folds, strict=True)))
    classes = judged.groups * judged.probabilities.shape[1] + judged.labels
    of_fold = np.unique(np.stack([classes, numbers]), axis=1)[0]
    is_known = np.bincount(of_fold)[classes] > 1
    if not is_known.all():
        names = judged.names[np.arange(len(classes)), judged.labels][~is_known]
        listed = ", ".join(sorted({*names})[:20])
        logger.warning("not judged, as they are in one fold alone: %s", listed)
    # 2. The order; the last digits, in which machines differ, must not decide any.
    order = np.argsort(judged.rows, kind="stable")
    judged = judged._replace(probabilities=judged.probabilities.round(6))
    return dataset.JudgedLabels(*(v[order] for v in judged)), is_known[order]


class Suspect(NamedTuple):
    row: int
    """Its number in the file."""
    labels: tuple[str, ...]
    """All labels of the row, the likelier ones in place of those in question."""
    cells: dict[str, str]
    """By `COLUMNS`."""


def list_suspects(
    data: dataset.Dataset, judged: dataset.JudgedLabels, is_known: np.ndarray
) -> list[Suspect]:
    """Returns the rows to look at: equal texts with different labels, then the surest
    suspects."""
    is_suspected, margins = confident_learning.find_suspects(judged, is_known)
    units, best = np.arange(len(margins)), judged.probabilities.argmax(axis=-1)
    # 1. The labels in question. Neighbours of which none is the likeliest are one
    # answer, such as the words of an entity, and change together.
    differs = best != judged.labels
    facts = np.stack([differs, judged.rows, judged.groups])
    stretches = np.diff(facts, prepend=-1).any(axis=0).cumsum()
    is_asked = differs & np.isin(stretches, stretches[is_suspected])
    # 2. Equal texts with different answers, and their labels that differ.
    labels_of = np.split(units, np.searchsorted(judged.rows, range(1, len(data))))
    contents, places, conflicts = data.contents(), data.places(), {}
    for rows in contents.conflicts():
        same = np.stack([labels_of[row] for row in rows])
        labels = judged.labels[same]
        is_asked[same] |= (labels != labels[0]).any(axis=0)
        conflicts |= dict.fromkeys(rows, "conflict")
    order = np.argsort(margins, kind="stable")
    surest = judged.rows[order][is_suspected[order]].tolist()
    # 3. A line of the table for each row.
    both = np.stack([judged.labels, best])
    names, shares = judged.names[units, both], judged.probabilities[units, both]
    shown = judged.parts + np.where(names == "", dataset.NO_LABEL, names)
    suspects = []
    for row in dict.fromkeys([*conflicts, *surest]):
        own = labels_of[row]
        # Answers may differ beyond the labels, as in further right answers.
        asked = own[is_asked[own]] if is_asked[own].any() else own
        worst = asked[margins[asked].argmin()]
        cells = (
            *(places[row], ACTIONS[0], conflicts.get(row, "unlikely")),
            *map(", ".join, shown[:, asked]),
            # As spreadsheets write numbers when they save the table.
            *(f"{share:g}" for share in shares[:, worst].round(4)),
            " / ".join(contents.texts[row]),
        )
        # Lines of UTF-8: in questions, there may be halves of surrogate pairs.
        cells = (" ".join(c.encode(errors="replace").decode().split()) for c in cells)
        cells = dict(zip(COLUMNS, cells, strict=True))
        new = np.where(np.isin(own, asked), names[1, own], names[0, own])
        suspects.append(Suspect(row, (*filter(None, new),), cells))
    return suspects


def write(
    directory: Path, data: dataset.Dataset, examples: str, suspects: list[Suspect]
) -> list[str]:
    """Writes the table, the page and the file to train on. Returns lines about them."""
    path, page = directory / TABLE_NAME, directory / PAGE_NAME
    table = {suspect.cells["line"]: suspect.cells for suspect in suspects}
    # 1. The actions, which people may have edited; spreadsheets may sort the rows.
    if path.is_file():
        earlier = {row.cells.get("line", ""): row for row in reading.read_tsv(path)}
        for line in earlier.keys() & table.keys():
            table[line]["action"] = earlier[line].string("action", key=None)
            name = f"{path}: line {earlier[line].line}: `action`"
            check_choice(name, table[line]["action"], ACTIONS)
        if {line: row.cells for line, row in earlier.items()} != table:
            raise InputError(
                f"{path}: has other rows than those found now: only its column "
                "`action` may be edited; delete the table, or choose another directory"
            )
    # 2. The file to train on.
    changes = {
        row: labels if cells["action"] == "relabel" else None
        for row, labels, cells in suspects
        if cells["action"] != "keep"
    }
    if [*changes.values()].count(None) == len(data):
        raise InputError(f"{path}: drops every row, which leaves nothing to train on")
    suffix, content = data.relabelled(changes)
    cleaned = directory / f"cleaned{suffix}"
    files.write_atomically(cleaned, content.encode())
    # 3. The page.
    rows = [[*suspect.cells.values()] for suspect in suspects]
    num_conflicts = sum(row[2] == "conflict" for row in rows)
    summary = (
        f"Of {len(data):,} {examples}, {len(rows):,} should be looked at: "
        f"{num_conflicts:,} are in the file with different labels, and "
        f"{len(rows) - num_conflicts:,} have an unlikely label"
    )
    first = [[*map(markdown.excerpt, row)] for row in rows[:NUM_SHOWN]]
    text = (
        f"# Labels of {data.path.name}\n\n{summary}. The first {len(first):,} are "
        "below. If the likelier label is right, write `relabel` into the column "
        f"`action` of `{TABLE_NAME}`, or `drop` if the row is worth nothing, and run "
        f"the same command again: `{cleaned.name}` follows the column.\n\n"
        f"{markdown.table(COLUMNS, first)}"
    )
    files.write_atomically(page, html.from_markdown(text, directory))
    # 4. The table last: it says that all is there.
    content = "".join("\t".join(row) + "\n" for row in (COLUMNS, *rows))
    files.write_atomically(path, content.encode())
    return [f"{summary}:", *map(str, (page, path, cleaned))]
