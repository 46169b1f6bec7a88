"""Says which faults fit a torch."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from benchmarks.faults import FAULTS, EditError, changed_code, chosen


def main() -> int:
    """The faults by area, and those that do not fit."""
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    unfit = 0
    for item in FAULTS.values():
        try:
            if tree is None:
                changed_code(item)
            else:
                chosen(item, tree)
        except EditError as error:
            unfit += 1
            print(f"does not fit: {error}")
    for area, number in sorted(Counter(item.area for item in FAULTS.values()).items()):
        print(f"{number:4} {area}")
    silent = sum(item.silent for item in FAULTS.values())
    needs = Counter(item.needs for item in FAULTS.values())
    print(f"{len(FAULTS)} faults, {silent} of them silent; {dict(needs)}; {unfit} do not fit")
    return 1 if unfit else 0


if __name__ == "__main__":
    sys.exit(main())
