"""Who may import whom, and what must stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("bert_keras", "pipelines", "tpu")
FLOOR = {
    f"bert_keras.{name}"
    for name in (
        *("errors", "progress", "config", "features", "files", "manifest"),
        *("tokenization", "token_offsets", "masking", "dynamic_masking", "flops"),
    )
}
# Remote paths go through Beam, which is loaded when one is met.
LAZY = {("bert_keras.files", "apache_beam.io")}
HEAVY = ("tensorflow", "tensorflow_text", "keras", "apache_beam", "torch", "jax")


def product_files() -> list[Path]:
    files = (f for name in PACKAGES for f in (REPOSITORY / name).rglob("*.py"))
    return sorted(files)


def module_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                as_path = REPOSITORY / whole.replace(".", "/")
                is_module = as_path.with_suffix(".py").is_file() or as_path.is_dir()
                yield whole if is_module else node.module


def belongs_to(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", product_files(), ids=module_name)
def test_imports_follow_the_architecture(path):
    module = module_name(path)
    for imported in set(imports(path)):
        if (module, imported) in LAZY:
            continue
        assert imported != "bert_keras.cli", "nobody imports the command line"
        ours = any(belongs_to(imported, package) for package in PACKAGES)
        if module in FLOOR:
            assert not any(belongs_to(imported, heavy) for heavy in HEAVY), imported
            assert not ours or imported in FLOOR | {"bert_keras"}, imported
        if belongs_to(module, "pipelines"):
            assert not any(belongs_to(imported, h) for h in HEAVY if h != "apache_beam")
            if ours:
                assert belongs_to(imported, "pipelines") or imported in FLOOR, imported
        if belongs_to(module, "bert_keras.tasks"):
            assert not any(belongs_to(imported, heavy) for heavy in HEAVY), imported
            if ours and not belongs_to(imported, "bert_keras.tasks"):
                assert imported in FLOOR, imported
        if belongs_to(module, "bert_keras") and module != "bert_keras.cli":
            assert not belongs_to(imported, "tpu"), "training is given a strategy"
            assert not belongs_to(imported, "pipelines"), imported


KERAS_ONLY = (
    *("layers", "operations", "dropout", "encoder", "heads", "losses"),
    *("pretraining", "encoder_with_head", "networks"),
    *("classification", "tagging", "span", "choice"),
    *("bilstm", "probe"),
)


@pytest.mark.parametrize("name", KERAS_ONLY)
def test_the_model_knows_no_backend(name):
    path = REPOSITORY / "bert_keras" / f"{name}.py"
    for imported in imports(path):
        assert not belongs_to(imported, "tensorflow"), imported
        assert not belongs_to(imported, "jax"), imported


def modules_loaded_by(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    return set(done.stdout.split())


def test_the_floor_and_the_help_load_nothing_heavy():
    statement = "import bert_keras, bert_keras.cli, " + ", ".join(sorted(FLOOR))
    assert not modules_loaded_by(statement) & set(HEAVY)


def test_a_beam_worker_loads_no_tensorflow():
    names = [module_name(path) for path in product_files()]
    workers = [name for name in names if belongs_to(name, "pipelines")]
    loaded = modules_loaded_by("import " + ", ".join(workers))
    assert "apache_beam" in loaded
    assert not loaded & (set(HEAVY) - {"apache_beam"})


def test_passes_on_this_machine_load_no_beam():
    """It would take 140 MB in every process."""
    names = ("corpus", "examples", "vocabulary", "inspection.description")
    modules = [f"pipelines.{name}" for name in names] + ["pipelines.engine.engines"]
    assert not modules_loaded_by("import " + ", ".join(modules)) & set(HEAVY)


@pytest.mark.parametrize("path", product_files(), ids=module_name)
def test_a_module_stays_readable(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 550
