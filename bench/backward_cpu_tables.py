"""Tables of the results that cpu_backward_vs_torch.py writes."""

from table_text import duration, mean_and_range, speedup, table


def machine_line(result: dict) -> str:
    cpu, versions = result["cpu"], result["versions"]
    return (f"{cpu['model']} (family/model/stepping {cpu['family_model_stepping']}), {cpu['cores']} cores, "
            f"{result['threads']} threads; torch {versions['torch']}, {versions['compiler']}; commit "
            f"`{result['commit']}`, {result['date']}.")


def ratios(cases: list[dict]) -> list[str]:
    return [mean_and_range([speedup(c, "torch" + how, "onepass" + how) for c in cases]) for how in ("", "_both")]


def summary(result: dict) -> str:
    rows = []
    for dtype in ("f32", "bf16"):
        for mask, causal in (("full", False), ("causal", True)):
            cases = [c for c in result["cases"]
                     if c["case"].startswith(dtype + "_") and c["case"].endswith("_causal") == causal]
            if cases:
                rows.append([f"{dtype}, {mask} ({len(cases)} cases)", *ratios(cases)])
    header = ["speed over torch: geometric mean (range)", "backward", "forward and backward"]
    return "\n\n".join([machine_line(result), table(header, rows)])


def full(result: dict) -> str:
    contenders = ("onepass", "torch", "onepass_both", "torch_both")
    rows = []
    for case in result["cases"]:
        times = [f"{duration(case['results'][n]['median_s'])} ±{100 * case['results'][n]['spread']:.0f}%"
                 for n in contenders]
        gflops = case["flops"] / case["results"]["onepass"]["median_s"] / 1e9
        rows.append([f"`{case['case']}`", *times, f"{speedup(case, 'torch'):.2f}",
                     f"{speedup(case, 'torch_both', 'onepass_both'):.2f}", f"{gflops:.3g}"])
    header = ["case", "onepass", "torch", "onepass, with forward", "torch, with forward", "torch / onepass",
              "with forward", "onepass GFLOP/s"]
    return "\n\n".join([machine_line(result), table(header, rows)])
