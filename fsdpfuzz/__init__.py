"""Property-based fuzzing of PyTorch FSDP on real ranks.

Importing this package imports neither torch nor Hypothesis.
"""

from __future__ import annotations

__version__ = "0.1.0"
