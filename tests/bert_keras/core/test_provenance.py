import shlex
import subprocess
import sys
from pathlib import Path

import bert_keras
from bert_keras.core import provenance


def test_the_circumstances_of_a_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bert-keras", "finetune", "--train", "a b.tsv"])
    paths = {"train": "a b.tsv", "dev": ["gs://x/y"], "init": None}
    found = provenance.describe(devices="1 CPU", paths=paths)
    assert found["version"] == bert_keras.__version__
    assert found["command"] == "bert-keras finetune --train 'a b.tsv'"
    assert shlex.split(found["command"]) == sys.argv
    assert found["train"] == str(tmp_path / "a b.tsv")
    assert (found["dev"], found["directory"]) == (["gs://x/y"], str(tmp_path))
    assert found["devices"] == "1 CPU"
    assert found["keras"].startswith("3.")
    assert "init" not in found


def test_the_commit_of_a_checkout(tmp_path):
    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True)

    package = tmp_path / "package"
    package.mkdir()
    assert provenance.commit(package) is None
    git("init", "-q")
    (package / "a.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    name = git("rev-parse", "HEAD").stdout.strip()
    assert provenance.commit(package) == name
    (package / "a.py").write_text("2")
    assert provenance.commit(package) == f"{name}+changes"
    # As of an environment in a repository of something else.
    (package / "inner").mkdir()
    assert provenance.commit(Path(package / "inner")) is None
