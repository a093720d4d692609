"""Compiles steps for TPUs in an environment of its own, and keeps the results.

TensorFlow and libtpu cannot be in one process. Ours writes StableHLO; the Python of
another environment, or another process of this one if it has jax and libtpu too,
compiles it (`libtpu_compiler.py`) and answers with JSON.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bert_keras
from bert_keras.core import chips, files, provenance
from bert_keras.core.errors import InputError, one_line
from bert_keras.tpu.preflight import hlo, steps

logger = logging.getLogger(__name__)

PACKAGES = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
"""What compiles, by name and version: the extra `preflight` in setup.cfg."""

_TPU = Path(__file__).parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A step compiled for a chip, or why it could not be."""

    state_bytes: float = 0.0
    """Of all variables, as the program's figures below: of one chip."""
    argument_bytes: float = 0.0
    """Of variables and batch."""
    temporary_bytes: float = 0.0
    """Of activations, gradients and all else that a step forgets."""
    code_bytes: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0
    """Between the chip and its memory."""
    num_all_reduces: float = 0.0
    all_reduced_bytes: float = 0.0
    is_too_large: bool = False
    """Whether the compiler gave up, and reported its memory alone."""
    whole_bytes: float | None = None
    """Bytes of a program that is too large, as the compiler reports them."""
    refused: tuple[steps.Refused, ...] = ()

    @property
    def memory(self) -> float:
        if self.whole_bytes is not None:
            return self.whole_bytes
        arguments = max(self.argument_bytes, self.state_bytes)
        return arguments + self.temporary_bytes + self.code_bytes

    def fits(self, chip: chips.Chip) -> bool:
        """Whether the step compiles into the chip's memory."""
        is_whole = not (self.refused or self.is_too_large)
        return is_whole and self.memory <= chip.usable_memory

    def least_seconds(self, chip: chips.Chip) -> tuple[float, float]:
        """Returns the least time by the arithmetic, and by the bytes moved."""
        return self.flops / chip.flops, self.moved_bytes / chip.bandwidth


