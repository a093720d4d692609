"""Versions of Python and its packages, compared with this package's requirements."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator

from packaging import requirements, utils

from bert_keras.core import provenance
from bert_keras.tpu.doctor.findings import Finding, Problem, look

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
    yield look("python", _python, purpose)
    yield look("packages", _versions, purpose)
    if purpose != "dataflow":
        yield look("tensorflow", _build, purpose)


def _python(purpose: str) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    last = (3, 12) if purpose == "tpu" else (3, 13)
    if not (3, 11) <= sys.version_info[:2] <= last:
        found = f"{version}, expected 3.11 to {last[0]}.{last[1]}"
        raise Problem(found, _INSTALL[purpose])
    return version


def _versions(purpose: str) -> str:
    try:
        known = importlib.metadata.metadata(_US).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        found = f"{_US} is not installed: the versions it needs are not known"
        raise Problem(found, _INSTALL[purpose]) from None
    if older := sorted(set(EXTRAS[purpose]) - set(known)):
        found = f"the {_US} that is installed is older, it knows no extra {older[0]}"
        raise Problem(found, _INSTALL[purpose])
    needs = _requirements(EXTRAS[purpose])
    wrong = []
    for need in needs:
        version = provenance.installed_version(need.name)
        if version is None:
            wrong.append((need, "missing"))
        elif not need.specifier.contains(version, prereleases=True):
            wrong.append((need, version))
    if not wrong:
        return f"{len(needs)} packages of the right version"
    found = (f"{n.name} {v}, expected {n.specifier or 'any'}" for n, v in wrong)
    names = " ".join(f"'{need.name}{need.specifier}'" for need, _ in wrong)
    # Without its dependencies, a package cannot bring another build of TensorFlow.
    fix = f"pip install --no-deps {names}"
    if any(version == "missing" for _, version in wrong):
        fix = _INSTALL[purpose]
    raise Problem("; ".join(found), fix)


def _requirements(extras: tuple[str, ...]) -> list[requirements.Requirement]:
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


def _build(purpose: str) -> str:
    versions = {name: provenance.installed_version(name) for name in _BUILDS}
    builds = [f"{name} {version}" for name, version in versions.items() if version]
    expected = "tensorflow-tpu" if purpose == "tpu" else "tensorflow"
    if len(builds) > 1:
        names = " ".join(name.partition(" ")[0] for name in builds)
        raise Problem(
            f"{' and '.join(builds)} share one folder: files of both lie in it",
            f"pip uninstall --yes {names} && {_INSTALL[purpose]}",
        )
    if not builds or importlib.util.find_spec("tensorflow") is None:
        raise Problem(f"not installed, expected {expected}", _INSTALL[purpose])
    if builds[0].startswith("tensorflow-tpu ") != (purpose == "tpu"):
        raise Problem(f"{builds[0]}, expected {expected}", _INSTALL[purpose])
    return builds[0]
