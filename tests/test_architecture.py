"""Who may import whom, and what must stay light."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import conftest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("bert_keras", "pipelines", "tpu")

FLOORS = {
    "core": "",
    "pages": "",
    "data": "core",
    "model": "core",
    "labelled": "core data",
    "graphs": "core data",
    "kinds": "core pages data model labelled graphs",
    "checkpoints": "core data model kinds",
    "inference": "core data model labelled kinds checkpoints",
    "search": "core data labelled inference",
    "scoring": "core pages data model labelled kinds inference",
    "report": "core pages data model labelled kinds checkpoints",
    "training": "core pages data model labelled kinds checkpoints inference report "
    "scoring",
    "export": "core data model labelled kinds checkpoints inference report",
    "serve": "core kinds search export",
    "trust": "core pages labelled kinds checkpoints inference training",
    "lab": "core pages data model labelled kinds checkpoints inference training",
    "tpu": "core data model kinds report training",
    "pipelines": "core data",
}
"""Folders, from the ground up, and those that each may import besides itself;
`commands` may import all of them."""

HEAVY = ("tensorflow", "tensorflow_text", "keras", "apache_beam", "torch", "jax")
LIGHT = ("core", "pages", "data", "labelled", "kinds", "report", "lab/sweep")
"""Folders whose modules load none of these when they are imported; but files of kinds
that are named for it, `network*` and `served*`, do."""

LAZY = {
    ("bert_keras.model.fusion", "tensorflow"),
    ("bert_keras.model.recomputation", "tensorflow"),
}
"""Imports where they are needed: one operation is compiled by TensorFlow, and its trace
forgotten, where that is the backend."""


def product_files() -> list[Path]:
    files = (f for name in PACKAGES for f in (REPOSITORY / name).rglob("*.py"))
    return sorted(files)


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    if parts[0] != "bert_keras":
        # As they are installed.
        parts = ("bert_keras", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The folder that a module of ours is in; `door` for the library's own door."""
    _, *rest = module.split(".")
    is_door = not rest or rest[0] in ("__main__", "keras_names")
    return "door" if is_door else rest[0]


def is_light(path: Path) -> bool:
    inside = path.relative_to(REPOSITORY / path.relative_to(REPOSITORY).parts[0])
    is_heavy = inside.parts[0] == "kinds" and re.match("network|served", path.name)
    return not is_heavy and any(inside.as_posix().startswith(f"{n}/") for n in LIGHT)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it, but for its types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                as_path = REPOSITORY / whole.replace(".", "/")
                is_module = as_path.with_suffix(".py").is_file() or as_path.is_dir()
                yield whole if is_module else node.module


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "bert_keras"


def is_allowed(importer: str, imported: str) -> bool:
    """Whether a module may import another one, both of ours."""
    ours, theirs = room_of(importer), room_of(imported)
    if ours in (theirs, "commands", "door") or theirs == "door":
        return True
    return theirs in FLOORS[ours].split()


def test_imports_follow_the_architecture():
    for path in product_files():
        module = module_name(path)
        room = room_of(module)
        for imported in set(imports(path)):
            heavy = imported.partition(".")[0]
            if is_ours(imported):
                assert is_allowed(module, imported), (module, imported)
            elif room == "model":
                knows_backend = heavy in ("tensorflow", "jax")
                is_lazy = (module, heavy) in LAZY
                assert not knows_backend or is_lazy, (module, imported)
            elif room == "pipelines":
                assert heavy not in HEAVY or heavy == "apache_beam", (module, imported)
            elif is_light(path) and room not in ("report", "lab"):
                assert heavy not in HEAVY, (module, imported)


def test_kinds_import_modules_and_do_not_name_them():
    """An editor, pyright and these tests follow an import, and no string."""
    for path in (REPOSITORY / "bert_keras/kinds").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"resolve_name|import_module|__import__", text), path


def test_kinds_do_not_import_each_other():
    folder = REPOSITORY / "bert_keras/kinds"
    names = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert len(names) == 7
    for path in folder.glob("*/*.py"):
        parts = [module.split(".") for module in imports(path)]
        others = {part[2] for part in parts if part[1:2] == ["kinds"] and part[2:]}
        assert not others & names - {path.parent.name}, path


BRANCHES = {
    "checkpoints.conversion": 3,
    "checkpoints.formats.sentence_transformers": 1,
    "checkpoints.native": 3,
    "checkpoints.run_directory": 1,
    "checkpoints.weights": 1,
    "core.settings.tasks": 1,
    "core.settings.finetuning": 1,
    "export.writing": 1,
    "inference.loading": 1,
    "lab.distill.data": 2,
    "lab.sweep.baselines": 1,
    "lab.sweep.running": 1,
    "report.facts": 2,
    "tpu.preflight.steps": 1,
    "tpu.preflight.lowering": 2,
    "training.finetuning.job": 1,
}
"""Branches on the kind of task outside of `kinds/` by module; 60 are the most.

Lower a number when a branch goes; a new one is a missing method of a kind."""


OTHER_KINDS = (
    *("report.scalar_log", "checkpoints.containers.keras_files", "core.manifest"),
    *("training.step.replicas", "tpu.strategy", "tpu.cluster"),
)


