"""Names in shared libraries (ELF, 64 bits, little-endian), without loading them.

Layout: System V ABI, "Object Files". Libraries of gigabytes are mapped, not read.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from bert_keras.errors import InputError

_DYNSYM = 11
_SECTION_BYTES, _SYMBOL_BYTES = 64, 24


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class SharedObject:
    """A library's tables, each checked against the size of the file.

    Args:
        path: of the library.

    Raises:
        InputError: no such library, or its headers point out of the file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = path
        try:
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputError(f"{path}: expected a library, it is empty") from None
        if self._bytes[:6] != b"\x7fELF\x02\x01":
            raise InputError(f"{path}: expected a 64-bit ELF library")
        (start,) = struct.unpack("<Q", self._slice(40, 8))
        size, count, self._names = struct.unpack("<HHH", self._slice(58, 6))
        if size != _SECTION_BYTES or self._names >= count:
            raise InputError(f"{path}: not a library that this program reads")
        table = self._slice(start, size * count)
        self._sections = [
            _Section(*f) for f in struct.iter_unpack("<IIQQQQIIQQ", table)
        ]

    def _slice(self, start: int, size: int) -> bytes:
        if start + size > len(self._bytes):
            raise InputError(f"{self._path}: cut off: a table lies behind its end")
        return self._bytes[start : start + size]

    def _content(self, section: _Section) -> bytes:
        return self._slice(section.offset, section.size)

    def exported(self) -> set[str]:
        """Names of the functions and variables that other libraries may ask for."""
        found = set()
        for section in self._sections:
            if section.type != _DYNSYM:
                continue
            if section.size % _SYMBOL_BYTES or section.link >= len(self._sections):
                raise InputError(f"{self._path}: damaged: its table of symbols")
            names = self._content(self._sections[section.link])
            for name, _, _, defined_in, _, _ in struct.iter_unpack(
                "<IBBHQQ", self._content(section)
            ):
                if defined_in:
                    end = names.find(b"\0", name)
                    found.add(names[name:end].decode("ascii", "replace"))
        return found

    def words(self) -> set[str]:
        """Constants of the program that look like names of C functions."""
        found = set()
        for content in self._constants():
            names = re.findall(rb"(?<=\0)[A-Za-z_][A-Za-z0-9_]{3,99}(?=\0)", content)
            found.update(name.decode() for name in names)
        return found

    def _constants(self) -> Iterator[bytes]:
        names = self._content(self._sections[self._names])
        for section in self._sections:
            if names[section.name :].split(b"\0", 1)[0].startswith(b".rodata"):
                # So that the first word, too, follows a zero byte.
                yield b"\0" + self._content(section)
