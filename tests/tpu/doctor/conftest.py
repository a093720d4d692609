"""Shared libraries without a program in them: tables of names alone."""

import struct
from collections.abc import Callable, Sequence

import pytest


@pytest.fixture
def elf() -> Callable[..., bytes]:
    """Makes a library."""
    return make_library


def make_library(exported: Sequence[str], constants: Sequence[str] = ()) -> bytes:
    """An ELF library of 64 bits that exports some names and holds some constants."""
    section_names = b"\0.rodata\0.dynstr\0.dynsym\0.shstrtab\0"
    rodata = b"".join(name.encode() + b"\0" for name in constants)
    dynstr, symbols = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name in exported:
        symbols += struct.pack("<IBBHQQ", len(dynstr), 0x12, 0, 1, 0x1000, 8)
        dynstr += name.encode() + b"\0"
    # Asked of others, so not exported.
    symbols += struct.pack("<IBBHQQ", len(dynstr), 0x12, 0, 0, 0, 0)
    dynstr += b"malloc\0"
    contents = (b"", rodata, dynstr, symbols, section_names)
    kinds = (("", 0, 0), (".rodata", 1, 0), (".dynstr", 3, 0))
    kinds += ((".dynsym", 11, 2), (".shstrtab", 3, 0))
    offset, table = 64, b""
    for (name, kind, link), content in zip(kinds, contents, strict=True):
        place = section_names.index(name.encode() + b"\0") if name else 0
        table += struct.pack(
            "<IIQQQQIIQQ", place, kind, 0, 0, offset, len(content), link, 0, 1, 0
        )
        offset += len(content)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, offset, 0, 64, 0, 0, 64, 5, 4)
    return head + b"".join(contents) + table
