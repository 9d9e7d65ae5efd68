"""Tables of the results that cpu_bandwidth.py writes."""

from table_text import table


def share(case: dict) -> float:
    return case["gbytes_per_s"] / case["read_gbytes_per_s"]


def machine_line(result: dict) -> str:
    cpu = result["cpu"]
    return (f"{cpu['model']}, {cpu['cores']} cores, {result['threads']} threads; commit `{result['commit']}`, "
            f"{result['date']}, load average {result['load_average_at_start']}.")


def summary(result: dict) -> str:
    shares = [100 * share(case) for case in result["cases"]]
    return (f"Decode over 32,768 keys reads K and V at {min(shares):.0f} to {max(shares):.0f} % of the speed at which the "
            f"same threads read memory ({len(shares)} cases, docs/benchmarks.md).")


def full(result: dict) -> str:
    rows = [[f"{c['dtype']}, B = {c['batch']}, {c['layout']}", f"{c['gbytes_per_s']:.2f}", f"{c['read_gbytes_per_s']:.2f}",
             f"{100 * share(c):.0f} %", f"{100 * c['result']['spread']:.1f} %"] for c in result["cases"]]
    return "\n\n".join([machine_line(result), table(["case", "K and V, GB/s", "reading, GB/s", "share", "±"], rows)])
