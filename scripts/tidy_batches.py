"""Puts source files into few translation units, for clang-tidy, whose time goes into the headers of each.

    tidy_batches.py FOLDER FILE...

FOLDER is a build folder with compile_commands.json. Files of equal options share a unit unless a name that both
declare outside of functions might clash; kCall, which every command has, gets a number in each file. Writes
FOLDER/batches/batch_<n>.cpp and their compile_commands.json, and prints the paths of the units.
"""
import json
import pathlib
import re
import shlex
import sys

MOST_FILES = 12  # of a unit: there should be several for each core

DECLARED = re.compile(
    r"#define\s+(\w+)|(?:struct|class|enum|union|using)\s+(\w+)|(?<!::)\b(\w+)\s*(?:[({\[;]|=(?!=))")


def declared_names(path):
    """Our format indents what is inside of a function or class, and nothing else."""
    names = set()
    for line in path.read_text().splitlines():
        if line.startswith("#define") or (line[:1].isalpha() and not line.startswith("namespace")):
            for groups in DECLARED.findall(line):
                names.update(filter(None, groups))
    return names - {"const", "noexcept", "static_assert", "void", "kCall"}


def options_of(entry):
    """The command without its input, output and the paths that follow from them."""
    words, kept = shlex.split(entry["command"]), []
    while words:
        word = words.pop(0)
        if word in ("-o", "-c", "-MF", "-MT"):
            words.pop(0)
        elif word != "-MD":
            kept.append(word)
    return tuple(kept)


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    wanted = [pathlib.Path(name).resolve() for name in sys.argv[2:]]
    commands = json.loads((folder / "compile_commands.json").read_text())
    options = {pathlib.Path(entry["file"]): options_of(entry) for entry in commands}

    batches = []  # [options, names, files]
    for path in wanted:
        names = declared_names(path)
        for batch in batches:
            if batch[0] == options[path] and len(batch[2]) < MOST_FILES and not names & batch[1]:
                break
        else:
            batch = [options[path], set(), []]
            batches.append(batch)
        batch[1] |= names
        batch[2].append(path)

    out = folder / "batches"
    out.mkdir(exist_ok=True)
    for unit in out.glob("batch_*.cpp"):
        unit.unlink()
    entries = []
    for n, (command, _, files) in enumerate(sorted(batches, key=lambda batch: -len(batch[2]))):
        unit = out / f"batch_{n}.cpp"
        unit.write_text("".join(
            f'#define kCall kCall{i}\n#include "{path}"\n#undef kCall\n' for i, path in enumerate(files)))
        entries.append({"directory": str(folder), "file": str(unit), "arguments": [*command, "-c", str(unit)]})
        print(unit)
    (out / "compile_commands.json").write_text(json.dumps(entries))


main()
