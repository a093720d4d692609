"""Mutants of the product: small changes of its lines that the fast tests should find.

`python -m tests.mutants draw TREE OTHER_TREE` prints mutants of lines that stand in
both trees, equally many of each folder. `python -m tests.mutants run TREE MUTANTS
RESULTS` runs the tests of each mutant's module in a fork of a process that has loaded
TensorFlow; the mutant replaces the module as it is imported, and no file changes.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import random
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SWAPS: dict[type, tuple[str, str]] = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">=")},
    **{ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "==")},
    **{ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not")},
    **{ast.IsNot: ("is not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and")},
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+")},
    **{ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*")},
}
MESSAGES = re.compile(r"^\s*(raise|logger\.|\"|f\"|')|print\(")
NUM_FILES = 6
SECONDS = 240


class Line(NamedTuple):
    """A line of a function's body, and the changes that make mutants of it."""

    file: str
    number: int
    function: str
    text: str
    changes: list[str]


def changes_of(node: ast.AST, line: str) -> Iterator[str]:
    """Yields the line as a mutant has it, for a node that stands on it alone."""
    start, end = node.col_offset, node.end_col_offset
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        value = not node.value if type(node.value) is bool else node.value + 1
        yield f"{line[:start]}{value}{line[end:]}"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield f"{line[:start]}return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"{line[:start]}pass"
    elif isinstance(node, ast.Compare):
        yield from swapped(node.ops[0], node.left, node.comparators[0], line)
    elif isinstance(node, ast.BoolOp):
        yield from swapped(node.op, node.values[0], node.values[1], line)
    elif isinstance(node, ast.BinOp) and '"' not in line[start:end]:
        yield from swapped(node.op, node.left, node.right, line)


def swapped(op: Any, left: ast.expr, right: ast.expr, line: str) -> Iterator[str]:
    old, new = SWAPS.get(type(op), ("", ""))
    between = line[left.end_col_offset : right.col_offset]
    if old and between.strip(" ()") == old:
        place = left.end_col_offset + between.index(old)
        yield line[:place] + new + line[place + len(old) :]


def lines_of(tree: Path) -> Iterator[Line]:
    for path in sorted(p for n in ("bert_keras", "pipelines", "tpu")
                       for p in (tree / n).rglob("*.py")):  # fmt: skip
        lines = path.read_text(encoding="utf-8").splitlines()
        for function in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(function, ast.FunctionDef):
                continue
            changes = defaultdict(list)
            body = [n for statement in function.body for n in ast.walk(statement)]
            for node in body:
                number = getattr(node, "lineno", 0)
                if number and number == node.end_lineno:
                    line = lines[number - 1]
                    if line.isascii() and not MESSAGES.search(line):
                        changes[number] += changes_of(node, line)
            for number in range(function.body[0].lineno, function.end_lineno + 1):
                text, file = lines[number - 1], str(path.relative_to(tree))
                yield Line(file, number, function.name, text, changes[number])


def draw(tree: Path, other: Path, number: int, seed: int) -> list[dict[str, Any]]:
    """Draws mutants of lines that stand once in each tree, in functions of one name."""
    places = []
    for root in (tree, other):
        places.append(defaultdict(list))
        for line in lines_of(root):
            places[-1][line.function, line.text.strip()].append(line)
    by_room = defaultdict(list)
    for key, (line, *more) in places[0].items():
        there = places[1].get(key, [])
        if not more and len(there) == 1 and line.changes:
            room = "/".join(line.file.split("/")[: 1 + line.file.startswith("bert_")])
            by_room[room].append((line, there[0]))
    choose, mutants, functions = random.Random(seed), [], set()
    for lines in by_room.values():
        choose.shuffle(lines)
    while len(mutants) < number and any(by_room.values()):
        for room in sorted(by_room):
            line, there = by_room[room].pop() if by_room[room] else (None, None)
            if line and (line.file, line.function) not in functions:
                functions.add((line.file, line.function))
                change = choose.choice(line.changes).strip()
                places_of = {str(tree): line[:2], str(other): there[:2]}
                texts = {"before": line.text.strip(), "after": change}
                mutants.append({"room": room, "places": places_of, **texts})
    return mutants[:number]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from a text."""

    def __init__(self, name: str, path: Path, text: str):
        self.name, self.path, self.text = name, str(path), text

    def find_spec(self, fullname, path=None, target=None):
        if fullname == self.name:
            location = importlib.util.spec_from_file_location
            return location(fullname, self.path, loader=self)

    def get_filename(self, fullname):
        return self.path

    def get_data(self, path):
        return self.text.encode()


def module_of(file: str) -> str:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("bert_keras") else f"bert_keras.{name}"


def tests_of(tree: Path, file: str) -> list[str]:
    """Returns test files of a module: its own, those that import it, and those of
    modules that import it."""
    package, _, name = module_of(file).rpartition(".")
    imports = re.compile(
        rf"from {package} import (\([^)]*)?[^)\n]*\b{name}\b|"
        rf"{re.escape(module_of(file))}\b"
    )
    folder = (tree / "tests" / file).parent
    texts = {
        path: path.read_text(encoding="utf-8")
        for root in ("tests", "bert_keras", "pipelines", "tpu")
        for path in sorted((tree / root).rglob("*.py"))
    }
    importing = [path for path, text in texts.items() if imports.search(text)]
    stems = {f"test_{path.stem}" for path in importing}
    tests = [p for p in texts if p.name.startswith("test_")]
    ranks = {
        p: (p.stem != f"test_{name}", p not in importing, p.parent != folder, str(p))
        for p in tests
        if p in importing or p.stem in stems or p.stem == f"test_{name}"
    }
    chosen = sorted(ranks, key=ranks.__getitem__)
    return list(map(str, chosen or sorted(folder.glob("test_*.py"))))[:NUM_FILES]


def run_mutant(tree: Path, mutant: dict[str, Any]) -> dict[str, Any]:
    file, number = mutant["places"][str(tree)]
    path, tests = tree / file, tests_of(tree, file)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[number - 1].strip() == mutant["before"], (file, number)
    lines[number - 1] = lines[number - 1].replace(mutant["before"], mutant["after"])
    begin = time.monotonic()
    child = os.fork()
    if not child:
        os.setpgrp()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ["PYTHONPATH"] = str(tree)
        mutated = Mutated(module_of(file), path, "\n".join(lines) + "\n")
        sys.meta_path.insert(0, mutated)
        import pytest

        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        os._exit(pytest.main([*options, *tests]))
    status = None
    while status is None and time.monotonic() < begin + SECONDS:
        time.sleep(0.1)
        ended, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if ended else None
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    seconds = round(time.monotonic() - begin)
    # 5: there was no test. A mutant that runs for ever is found.
    return {**mutant, "killed": status not in (0, 5), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["draw", "run"])
    parser.add_argument("tree", type=Path)
    parser.add_argument("rest", nargs="+", type=Path)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="every M-th mutant from N: N/M")
    args = parser.parse_args()
    tree = args.tree.resolve()
    if args.verb == "draw":
        mutants = draw(tree, args.rest[0].resolve(), args.number, args.seed)
        print(json.dumps(mutants, indent=1))
        return
    import tensorflow  # noqa: F401

    part, num_parts = map(int, args.part.split("/"))
    for mutant in json.loads(args.rest[0].read_text())[part::num_parts]:
        with args.rest[1].open("a", encoding="utf-8") as results:
            results.write(json.dumps(run_mutant(tree, mutant)) + "\n")


if __name__ == "__main__":
    main()
