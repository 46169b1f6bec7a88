"""Ways in which a corpus file can be wrong, each a function of (rng, document) to bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Spoiler = Callable[[Random, Any], bytes]

TRICKS = (
    "../../../../etc/passwd",
    "/dev/zero",
    "..\\..\\x",
    "a\x00b",
    "\x1b[2J\x1b]0;x\x07",
    "a\nb\r\nc",
    "\u202egpj.exe",
    "__import__('os').system('true')",
    "torch.nn.Linear",
    "__class__.__init__.__globals__",
    "$(touch x)",
    "%s%n{0.__class__}",
    "con",
    "~root",
    "",
    "." * 300,
    "\ud800",
)
NUMBERS: tuple[Any, ...] = (
    -1,
    0,
    2**31,
    2**63,
    2**64,
    10**40,
    -(10**40),
    1e308,
    1.5,
    float("nan"),
    float("inf"),
)
WRONG: tuple[Any, ...] = (None, True, [], {}, "", "x" * 5_000, [[]], {"": {}}, 0, -0.0, [None] * 99)


def spots(node: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every place of a document as (container, key)."""
    found = [] if found is None else found
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        found.append((node, key))
        if isinstance(value, dict | list):
            spots(value, found)
    return found


def copy_of(document: Any) -> Any:
    return json.loads(json.dumps(document))


def text(document: Any) -> bytes:
    return json.dumps(document, indent=2).encode("utf-8", "surrogatepass")


def truncated(rng: Random, document: Any) -> bytes:
    data = text(document)
    return data[: rng.randrange(len(data))]


def flipped(rng: Random, document: Any) -> bytes:
    data = bytearray(text(document))
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def not_utf8(rng: Random, document: Any) -> bytes:
    container, key = rng.choice(spots(document := copy_of(document)))
    container[key] = "MARK"
    bad = rng.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe2"])
    return text(document).replace(b"MARK", bad)


def other_encoding(rng: Random, document: Any) -> bytes:
    whole = text(document).decode()
    return rng.choice(
        [
            whole.encode("utf-16"),
            whole.encode("utf-32"),
            b"\xef\xbb\xbf" + whole.encode(),
            b"\0" * 99,
        ]
    )


def wrong_type(rng: Random, document: Any) -> bytes:
    container, key = rng.choice(spots(document := copy_of(document)))
    container[key] = rng.choice(WRONG)
    return text(document)


def number(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    numeric = [(c, k) for c, k in spots(document) if isinstance(c[k], int | float)]
    container, key = rng.choice(numeric)
    container[key] = rng.choice(NUMBERS)
    return text(document)


def many_digits(rng: Random, document: Any) -> bytes:
    container, key = rng.choice(spots(document := copy_of(document)))
    container[key] = "MARK"
    digits = "9" * rng.choice([20, 400, 5_000, 200_000])
    form = rng.choice(["{}", "-{}", "{}.5", "1e{}", "0.{}e-9", "1e-{}"]).format(digits)
    return text(document).replace(b'"MARK"', form.encode())


def unknown_field(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    objects = [document] + [c[k] for c, k in spots(document) if isinstance(c[k], dict)]
    rng.choice(objects)[rng.choice(["x", "__class__", "schema_", "n" * 9_000, *TRICKS])] = 1
    return text(document)


def missing_field(rng: Random, document: Any) -> bytes:
    container, key = rng.choice(spots(document := copy_of(document)))
    del container[key]
    return text(document)


def renamed_field(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    container, key = rng.choice([(c, k) for c, k in spots(document) if isinstance(c, dict)])
    container[key.swapcase() if rng.random() < 0.5 else key + " "] = container.pop(key)
    return text(document)


def moved(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    (one, a), (two, b) = rng.sample(spots(document), 2)
    value = copy_of(two[b])
    one[a] = value
    return text(document)


def trick(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    strings = [(c, k) for c, k in spots(document) if isinstance(c[k], str)]
    container, key = rng.choice(strings)
    container[key] = rng.choice(TRICKS)
    return text(document)


def nested(rng: Random, document: Any) -> bytes:
    container, key = rng.choice(spots(document := copy_of(document)))
    container[key] = "MARK"
    depth = rng.choice([30, 900, 5_000, 50_000])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"children":[', b"]}")])
    inner = opening * depth + b"1" + (closing * depth if rng.random() < 0.7 else b"")
    return text(document).replace(b'"MARK"', inner)


def deep_model(rng: Random, document: Any) -> bytes:
    case = copy_of(document)
    case = case.get("case", case)
    wrap = rng.choice(
        [
            {"kind": "sequential", "children": ["MARK"]},
            {"kind": "residual", "body": "MARK"},
            {"kind": "repeat", "body": "MARK", "times": 2},
        ]
    )
    before, after = json.dumps(wrap).encode().split(b'"MARK"')
    depth = rng.choice([23, 24, 25, 200, 5_000])
    inner = before * depth + json.dumps(case["model"]).encode() + after * depth
    case["model"] = "MARK"
    return text(case).replace(b'"MARK"', inner)


def very_long(rng: Random, document: Any) -> bytes:
    document = copy_of(document)
    lists = [(c, k) for c, k in spots(document) if isinstance(c[k], list) and c[k]]
    container, key = rng.choice(lists)
    container[key] = container[key] * rng.choice([50, 600, 3_000])
    return text(document)


def too_large(rng: Random, document: Any) -> bytes:
    return text(document) + b" " * (1 << 20)


def garbage(rng: Random, document: Any) -> bytes:
    return rng.choice([b"", b" ", b"null", b"1", b'"x"', b"[]", b"{}", b"[{}]", rng.randbytes(300)])


def twice(rng: Random, document: Any) -> bytes:
    data = text(document)
    return data + data if rng.random() < 0.5 else data + b"}"


SPOILERS: tuple[Spoiler, ...] = (
    truncated,
    flipped,
    not_utf8,
    other_encoding,
    wrong_type,
    number,
    many_digits,
    unknown_field,
    missing_field,
    renamed_field,
    moved,
    trick,
    nested,
    deep_model,
    very_long,
    too_large,
    garbage,
    twice,
)
