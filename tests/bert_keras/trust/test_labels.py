"""`bert-keras check-labels`: its table, its page and its files to train on."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion
from bert_keras.commands import main as cli
from bert_keras.core import ownership
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.kinds import catalogue
from bert_keras.kinds.span import dataset as span
from bert_keras.kinds.span import squad
from bert_keras.labelled import dataset
from bert_keras.trust import labels
from tests import make
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.search.test_search import limited_files
from tests.bert_keras.training.step import test_learner

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *kind_data.GOOD, *kind_data.BAD, *kind_data.FILLER)
)
QUICK = {
    "max_seq_length": 24,
    "num_train_epochs": 12.0,
    "learning_rate": 0.005,
    "batch_size": 8,
    "save_checkpoint_steps": 40,
}
FINISHED = ("cleaned.tsv", "suspects.html", "suspects.tsv")


class Opinions:
    """Texts that one word decides, a few of them with the wrong label."""

    def __init__(self, folder: Path, randomize):
        self.folder, rng = folder, random.Random(5)
        make.make_run(folder / "init", VOCABULARY, kind="encoder", change=randomize)
        self.rows = []
        for number in range(120):
            word = ("fine", "dull")[number % 2]
            text = f"{kind_data.words(rng, 2, 4)} {word} {kind_data.words(rng, 2, 2)}"
            self.rows.append({"text": text, "label": ("good", "bad")[number % 2]})
        self.wrong = (7, 40, 41, 90)
        for number in self.wrong:
            self.rows[number]["label"] = ("bad", "good")[number % 2]
        # The same text with both labels.
        self.rows.append({**self.rows[3], "label": "good"})
        self.train = folder / "train.tsv"
        self.train.write_text(kind_data.DATA["classification"].write(self.rows, True))

    def arguments(self, output: Path, *more: str) -> list[str]:
        sets = [word for k, v in QUICK.items() for word in ("--set", f"{k}={v}")]
        return [
            *("check-labels", "--task", "text", "--train", str(self.train)),
            *("--init", str(self.folder / "init"), "--output_dir", str(output)),
            *("--folds", "3", *sets, *more),
        ]


@pytest.fixture(scope="module")
def opinions(tmp_path_factory, randomize) -> Opinions:
    return Opinions(tmp_path_factory.mktemp("opinions"), randomize)


@pytest.fixture(scope="module")
def checked(opinions) -> Path:
    output = opinions.folder / "checked"
    assert cli.main(opinions.arguments(output)) == 0
    return output


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FINISHED}


def table_of(directory: Path) -> list[dict[str, str]]:
    header, *lines = (directory / "suspects.tsv").read_text().splitlines()
    return [
        dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines
    ]


def test_wrong_labels_are_found_after_conflicts(opinions, checked):
    first, second, *others = table = table_of(checked)
    assert [*first] == [*labels.COLUMNS]
    # Lines are counted from 1, and the first has the names of columns.
    assert (first["line"], second["line"]) == ("5", "122")
    assert first["reason"] == second["reason"] == "conflict"
    lines = [int(row["line"]) - 2 for row in others]
    assert len({*opinions.wrong}.intersection(lines[:4])) >= 3
    for row in table:
        assert opinions.rows[int(row["line"]) - 2]["label"] == row["label"]
    for row in others:
        assert (row["action"], row["reason"]) == ("keep", "unlikely")
        assert {row["label"], row["likelier"]} == {"good", "bad"}
        assert float(row["p(label)"]) < 0.5 < float(row["p(likelier)"])
    margins = [float(row["p(label)"]) - float(row["p(likelier)"]) for row in others]
    assert margins == sorted(margins)


def test_the_file_to_train_on_follows_the_actions(opinions, checked, tmp_path):
    lines = opinions.train.read_text().splitlines()
    table = table_of(checked)
    dropped = {int(row["line"]) - 1 for row in table if row["reason"] == "unlikely"}
    others = [line for number, line in enumerate(lines) if number not in dropped]
    assert (checked / "cleaned.tsv").read_text().splitlines() == lines != others
    output = shutil.copytree(checked, tmp_path / "checked")
    path, cleaned = output / "suspects.tsv", []
    for old, new in (("keep", "drop"), ("drop", "relabel")):
        edited = path.read_text().replace(f"{old}\tunlikely", f"{new}\tunlikely")
        path.write_text(edited)
        assert cli.main(opinions.arguments(output)) == 0
        cleaned.append((output / "cleaned.tsv").read_text().splitlines())
    assert cleaned[0] == others
    for number, (old, new) in enumerate(zip(lines, cleaned[1], strict=True)):
        text, label = old.split("\t")
        other = {"good": "bad", "bad": "good"}.get(label)
        assert new == (f"{text}\t{other}" if number in dropped else old)


def test_the_page_shows_them(opinions, checked):
    page = (checked / "suspects.html").read_text()
    number = len(table_of(checked))
    assert f"Of 121 texts, {number} should be looked at: 2 are in the file" in page
    for row in table_of(checked):
        assert row["text"] in page


def test_a_second_call_writes_the_same_and_follows_edited_changes(
    opinions, checked, tmp_path
):
    output = shutil.copytree(checked, tmp_path / "checked")
    assert cli.main(opinions.arguments(output)) == 0
    assert contents(output) == contents(checked)
    # 1. A person says that the first suspect is worth nothing.
    table = (output / "suspects.tsv").read_text()
    first = table_of(output)[2]
    edited = table.replace(f"{first['line']}\tkeep\t", f"{first['line']}\tdrop\t")
    (output / "suspects.tsv").write_text(edited)
    assert cli.main(opinions.arguments(output)) == 0
    assert (output / "suspects.tsv").read_text() == edited != table
    line = f"{first['text']}\t{first['label']}"
    assert line not in (output / "cleaned.tsv").read_text()
    # 2. A spreadsheet sorts the rows, and writes its own ends of lines.
    header, *rows = edited.splitlines()
    saved = "\r\n".join([header, *sorted(rows, reverse=True)])
    (output / "suspects.tsv").write_bytes(b"\xef\xbb\xbf" + saved.encode())
    assert cli.main(opinions.arguments(output)) == 0
    assert (output / "suspects.tsv").read_text() == edited
    # 3. Other edits would be lost.
    (output / "suspects.tsv").write_text(edited.replace("unlikely", "likely", 1))
    before = contents(output)
    with pytest.raises(InputError, match="only its column `action` may be edited"):
        run(opinions, output)
    (output / "suspects.tsv").write_text(edited.replace("\tdrop\t", "\tmaybe\t", 1))
    with pytest.raises(InputError, match="line .*`action`.*maybe"):
        run(opinions, output)
    assert before["cleaned.tsv"] == contents(output)["cleaned.tsv"]


def test_no_file_is_left_where_every_row_is_dropped(opinions, tmp_path):
    train, output = tmp_path / "train.tsv", tmp_path / "checked"
    train.write_text("text\tlabel\n" + "fine fine\tgood\nfine fine\tbad\n" * 2)
    data = catalogue.read(train, finetuning.FinetuningConfig(task="text"))
    logits = np.zeros((4, 2), np.float32)
    judged = data.answers_of(logits, data.describe()).judged_labels()
    found = labels.list_suspects(data, judged, np.ones(4, bool))
    output.mkdir()
    labels.write(output, data, "texts", found)
    assert (output / "cleaned.tsv").read_text() == train.read_text()
    path = output / "suspects.tsv"
    path.write_text(path.read_text().replace("keep", "drop"))
    with pytest.raises(InputError, match="suspects.tsv: drops every row"):
        labels.write(output, data, "texts", found)
    assert (output / "cleaned.tsv").read_text() == train.read_text()


def run(opinions, output, *, train: Path | None = None, strategy=None, **changes):
    values = {"task": "text", **QUICK, **changes}
    num_folds = values.pop("num_folds", 3)
    settings = finetuning.FinetuningConfig(**values)
    return labels.check_labels(
        settings,
        train=train or opinions.train,
        init=conversion.init(str(opinions.folder / "init")),
        folds=num_folds,
        output_dir=output,
        strategy=strategy or tf.distribute.get_strategy(),
    )


@pytest.mark.slow
def test_a_check_that_was_killed_in_its_third_fold_goes_on(
    opinions, checked, tmp_path, monkeypatch, at_step
):
    output, folds = tmp_path / "checked", []

    def kill_in_the_third():
        folds.append(len(folds))
        if len(folds) == 3:
            raise KeyboardInterrupt

    at_step(60, kill_in_the_third)
    assert cli.main(opinions.arguments(output)) == 130
    assert not any((output / name).exists() for name in FINISHED)
    monkeypatch.undo()
    assert cli.main(opinions.arguments(output)) == 0
    assert contents(output) == contents(checked)


def test_two_at_once_do_not_mix(opinions, tmp_path):
    with ownership.owned(tmp_path / "checked"):
        with pytest.raises(InputError, match="in use by process"):
            run(opinions, tmp_path / "checked")


def test_a_kill_and_a_full_disk_while_files_are_written(
    opinions, checked, tmp_path, monkeypatch
):
    output, replace = shutil.copytree(checked, tmp_path / "checked"), os.replace
    for name in FINISHED:
        (output / name).unlink()

    def kill(source, target):
        if Path(target).name == "suspects.tsv":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", kill)
        run(opinions, output)
    # The table says that all is there.
    assert [name for name in FINISHED if (output / name).exists()] == [*FINISHED[:2]]
    message = "suspects.html: cannot be written: File too large; make room"
    size = (checked / "suspects.html").stat().st_size
    with limited_files(size - 1), pytest.raises(InputError, match=message):
        run(opinions, output)
    assert not (output / "suspects.tsv").exists()
    run(opinions, output)
    assert contents(output) == contents(checked)
    assert not [*output.glob(".*")]


@pytest.mark.slow
def test_two_replicas_find_what_one_device_finds(opinions, checked, tmp_path):
    run(opinions, tmp_path / "two", strategy=test_learner.mirrored(2))
    one, two = table_of(checked), table_of(tmp_path / "two")
    for name in ("line", "label", "likelier", "reason"):
        assert [row[name] for row in two] == [row[name] for row in one]
    for name in ("p(label)", "p(likelier)"):
        shares = [[float(row[name]) for row in table] for table in (one, two)]
        np.testing.assert_allclose(*shares, atol=2e-3)


def test_a_directory_of_something_else_is_left_alone(opinions, checked, tmp_path):
    (tmp_path / "novel.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and not made by this command"):
        run(opinions, tmp_path)
    with pytest.raises(InputError, match="folds=3 where this one has 2"):
        run(opinions, checked, num_folds=2)
    with pytest.raises(InputError, match="`?learning_rate`?"):
        run(opinions, checked, learning_rate=0.1)
    other = tmp_path / "other.tsv"
    other.write_text(opinions.train.read_text() + "the film is dull\tbad\n")
    with pytest.raises(InputError, match="other contents of --train"):
        run(opinions, checked, train=other)


ROWS = "".join(f"text {number}\t{number % 2}\n" for number in range(10))
BAD = {
    "no labels": ("text\na\nb\n", {}, "no column 'label'"),
    "one class": ("text\tlabel\na\tx\nb\tx\n", {}, "every row is labelled 'x'"),
    "empty": ("", {}, "expected a first line with names of columns"),
    "no rows": ("text\tlabel\n", {}, "holds no rows"),
    "fewer rows than folds": (
        "text\tlabel\na\tx\nb\ty\n",
        {},
        r"2 texts, which are about 2 different things, leave a part of --folds 3 empty",
    ),
    "ten rows": (f"text\tlabel\n{ROWS}", {"num_folds": 10}, "--folds 10 empty"),
    "one text": (
        "text\tlabel\n" + "a\tx\na\ty\n" * 9,
        {},
        "18 texts, which are about 1 different things",
    ),
    "one fold": (
        f"text\tlabel\n{ROWS}",
        {"num_folds": 1},
        "--folds: expected 2 or more",
    ),
    "numbers": (
        f"text\tlabel\n{ROWS}",
        {"regression": True},
        "a task of kind regression are no classes",
    ),
    "choice": ("", {"task": "choice"}, "a task of kind choice are no classes"),
    "embedding": ("", {"task": "embedding"}, "a task of kind embedding are no classes"),
    "ranking": ("", {"task": "ranking"}, "a task of kind ranking are no classes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_a_line_and_nothing_is_written(
    name, opinions, tmp_path
):
    content, changes, message = BAD[name]
    train = tmp_path / "train.tsv"
    train.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        run(opinions, tmp_path / "checked", train=train, **changes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "checked").exists()


def test_a_missing_model_is_refused(opinions, tmp_path, capsys):
    arguments = opinions.arguments(tmp_path / "checked")
    arguments[arguments.index("--init") + 1] = "no/such"
    assert cli.main(arguments) == 2
    assert "no/such" in capsys.readouterr().err
    assert not (tmp_path / "checked").exists()


@pytest.mark.slow
def test_a_label_of_one_fold_is_not_judged(opinions, tmp_path, caplog):
    """No model that judges it has seen it."""
    train = tmp_path / "train.tsv"
    train.write_text(opinions.train.read_text() + "the plot is so very fine\trare\n")
    output = tmp_path / "checked"
    run(opinions, output, train=train, num_folds=2, num_train_epochs=1.0)
    assert "not judged, as they are in one fold alone: rare" in caplog.text
    assert not any(row["label"] == "rare" for row in table_of(output))


# What is listed and what a file becomes, by form. The probabilities are given.


def check(
    path: Path, content: str, rows, **settings
) -> tuple[list[labels.Suspect], str]:
    """Returns the suspects, for the class of each label that a sure model answers, and
    the file with their changes."""
    path.write_text(content)
    settings = finetuning.FinetuningConfig(**settings)
    data = catalogue.read(path, settings)
    task = data.describe()
    logits = 9.0 * np.array([[name in row for name in task.labels] for row in rows])
    if task.kind == "multi_label":
        logits -= 4.5
    judged = data.answers_of(logits.astype(np.float32), task).judged_labels()
    found = labels.list_suspects(data, judged, np.ones(len(judged.labels), bool))
    return found, data.relabelled(changes_of(found))[1]


def changes_of(found: list[labels.Suspect]) -> dict[int, tuple[str, ...]]:
    return {suspect.row: suspect.labels for suspect in found}


def shown(found: list[labels.Suspect]) -> list[tuple[str, ...]]:
    cells = [suspect.cells for suspect in found]
    return [(c["line"], c["label"], c["likelier"], c["text"]) for c in cells]


def test_a_table_keeps_its_columns_and_quotes(tmp_path):
    content = 'id,label,text\n1,x,"a, ""b""\nc"\n2,x,d\n3,y,e\n4,y,f\n'
    found, corrected = check(
        tmp_path / "train.csv", content, [["y"], ["x"], ["y"], ["y"]], task="text"
    )
    assert shown(found) == [("2", "x", "y", 'a, "b" c')]
    assert corrected == content.replace("1,x", "1,y")


def test_a_label_of_json_lines_stays_a_string(tmp_path):
    content = [{"text": letter, "label": "xxyy"[n]} for n, letter in enumerate("abcd")]
    lines = "".join(f"{json.dumps(row)}\n" for row in content)
    answered = [["y"], ["x"], ["y"], ["y"]]
    _, corrected = check(tmp_path / "train.jsonl", lines, answered, task="text")
    content[0]["label"] = "y"
    assert [*map(json.loads, corrected.splitlines())] == content


SEVERAL = [["a", "b"], ["a"], ["b"], []]
FORMS = {
    "one column": (
        *(".tsv", "text\tlabel\nt\ta,b\nu\ta\nv\tb\nw\tb\n"),
        *("text\tlabel\nt\ta,b\nu\ta\nv\tb\nw\t\n", {}),
    ),
    "lists": (
        ".jsonl",
        '{"text": "t", "label": ["a", "b"]}\n{"text": "u", "label": ["a"]}\n'
        '{"text": "v", "label": ["b"]}\n{"text": "w", "label": ["b"]}\n',
        '{"text": "t", "label": ["a", "b"]}\n{"text": "u", "label": ["a"]}\n'
        '{"text": "v", "label": ["b"]}\n{"text": "w", "label": []}\n',
        {},
    ),
    "a column each": (
        *(".csv", "text,a,b\nt,1,1\nu,1,0\nv,0,1\nw,0,1\n"),
        "text,a,b\nt,1,1\nu,1,0\nv,0,1\nw,0,0\n",
        {"columns": finetuning.TextColumns(label=("a", "b"))},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_label_too_many_of_several(form, tmp_path):
    suffix, content, expected, settings = FORMS[form]
    settings = {"task": "text", "multi_label": True, **settings}
    found, corrected = check(tmp_path / f"train{suffix}", content, SEVERAL, **settings)
    [(_, label, likelier, text)] = shown(found)
    assert (label, likelier, text) == ("b", dataset.NO_LABEL, "w")
    assert corrected == expected


SENTENCES = """-DOCSTART- -X- O

