"""What a model verb says where it cannot run."""

import configparser
import os
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bert_keras.commands import main as cli
from bert_keras.core import requirements
from bert_keras.core.errors import InputError
from tests import conftest

SETUP = Path(__file__).resolve().parents[1] / "setup.cfg"

COMMANDS = (
    "pretrain --examples x --output_dir y",
    "report x",
    "fill-mask --model x",
    "score --model x --input y",
    "finetune --task text --train x --dev x --init x --output_dir y",
    "distill --teacher x --train x --output_dir y",
    "sweep --sweep sweep_paper --train x --dev x --init x --output_dir y",
    "compare --models x --train x --dev x --output_dir y",
    "evaluate --model x --input x",
    "calibrate --model x --data y",
    "check-labels --task text --train x --init x --output_dir y",
    "predict --model x --input x --output y",
    "explain --model x --input x --output y.jsonl",
    "serve --model x",
    "negatives --model x --input x --passages x --output y.tsv",
    "index --model x --input x --output y",
    "search --index x",
    "export --model x --output y",
    "features --model x --input x --output y",
    "convert --input x --output y --to native",
    "demo --output_dir y",
    "preflight --max_seq_length 128 --device v5e-1",
)

WITHOUT_TENSORFLOW = """
import contextlib, io, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras"):
            raise ModuleNotFoundError(f"No module named {name!r}")
from bert_keras.commands import main as cli
# In front of the package's own, which waits for Keras.
sys.meta_path.insert(0, Blocked())
for line in sys.stdin:
    print(cli.main(line.split()), flush=True)
"""


def test_without_tensorflow_every_model_verb_says_what_to_install(tmp_path):
    done = conftest.run_python(
        *("-c", WITHOUT_TENSORFLOW), input="\n".join(COMMANDS), cwd=tmp_path
    )
    verbs = [command.split()[0] for command in COMMANDS]
    subparsers = cli.build_parser()._subparsers._group_actions[0].choices
    needs = {
        name: getattr(parser.get_default("command"), "needs", None)
        for name, parser in subparsers.items()
    }
    assert sorted(verbs) == sorted(n for n in needs if needs[n] is not None)
    assert done.stdout.split() == ["2"] * len(verbs), done.stderr
    assert done.stderr.splitlines() == [
        f"bert-keras {verb}: error: `{verb}` needs tensorflow, keras, not installed "
        "here: run `pip install '.[train]' -c constraints.txt` in the checkout"
        for verb in verbs
    ]
    assert list(tmp_path.iterdir()) == []


def extra(name):
    """The requirements of an extra in setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(SETUP)
    lines = parser["options.extras_require"][name].split("\n")
    return [Requirement(line) for line in lines if line and line[0] != "#"]


def test_the_packages_are_those_of_the_extra():
    needed = [*extra("train"), *extra("train-without-tensorflow")]
    names = {need.name for need in needed} - {"bert-keras"}
    imported = {"scikit-learn": "sklearn", "pillow": "PIL"}
    imported["markdown-it-py"] = "markdown_it"
    assert set(requirements.TRAIN) == {
        imported.get(name, name.replace("-", "_")) for name in names
    }


@pytest.mark.parametrize("machine", ["tpu", "gpu"])
def test_pinned_wheels_are_versions_that_the_extra_allows(machine):
    text = (SETUP.parent / "requirements" / f"{machine}.txt").read_text()
    pins = [Requirement(line) for line in text.splitlines() if line[0] != "#"]
    pinned = {need.name: need.specifier for need in pins}
    for need in extra(machine):
        if need.name != "bert-keras":
            (version,) = pinned[need.name]
            assert version.operator == "=="
            assert need.specifier.contains(version.version)
    if machine == "tpu":
        # A command for people names a version, too.
        constraints = (SETUP.parent / "constraints.txt").read_text()
        (version,) = re.findall(r"^tensorflow-text==(\S+)$", constraints, re.MULTILINE)
        assert f"pip install --no-deps tensorflow-text=={version}\n" in text


@pytest.mark.parametrize(
    ("command", "backend", "expected"),
    [
        (COMMANDS[4], "torch", "tensorflow"),
        (COMMANDS[5], "jax", "tensorflow"),
        (COMMANDS[2], "nonsense", "tensorflow or jax"),
    ],
)
def test_a_backend_that_a_verb_cannot_use(
    command, backend, expected, monkeypatch, capsys
):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    verb = command.split()[0]
    assert cli.main(command.split()) == 2
    assert capsys.readouterr().err == (
        f"bert-keras {verb}: error: `{verb}` runs on {expected}, got KERAS_BACKEND="
        f"{backend}: set it to tensorflow or unset it\n"
    )


def test_the_backend_is_tensorflow_unless_named(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")
    requirements.check_backend("convert", ("tensorflow", "jax"))
    assert os.environ["KERAS_BACKEND"] == "tensorflow"
    monkeypatch.delenv("KERAS_BACKEND")
    requirements.check_backend("convert", ("tensorflow", "jax"))
    assert os.environ["KERAS_BACKEND"] == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match="^KERAS_BACKEND=jax: jax is not installed$"):
        requirements.check_backend("convert", ("tensorflow", "jax"))


@pytest.mark.slow
def test_the_lines_of_xla_are_silenced():
    """TensorFlow writes "Compiled cluster using XLA" whatever its level of messages."""
    lines = """
import os
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
from bert_keras.core import requirements
if QUIET: requirements.quiet_tensorflow()
import tensorflow as tf
assert tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(2)).numpy()[0] == 2
"""
    for quiet in (False, True):
        done = conftest.run_python("-c", lines.replace("QUIET", str(quiet)))
        assert ("Compiled cluster using XLA" in done.stderr) is not quiet
