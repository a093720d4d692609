"""Labels of a training file that are probably wrong: `bert-keras check-labels`.

Each label is judged by a model that was tuned on the other folds of the file, see
`confident_learning`.
"""

import collections
import itertools
import logging
import math
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
from bert_keras.labelled import dataset, reading, tables
from bert_keras.pages import html, markdown
from bert_keras.training import finetune
from bert_keras.trust import confident_learning

logger = logging.getLogger(__name__)

TABLE_NAME, PAGE_NAME = "suspects.tsv", "suspects.html"
CONFLICT = "conflict"
COLUMNS = ("line", "action", "reason", "label", "likelier")
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
    names, keys = [f"{n}/{folds}" for n in range(1, folds + 1)], data.keys()
    parts = [part for name in names if (part := splits.parse_split([name]))]
    rows = [[row for row, key in enumerate(keys) if p.holds(key)] for p in parts]
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
        for name, held_out in zip(names, rows, strict=True):
            logger.info("fold %s", name)
            run = directory / f"folds/{name.partition('/')[0]}"
            options = {"init": init, "from_scratch": False, "strategy": strategy}
            options |= {"train": train, "dev": [name], "output_dir": run}
            finetune.finetune(settings, kind, **options)
            model = finetuned.FinetunedModel.load(run)
            part = model.answer(data.subset(held_out)).judged_labels()
            judged.append(part._replace(rows=np.array(held_out)[part.rows]))
        # 3. The table, the page and the files to train on.
        suspects = list_suspects(data, *join_folds(judged))
        return _write(directory, data, kind.examples, suspects)


def join_folds(
    folds: Sequence[dataset.JudgedLabels],
) -> tuple[dataset.JudgedLabels, np.ndarray]:
    """Returns the labels of all folds in the order of the file, and which of them are
    labels in another fold, too: without one, a model cannot know the label."""
    order = np.argsort(np.concatenate([fold.rows for fold in folds]), kind="stable")
    numbers = np.repeat(np.arange(len(folds)), [len(fold.rows) for fold in folds])
    columns = zip(*(fold[:-2] for fold in folds), strict=True)
    columns = [np.concatenate(values)[order] for values in columns]
    judged = dataset.JudgedLabels._make([*columns, *folds[0][-2:]])
    # The last digits, in which machines differ, must not decide the order.
    judged = judged._replace(probabilities=judged.probabilities.round(6))
    cells = judged.groups * judged.probabilities.shape[1] + judged.labels
    counts = np.zeros((len(folds), cells.max() + 1), int)
    np.add.at(counts, (numbers[order], cells), 1)
    is_known = counts[numbers[order], cells] < counts.sum(axis=0)[cells]
    if not is_known.all():
        names = judged.names[np.arange(len(cells)), judged.labels][~is_known]
        listed = ", ".join(sorted({*names})[:20])
        logger.warning("not judged, as they are in one fold alone: %s", listed)
    return judged, is_known


class Suspects(NamedTuple):
    table: list[dict[str, str]]
    """The rows to look at, by `COLUMNS`: equal texts with different labels, then the
    surest suspects."""
    labels: list[tuple[int, tuple[str, ...]]]
    """Of each, its number in the file, and its labels, those shown replaced."""
    classes: collections.Counter[tuple[str, str]]
    """How often a class is suspected to be a likelier one."""


