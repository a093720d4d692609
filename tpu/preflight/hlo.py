"""Reads programs of XLA as text, and the messages of their compilers."""

import math
import re

from bert_keras.tpu.preflight import steps

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_BYTES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}
_GIGA = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_REFUSALS = {
    r"(?P<operation>\w+) \(No registered '\w+' OpKernel"
    r".*?\{\{node (?P<scope>[^}]+)\}\}": (
        "XLA has no such operation; it would run on the host"
    ),
    r"node `(?P<scope>[^`]+)` with op (?P<operation>\w+) must be a "
    r"compile-time constant": (
        "a shape or size that it is given is known only when it runs"
    ),
}


def all_reduces(text: str) -> tuple[int, int]:
    """Counts the sums over chips in HLO after the compiler combined what it could, and
    the bytes of all their results in the memory of a chip."""
    # `%name = (f32[8,128]{1,0:T(8,128)}, f32[]) all-reduce(`; one in two halves has
    # its operands' and its results' shapes at its beginning.
    found = re.findall(r"^.*? = (.*?) all-reduce(-start)?\(", text, re.MULTILINE)
    total = 0
    for shapes, is_start in found:
        size = bytes_of_shapes(shapes)
        is_pair = is_start and shapes.startswith("((")
        total += size // 2 if is_pair else size
    return len(found), total


def bytes_of_shapes(text: str) -> int:
    """Returns the bytes of all arrays whose shapes are in a text, padding left out."""
    shapes = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", text)
    return sum(
        _BYTES.get(dtype, 0) * math.prod(map(int, re.findall(r"\d+", sides)))
        for dtype, sides in shapes
    )


def without_mhlo_copies(text: str) -> str:
    """Replaces TensorFlow's `mhlo.copy`, which jaxlib does not read, by reshapes."""
    # `mhlo.copy %1 : tensor<f32>`, or `"mhlo.copy"(%1) : (tensor<f32>) -> tensor<f32>`.
    copy = (
        r'"?mhlo\.copy"?[ (](%[\w#]+)\)?(?: \{[^}]*\})? : '
        r"\(?(tensor<[^>]*>)\)?(?: -> tensor<[^>]*>)?"
    )
    return re.sub(copy, r"stablehlo.reshape \1 : (\2) -> \2", text)


def refused_operations(message: str) -> tuple[steps.Refused, ...]:
    """Returns the operations that TensorFlow names in an error of lowering, if any."""
    found = [
        steps.Refused(**match.groupdict(), reason=reason)
        for form, reason in _REFUSALS.items()
        for match in re.finditer(form, message)
    ]
    return tuple(dict.fromkeys(found))


def scope_in(message: str) -> str | None:
    """Returns the name of the operation at which a compiler failed."""
    found = re.search(r'(?:fused|loc)[\[(]\\?"([^"\\]+)', message)
    return found[1] if found else None


def memory_shortage(message: str) -> dict[str, float]:
    """Reads libtpu's message on a program that is too large. Returns the needed bytes
    by the name that `compiling.Compiled` has for them, nothing for another error: of
    the temporaries alone, or of the whole program."""
    size = r"([\d.]+)([KMGT]?)"
    forms = {
        "temporary_bytes": rf"HLO temporaries \({size}\) exceeds available",
        "whole_bytes": rf"Used {size} of [\d.]+[KMGT]? hbm",
    }
    for name, form in forms.items():
        if found := re.search(form, message):
            return {name: float(found[1]) * _GIGA[found[2]]}
    return {}
