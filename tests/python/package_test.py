"""The package as installed: what its binary needs and shows, what importing it costs, what it says of itself."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onepass

FOLDER = Path(onepass.__file__).parent
BINARY = next(FOLDER.glob("_core*.so"))


def output_of(*command, **environment):
    return subprocess.run([str(word) for word in command], env={**os.environ, **environment}, text=True, check=True,
                          capture_output=True).stdout


def python(program, **environment):
    return output_of(sys.executable, "-c", program, **environment)


def test_the_binary_needs_no_symbol_of_torch_or_cuda():
    undefined = [line.split()[-1] for line in output_of("nm", "-D", "--undefined-only", BINARY).splitlines()]
    assert len(undefined) > 100
    foreign = [name for name in undefined if re.search(r"torch|c10|_ZN2at|aten|cuda|nvrtc|^cu[A-Z]", name)]
    assert not foreign


def test_the_binary_needs_the_usual_libraries_alone():
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", BINARY))
    usual = r"(libc|libm|libgcc_s|libstdc\+\+|libgomp|ld-linux-x86-64|libfmt|libhwy|libzstd)\.so\.[0-9]+"
    assert [name for name in needed if not re.fullmatch(usual, name)] == []


def test_the_binary_shows_its_entry_alone():
    defined = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", BINARY).splitlines()]
    assert [name for name in defined if "onepass" in name] == [] and "PyInit__core" in defined


def test_the_package_is_small():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 15e6


def test_importing_it_takes_no_framework_and_little_time():
    program = ("import time, sys; begin = time.process_time(); import onepass; taken = time.process_time() - begin;"
               "assert not {'torch', 'numpy', 'cupy', 'jax'} & set(sys.modules); print(taken)")
    assert min(float(python(program)) for _ in range(3)) < 0.1


def test_info_names_what_there_is():
    lines = dict(line.split(maxsplit=1) for line in output_of(sys.executable, "-m", "onepass", "info").splitlines())
    assert lines["onepass"] == onepass.__version__
    assert "cores for this process" in lines["cpu"]
    assert "bundle" in output_of(sys.executable, "-m", "onepass", "info")


def test_the_bundle_beside_the_binary_is_found(tmp_path):
    copy = shutil.copytree(FOLDER, tmp_path / "onepass")
    (copy / "onepass_kernels.bundle").write_bytes(b"not a bundle" * 100)
    told = python("import onepass; print(onepass.info()['kernel bundle'])", PYTHONPATH=str(tmp_path), ONEPASS_BUNDLE="")
    assert told.startswith("not used: it is no kernel bundle") and str(copy) in told


@pytest.mark.skipif(not (FOLDER / "onepass_kernels.bundle").exists(), reason="built without make bundle")
def test_the_bundle_of_the_package_is_used():
    if "made from other kernel sources" in onepass.info()["kernel bundle"]:
        pytest.skip("the bundle is older than the kernels: make bundle")
    assert re.match(r"\d{3,} kernels \(.*/onepass/onepass_kernels.bundle\)", onepass.info()["kernel bundle"])


def test_every_public_function_documents_arguments_result_and_errors():
    for name in (*onepass.__all__, "scaled_dot_product_attention"):
        function = getattr(onepass, name)
        if not inspect.isfunction(function):
            continue
        text = function.__doc__
        assert "Args:" in text and "Returns:" in text, name
        assert "Raises" in text or "errors are those of" in text, name
        for parameter in inspect.signature(function).parameters:
            inherited = "errors are those of" in text
            assert inherited or re.search(rf"\b{parameter}\b", text), f"{name}: {parameter}"


def test_types_travel_with_the_package():
    assert (FOLDER / "py.typed").exists()
    stub = (FOLDER / "_core.pyi").read_text()
    assert "class Plan" in stub and "def forward(" in stub


def test_build_requirements_are_pinned_alike():
    root = Path(__file__).parents[2]
    pins = re.search(r"requires = \[(.*)\]", (root / "pyproject.toml").read_text()).group(1)
    for pin in re.findall(r'"([^"]*)"', pins):
        assert pin in (root / "python" / "requirements-build.txt").read_text().splitlines()
