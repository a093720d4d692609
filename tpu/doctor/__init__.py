"""`bert-keras doctor`: is this machine ready to train?"""

from collections.abc import Iterator, Sequence

from bert_keras.core import files
from bert_keras.tpu.doctor import accelerators, packages, places
from bert_keras.tpu.doctor.findings import Finding, look


def examine(purpose: str, paths: Sequence[str] = ()) -> Iterator[Finding]:
    """Examines this machine; loads no TensorFlow here, and changes nothing that stays.
    `paths` are directories, local or remote, that a run will read or write."""
    yield from packages.examine(purpose)
    if purpose == "gpu":
        yield from accelerators.examine_gpus()
    if purpose == "tpu":
        yield from accelerators.examine_tpu()
    for path in paths:
        if files.is_remote(path):
            is_trained_on = purpose != "dataflow"
            yield from places.examine_store(path, is_trained_on=is_trained_on)
        else:
            yield look(f"disk {path}", places.check_disk, path)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields a line for each finding, and below it the command that fixes it."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{finding.state:8} {finding.name:{width}}  {finding.found}"
        if finding.fix:
            yield f"{'':8} {'':{width}}  -> {finding.fix}"


def problems(findings: Sequence[Finding]) -> str | None:
    """Returns the names of the problems, for the last line; `None` if all is well."""
    names = [finding.name for finding in findings if finding.state == "problem"]
    if not names:
        return None
    noun = "problem" if len(names) == 1 else "problems"
    return f"{len(names)} {noun}: {', '.join(names)}"
