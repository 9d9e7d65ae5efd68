#!/usr/bin/env python3
"""Write docs/python-reference.md from the docstrings of the installed Python package; with --check, only compare.

    .venv/bin/python scripts/python_reference.py [--check]

Needs the package and torch. A test (tests/python/docs_test.py) checks that the page is current.
Exit status: 0, or 1 when the page differs from the docstrings.
"""

import inspect
import re
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python-reference.md"
COLUMNS = 120
HEAD = """# Python reference

Made by `scripts/python_reference.py` from the docstrings, which `help()` shows, too. How to use it all: python.md.
"""


def paragraphs(text: str, prefix: str = "", follow: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), COLUMNS, initial_indent=prefix, subsequent_indent=follow,
                         break_long_words=False, break_on_hyphens=False)


def entries(lines: list[str]) -> str:
    """Lines "name: text", each with deeper lines that go on, as a list; lines without a name as text."""
    found: list[str] = []
    for line in lines:
        if not line.startswith(" ") or not found:
            found.append(line.strip())
        else:
            found[-1] += " " + line.strip()
    named = [re.fullmatch(r"([\w, ]+): (.*)", entry) for entry in found]
    if not all(named):
        return paragraphs(" ".join(found))
    return "\n".join(paragraphs(f"`{entry[1]}`: {entry[2]}", "- ", "  ") for entry in named)


def markdown(docstring: str) -> str:
    """Docstrings of ours: paragraphs, and the sections Args, Returns and Raises of indented lines."""
    parts = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.splitlines()
        section = re.fullmatch(r"(Args|Returns|Raises):\s*(.*)", lines[0])
        if section is None:
            indented = all(line.startswith("    ") for line in lines)
            parts.append(f"```python\n{inspect.cleandoc(block)}\n```" if indented else paragraphs(block))
        elif section[2]:
            parts.append(paragraphs(f"**{section[1]}** " + " ".join([section[2], *lines[1:]])))
        else:
            parts.append(f"**{section[1]}**\n\n{entries(textwrap.dedent(chr(10).join(lines[1:])).splitlines())}")
    return "\n\n".join(parts)


def signature(name: str, function) -> str:
    parameters = inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    text = f"{name}{parameters}".replace(" = ", "=@=").replace(" | ", "@|@")  # not to be parted
    lines = paragraphs(text, follow=" " * (len(name) + 1)).replace("=@=", " = ").replace("@|@", " | ")
    return f"```python\n{lines}\n```"


def function_text(module: str, function) -> str:
    name = f"{module}.{function.__name__}"
    return f"### {name}\n\n{signature(function.__name__, function)}\n\n{markdown(function.__doc__)}"


def class_text(module: str, kind) -> str:
    rows = []
    for name, member in vars(kind).items():
        if not name.startswith("_"):
            shown = f"{name}()" if callable(member) else name
            text = member.__doc__.strip().splitlines()[-1]  # a member without a text of its own has its type here
            rows.append(f"- `{shown}`: {text.removeprefix('(self) -> ').replace('onepass._core.', '')}")
    return f"### {module}.{kind.__name__}\n\n{markdown(kind.__doc__)}\n\n" + "\n".join(rows)


def page() -> str:
    import onepass
    import onepass.flash_attn
    import onepass.flash_attn_interface
    import onepass.huggingface
    import onepass.sdpa
    import onepass.torch_attention
    from onepass import _core

    def of_module(module):
        return [function_text(module.__name__, function) for name, function in vars(module).items()
                if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_"]

    arrays = [function_text("onepass", getattr(onepass, name)) for name in onepass.__all__
              if inspect.isfunction(getattr(onepass, name))]
    arrays += ["### onepass.info, onepass.known_devices\n\n" + "\n".join(
        f"- `{name}()`: {getattr(_core, name).__doc__.strip().splitlines()[-1]}" for name in ("info", "known_devices"))]
    plans = [class_text("onepass", kind)
             for kind in (_core.Plan, _core.PlanStep, _core.Decline, _core.WorkspacePiece, _core.Accounting)]
    sections = [("Arrays of any library", onepass.__doc__, arrays), ("Plans", None, plans),
                ("PyTorch", onepass.sdpa.__doc__, [function_text("onepass", onepass.scaled_dot_product_attention)]),
                *[(module.__name__, module.__doc__, of_module(module))
                  for module in (onepass.torch_attention, onepass.flash_attn, onepass.flash_attn_interface,
                                 onepass.huggingface)]]
    blocks = [HEAD.strip()]
    for title, introduction, texts in sections:
        blocks += [f"## {title}", *([markdown(introduction)] if introduction else []), *texts]
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is not what the docstrings say: run scripts/python_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
