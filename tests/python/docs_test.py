"""The programs of docs/python.md and of README.md, cut out and run: what a reader copies works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/python.md", "README.md")


def programs(page):
    """One for each section with code; the blocks of a section follow each other, as a reader would type them."""
    for section in re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE):
        blocks = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        if blocks:
            yield pytest.param("".join(blocks), id=f"{page}: {section.splitlines()[0]}")


@pytest.mark.parametrize("program", [program for page in PAGES for program in programs(page)])
def test_the_program_runs_as_printed(program, capsys):
    exec(compile(program, "program", "exec"), {})
    # What print() shows stands behind it: print(x)  # text
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", program, flags=re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == expected


def test_the_reference_says_what_the_docstrings_say():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "python_reference.py", "--check"], text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