def branches_on_the_kind() -> Counter[str]:
    """Comparisons of a kind of task with names of kinds, and lookups by it.

    Those in `kinds/` are its own; `pipelines`, `data` and `OTHER_KINDS` know kinds of
    other things.
    """
    found: Counter[str] = Counter()
    for path in product_files():
        module = module_name(path)
        is_other = module.removeprefix("bert_keras.") in OTHER_KINDS
        if is_other or room_of(module) in ("kinds", "pipelines", "data"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                asked = node.left
            elif isinstance(node, ast.Match):
                asked = node.subject
            elif isinstance(node, ast.Subscript):
                asked = node.slice
            elif isinstance(node, ast.Call) and node.args:
                is_lookup = isinstance(node.func, ast.Attribute)
                asked = node.args[0] if is_lookup and node.func.attr == "get" else None
            else:
                continue
            text = ast.unparse(asked) if asked else ""
            if re.fullmatch(r"(\w+\.)*kind|\w*_kind", text) and "KINDS" not in text:
                found[module.removeprefix("bert_keras.")] += 1
    return found


def test_branches_on_the_kind_are_few():
    found = branches_on_the_kind()
    assert {m: n for m, n in found.items() if n > BRANCHES.get(m, 0)} == {}
    assert found.total() <= 60


LINES = {
    "commands": 1865,
    "serve": 410,
    "trust": 955,
    "lab": 3005,
    "export": 1360,
    "training": 5838,
    "report": 1690,
    "search": 645,
    "scoring": 655,
    "inference": 1325,
    "checkpoints": 4405,
    "kinds": 8250,
    "graphs": 615,
    "labelled": 1930,
    "model": 2590,
    "data": 1770,
    "pages": 790,
    "core": 3455,
    "tpu": 2070,
    "pipelines": 7475,
    "door": 135,
}
"""Lines that each folder may have; 47,000 in all are the aim. Raise a number only with
a sentence in the commit that says why."""


def test_folders_stay_within_their_lines():
    lines: Counter[str] = Counter()
    for path in product_files():
        text = path.read_text(encoding="utf-8")
        lines[room_of(module_name(path))] += len(text.splitlines())
    assert {room: n for room, n in lines.items() if n > LINES[room]} == {}


RUN_FILES = {"config.yaml", "task.json", "results.json", "dev_answers.jsonl"}
RUN_FILES |= {"checkpoints", "bert_config.json"}


def test_one_module_names_the_files_of_a_run():
    naming = {}
    for path in product_files():
        if room_of(module_name(path)) in ("pipelines", "tpu"):
            continue
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
        if found := texts & RUN_FILES:
            naming[module_name(path)] = found
    # A preset of KerasHub has a `task.json` of its own.
    assert naming.pop("bert_keras.checkpoints.formats.keras_hub") == {"task.json"}
    assert naming == {"bert_keras.checkpoints.run_directory": RUN_FILES}


HELP = """
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    from bert_keras.commands import main
    assert main.main(["config", "page"]) == main.main(["plan"]) == 0
    main.main(["pretrain", "--help"])
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Modules that are loaded after each of several steps of one process.

    Each step loads what must stay away from less than the step before it.
    """
    names = [module_name(path) for path in product_files()]
    passes = ("corpus", "examples", "vocabulary", "inspection.description")
    light = [module_name(path) for path in product_files() if is_light(path)]
    imports_of = {
        "passes": [
            "bert_keras.pipelines.engine.engines",
            *(f"bert_keras.pipelines.{n}" for n in passes),
        ],
        "light rooms": [*light, "bert_keras.checkpoints.training_state"],
        "workers": [name for name in names if room_of(name) == "pipelines"],
    }
    steps = {"help": HELP}
    steps |= {key: f"import {', '.join(names)}" for key, names in imports_of.items()}
    program = "import contextlib, io, json, sys\n"
    for step in steps.values():
        program += f"{step}\nprint(json.dumps([*sys.modules]))\n"
    done = conftest.run_python("-W", "ignore", "-c", program)
    found = map(json.loads, done.stdout.splitlines())
    return {step: set(modules) for step, modules in zip(steps, found, strict=True)}


@pytest.mark.parametrize(
    ("step", "loads", "does_not_load"),
    [
        ("help", "bert_keras.commands.parser", {*HEAVY, "numpy"}),
        # Beam would take 140 MB in every process.
        ("passes", "bert_keras.pipelines.corpus", {*HEAVY}),
        # A sweep leaves the memory to its processes; numpy is all that archives need.
        ("light rooms", "bert_keras.lab.sweep", {*HEAVY}),
        ("light rooms", "bert_keras.kinds.text.text", {*HEAVY}),
        ("workers", "apache_beam", {*HEAVY} - {"apache_beam"}),
    ],
)
def test_heavy_packages_are_loaded_where_they_are_needed(
    loaded, step, loads, does_not_load
):
    assert loads in loaded[step]
    assert not loaded[step] & does_not_load


def lines_imported_by(module: str) -> int:
    """Lines of a module and of all of ours that it imports, in functions too."""
    paths = {module_name(path): path for path in product_files()}
    names, left = set(), [module]
    while left:
        name = left.pop()
        if name in names or name not in paths or name == "bert_keras":
            continue
        names.add(name)
        left += [name.rpartition(".")[0], *filter(is_ours, imports(paths[name]))]
    texts = (paths[name].read_text(encoding="utf-8") for name in names)
    return sum(len(text.splitlines()) for text in texts)


@pytest.mark.parametrize(("verb", "most"), [("pretrain", 16_200), ("finetune", 19_000)])
def test_a_training_imports_what_it_needs(verb, most):
    """Neither the kinds of other tasks nor formats of checkpoints: commands open these.

    The number of lines shows what one has to read."""
    assert lines_imported_by(f"bert_keras.training.{verb}") <= most
