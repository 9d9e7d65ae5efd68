"""Tables of the results that gpu_vs_peers.py writes."""

import statistics

from table_text import duration, mean_and_range, mebibytes, speedup, table

NAMES = {"torch_flash": "torch, FLASH_ATTENTION", "torch_cudnn": "torch, CUDNN_ATTENTION",
         "torch_efficient": "torch, EFFICIENT_ATTENTION", "torch_math": "torch, MATH",
         "materialised": "S and P in memory", "flex": "FlexAttention", "fa3": "FlashAttention-3",
         "flashinfer": "FlashInfer", "xformers": "xFormers"}
SUITES = {"forward": "Forward, 16k tokens, hidden size 2048", "gqa": "Grouped queries, 32 heads on 8",
          "naive": "Against evaluations that keep S and P in memory", "decode": "Decode, one query a sequence"}


def finished(result: dict, suite: str) -> list[dict]:
    """The cases of a suite in which onepass has a time."""
    return [c for c in result["cases"] if c["suite"] == suite and "onepass" in c["results"]]


def others(cases: list[dict]) -> list[str]:
    """Who else has a time in some of the cases, in the order of NAMES."""
    return [name for name in NAMES if any(name in c["results"] for c in cases)]


def comparable(case: dict, name: str) -> bool:
    """Whether a peer has a time that was measured as onepass's was, in a CUDA graph or in calls."""
    results = case["results"]
    return name in results and (results[name]["graph"] == "used") == (results["onepass"]["graph"] == "used")


def share_of_peak(result: dict, case: dict) -> float:
    own, peaks = case["results"]["onepass"], result["peaks"]
    if case["kind"] == "decode":
        return own["gbytes_per_s"] / peaks["copy_gbytes_per_s"]
    return own["tflops"] / peaks[f"matmul_{case['case'].split('_')[0]}_tflops"]


def machine_line(result: dict) -> str:
    gpu, versions, peaks = result["gpu"], result["versions"], result["peaks"]
    driver = f"driver {gpu['idle']['driver']}, " if gpu.get("idle") else ""
    load = peaks.get("under_load")
    clock = f" (SM clock {load['sm_mhz']} MHz, {load['power_w']} W)" if load else ""
    return (f"{gpu['name']}; {driver}CUDA {versions['cuda']}, cuDNN {versions['cudnn']}, torch {versions['torch']}; "
            f"commit `{result['commit']}`, {result['date']}. Measured peaks of the machine: matrix product "
            f"{peaks['matmul_bf16_tflops']:.0f} TFLOP/s in bf16{clock} and {peaks['matmul_f16_tflops']:.0f} in f16, "
            f"copy {peaks['copy_gbytes_per_s']:.0f} GB/s.")


def left_out(result: dict) -> str:
    """Everything that was asked for and has no number: absent peers, refused cases, cases that were not run."""
    lines = [f"- {NAMES[name]} was not on the machine." for name in result["absent"]]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for case in result["cases"]:
        for name, reason in case["refused"].items():
            by_reason.setdefault((name, reason), []).append(case["case"])
    for (name, reason), cases in by_reason.items():
        shown = ", ".join(f"`{c}`" for c in cases[:3]) + (f" and {len(cases) - 3} more" if len(cases) > 3 else "")
        lines.append(f"- {NAMES.get(name, name)} has no time for {shown}: {reason.replace('|', ';')[:200]}")
    lines += [f"- `{case}` failed: {reason.replace('|', ';')[:200]}" for case, reason in result["failed"].items()]
    if result["cut"]:
        lines.append(f"- Not run: {', '.join(f'`{c}`' for c in result['cut'])}.")
    if "stopped" in result:
        lines.append(f"- Stopped at {result['stopped'][:200]}")
    return "\n".join(lines)


def summary(result: dict) -> str:
    """One row a suite and peer: how many times faster onepass is."""
    rows = []
    for suite in SUITES:
        cases = finished(result, suite)
        for name in others(cases):
            shared = [c for c in cases if comparable(c, name)]
            if not shared:
                continue
            share = statistics.median(share_of_peak(result, c) for c in shared)
            peak = "copy bandwidth" if suite == "decode" else "matrix product"
            rows.append([f"{suite} ({len(shared)} case{'s' if len(shared) > 1 else ''})", NAMES[name],
                         mean_and_range([speedup(c, name) for c in shared]), f"{100 * share:.0f} % of the {peak}"])
    header = ["GPU", "peer", "speed over the peer: geometric mean (range)", "onepass's median share of peak"]
    return "\n\n".join(filter(None, [machine_line(result), table(header, rows) if rows else ""]))


def speed_table(result: dict, cases: list[dict]) -> str:
    decode = cases[0]["kind"] == "decode"
    key, unit = ("gbytes_per_s", "GB/s") if decode else ("tflops", "TFLOP/s")

    def cell(case: dict, name: str) -> str:
        if name not in case["results"]:
            return "-"
        r = case["results"][name]
        time = f"{duration(r['median_s'])}, " if decode else ""
        calls = " (calls)" if decode and r["graph"] != "used" else ""
        return f"{time}{r[key]:.0f} ±{100 * r['spread']:.1f}%{calls}"

    names = others(cases)
    rows = [[f"`{c['case']}`", cell(c, "onepass"), *(cell(c, n) for n in names),
             *(f"{speedup(c, n):.2f}" if comparable(c, n) else "-" for n in names),
             f"{100 * share_of_peak(result, c):.0f} %", duration(c["results"]["onepass"]["host_s"])] for c in cases]
    header = [unit, "onepass", *(NAMES[n] for n in names), *(f"over {NAMES[n]}" for n in names), "of peak", "host time"]
    return table(header, rows)


def memory_table(cases: list[dict]) -> str:
    names = ["onepass", *others(cases)]
    rows = [[f"`{c['case']}`", *(f"{duration(c['results'][n]['median_s'])}, {mebibytes(c['results'][n]['beyond_bytes'])}"
                                 if n in c["results"] else "-" for n in names)] for c in cases]
    return table(["time, memory beyond inputs and output", *(NAMES.get(n, n) for n in names)], rows)


def full(result: dict) -> str:
    parts = [machine_line(result)]
    for suite, title in SUITES.items():
        cases = finished(result, suite)
        if cases:
            parts += [f"### {title}", speed_table(result, cases)]
            if suite == "naive":
                parts.append(memory_table(cases))
    parts += [f"![{result['gpu']['name']}: {name.removesuffix('.svg').rsplit('_')[-1]}](images/{name})"
              for name in result["images"]]
    missing = left_out(result)
    return "\n\n".join([*parts, *(["What has no number:", missing] if missing else [])])
