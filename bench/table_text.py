"""Pieces of Markdown that the tables of results are made of."""

import statistics


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def duration(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def speedup(case: dict, over: str, contender: str = "onepass") -> float:
    """How many times faster the contender is."""
    return case["results"][over]["median_s"] / case["results"][contender]["median_s"]


def mean_and_range(ratios: list[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.2f}x ({range_text(ratios)})"


def range_text(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