def cache_directory() -> Path:
    """Returns the user's directory for the compiler and results."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bert-keras" / "preflight"


def find_compiler(directory: Path) -> str:
    """Returns the Python that has jax and libtpu; an error has the command that makes
    its environment."""
    own = directory / "compiler"
    python = own / "bin" / "python"
    infos = [f"{name}-{version}.dist-info" for name, version in PACKAGES.items()]
    if all(any(own.glob(f"lib/python*/site-packages/{info}")) for info in infos):
        return str(python)
    if {name: provenance.installed_version(name) for name in PACKAGES} == PACKAGES:
        return sys.executable
    packages = [f"{name}=={version}" for name, version in PACKAGES.items()]
    make = shlex.join([sys.executable, "-m", "venv", str(own)])
    install = shlex.join([str(python), "-m", "pip", "install", *packages])
    raise InputError(
        "preflight compiles with jax and libtpu in an environment of their own (1.3 "
        f"GB), which is not there; make it with: {make} && {install}"
    )


def compile_step(step: steps.Step, device: chips.Device) -> Compiled:
    """Lowers a step and compiles it for a chip, or reads an earlier result."""
    directory = cache_directory()
    path = directory / "results" / f"{_key(step, device)}.json"
    # A result that does not exist, or is damaged, is made again.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        values = json.loads(path.read_text(encoding="utf-8"))
        refused = tuple(steps.Refused(**one) for one in values.pop("refused"))
        return Compiled(**values, refused=refused)
    python = find_compiler(directory)
    # Not at the top: it loads TensorFlow, which a saved result does not need.
    from bert_keras.tpu.preflight import lowering

    num_layers = step.bert_config.num_hidden_layers
    logger.info("lowering %s of %d layers", step.name, num_layers)
    lowered = lowering.lower(step)
    if not isinstance(lowered, lowering.Lowered):
        return Compiled(refused=lowered)
    compiled = _compile(lowered.text, step, device, python=python)
    compiled = dataclasses.replace(compiled, state_bytes=lowered.state_bytes)
    compiled = scaled_to_all_parts(compiled, step)
    _save_result(path, dataclasses.asdict(compiled))
    return compiled


def scaled_to_all_parts(compiled: Compiled, step: steps.Step) -> Compiled:
    """Scales the figures of a step to all parts of its batch.

    The first part stands before a loop over the others, and the compiler counts the
    content of a loop once: two parts are counted, however many there are. The update of
    a training step comes once: it reads weights, moments and gradients, these for their
    norm too, and writes weights and moments.
    """
    if step.num_parts <= 2:
        return compiled
    factor = step.num_parts / 2
    # Of as many bytes as the weights have, a third of the state: three read, the
    # gradients twice, three written.
    num_passes = 8 if step.purpose == "training" else 0
    update = min(num_passes * compiled.state_bytes / 3, compiled.moved_bytes)
    return dataclasses.replace(
        compiled,
        flops=compiled.flops * factor,
        moved_bytes=update + (compiled.moved_bytes - update) * factor,
    )


def _key(step: steps.Step, device: chips.Device) -> str:
    """Hashes what a result depends on: code, configuration, device, versions."""
    names = ("tensorflow", "keras")
    ours = {name: provenance.installed_version(name) for name in names}
    parts = [
        _code_sha256(),
        json.dumps(dataclasses.asdict(step), default=lambda m: m.model_dump()),
        device.chip.name,
        str(device.topology),
        json.dumps({**PACKAGES, **ours}),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _code_sha256() -> str:
    """Hashes the modules of a step, and the modules that compile it."""
    package = Path(bert_keras.__file__).parent
    patterns = ("model/*.py", "kinds/*/network.py", "core/settings/*.py")
    paths = [path for pattern in patterns for path in package.glob(pattern)]
    paths += [*package.glob("training/step/*.py"), *_TPU.glob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _save_result(path: Path, values: Mapping[str, Any]) -> None:
    try:
        files.make_directory(path.parent)
        files.write_json(path, values)
    except (InputError, OSError) as error:
        logger.warning("not saved for the next time: %s", one_line(error))


def _compile(
    text: str, step: steps.Step, device: chips.Device, *, python: str
) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="bert-keras-preflight-") as folder:
        module, program = Path(folder) / "step.mlir", Path(folder) / "step.hlo"
        module.write_text(hlo.without_mhlo_copies(text), encoding="utf-8")
        request = {
            "module": str(module),
            "hlo": str(program),
            "topology": topology_words(device),
            "num_replicas": device.num_chips,
        }
        title = f"compiling {step.name} for {device.name}"
        logger.info("%s: takes minutes", title)
        answer = _ask(python, request, title=title)
        if "error" in answer:
            message = answer["error"]
            if shortage := hlo.memory_shortage(message):
                return dataclasses.replace(Compiled(is_too_large=True), **shortage)
            if scope := hlo.scope_in(message):
                why = f"libtpu does not compile it: {message:.200}"
                one = steps.Refused(operation="an operation", scope=scope, reason=why)
                return Compiled(refused=(one,))
            text = f"libtpu does not compile for {device.name}: {message:.300}"
            raise InputError(text)
        num_sums, sum_bytes = hlo.all_reduces(program.read_text(encoding="utf-8"))
    memory = answer["memory"]
    return Compiled(
        # Results that live in no argument's memory are temporaries to us.
        argument_bytes=memory["argument"],
        temporary_bytes=memory["temp"] + memory["output"] - memory["alias"],
        code_bytes=memory["generated_code"],
        flops=answer["flops"],
        moved_bytes=answer["bytes"],
        num_all_reduces=num_sums,
        all_reduced_bytes=sum_bytes,
    )


def topology_words(device: chips.Device) -> dict[str, Any]:
    """Describes a device for jax's `get_topology_desc`."""
    words: dict[str, Any] = {"topology_name": f"{device.chip.name}:{device.topology}"}
    if device.num_chips == 1:
        words["chips_per_host_bounds"] = [1, 1, 1]
    if device.chip.name == "v4":
        # Both cores of a chip as one device, which is how TensorFlow uses them.
        words["chip_config_name"] = "megacore"
    return words


def _ask(python: str, request: Mapping[str, Any], *, title: str) -> dict[str, Any]:
    """Runs the compiler and returns its answer. The compiler watches its input, so it
    ends with this process, whatever ends it."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [python, str(_TPU / "libtpu_compiler.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            # A compiler that ended before it read gives no answer, which is seen below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
        process.wait()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or ["no message"]
    try:
        return json.loads(answer)
    except ValueError:
        raise InputError(
            f"{title}: the compiler ended with code {process.returncode} and without "
            f"an answer ({last[0]:.200}); a killed one has often run out of memory"
        ) from None
