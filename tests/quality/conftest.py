"""What tests of several files run cases on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fsdpfuzz.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two ranks on gloo, for all tests of a file."""
    with Pool(2, "gloo") as made:
        yield made