Ada NN  B-PER
Lovelace NN\tI-PER
left NN O
home NN O

Rome NN B-PER\t

Ada NN B-PER
saw NN O
Rome NN B-LOC

Eve NN B-PER
Smith NN I-PER
"""


def test_all_words_of_an_entity_change_together_in_columns(tmp_path):
    """No label is I-LOC, so the model is confident of it nowhere, and `home` stays."""
    answered = "B-LOC I-LOC O I-LOC B-LOC B-PER O B-LOC B-PER I-PER".split()
    found, corrected = check(
        tmp_path / "eng.train", SENTENCES, [[tag] for tag in answered], task="tagging"
    )
    whole = ("Ada: B-PER, Lovelace: I-PER", "Ada: B-LOC, Lovelace: I-LOC")
    assert sorted(shown(found)) == [
        ("3", *whole, "Ada Lovelace left home"),
        ("8", "Rome: B-PER", "Rome: B-LOC", "Rome"),
    ]
    changed = SENTENCES.replace("NN  B-PER", "NN  B-LOC").replace("I-PER", "I-LOC", 1)
    assert corrected == changed.replace("Rome NN B-PER\t", "Rome NN B-LOC")


def test_a_conflict_shows_the_words_that_differ(tmp_path):
    content = "Ada B-PER\nleft O\nRome {}\n\n"
    content = "".join(content.format(tag) for tag in ("B-LOC", "B-PER", "B-LOC"))
    answered = [["B-PER"], ["O"], ["B-LOC"]] * 3
    found, corrected = check(tmp_path / "train.txt", content, answered, task="tagging")
    text = "Ada left Rome"
    assert shown(found) == [
        ("1", "Rome: B-LOC", "Rome: B-LOC", text),
        ("5", "Rome: B-PER", "Rome: B-LOC", text),
        ("9", "Rome: B-LOC", "Rome: B-LOC", text),
    ]
    actions = [(one.cells["reason"], one.cells["action"]) for one in found]
    assert actions == [("conflict", "keep")] * 3
    assert corrected == content.replace("Rome B-PER", "Rome B-LOC")


def test_folds_are_put_into_the_order_of_the_file(caplog):
    def fold(rows, places):
        names = np.array([["x", "y"]] * len(rows), object)
        rows, places = np.array(rows), np.array(places)
        probabilities = np.stack([1 - rows / 8, rows / 8 + 1e-9], axis=-1)
        parts = np.array([f"{row}: " for row in rows], object)
        values = (rows, places, probabilities, names, parts, 0 * rows)
        return dataset.JudgedLabels(*values)

    judged, is_known = labels.join_folds(
        [fold([1, 1, 4], [0, 1, 0]), fold([0, 2, 3], [0, 0, 0])]
    )
    assert judged.rows.tolist() == [0, 1, 1, 2, 3, 4]
    assert judged.labels.tolist() == [0, 0, 1, 0, 0, 0]
    assert judged.probabilities[:, 1].tolist() == [0, 0.125, 0.125, 0.25, 0.375, 0.5]
    assert [*judged.parts] == ["0: ", "1: ", "1: ", "2: ", "3: ", "4: "]
    # The other fold has no y.
    assert is_known.tolist() == [True, True, False, True, True, True]
    assert caplog.messages == ["not judged, as they are in one fold alone: y"]


def test_entities_of_texts_change_and_other_keys_stay(tmp_path):
    def row(text, *labels):
        places = [(0, 3), (9, 17)]
        entities = [
            {"start": start, "end": end, "label": label}
            for (start, end), label in zip(places, labels, strict=False)
        ]
        return {"text": text, "entities": entities, "id": 7}

    wrong, right = (row("Ada left New York.", "PER", label) for label in ("PER", "LOC"))
    other = row("Ada left New Rome.", "PER", "LOC")
    content = "".join(f"{json.dumps(each)}\n" for each in (wrong, other))
    answered = [["B-PER"], ["O"], ["B-LOC"], ["I-LOC"], ["O"]] * 2
    path = tmp_path / "train.jsonl"
    found, corrected = check(path, content, answered, task="tagging")
    assert [one.cells["label"] for one in found] == ["New: B-PER, York: I-PER"]
    assert [*map(json.loads, corrected.splitlines())] == [right, other]


def test_a_question_with_another_answer(tmp_path):
    questions = [
        squad.Question(
            name, f"who {name}?", "Ada and Ben met Eve", (squad.Answer(right, 0),)
        )
        for name, right in zip("abc", ("Ada", "Ada", "Zoe"), strict=True)
    ]
    data = span.SpanDataset(
        path=tmp_path, rows=questions, has_labels=True, has_impossible=False
    )
    n_best = {
        "a": [span.Candidate("Ada", 0, 5, 4), span.Candidate("Ben", 0, 0, 1)],
        "b": [span.Candidate("Ben", 0, 5, 4), span.Candidate("Ada", 0, 0, 1)],
        "c": [span.Candidate("Eve", 0, 0, 0), span.Candidate("Ben", 0, 0, 0)],
    }
    answers = span.SpanAnswers(
        questions=questions, has_impossible=False, n_best=n_best, null_odds=None
    )
    judged = answers.judged_labels()
    assert judged.names.tolist() == [["Ada", "Ben"], ["Ada", "Ben"], ["Zoe", "Eve"]]
    sure = 1 / (1 + np.exp(-8))
    np.testing.assert_allclose(
        judged.probabilities, [[sure, 1 - sure], [1 - sure, sure], [0, 0.5]]
    )
    found = labels.list_suspects(data, judged, np.ones(3, bool))
    text = "? / Ada and Ben met Eve"
    assert shown(found) == [
        ("b", "Ada", "Ben", f"who b{text}"),
        ("c", "Zoe", "Eve", f"who c{text}"),
    ]
    suffix, corrected = data.relabelled(changes_of(found))
    path = tmp_path / f"corrected{suffix}"
    path.write_text(corrected)
    again = squad.read_squad(path).questions
    places = [(question.id, question.answers) for question in again]
    assert places == [
        (name, (squad.Answer(right, start),))
        for name, right, start in (("a", "Ada", 0), ("b", "Ben", 8), ("c", "Eve", 16))
    ]


def test_a_conflict_without_a_suspect_can_be_relabelled_too(tmp_path):
    """The model is too unsure of it, but a person decides as the table says."""
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\nt\tx\nt\ty\nu\tx\nv\ty\n")
    data = catalogue.read(path, finetuning.FinetuningConfig(task="text"))
    logits = np.array([[1, 0], [1, 0], [9, 0], [0, 9]], np.float32)
    judged = data.answers_of(logits, data.describe()).judged_labels()
    found = labels.list_suspects(data, judged, np.ones(4, bool))
    assert [(label, likelier) for _, label, likelier, _ in shown(found)] == [
        ("x", "x"),
        ("y", "x"),
    ]
    _, relabelled = data.relabelled(changes_of(found))
    assert relabelled == path.read_text().replace("t\ty", "t\tx")


def test_half_of_a_surrogate_pair_is_written(tmp_path):
    questions = [
        squad.Question(
            name, "who?", f"Ada met \ud83d {name}", (squad.Answer("Ada", 0),)
        )
        for name in ("a", "b")
    ]
    data = span.SpanDataset(
        path=tmp_path, rows=questions, has_labels=True, has_impossible=False
    )
    best = [span.Candidate("Ada", 0, 5, 4), span.Candidate("met \ud83d", 0, 0, 1)]
    judged = span.SpanAnswers(
        questions=questions,
        has_impossible=False,
        n_best={"a": best, "b": best[::-1]},
        null_odds=None,
    ).judged_labels()
    judged.probabilities[1] = judged.probabilities[1, ::-1]
    found = labels.list_suspects(data, judged, np.ones(2, bool))
    assert shown(found) == [("b", "Ada", "met ?", "who? / Ada met ? b")]
    suffix, corrected = data.relabelled(changes_of(found))
    path = tmp_path / f"corrected{suffix}"
    path.write_bytes(corrected.encode())
    assert [q.context for q in squad.read_squad(path).questions] == [
        question.context for question in questions
    ]


def test_questions_that_differ_in_further_answers_are_shown(tmp_path):
    answers = squad.Answer("Ada", 0), squad.Answer("Ada L", 0)
    questions = [
        squad.Question(name, "who?", "Ada L met Eve", right)
        for name, right in (("a", answers[:1]), ("b", answers))
    ]
    data = span.SpanDataset(
        path=tmp_path, rows=questions, has_labels=True, has_impossible=False
    )
    best = [span.Candidate("Ada", 0, 5, 4), span.Candidate("Eve", 0, 0, 1)]
    judged = span.SpanAnswers(
        questions=questions,
        has_impossible=False,
        n_best={"a": best, "b": best},
        null_odds=None,
    ).judged_labels()
    found = labels.list_suspects(data, judged, np.ones(2, bool))
    text = "who? / Ada L met Eve"
    assert shown(found) == [("a", "Ada", "Ada", text), ("b", "Ada", "Ada", text)]
    assert {one.cells["reason"] for one in found} == {"conflict"}
