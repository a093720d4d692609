"""Reads programs of XLA as text, and the messages of their compilers."""

import re
from typing import NamedTuple

from bert_keras.tpu.preflight import steps

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
_BYTES |= {f"{sign}{8 * size}": size for sign in "su" for size in (1, 2, 4, 8)}
_GIGA = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class AllReduces(NamedTuple):
    count: int
    bytes: int
    """Of all their results, in the memory of a chip."""


def all_reduces(text: str) -> AllReduces:
    """Counts the sums over chips in HLO after the compiler combined what it could."""
    # `%name = (f32[8,128]{1,0:T(8,128)}, f32[]) all-reduce(`; one in two halves has
    # its operands' and its results' shapes at its beginning.
    found = re.findall(r"^.*? = (.*?) all-reduce(-start)?\(", text, re.MULTILINE)
    total = 0
    for shapes, is_start in found:
        size = bytes_of_shapes(shapes)
        is_pair = is_start and shapes.startswith("((")
        total += size // 2 if is_pair else size
    return AllReduces(len(found), total)


def bytes_of_shapes(text: str) -> int:
    """Returns the bytes of all arrays whose shapes are in a text, padding left out."""
    total = 0
    for dtype, sides in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", text):
        if dtype in _BYTES:
            size = _BYTES[dtype]
            for side in filter(None, sides.split(",")):
                size *= int(side)
            total += size
    return total


def without_mhlo_copies(text: str) -> str:
    """Replaces TensorFlow's `mhlo.copy`, which jaxlib does not read, by reshapes."""
    text = re.sub(
        r"mhlo\.copy (%[\w#]+) : (tensor<[^>]*>)",
        r"stablehlo.reshape \1 : (\2) -> \2",
        text,
    )
    return re.sub(
        r'"mhlo\.copy"\((%[\w#]+)\)(?: \{[^}]*\})? : \((tensor<[^>]*>)\) -> '
        r"tensor<[^>]*>",
        r"stablehlo.reshape \1 : (\2) -> \2",
        text,
    )


def refused_operations(message: str) -> tuple[steps.Refused, ...]:
    """Returns the operations that TensorFlow names in an error of lowering, if any."""
    found = [
        steps.Refused(**match.groupdict(), reason=reason)
        for form, reason in _REFUSALS.items()
        for match in re.finditer(form, message)
    ]
    return tuple(dict.fromkeys(found))


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


def scope_in(message: str) -> str | None:
    """Returns the name of the operation at which a compiler failed."""
    found = re.search(r'(?:fused|loc)[\[(]\\?"([^"\\]+)', message)
    return found[1] if found else None


class Shortage(NamedTuple):
    needed: float
    is_temporaries: bool
    """Variables, batch and code come on top."""


def memory_shortage(message: str) -> Shortage | None:
    """Reads libtpu's message on a program that is too large; `None`: another error."""
    size = r"([\d.]+)([KMGT]?)"
    forms = {
        rf"HLO temporaries \({size}\) exceeds available": True,
        rf"Used {size} of [\d.]+[KMGT]? hbm": False,
    }
    for form, is_temporaries in forms.items():
        if found := re.search(form, message):
            return Shortage(float(found[1]) * _GIGA[found[2]], is_temporaries)
    return None
