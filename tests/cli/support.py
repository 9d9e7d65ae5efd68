"""Running the onepass program and making tensor files, with the standard library alone."""

import json
import math
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

ONEPASS = os.environ["ONEPASS"]
SOURCE_DIR = os.environ["ONEPASS_SOURCE_DIR"]

_NPY = {"f32": ("<f4", "f"), "f64": ("<f8", "d"), "i32": ("<i4", "i"), "i64": ("<i8", "q"), "f16": ("<f2", "e")}
_SAFETENSORS = {"f32": ("F32", "f"), "f16": ("F16", "e"), "i32": ("I32", "i"), "bf16": ("BF16", None)}


def flat(values):
    """The numbers of a nested list in row-major order, and its shape."""
    if not isinstance(values, list):
        return [values], []
    parts = [flat(v) for v in values]
    return [x for numbers, _ in parts for x in numbers], [len(values)] + (parts[0][1] if parts else [])


def npy_bytes(numbers, shape, dtype="f32", descr=None, fortran_order=False):
    name, code = _NPY[dtype]
    header = "{'descr': %r, 'fortran_order': %r, 'shape': %s, }" % (
        descr or name, fortran_order, "(%s)" % "".join("%d, " % n for n in shape))
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
            + struct.pack("<%d%s" % (len(numbers), code), *numbers))


def write_npy(path, numbers, shape, dtype="f32"):
    with open(path, "wb") as file:
        file.write(npy_bytes(numbers, shape, dtype))
    return path


def read_npy(path):
    """(numbers, shape) of a row-major .npy file."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<H", data[8:10])[0]
    header = data[10:10 + length].decode()
    assert data[:6] == b"\x93NUMPY" and "'fortran_order': False" in header, header
    descr = header.split("'descr': '")[1].split("'")[0]
    shape = [int(n) for n in header.split("'shape': (")[1].split(")")[0].split(",") if n.strip()]
    body = data[10 + length:]
    if descr == "<V2":  # bf16: the upper half of an f32
        numbers = [struct.unpack("<f", b"\0\0" + body[i:i + 2])[0] for i in range(0, len(body), 2)]
    else:
        code = {d: c for d, c in _NPY.values()}[descr]
        numbers = list(struct.unpack("<%d%s" % (math.prod(shape), code), body))
    return numbers, shape


def write_safetensors(path, tensors):
    """tensors: {name: (numbers, shape, dtype)}."""
    header, body = {}, b""
    for name, (numbers, shape, dtype) in tensors.items():
        stored, code = _SAFETENSORS[dtype]
        if dtype == "bf16":
            part = b"".join(struct.pack("<f", x)[2:] for x in numbers)
        else:
            part = struct.pack("<%d%s" % (len(numbers), code), *numbers)
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)
    return path


def read_safetensors(path, name):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + length])[name]
    begin, end = entry["data_offsets"]
    body = data[8 + length + begin:8 + length + end]
    code = {d: c for d, c in _SAFETENSORS.values()}[entry["dtype"]]
    return list(struct.unpack("<%d%s" % (math.prod(entry["shape"]), code), body)), entry["shape"]


def attention(q, k, v, scale):
    """One head without a mask: q [Sq][D], k [Sk][D], v [Sk][Dv] -> (o [Sq][Dv], lse [Sq]) in float64."""
    out, lse = [], []
    for row in q:
        scores = [scale * sum(a * b for a, b in zip(row, key)) for key in k]
        m = max(scores)
        total = sum(math.exp(s - m) for s in scores)
        lse.append(m + math.log(total))
        out.append([sum(math.exp(s - m) * value[c] for s, value in zip(scores, v)) / total
                    for c in range(len(v[0]))])
    return out, lse


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="onepass_cli_")
        self.addCleanup(shutil.rmtree, self.folder)
        # Varied, and printed when a test fails, so that a failure can be repeated.
        self.seed = int(os.environ.get("ONEPASS_TEST_SEED", random.randrange(1 << 30)))
        self.random = random.Random(self.seed)

    def set_variable(self, name, value):
        before = os.environ.get(name)
        os.environ[name] = value
        self.addCleanup(lambda: os.environ.update({name: before}) if before is not None else os.environ.pop(name))

    def path(self, name):
        return os.path.join(self.folder, name)

    def numbers(self, count):
        return [self.random.gauss(0.5, 1.0) for _ in range(count)]

    def npy(self, name, shape, dtype="f32", numbers=None):
        return write_npy(self.path(name + ".npy"), self.numbers(math.prod(shape)) if numbers is None else numbers,
                         shape, dtype)

    def onepass(self, *arguments, **options):
        return subprocess.run([ONEPASS, *arguments], capture_output=True, text=True, timeout=240, **options)

    def succeed(self, *arguments):
        done = self.onepass(*arguments)
        self.assertEqual(done.returncode, 0, "%s (seed %d)\n%s%s" % (arguments, self.seed, done.stdout, done.stderr))
        self.assertEqual(done.stderr, "")
        return done.stdout

    def document(self, *arguments, status=0):
        """The one JSON document on stdout; nothing on stderr."""
        done = self.onepass(*arguments[:1], "--json", *arguments[1:])
        self.assertEqual(done.returncode, status, "%s (seed %d)\n%s%s" % (arguments, self.seed, done.stdout, done.stderr))
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def refused(self, *arguments, status=2, says=()):
        """One error in the three-line form, `status`, nothing on stdout, no new file; the same as JSON."""
        before = sorted(os.listdir(self.folder))
        done = self.onepass(*arguments)
        self.assertEqual(done.returncode, status, "%s\n%s%s" % (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stdout, "")
        lines = done.stderr.split("\n")
        self.assertEqual(len(lines), 4, done.stderr)
        self.assertRegex(lines[0], r"^[^ ].*: .*\.$")
        self.assertRegex(lines[1], r"^  Allowed: .*\.$")
        self.assertRegex(lines[2], r"^  Fix: .*\.$")
        self.assertEqual(lines[3], "")
        for text in says:
            self.assertIn(text, done.stderr)
        error = self.document(*arguments, status=status)["error"]
        self.assertEqual(error["message"], done.stderr.rstrip("\n"))
        self.assertEqual(error["exit_status"], status)
        self.assertEqual("  Allowed: %s." % error["allowed"], lines[1])
        self.assertEqual("  Fix: %s." % error["fix"], lines[2])
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        return done.stderr
