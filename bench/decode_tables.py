"""Tables of the results that decode_vs_peers.py writes."""

from table_text import duration, mean_and_range, table

PEERS = ("cudnn_bshd", "cudnn_bhsd")


def best_peer(point: dict) -> float:
    return min(point["results"][name]["median_s"] for name in PEERS if name in point["results"])


def machine_line(result: dict) -> str:
    gpu, versions = result["gpu"], result["versions"]
    driver = f"driver {gpu['idle']['driver']}, " if gpu.get("idle") else ""
    return (f"{gpu['name']}; {driver}CUDA {versions['cuda']}, cuDNN {versions['cudnn']}, torch {versions['torch']}; "
            f"commit `{result['commit']}`, {result['date']}. bf16, 32 query heads on 8, head_dim 128, one query a "
            "sequence, no mask; CUDA graphs over inputs that exceed the caches.")


def cell(point: dict, name: str) -> str:
    r = point["results"][name]
    return f"{duration(r['median_s'])} ({best_peer(point) / r['median_s']:.2f}x)"


def grid(result: dict, name: str, corner: str) -> str:
    """Contexts down, batches across."""
    points = {(p["context"], p["batch"]): p for p in result["points"] if name in p["results"]}
    batches = sorted({batch for _, batch in points})
    rows = [[f"{context:,}", *(cell(points[context, b], name) if (context, b) in points else "-" for b in batches)]
            for context in sorted({context for context, _ in points})]
    return table([corner, *(f"B = {b}" for b in batches)], rows)


def summary(result: dict) -> str:
    ratios = [best_peer(p) / p["results"]["dense"]["median_s"] for p in result["points"]]
    return "\n\n".join([machine_line(result),
                        f"Time of a call, and how many times faster it is than cuDNN in the better of two layouts "
                        f"({mean_and_range(ratios)}):", grid(result, "dense", "keys")])


def full(result: dict) -> str:
    header = ["keys, B", *(f"{name}, us (TB/s)" for name in ("onepass", "page 64", "page 16", "cuDNN [B, S, H, D]",
                                                               "cuDNN [B, H, S, D]"))]
    rows = []
    for point in result["points"]:
        row = [f"{point['context']:,}, {point['batch']}"]
        for name in ("dense", "page64", "page16", *PEERS):
            r = point["results"].get(name)
            row.append(f"{1e6 * r['median_s']:.1f} ({r['tbytes_per_s']:.2f})" if r else "-")
        rows.append(row)
    return "\n\n".join([machine_line(result), table(header, rows)])
