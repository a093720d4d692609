"""Versions of Python and its packages, compared with this package's requirements."""

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator

from packaging import requirements, utils

from bert_keras.tpu.doctor.findings import Finding

EXTRAS = {
    "cpu": ("train",),
    "gpu": ("train", "gpu"),
    "tpu": ("tpu",),
    "dataflow": ("gcp",),
}
"""Extras of setup.cfg that each purpose needs."""

_US = "bert-keras"
_INSTALL = {
    "cpu": "make install",
    "gpu": "make install-gpu",
    "tpu": "make install-tpu PYTHON=python3.12",
    "dataflow": "pip install '.[gcp]' -c constraints.txt",
}
_BUILDS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")
"""Packages that own the folder `tensorflow`: of two, files of both lie in it."""


def examine(purpose: str) -> Iterator[Finding]:
    """Examines Python's version, the packages, and the build of TensorFlow."""
    yield _python(purpose)
    yield _versions(purpose)
    if purpose != "dataflow":
        yield _build(purpose)


def _python(purpose: str) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    last = (3, 12) if purpose == "tpu" else (3, 13)
    if (3, 11) <= sys.version_info[:2] <= last:
        return Finding("python", "ok", version)
    return Finding(
        "python",
        "problem",
        f"{version}, expected 3.11 to {last[0]}.{last[1]}",
        _INSTALL[purpose],
    )


def _versions(purpose: str) -> Finding:
    try:
        known = importlib.metadata.metadata(_US).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        found = f"{_US} is not installed: the versions it needs are not known"
        return Finding("packages", "problem", found, _INSTALL[purpose])
    if older := sorted(set(EXTRAS[purpose]) - set(known)):
        found = f"the {_US} that is installed is older, it knows no extra {older[0]}"
        return Finding("packages", "problem", found, _INSTALL[purpose])
    wanted = _wanted(EXTRAS[purpose])
    wrong = []
    for need in wanted:
        version = installed_version(need.name)
        if version is None:
            wrong.append((need, "missing"))
        elif not need.specifier.contains(version, prereleases=True):
            wrong.append((need, version))
    if not wrong:
        return Finding("packages", "ok", f"{len(wanted)} packages of the right version")
    told = (f"{n.name} {v}, expected {n.specifier or 'any'}" for n, v in wrong)
    names = " ".join(f"'{need.name}{need.specifier}'" for need, _ in wrong)
    # Without its dependencies, a package cannot bring another build of TensorFlow.
    fix = f"pip install --no-deps {names}"
    if any(version == "missing" for _, version in wrong):
        fix = _INSTALL[purpose]
    return Finding("packages", "problem", "; ".join(told), fix)


def _wanted(extras: tuple[str, ...]) -> list[requirements.Requirement]:
    """Returns this package's requirements with some extras, from its own metadata."""
    lines = importlib.metadata.requires(_US) or []
    found: dict[str, requirements.Requirement] = {}
    pending = list(extras)
    for extra in pending:
        for line in lines:
            need = requirements.Requirement(line)
            if need.marker and not need.marker.evaluate({"extra": extra}):
                continue
            if utils.canonicalize_name(need.name) == _US:
                pending += sorted(need.extras - set(pending))
            else:
                found[utils.canonicalize_name(need.name)] = need
    return list(found.values())


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _build(purpose: str) -> Finding:
    versions = {name: installed_version(name) for name in _BUILDS}
    there = [f"{name} {version}" for name, version in versions.items() if version]
    expected = "tensorflow-tpu" if purpose == "tpu" else "tensorflow"
    if len(there) > 1:
        names = " ".join(name.partition(" ")[0] for name in there)
        return Finding(
            "tensorflow",
            "problem",
            f"{' and '.join(there)} share one folder: files of both lie in it",
            f"pip uninstall --yes {names} && {_INSTALL[purpose]}",
        )
    if not there or not has_module("tensorflow"):
        found = f"not installed, expected {expected}"
        return Finding("tensorflow", "problem", found, _INSTALL[purpose])
    is_tpu = there[0].startswith("tensorflow-tpu ")
    if is_tpu != (purpose == "tpu"):
        found = f"{there[0]}, expected {expected}"
        return Finding("tensorflow", "problem", found, _INSTALL[purpose])
    return Finding("tensorflow", "ok", there[0])


def has_module(name: str) -> bool:
    """Whether a top-level module can be imported; imports nothing."""
    return re.fullmatch(r"\w+", name) is not None and (
        importlib.util.find_spec(name) is not None
    )
