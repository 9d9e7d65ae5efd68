#!/usr/bin/env python3
"""Write the benchmark tables into README.md and docs/benchmarks.md from bench/results/cpu_*.json.

    make_tables.py            rewrite the text between the markers <!-- bench:NAME:begin --> and <!-- bench:NAME:end -->
    make_tables.py --check    change nothing; exit status 1 when a file does not hold what the results say

Needs Python only. Markers: bench:cpu is the summary, bench:cpu-full has every case.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = {"README.md": "cpu", "docs/benchmarks.md": "cpu-full"}


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


def dtype_of(case: dict) -> str:
    return case["case"].split("_")[0]


def speedup(case: dict, over: str, contender: str = "onepass") -> float:
    """How many times faster the contender is."""
    return case["results"][over]["median_s"] / case["results"][contender]["median_s"]


def rate(case: dict) -> float:
    """GFLOP/s of prefill, GB/s of decode."""
    amount = case["flops"] if case["kind"] == "prefill" else case["bytes"]
    return amount / case["results"]["onepass"]["median_s"] / 1e9


def share_of_peak(result: dict, case: dict) -> float:
    peaks = result["peaks"]
    return rate(case) / (peaks[f"matmul_{dtype_of(case)}_gflops"] if case["kind"] == "prefill"
                         else peaks["read_gbytes_per_s"])


def machine_line(result: dict) -> str:
    cpu, versions, peaks = result["cpu"], result["versions"], result["peaks"]
    isa = ", ".join(flag for flag in cpu["isa"] if flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve"))
    return (f"{cpu['model']} (family/model/stepping {cpu['family_model_stepping']}; {isa}), {cpu['cores']} cores, "
            f"{result['threads']} threads; torch {versions['torch']}, {versions['compiler']}; commit "
            f"`{result['commit']}`, {result['date']}. Measured peaks of the machine: matrix product "
            f"{peaks['matmul_f32_gflops']:.0f} GFLOP/s in f32 and {peaks['matmul_bf16_gflops']:.0f} in bf16, reading "
            f"{peaks['read_gbytes_per_s']:.1f} GB/s.")


def range_text(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def summary_rows(result: dict) -> list[list[str]]:
    rows = []
    for kind, dtype in (("prefill", "f32"), ("prefill", "bf16"), ("decode", "f32"), ("decode", "bf16")):
        cases = [c for c in result["cases"] if c["kind"] == kind and dtype_of(c) == dtype]
        if not cases:
            continue
        versus_torch = [speedup(c, "torch") for c in cases]
        share = statistics.median(share_of_peak(result, c) for c in cases)
        peak = f"{dtype} matrix product" if kind == "prefill" else "read bandwidth"
        rows.append([f"{kind}, {dtype} ({len(cases)} cases)",
                     f"{statistics.geometric_mean(versus_torch):.2f}x ({range_text(versus_torch)})",
                     f"{statistics.geometric_mean(speedup(c, 'materialised') for c in cases):.2f}x",
                     f"{100 * share:.0f} % of the {peak}"])
        if kind == "decode":
            grouped = [speedup(c, "torch_grouped") for c in cases]
            rows.append([f"{kind}, {dtype}, against torch with grouped heads",
                         f"{statistics.geometric_mean(grouped):.2f}x ({range_text(grouped)})", "", ""])
    return rows


def memory_table(result: dict) -> str:
    who = ("onepass", "torch", "materialised")
    rows = [[f"`{m['case']}`", *(f"{mebibytes(m['results'][w]['beyond_bytes'])}, {duration(m['results'][w]['median_s'])}"
                                 for w in who)] for m in result["memory"]]
    return table(["memory beyond inputs and output, and time", *who], rows)


def summary(result: dict) -> str:
    return "\n\n".join([
        machine_line(result),
        table(["", "speed over torch: geometric mean (range)", "over S and P in memory", "median share of peak"],
              summary_rows(result)),
        memory_table(result)])


def full(result: dict) -> str:
    parts = [machine_line(result)]
    for kind, unit in (("prefill", "GFLOP/s"), ("decode", "GB/s")):
        others = ["torch", "materialised"] if kind == "prefill" else ["torch", "torch_grouped", "materialised"]
        cases = [c for c in result["cases"] if c["kind"] == kind]
        rows = []
        for case in cases:
            times = [f"{duration(case['results'][n]['median_s'])} ±{100 * case['results'][n]['spread']:.0f}%"
                     for n in ("onepass", "onepass_bhsd", *others)]
            rows.append([f"`{case['case']}`", *times, f"{speedup(case, 'torch'):.2f}", f"{rate(case):.3g}",
                         f"{100 * share_of_peak(result, case):.0f} %"])
        header = ["case", "onepass", "onepass, [B, H, S, D]", *(o.replace("_", ", ") for o in others), "torch / onepass",
                  f"onepass {unit}", "of peak"]
        parts.append(table(header, rows))
    return "\n\n".join([*parts, memory_table(result)])


def replace_between_markers(text: str, name: str, content: str, file: str) -> str:
    pattern = re.compile(rf"(<!-- bench:{name}:begin -->\n).*?(<!-- bench:{name}:end -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda m: m.group(1) + content + "\n" + m.group(2), text)
    if count != 1:
        raise SystemExit(f"make_tables: {file} has {count} places for bench:{name}.\n"
                         f"  Allowed: one pair of lines <!-- bench:{name}:begin --> and <!-- bench:{name}:end -->.\n"
                         "  Fix: put the pair where the table should stand.")
    return replaced


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a file is out of date")
    args = parser.parse_args()

    files = sorted((ROOT / "bench" / "results").glob("cpu_*.json"))
    if not files:
        raise SystemExit("make_tables: there is no bench/results/cpu_*.json.\n  Fix: make bench")
    results = [json.loads(file.read_text()) for file in files]
    contents = {"cpu": "\n\n".join(map(summary, results)), "cpu-full": "\n\n".join(map(full, results))}

    stale = []
    for file, name in FILES.items():
        before = (ROOT / file).read_text()
        after = replace_between_markers(before, name, contents[name], file)
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
