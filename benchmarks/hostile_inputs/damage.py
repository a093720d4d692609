"""Damage to files: bytes, lines, or values of JSON and YAML."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import yaml

NUMBERS = (0, -1, 1, 2, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, -0.0)
VALUES = (
    *NUMBERS,
    *(None, True, False, "", " ", "x", "\0", "\ud800", "é", "x" * 5000, "../x", "a\nb"),
    *(float("nan"), float("inf"), [], {}, [[]], [None], {"x": 1}, {"": ""}, ["x"] * 99),
)
TOKENS = (
    rb"""
    " ' \ { } [ ] < > & | = : , # - {{ }} [[ ]] {| |} <!-- --> <ref> </ref>
    <page> </page> <text> </text> <nowiki> &amp; &#0; <![CDATA[ ]]> </doc>
    null NaN 1e999 -1 \u0000 \ud800 *a !!int !!bool <<: 2001-99-99 B-PER I- -DOCSTART-
    """.split()
    + [b"", b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t"]
    + [b" " * 3000]
    + [b"9" * 5000, b"0x" + b"f" * 5000, b"&a [*a]", b"<!DOCTYPE a [<!ENTITY b 'c'>]>"]
    + [b"<doc id='1'>", b"*** START OF THE PROJECT GUTENBERG EBOOK X ***"]
    + [b"*** END OF THE PROJECT GUT", "\u2028".encode(), "\u0301".encode() * 50]
    + ["好".encode() * 500]
)
NESTS = (
    (b"[", b"]"),
    (b'{"a":', b"}"),
    (b"{{a|", b"}}"),
    (b"[[", b"]]"),
    (b"<b>", b"</b>"),
)


def damage(data: bytes, choose: random.Random, *, name: str) -> bytes:
    """Damages a file once or a few times; the same for the same state of `choose`."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [*BYTES, *LINES]
    if name.endswith((".json", ".jsonl", ".yaml")):
        ways += 3 * [lambda data, choose: change_value(data, choose, name)]
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        data = choose.choice(ways)(data, choose)
    return data


def _place(data: bytes, choose: random.Random) -> int:
    return choose.randrange(len(data) + 1)


def flip_bits(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 4, 32)) if data else 0):
        changed[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return bytes(changed)


def cut(data: bytes, choose: random.Random) -> bytes:
    return data[: _place(data, choose)]


def delete(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    return data[:begin] + data[begin + choose.choice((1, 2, 8, 100, 1000)) :]


def repeat(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    end = begin + choose.choice((1, 4, 20, 200, 2000))
    return data[:end] + data[begin:end] * choose.choice((1, 1, 3, 20)) + data[end:]


def overwrite(data: bytes, choose: random.Random) -> bytes:
    begin, size = _place(data, choose), choose.choice((1, 4, 8, 64, 512))
    new = choose.choice((bytes(size), b"\xff" * size, choose.randbytes(size)))
    return data[:begin] + new + data[begin + size :]


def write_number(data: bytes, choose: random.Random) -> bytes:
    """A length or an offset that claims something else."""
    number = choose.choice(
        (0, 1, 127, 2**16, 2**31 - 1, 2**31, 2**40, 2**63, 2**64 - 1)
    )
    new = struct.pack("<Q", number)[: choose.choice((4, 8))]
    begin = _place(data, choose)
    return data[:begin] + new + data[begin + len(new) :]


def insert(data: bytes, choose: random.Random) -> bytes:
    begin = _place(data, choose)
    return data[:begin] + choose.choice(TOKENS) + data[begin:]


def nest(data: bytes, choose: random.Random) -> bytes:
    opening, closing = choose.choice(NESTS)
    depth = choose.choice((3, 60, 1500))
    begin = _place(data, choose)
    end = choose.choice((0, depth))
    return data[:begin] + opening * depth + closing * end + data[begin:]


def swap_lines(data: bytes, choose: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = choose.randrange(len(lines)), choose.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def drop_line(data: bytes, choose: random.Random) -> bytes:
    lines = data.split(b"\n")
    del lines[choose.randrange(len(lines))]
    return b"\n".join(lines)


def change_field(data: bytes, choose: random.Random) -> bytes:
    """A word of a line becomes a token."""
    lines = data.split(b"\n")
    number = choose.randrange(len(lines))
    separator = choose.choice((b"\t", b" ", b",", b":"))
    fields = lines[number].split(separator)
    fields[choose.randrange(len(fields))] = choose.choice(TOKENS)
    lines[number] = separator.join(fields)
    return b"\n".join(lines)


BYTES = (flip_bits, cut, delete, repeat, overwrite, write_number, insert, nest)
LINES = (swap_lines, drop_line, change_field)


def change_value(data: bytes, choose: random.Random, name: str) -> bytes:
    """A value or key somewhere in JSON or YAML is replaced, removed or doubled."""
    lines = data.split(b"\n") if name.endswith(".jsonl") else [data]
    number = choose.randrange(len(lines))
    is_yaml = name.endswith(".yaml")
    try:
        # What earlier damage made of the file may be no longer readable.
        value = yaml.safe_load(lines[number]) if is_yaml else json.loads(lines[number])
    except Exception:
        return insert(data, choose)
    holder: Any = {"": value}
    places: list[tuple[Any, Any]] = [(holder, "")]
    seen: set[int] = set()
    for inner, key in places:
        child = inner[key]
        # An alias of YAML may stand for what it is in.
        if isinstance(child, (dict, list)) and id(child) not in seen:
            seen.add(id(child))
            keys = child if isinstance(child, dict) else range(len(child))
            places += [(child, key) for key in keys]
    inner, key = choose.choice(places)
    way = choose.randrange(6)
    if way == 0 and isinstance(inner, dict):
        del inner[key]
        inner.setdefault("", None)
    elif way == 1 and isinstance(inner, dict):
        inner[choose.choice(("x", "", "a.b", str(key) * 2 or "y"))] = inner[key]
    elif way == 2:
        inner[key] = [inner[key]] * choose.choice((1, 2, 50))
    else:
        inner[key] = choose.choice(VALUES)
    try:
        if is_yaml:
            changed = yaml.safe_dump(holder[""]).encode("utf-8", "surrogatepass")
        else:
            changed = json.dumps(holder[""]).encode()
    except (ValueError, RecursionError, yaml.YAMLError):
        return insert(data, choose)
    lines[number] = changed
    return b"\n".join(lines)
