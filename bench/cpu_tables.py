"""Tables of the results that cpu_vs_torch.py writes."""

import statistics

from table_text import duration, mean_and_range, mebibytes, speedup, table


def dtype_of(case: dict) -> str:
    return case["case"].split("_")[0]


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
                     mean_and_range(versus_torch),
                     f"{statistics.geometric_mean(speedup(c, 'materialised') for c in cases):.2f}x",
                     f"{100 * share:.0f} % of the {peak}"])
        if kind == "decode":
            grouped = [speedup(c, "torch_grouped") for c in cases]
            rows.append([f"{kind}, {dtype}, against torch with grouped heads",
                         mean_and_range(grouped), "", ""])
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
