"""Seeds that follow from others."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: object) -> int:
    """A seed of 64 bits that depends on all parts and on nothing else."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
