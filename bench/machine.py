"""What a result was measured on: processor, versions, commit."""

import os
import platform
import re
import subprocess
from pathlib import Path

# The parts of the instruction set that matter to attention, as the kernel names them.
ISA_FLAGS = ("sse4_1", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
             "amx_bf16", "amx_int8", "asimd", "asimdhp", "bf16", "sve", "i8mm")


def cpu_info() -> dict:
    text = Path("/proc/cpuinfo").read_text()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE)
        return found.group(1) if found else ""
    flags = set((field("flags") or field("Features")).split())
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    return {
        "model": field("model name") or platform.machine(),
        "family_model_stepping": "/".join(field(n) for n in ("cpu family", "model", "stepping")),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "caches": {f"L{(c / 'level').read_text().strip()} {(c / 'type').read_text().strip().lower()}":
                   (c / "size").read_text().strip() for c in sorted(caches.glob("index*"))},
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }


def last_level_cache_bytes() -> int:
    """As the kernel reports it; 64 MiB where it does not (some virtual machines), more than most cores share."""
    return max((int((c / "size").read_text().strip().rstrip("K")) * 1024
                for c in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")), default=64 << 20)


def commit(root: Path) -> str:
    """The commit, with "+changes" when sources of the library differ from it; "unknown" outside a git repository."""
    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(root), *args], check=True, capture_output=True, text=True).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--", "src", "include", "cmake", "CMakeLists.txt", "CMakePresets.json")
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def compiler(build: Path) -> str:
    """Name and version of the compiler of a build folder, as CMake found them."""
    files = list(build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"))
    if not files:
        return "unknown"
    text = files[0].read_text()
    return " ".join(re.search(rf'set\(CMAKE_CXX_COMPILER_{key} "([^"]*)"\)', text).group(1) for key in ("ID", "VERSION"))


def load_average() -> float:
    """Tasks that ran in the last minute: a benchmark wants this to be low when it starts."""
    return round(os.getloadavg()[0], 2)


NVIDIA_SMI_FIELDS = {"driver_version": "driver", "clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz",
                     "power.draw": "power_w", "power.limit": "power_limit_w", "temperature.gpu": "temperature_c"}


def nvidia_smi(device_idx: int) -> dict | None:
    """Driver, clocks and power of a GPU at this moment; None where nvidia-smi is missing or fails."""
    command = ["nvidia-smi", f"--id={device_idx}", f"--query-gpu={','.join(NVIDIA_SMI_FIELDS)}",
               "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        return None
    return dict(zip(NVIDIA_SMI_FIELDS.values(), map(str.strip, line.split(","))))
