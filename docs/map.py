"""The map of the repository in CONTRIBUTING.md, from the modules' docstrings.

`python docs/map.py` writes it again.
"""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "CONTRIBUTING.md"
_MAP = re.compile(r"(?P<before>^## The map\n.*?^```\n).*?(?=^```$)", re.DOTALL | re.M)
_WIDTH = 118


def product_files() -> list[Path]:
    """The product's modules, in the order of the map: a folder's files, then its
    folders."""
    folders = (REPOSITORY / name for name in ("bert_keras", "pipelines", "tpu"))
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted((path.relative_to(REPOSITORY) for path in found), key=_places)


def _places(path: Path) -> list[tuple[bool, str]]:
    parts = path.parts
    return [(n < len(parts) - 1, part) for n, part in enumerate(parts)]


def draw() -> str:
    """The map: a line for each module, with the first line of its docstring."""
    lines: list[str] = []
    seen: set[Path] = set()
    for path in product_files():
        for folder in reversed(path.parents[:-1]):
            if folder not in seen:
                seen.add(folder)
                lines.append(_line(folder, f"{folder.name}/", folder / "__init__.py"))
        if path.name != "__init__.py":
            lines.append(_line(path, path.name, path))
    return "".join(f"{line}\n" for line in lines)


def _line(path: Path, name: str, module: Path) -> str:
    indented = f"{'  ' * (len(path.parts) - 1)}{name}"
    text = f"{indented:32}{_summary(module)}".rstrip()
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3].rstrip()}..."


def _summary(module: Path) -> str:
    """The first sentence of a module's docstring; nothing without one."""
    if not (REPOSITORY / module).is_file():
        return ""
    tree = ast.parse((REPOSITORY / module).read_text(encoding="utf-8"))
    paragraph = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`])\. ", paragraph)[0].removesuffix(".")


def written(page: str) -> str:
    """The page with today's map in it."""
    return _MAP.sub(lambda found: found["before"] + draw(), page, count=1)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
