"""Random damage to files: of bytes, of JSON, and inside of the containers that have checksums.

A flipped bit in an .npz or in a checkpoint is caught by a checksum. So what is inside is changed,
and written again with checksums that are right, as somebody with bad intentions would.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

from bgn_lab.training import checkpoint

HOSTILE = "\x1b[31m$\\frac$ \u202e<b>|\udcff\n../../up"
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 1.5, -0.0, 1e308, 2**31, 2**63, 2**80, float("nan"),
    float("inf"), "", "nan", "0", HOSTILE, "x" * 3000, "/etc/passwd", [], [[]], [[[None]]], {},
    {"a": [None]}, [1, "a", None],
)  # fmt: skip
PIECES: tuple[bytes, ...] = (
    b"", b"\0", b"\0" * 64, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80" * 4,
    b"{", b"}", b"[" * 50_000, b'"', b"NaN", b"-Infinity", b"1" * 5000, b"null", b"\n", b"\r\n",
    b"\x1b[2J", b"\xff\xfe", b"../../", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff",
)  # fmt: skip
Mutate = Callable[[random.Random, bytes], bytes]


def mutated(draw: random.Random, content: bytes, name: str) -> bytes:
    """A file of this name with something wrong."""
    kinds: list[Mutate] = [raw]
    if name.endswith((".json", ".jsonl")):
        kinds += [values] * 4
    elif content[:2] == b"PK":
        kinds += [zipped] * 5
    elif name.endswith(".safetensors"):
        kinds += [safetensors] * 4
    elif content[:2] == b"\x1f\x8b":
        kinds += [gzipped] * 3
    return draw.choice(kinds)(draw, content)


def raw(draw: random.Random, content: bytes) -> bytes:
    """Bytes cut off, flipped, overwritten, removed, repeated or put between, once or more."""
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        place = draw.randint(0, len(content))
        near = min(len(content), place + draw.choice([1, 2, 4, 8, 64, 1000]))
        piece = draw.choice([*PIECES, draw.randbytes(draw.choice([1, 4, 32]))])
        how = draw.randrange(7)
        if how == 0:
            content = content[:place]
        elif how == 1 and place < len(content):
            flipped = content[place] ^ 1 << draw.randrange(8)
            content = content[:place] + bytes([flipped]) + content[place + 1 :]
        elif how == 2:
            content = content[:place] + piece + content[place + len(piece) :]
        elif how == 3:
            content = content[:place] + content[near:]
        elif how == 4:
            content = content[:near] + content[place:]
        elif how == 5:
            content = content[:place] + piece + content[place:]
        else:
            content = draw.choice([b"", piece, content * 2, content[place:]])
    return content


def values(draw: random.Random, content: bytes) -> bytes:
    """JSON, or lines of it, with a part at any depth replaced, removed, renamed or added."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    place = draw.randrange(len(lines))
    try:
        whole = json.loads(lines[place])
    except (ValueError, RecursionError):
        return raw(draw, content)
    made = json.dumps(part(draw, whole)).encode()
    return b"\n".join([*lines[:place], made, *lines[place + 1 :]]) + b"\n"


def part(draw: random.Random, value: Any) -> Any:
    """The value with a part of it changed, or something else instead."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.9:
        made = copy.deepcopy(value)
        keys = list(made) if isinstance(made, dict) else range(len(made))
        key, how = draw.choice(keys), draw.random()
        if how < 0.15:
            del made[key]
        elif how < 0.25 and isinstance(made, dict):
            made[draw.choice(["", HOSTILE, "unknown", "version"])] = made.pop(key)
        elif how < 0.3 and isinstance(made, list):
            made += made
        else:
            made[key] = part(draw, made[key])
        return made
    if isinstance(value, str) and draw.random() < 0.3:
        return value[: len(value) // 2] + draw.choice(["", HOSTILE, value])
    return draw.choice(VALUES)


def zipped(draw: random.Random, content: bytes) -> bytes:
    """An archive with a member changed, removed, renamed or twice; checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return raw(draw, content)
    if not members:
        return raw(draw, content)
    k, how = draw.randrange(len(members)), draw.random()
    name, own = members[k]
    if how < 0.1:
        del members[k]
    elif how < 0.15:
        members[k] = draw.choice([HOSTILE, "../up.npy", "x.npy", "/up.npy"]), own
    elif how < 0.2:
        members.append((name, raw(draw, own)))
    elif how < 0.3:  # the content of another member
        members[k] = name, draw.choice(members)[1]
    else:
        members[k] = name, npy(draw, own) if own[:6] == b"\x93NUMPY" else raw(draw, own)
    made = io.BytesIO()
    how_stored = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(made, "w", how_stored) as archive:
        for member, inside in members:
            archive.writestr(zipfile.ZipInfo(member.encode("utf-8", "replace").decode()), inside)
    return made.getvalue()


def npy(draw: random.Random, content: bytes) -> bytes:
    """An array with another header, or other bytes."""
    end = 10 + int.from_bytes(content[8:10], "little")
    header, body = content[10:end].decode("latin-1"), content[end:]
    how = draw.random()
    if how < 0.4:
        old = draw.choice(["|u1", "<i8", "<U", "'shape': (", "False", ", ", "descr", "("])
        new = draw.choice(
            ["<f4", "|O", "<U99999999", ">i8", "<m8", "|b1", "<c16", "|V8", "True", "",
             "'shape': (0, ", "'shape': (-1, ", "'shape': (9999999999, ", "((((((("]
        )  # fmt: skip
        header = header.replace(old, new, 1)
    elif how < 0.7 and body:
        count = min(len(body), draw.choice([1, 2, 8, 40]))
        place = draw.randrange(len(body))
        other = draw.choice([b"\xff", b"\0", draw.randbytes(1)]) * count
        body = body[:place] + other + body[place + count :]
    else:
        return raw(draw, content)
    made = header.encode("latin-1")
    return content[:8] + len(made).to_bytes(2, "little") + made + body


def safetensors(draw: random.Random, content: bytes) -> bytes:
    """A file with another header; a checkpoint's hash is right again."""
    end = 8 + int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8:end])
        about = header.get("__metadata__", {})
        kept = json.loads(about[checkpoint._MARK]) if checkpoint._MARK in about else None
    except (ValueError, AttributeError, RecursionError):
        return raw(draw, content)
    if kept is not None and draw.random() < 0.7:
        about[checkpoint._MARK] = json.dumps(part(draw, kept))
    else:
        header = part(draw, header)
    return with_header(header, content[end:])


def with_header(header: Any, tensors: bytes) -> bytes:
    """A file of this header, with the right hash where it is a checkpoint."""
    about = header.get("__metadata__") if isinstance(header, dict) else None
    hashed = isinstance(about, dict) and checkpoint._MARK in about
    if hashed:
        about[checkpoint._HASH] = checkpoint._BLANK
    text = json.dumps(header, separators=(",", ":")).encode()
    made = len(text).to_bytes(8, "little") + text + tensors
    if hashed:
        end = 8 + len(text)
        found = checkpoint._hash(made, checkpoint._BLANK)
        made = checkpoint._replaced(made[:end], checkpoint._BLANK, found) + made[end:]
    return made


def gzipped(draw: random.Random, content: bytes) -> bytes:
    """A compressed file with other content; its checksum is right."""
    try:
        return gzip.compress(raw(draw, gzip.decompress(content)))
    except Exception:
        return raw(draw, content)
