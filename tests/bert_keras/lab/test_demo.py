import json
import subprocess
import textwrap

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError, Stopped
from bert_keras.lab import demo

SOURCE = textwrap.dedent('''
    """What this module does: it is about shapes of arrays and their sizes."""

    class Table:
        """Keeps rows, each with a `key`, in the order in which they were added.

        See :class:`~numpy.ndarray` and https://example.org/x for what a row can hold.

        >>> Table().rows  # of which there are none as long as nothing was added
        []

        ===== ======
        a     table
        ===== ======

        ```
        code that is fenced, with words enough to be a paragraph of its own here
        ```

        Too short.
        """

        def add(self):
            return 1
''')


def test_source_that_is_no_python_has_no_docstrings():
    for source in (b"def (", b"\x00"):
        assert list(demo.docstrings(source)) == []


def test_prose_is_sentences_without_markup():
    paragraphs = [list(demo.prose(d)) for d in demo.docstrings(SOURCE.encode())]
    assert paragraphs == [
        ["What this module does: it is about shapes of arrays and their sizes."],
        [
            "Keeps rows, each with a key, in the order in which they were added.",
            "See numpy.ndarray and for what a row can hold.",
        ],
    ]


@pytest.mark.slow
def test_texts_of_the_demo(tmp_path, monkeypatch):
    """Labelled paragraphs come from docstrings that the corpus does not have."""
    monkeypatch.setattr(demo, "LIBRARIES", ("apache_beam", "numpy"))
    demo.write_texts(tmp_path / "text")
    corpus = (tmp_path / "text/docs.jsonl").read_text().splitlines()
    ids = [json.loads(line)["id"] for line in corpus]
    assert len(ids) == len(set(ids)) > 1000
    paragraphs = {p for line in corpus for p in json.loads(line)["text"].split("\n\n")}
    seen = set()
    for name in ("train", "dev", "test"):
        header, *rows = (tmp_path / f"text/{name}.tsv").read_text().splitlines()
        assert header == "text\tlabel"
        texts = [row.split("\t") for row in rows]
        labels = [label for _, label in texts]
        assert labels.count("numpy") == labels.count("apache_beam") >= 25
        assert not {text for text, _ in texts} & seen
        seen |= {text for text, _ in texts}
    assert not seen & paragraphs


def test_every_command_of_the_demo_is_one():
    parser = cli.build_parser()
    assert [parser.parse_args(line.split()).verb for line in demo.COMMANDS] == [
        *("corpus", "vocab", "examples", "inspect", "pretrain", "fill-mask"),
        *("finetune", "evaluate", "export", "compare"),
    ]


def test_table_is_computed(tmp_path):
    run = tmp_path / "runs/pretrained"
    run.mkdir(parents=True)
    baseline = {"commonest_token": "the", "masked_lm_accuracy": 0.0592}
    results = {"eval": {"masked_lm_accuracy": 0.3141}, "eval_baseline": baseline}
    (run / "results.json").write_text(json.dumps(results))
    points = [
        {
            "point": {"model": name, "train_fraction": fraction},
            "mean": mean,
            "deviation": deviation,
        }
        for name, fraction, mean, deviation in (
            ("TF-IDF, linear", 1, 0.5, 0.0),
            ("pretrained", 0.3, 0.1, None),
            ("pretrained", 1, 0.61, 0.01414),
            ("pretrained, random", 1, 0.333, None),
        )
    ]
    compared = json.dumps({"baselines": points[:1], "points": points[1:]})
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared/sweep.json").write_text(compared)
    assert list(demo.table(tmp_path)) == [
        "held-out accuracy, mean and deviation",
        "-" * 49,
        "masked LM, pretrained               31.4%",
        "masked LM, always 'the'              5.9%",
        "which library, pretrained           61.0% ± 1.4%",
        "which library, TF-IDF, linear       50.0% ± 0.0%",
        "which library, pretrained, random   33.3%",
    ]


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(InputError, match="other files than a demo's: choose anoth"):
        demo.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_an_interrupted_demo_resumes(tmp_path, monkeypatch):
    """Finished data is kept; a command that was stopped is given again."""
    given, texts = [], []
    # `examples` is as it would be if it had been killed.
    outputs = {"corpus": "corpus/manifest.json", "vocab": "vocab.txt"}
    outputs |= {"examples": "examples/part"}

    def run_command(command):
        verb, *_ = command
        given.append(verb)
        if verb == "pretrain":
            raise Stopped("stopped")
        if verb in outputs:
            path = tmp_path / "demo" / outputs[verb]
            path.parent.mkdir(exist_ok=True)
            path.touch()

    monkeypatch.setattr(demo, "write_texts", texts.append)
    monkeypatch.setattr(demo, "_run_command", run_command)
    for _ in range(2):
        with pytest.raises(Stopped):
            demo.run(tmp_path / "demo")
    assert len(texts) == 1
    first = ["corpus", "vocab", "examples", "inspect", "pretrain"]
    assert given == [*first, *first[2:]]


def test_a_stopped_command_stops_the_demo(monkeypatch):
    """With its exit code, and not as a failure."""

    def stopped(*_, **__):
        return subprocess.CompletedProcess([], returncode=143, stdout="")

    monkeypatch.setattr(subprocess, "run", stopped)
    with pytest.raises(Stopped, match="`bert-keras vocab` was stopped; run") as raised:
        demo._run_command(["vocab"])
    assert raised.value.exit_code == 143


def test_a_package_that_is_not_installed():
    with pytest.raises(InputError, match="documentation of no_such_package, which is"):
        list(demo.read_docstrings(["no_such_package"]))
