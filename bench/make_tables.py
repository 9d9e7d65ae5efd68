#!/usr/bin/env python3
"""Write the benchmark tables into README.md and docs/benchmarks.md from bench/results/*.json.

    make_tables.py            rewrite the text between the markers <!-- bench:NAME:begin --> and <!-- bench:NAME:end -->
    make_tables.py --check    change nothing; exit status 1 when a file does not hold what the results say

Needs Python only. Markers: bench:cpu, bench:backward_cpu, bench:gpu and bench:decode are summaries; bench:cpu-full and
so on have every case.
Where there is no result of a kind, its places are empty.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import backward_cpu_tables
import bandwidth_tables
import cpu_tables
import decode_tables
import gpu_tables

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"cpu": cpu_tables, "bandwidth": bandwidth_tables, "backward_cpu": backward_cpu_tables, "gpu": gpu_tables,
         "decode": decode_tables}
PLACES = {"README.md": "{kind}", "docs/benchmarks.md": "{kind}-full"}


def results_of(kind: str) -> list[dict]:
    """Each with the names of its pictures (plot.py) under "images"."""
    def load(file: Path) -> dict:
        images = sorted(image.name for image in (ROOT / "docs" / "images").glob(f"{file.stem}_*.svg"))
        return json.loads(file.read_text()) | {"images": images}
    return [load(file) for file in sorted((ROOT / "bench" / "results").glob(f"{kind}_*.json"))]


def replace_between_markers(text: str, name: str, content: str, file: str) -> str:
    pattern = re.compile(rf"(<!-- bench:{name}:begin -->\n).*?(<!-- bench:{name}:end -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda m: m.group(1) + (content + "\n" if content else "") + m.group(2), text)
    if count != 1:
        raise SystemExit(f"make_tables: {file} has {count} places for bench:{name}.\n"
                         f"  Allowed: one pair of lines <!-- bench:{name}:begin --> and <!-- bench:{name}:end -->.\n"
                         "  Fix: put the pair where the table should stand.")
    return replaced


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a file is out of date")
    args = parser.parse_args()

    stale = []
    for file, place in PLACES.items():
        before = after = (ROOT / file).read_text()
        for kind, tables in KINDS.items():
            make = tables.full if place.endswith("full") else tables.summary
            content = "\n\n".join(map(make, results_of(kind)))
            after = replace_between_markers(after, place.format(kind=kind), content, file)
        if after != before:
            stale.append(file)
            if not args.check:
                (ROOT / file).write_text(after)
    if args.check and stale:
        print(f"make_tables: {', '.join(stale)} does not hold what bench/results says.\n"
              "  Fix: python3 bench/make_tables.py", file=sys.stderr)
        return 1
    print("\n".join(f"wrote {file}" for file in stale) or "all tables are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
