"""Everything of today's that a user may still have tomorrow, in small: made by the code
of b52edc5, before the modules moved, and never made again.

`before_the_move.tar.xz` holds a corpus, examples, a finished and an interrupted
pre-training run, a tuned run of each form of data, three converted checkpoints and an
export, all of a BERT of 2 layers and 16 hidden units; `answers/` holds what that code
answered with them. Made by

    git worktree add ../old b52edc5
    PYTHONPATH=../old python tests/golden/before_the_move.py

`tests/test_before_the_move.py` gives the same commands to the code of today.
"""

import contextlib
import io
import json
import random
import shlex
import shutil
import tarfile
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (the operations of the exported model)

from bert_keras import cli

ARCHIVE = Path(__file__).with_name("before_the_move.tar.xz")

WORDS = [f"{a}{b}" for a in "bdgklmnprst" for b in "aeio"]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FORMS = {
    "text": ("train.tsv", "dev.tsv"),
    "tagging": ("train.txt", "dev.txt"),
    "span": ("train.json", "dev.json"),
    "choice": ("train.csv", "dev.csv"),
}
FORMATS = ("hugging_face", "google", "keras_hub")
SOURCES = {
    "run": "run",
    "checkpoint": "resumable/checkpoints/step-0000000010.npz",
    **{form: form for form in FORMATS},
}

PRETRAIN = """pretrain --examples examples --output_dir {} --strategy cpu
--set model.num_hidden_layers=2 --set model.hidden_size=16
--set model.hidden_act=gelu_tanh --set model.initializer_range=0.5
--set model.num_attention_heads=2
--set model.intermediate_size=32
--set model.max_position_embeddings=32 --set num_train_steps=12
--set save_checkpoint_steps=5 --set optimizer.warmup_steps=2
--set optimizer.learning_rate=1e-3 --set global_batch_size=8
--set num_eval_steps=2 --set precision=float32"""
FINETUNE = """finetune --task {form} --train {train} --dev {dev} --init run
--output_dir tuned/{form} --strategy cpu --set max_seq_length=24 --set batch_size=8
--set num_train_epochs=5 --set learning_rate=2e-3 --set span.doc_stride=8
--set span.max_query_length=8"""
EXAMPLES = """examples --corpus corpus --vocab vocab.txt --output {}
--max_seq_length 32 --set dupe_factor=2 --num_shards 3"""

ANSWERED = {
    "filled.txt": "fill-mask --model run --top_k 3 'ba be [MASK] bo .' '[MASK] ta to'",
    **{
        f"predicted_{form}{Path(dev).suffix if form == 'span' else '.tsv'}": (
            f"predict --model tuned/{form} --input {dev} --output {{}}"
        )
        for form, (_, dev) in FORMS.items()
    },
    **{
        f"scored_{form}.txt": f"evaluate --model tuned/{form} --input {dev}"
        for form, (_, dev) in FORMS.items()
    },
    **{
        f"vectors_{source}": (
            f"features --model {path} --input lines.txt --form lines --layers 0 -1 "
            "--output {}"
        )
        for source, path in SOURCES.items()
    },
}
"""The answer asked of each artefact: the name of a file or a directory of answers, and
the command that writes it (`{}`) or prints it."""


def main() -> None:
    """Makes the artefacts and the archive."""
    here = ARCHIVE.parent / "making"
    here.mkdir()
    with contextlib.chdir(here):
        write_inputs()
        make_artefacts()
        answer(Path("answers"))
        ask_export(Path("answers/served.json"))
        for path in sorted(here.rglob("*")):
            if path.is_dir() and path.name == "logs":
                shutil.rmtree(path)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        archive.add(here, arcname=".", filter=_of_nobody)
    shutil.rmtree(here)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def write_inputs() -> None:
    """Text to pre-train on, and a file to train on and one to answer for each form."""
    rng = random.Random(0)
    Path("vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, ".", *WORDS]) + "\n")
    Path("lines.txt").write_text("ba be bi bo\nta te . ti to\n\nunheard of\n")
    with open("text.jsonl", "w") as file:
        for number in range(30):
            start = rng.randrange(len(WORDS))
            sentences = []
            for _ in range(12):
                chosen = [WORDS[(start + i) % len(WORDS)] for i in range(6)]
                # The splitter looks for capitals.
                sentences.append(" ".join(chosen).capitalize() + ".")
                start += 6
            record = {"id": f"d{number}", "text": " ".join(sentences)}
            file.write(json.dumps(record) + "\n")
    for place, num_rows in enumerate((24, 6)):
        rows = [rng.choices(WORDS, k=6) for _ in range(num_rows)]
        labels = [rng.choice(["good", "bad"]) for _ in rows]
        write_forms(place, rows, labels)


def write_forms(place: int, rows: list[list[str]], labels: list[str]) -> None:
    """The same words as classified texts, tags, questions and endings."""
    names = {form: pair[place] for form, pair in FORMS.items()}
    texts = [" ".join(row) for row in rows]
    lines = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
    Path(names["text"]).write_text("text\tlabel\n" + "".join(lines))
    tagged = [
        "".join(f"{word} {'B-T' if word[0] == 't' else 'O'}\n" for word in row)
        for row in rows
    ]
    Path(names["tagging"]).write_text("\n".join(tagged))
    endings = [",".join([*row, str(WORDS.index(row[0]) % 4)]) for row in rows]
    header = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
    Path(names["choice"]).write_text(header + "\n".join(endings) + "\n")
    paragraphs = []
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        found = {"text": row[3], "answer_start": len(" ".join(row[:3])) + 1}
        question = {"id": str(number), "question": row[3], "answers": [found]}
        paragraphs.append({"context": text, "qas": [question]})
    content = {"version": "1.1", "data": [{"paragraphs": paragraphs}]}
    Path(names["span"]).write_text(json.dumps(content))


def make_artefacts() -> None:
    """What the commands made, in the folder of this moment."""
    run_command("corpus --jsonl text.jsonl --output corpus")
    run_command(EXAMPLES.format("examples"))
    run_command(PRETRAIN.format("run"))
    # As a kill after step 10 would have left it.
    shutil.copytree("run", "resumable")
    for name in ("checkpoints/step-0000000012.npz", "results.json", "model.weights.h5"):
        Path("resumable", name).unlink()
    for form, (train, dev) in FORMS.items():
        run_command(FINETUNE.format(form=form, train=train, dev=dev))
    for form in FORMATS:
        run_command(f"convert --input run --output {form} --to {form}")
    run_command("export --model tuned/text --output exported")


def run_command(command: str, output: Path | None = None) -> None:
    """Runs one command; a file that it has no option for gets what it prints."""
    printed = io.StringIO()
    words = [word.format(output) for word in shlex.split(command)]
    with contextlib.redirect_stdout(printed):
        code = cli.main(words)
    assert code == 0, command
    if output is not None and "{}" not in command:
        output.write_text(printed.getvalue())


def answer(directory: Path) -> None:
    """Asks everything in `ANSWERED`, of the artefacts in the folder of this moment."""
    directory.mkdir()
    for name, command in ANSWERED.items():
        run_command(command, directory / name)


def ask_export(path: Path) -> None:
    """Writes what the exported model says to the dev file's texts."""
    rows = Path(FORMS["text"][1]).read_text().splitlines()[1:]
    texts = tf.constant([row.partition("\t")[0] for row in rows])
    served = tf.saved_model.load("exported").signatures["serving_default"](text=texts)
    values = {name: value.numpy().tolist() for name, value in sorted(served.items())}
    path.write_text(json.dumps(values, default=bytes.decode, indent=1))


if __name__ == "__main__":
    main()
