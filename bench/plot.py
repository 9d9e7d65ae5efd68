#!/usr/bin/env python3
"""Draw the GPU results: TFLOP/s against length, and the roofline.

    plot.py [RESULT.json...]     bench/results/gpu_*.json when none is named; writes docs/images/gpu_NAME_*.svg
                                 (make_tables.py then shows them in docs/benchmarks.md)

Needs matplotlib (bench/requirements.txt).
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of what draws)

from gpu_tables import NAMES, finished, others  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
plt.rcParams["svg.hashsalt"] = "onepass"  # the same picture for the same numbers: no random identifiers, no date
METADATA = {"svg": {"Date": None}, "png": {}}


def field(case: dict, name: str) -> int:
    """A number of the case text: field(case, "d") is the head_dim."""
    return next(int(token[len(name):]) for token in case["case"].split("_")[1:]
                if token.startswith(name) and token[len(name):].isdigit())


def is_causal(case: dict) -> bool:
    return case["case"].endswith("_causal")


def length_figure(result: dict) -> plt.Figure:
    """One panel a head_dim and mask; the f16 cases, one length alone, are left to the table."""
    cases = [c for c in finished(result, "forward") if c["case"].startswith("bf16")]
    dims, lengths = (sorted({field(c, name) for c in cases}) for name in ("d", "sk"))
    figure, axes = plt.subplots(2, len(dims), figsize=(4 * len(dims), 6), sharex=True, sharey=True, squeeze=False)
    for row, causal in enumerate((False, True)):
        for column, d in enumerate(dims):
            panel = axes[row][column]
            for name in ["onepass", *others(cases)]:
                points = sorted((field(c, "sk"), c["results"][name]["tflops"]) for c in cases
                                if field(c, "d") == d and is_causal(c) == causal and name in c["results"])
                if points:
                    panel.plot(*zip(*points), marker="o", markersize=3, linewidth=2 if name == "onepass" else 1,
                               label=NAMES.get(name, name))
            panel.set_xscale("log", base=2)
            panel.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
            panel.set_title(f"head_dim {d}{', causal' if causal else ''}", fontsize=10)
            panel.grid(alpha=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("length (16k tokens in all)")
    for row in axes:
        row[0].set_ylabel("TFLOP/s")
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"Forward, bf16, {result['gpu']['name']}")
    figure.tight_layout()
    return figure


def roofline_figure(result: dict) -> plt.Figure:
    """Every case of onepass under what the machine reaches: matrix product and copy."""
    peaks = result["peaks"]
    top, bandwidth = peaks["matmul_bf16_tflops"], peaks["copy_gbytes_per_s"] / 1e3  # TFLOP/s, TB/s
    figure, panel = plt.subplots(figsize=(7, 5))
    suites = {c["suite"] for c in result["cases"]}
    points = {suite: [(c["flops"] / c["bytes"], c["results"]["onepass"]["tflops"]) for c in finished(result, suite)]
              for suite in sorted(suites)}
    intensities = [x for values in points.values() for x, _ in values] + [top / bandwidth]
    left, right = min(intensities) / 2, max(intensities) * 2
    panel.plot([left, top / bandwidth, right], [left * bandwidth, top, top], color="black", linewidth=1,
               label=f"{top:.0f} TFLOP/s, {bandwidth:.2f} TB/s, measured")
    for suite, values in points.items():
        if values:
            panel.scatter(*zip(*values), s=14, label=f"onepass, {suite}")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("FLOP per byte, each tensor moved once")
    panel.set_ylabel("TFLOP/s")
    panel.grid(alpha=0.3, which="both")
    panel.legend(fontsize=8, loc="lower right")
    panel.set_title(f"Roofline, {result['gpu']['name']}")
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where the pictures go")
    parser.add_argument("--format", choices=list(METADATA), default="svg")
    args = parser.parse_args()
    files = args.results or sorted((ROOT / "bench" / "results").glob("gpu_*.json"))
    if not files:
        raise SystemExit("plot: there is no bench/results/gpu_*.json.\n  Fix: run bench/gpu_vs_peers.py on a GPU")
    args.folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        result = json.loads(file.read_text())
        figures = {"roofline": roofline_figure(result)}
        if any(c["case"].startswith("bf16") for c in finished(result, "forward")):
            figures["forward"] = length_figure(result)
        for name, figure in figures.items():
            path = args.folder / f"{file.stem}_{name}.{args.format}"
            figure.savefig(path, metadata=METADATA[args.format])
            print(path)


if __name__ == "__main__":
    main()