def list_suspects(
    data: dataset.Dataset, judged: dataset.JudgedLabels, is_known: np.ndarray
) -> Suspects:
    is_suspected, margins = confident_learning.find_suspects(judged, is_known)
    units, best = np.arange(len(margins)), judged.probabilities.argmax(axis=-1)
    given, likelier = (judged.names[units, c] for c in (judged.labels, best))
    pairs = zip(given[is_suspected], likelier[is_suspected], strict=True)
    suspects = Suspects(
        [], [], collections.Counter(pairs if judged.have_classes else ())
    )
    # 1. All labels of one answer, such as the words of an entity, change together.
    is_changed, differs = is_suspected, best != judged.labels
    if judged.are_joined:
        is_begin = np.diff(differs, prepend=False) | (
            np.diff(judged.rows, prepend=0) > 0
        )
        stretches = np.cumsum(is_begin)
        is_changed = differs & np.isin(stretches, stretches[is_suspected])
    # 2. The rows to list, and their labels in question.
    contents, by_text = data.contents(), collections.defaultdict(list)
    for row, parts in enumerate(contents.texts):
        by_text[parts].append(row)
    bounds = np.searchsorted(judged.rows, range(len(data) + 1))
    units_of = [units[start:end] for start, end in itertools.pairwise(bounds)]
    conflicts, is_shown = {}, is_changed.copy()
    for rows in by_text.values():
        if len({contents.answers[row] for row in rows}) > 1:
            # Equal texts have equally many labels.
            same = np.stack([units_of[row] for row in rows])
            is_shown[same] |= (given[same] != given[same[0]]).any(axis=0)
            conflicts |= dict.fromkeys(rows)
    order = np.lexsort((judged.rows, margins))
    surest = judged.rows[order][is_suspected[order]].tolist()
    places = data.places()
    for row in dict.fromkeys([*conflicts, *surest]):
        own = units_of[row]
        # Answers may differ beyond the labels, as in other right answers.
        shown = own[is_shown[own]] if is_shown[own].any() else own
        is_own = is_suspected[own].any()
        asked = own[is_suspected[own]] if is_own else shown
        worst = asked[margins[asked].argmin()]
        cells = [
            ", ".join(f"{judged.parts[u]}{names[u] or dataset.NO_LABEL}" for u in shown)
            for names in (given, likelier)
        ]
        for place in (judged.labels[worst], best[worst]):
            # As spreadsheets write numbers when they save the table.
            value = float(judged.probabilities[worst, place])
            cells.append(f"{round(value, 4):g}")
        reason = CONFLICT if row in conflicts else "unlikely"
        text = " / ".join(contents.texts[row])
        cells = (places[row], ACTIONS[0], reason, *cells, text)
        # Of questions, texts may have halves of surrogate pairs.
        cells = (cell.encode(errors="replace").decode() for cell in cells)
        suspects.table.append(dict(zip(COLUMNS, cells, strict=True)))
        # As the table shows them.
        new = np.where(np.isin(own, shown), likelier[own], given[own])
        suspects.labels.append((row, tuple(filter(None, new))))
    return suspects


def _write(
    directory: Path, data: dataset.Dataset, examples: str, suspects: Suspects
) -> list[str]:
    # 1. The table, in which people may have edited the actions.
    path, page, earlier = directory / TABLE_NAME, directory / PAGE_NAME, {}
    if path.is_file():
        earlier = {row.cells.get("line"): row for row in reading.read_tsv(path)}
    for cells in suspects.table:
        if (row := earlier.get(cells["line"])) is not None:
            cells["action"] = row.string("action", key=None)
            name = f"{path}: line {row.line}: `action`"
            check_choice(name, cells["action"], ACTIONS)
    table = tables.joined(suspects.table, {}, suffix=".tsv") if suspects.table else ""
    table = table or "\t".join(COLUMNS) + "\n"
    # Spreadsheets may sort rows, and end lines in their way.
    lines = sorted(filter(None, table.split("\n")))
    if path.is_file() and sorted(filter(None, reading.read_lines(path))) != lines:
        raise InputError(
            f"{path}: has other rows than those found now: only its column `action` "
            "may be edited; delete the table, or choose another directory"
        )
    # 2. The file to train on.
    changes = {
        row: new if cells["action"] == "relabel" else None
        for cells, (row, new) in zip(suspects.table, suspects.labels, strict=True)
        if cells["action"] != "keep"
    }
    suffix, content = data.relabelled(changes)
    paths = [page, path, directory / f"cleaned{suffix}"]
    files.write_atomically(paths[-1], content.encode())
    # 3. The page.
    num_conflicts = sum(cells["reason"] == CONFLICT for cells in suspects.table)
    summary = (
        f"Of {len(data):,} {examples}, {len(suspects.table):,} should be looked at: "
        f"{num_conflicts:,} are in the file with different labels, and "
        f"{len(suspects.table) - num_conflicts:,} have an unlikely label"
    )
    text = f"# Labels of {data.path.name}\n\n{summary}."
    rows = [
        [
            markdown.percent(float(c)) if n.startswith("p(") else markdown.excerpt(c)
            for n, c in cells.items()
        ]
        for cells in suspects.table[:NUM_SHOWN]
    ]
    if rows:
        text += (
            f"\n\n## Rows to look at\n\nThe first {len(rows):,}. If the likelier label "
            f"is right, write `relabel` into the column `action` of `{TABLE_NAME}`, or "
            "`drop` if the row is worth nothing, and run the same command again: "
            f"`{paths[-1].name}` follows the column.\n\n{markdown.table(COLUMNS, rows)}"
        )
    counts, rows = collections.Counter(data.contents().labels), []
    for pair, number in suspects.classes.most_common():
        names = [markdown.literal(name or dataset.NO_LABEL) for name in pair]
        share = markdown.percent(number / counts.get(pair[0], math.nan))
        rows.append([*names, f"{number:,}", share])
    if rows:
        header = ["label", "likelier", "suspected", "share of the label"]
        text += "\n\n## Which label is suspected to be which\n\n"
        text += markdown.table(header, rows)
    files.write_atomically(page, html.from_markdown(text, directory))
    # 4. The table last: it says that all is there.
    files.write_atomically(path, table.encode())
    return [f"{summary}:", *map(str, paths)]
