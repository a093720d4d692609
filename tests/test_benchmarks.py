"""The scripts of `benchmarks/` find what they import, also within functions."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((REPOSITORY / "benchmarks").rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_imports_exist(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(REPOSITORY), str(path.parent), *sys.path])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module.partition(".")[0] in ("bert_keras", "benchmarks"):
            package = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                module = f"{node.module}.{name}"
                assert hasattr(package, name) or importlib.util.find_spec(module)
