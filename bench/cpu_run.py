"""What the programs that time a CPU share: their arguments, and the head of their result."""

import argparse
import datetime
import re
import sys
from pathlib import Path

import torch

import machine
from onepass_c import Library, find_library

ROOT = Path(__file__).resolve().parent.parent


def add_arguments(parser: argparse.ArgumentParser, prefix: str, rounds: int) -> None:
    parser.add_argument("--name", help=f"the result is bench/results/{prefix}_NAME.json (default: from the CPU's model)")
    parser.add_argument("--out", type=Path, help="write this file instead")
    parser.add_argument("--library", type=Path, help="libonepass.so (default: that of build/release)")
    parser.add_argument("--threads", type=int, default=machine.cpu_info()["cores"])
    parser.add_argument("--rounds", type=int, default=rounds)


def begin(args: argparse.Namespace, prefix: str) -> tuple[Library, dict, Path]:
    """The library, whose file args.library names then, what a result says of its run, and the file it goes to. torch
    has as many threads from here on."""
    args.library = (args.library or find_library(ROOT)).resolve()
    library = Library(args.library)
    torch.set_num_threads(args.threads)
    cpu = machine.cpu_info()
    name = args.name or re.sub(r"[^a-z0-9]+", "_", f"{cpu['model']} {cpu['cores']}c".lower()).strip("_")
    result = {
        "cpu": cpu,
        "threads": args.threads,
        "load_average_at_start": machine.load_average(),
        "versions": {"onepass": library.version(), "torch": torch.__version__, "python": sys.version.split()[0],
                     "compiler": machine.compiler(ROOT / "build" / "release")},
        "commit": machine.commit(ROOT),
        "date": datetime.date.today().isoformat(),
        "rounds": args.rounds,
    }
    return library, result, args.out or ROOT / "bench" / "results" / f"{prefix}_{name}.json"
