"""onepass run: files in, attention out."""

import math
import os
import unittest

from support import CliTest, attention, read_npy, read_safetensors, write_safetensors


class Run(CliTest):
    def tensors(self, sq=3, sk=5, heads=1, d=4, dv=4):
        """One head each: nested [S][D] lists, and files of [1, S, H, D] with the same rows in every head."""
        q, k, v = ([self.numbers(n) for _ in range(s)] for s, n in ((sq, d), (sk, d), (sk, dv)))
        for name, rows in (("q", q), ("k", k), ("v", v)):
            self.npy(name, [1, len(rows), heads, len(rows[0])], numbers=[x for row in rows for _ in range(heads) for x in row])
        return q, k, v

    def files(self):
        return [a for name in "qkv" for a in ("--" + name, self.path(name + ".npy"))]

    def assert_close(self, got, want, tolerance=1e-5):
        self.assertEqual(len(got), len(want))
        for g, w in zip(got, want):
            self.assertTrue(g == w or abs(g - w) <= tolerance * (1 + abs(w)), "%r, want %r (seed %d)" % (g, w, self.seed))

    def test_result_is_the_formula(self):
        q, k, v = self.tensors(sq=7, sk=9, d=6, dv=5)
        self.succeed("run", *self.files(), "--scale", "0.3", "--out", self.path("o.npy"), "--lse", self.path("l.npy"))
        out, lse = attention(q, k, v, 0.3)
        numbers, shape = read_npy(self.path("o.npy"))
        self.assertEqual(shape, [1, 7, 1, 5])
        self.assert_close(numbers, [x for row in out for x in row])
        numbers, shape = read_npy(self.path("l.npy"))
        self.assertEqual(shape, [1, 1, 7])
        self.assert_close(numbers, lse)

    def test_golden_case_a(self):
        # spec: S = [[0,1,2,0],[1,0,1,2]] at scale ln 2
        self.npy("q", [1, 2, 1, 2], numbers=[1, 0, 0, 1])
        self.npy("k", [1, 4, 1, 2], numbers=[0, 1, 1, 0, 2, 1, 0, 2])
        self.npy("v", [1, 4, 1, 2], numbers=[1, 0, 0, 1, 1, 1, 2, 0])
        self.succeed("run", *self.files(), "--scale", repr(math.log(2)), "--out", self.path("o.npy"), "--lse",
                     self.path("l.npy"), "--check")
        self.assert_close(read_npy(self.path("o.npy"))[0], [7 / 8, 3 / 4, 4 / 3, 1 / 3], 1e-6)
        self.assert_close(read_npy(self.path("l.npy"))[0], [math.log(8), math.log(9)], 1e-6)

    def test_bhsd_layout_gives_the_same_numbers_in_that_layout(self):
        rows = {name: [[self.numbers(4) for _ in range(s)] for _ in range(2)] for name, s in (("q", 3), ("k", 5), ("v", 5))}
        for name, heads in rows.items():
            s = len(heads[0])
            self.npy(name, [1, 2, s, 4], numbers=[x for head in heads for row in head for x in row])
        self.succeed("run", *self.files(), "--layout", "bhsd", "--out", self.path("o.npy"), "--lse", self.path("l.npy"))
        numbers, shape = read_npy(self.path("o.npy"))
        self.assertEqual(shape, [1, 2, 3, 4])
        want = [attention(rows["q"][h], rows["k"][h], rows["v"][h], 0.5) for h in range(2)]
        self.assert_close(numbers, [x for out, _ in want for row in out for x in row])
        self.assert_close(read_npy(self.path("l.npy"))[0], [x for _, lse in want for x in lse])

    def visible_mean(self, *options):
        """With q = 0 a row's output is the mean of the V rows (1, 2, ...) that it sees."""
        self.npy("q", [1, 2, 1, 1], numbers=[0, 0])
        self.npy("k", [1, 5, 1, 1], numbers=[1] * 5)
        self.npy("v", [1, 5, 1, 1], numbers=[1, 2, 3, 4, 5])
        self.succeed("run", *self.files(), *options, "--out", self.path("o.npy"), "--check")
        return read_npy(self.path("o.npy"))[0]

    def test_masks(self):
        for options, want in (([], [3, 3]),
                              (["--causal"], [2.5, 3]),
                              (["--causal", "bottom-right"], [2.5, 3]),
                              (["--causal=top-left"], [1, 1.5]),
                              (["--window", "1,0"], [3.5, 4.5]),
                              (["--window", "-1,-1"], [3, 3]),
                              (["--window", "0,-1"], [4.5, 5])):
            with self.subTest(options=options):
                self.assert_close(self.visible_mean(*options), want, 1e-6)

    def test_score_terms_change_the_result_as_defined(self):
        # R39: ALiBi slope 0.5, not causal
        slopes = self.npy("slopes", [1], numbers=[0.5])
        self.assert_close(self.visible_mean("--alibi", slopes), [3.498890, 3.905633], 1e-5)
        sinks = self.npy("sinks", [1], numbers=[math.log(5)])  # as much weight as all five keys
        self.assert_close(self.visible_mean("--sinks", sinks), [1.5, 1.5], 1e-5)
        bias = self.npy("bias", [1, 1, 2, 5], numbers=[0, 0, 0, 0, 100] * 2)
        self.assert_close(self.visible_mean("--bias", bias), [5, 5], 1e-5)
        # the bias comes after the cap, so the cap does not limit it
        self.assert_close(self.visible_mean("--bias", bias, "--softcap", "2"), [5, 5], 1e-5)

    def test_softcap(self):
        # R15: raw scores (5000, 10000), cap 50
        self.npy("q", [1, 1, 1, 1], numbers=[1])
        self.npy("k", [1, 2, 1, 1], numbers=[5000, 10000])
        self.npy("v", [1, 2, 1, 1], numbers=[1, 2])
        self.succeed("run", *self.files(), "--scale", "1", "--softcap", "50", "--out", self.path("o.npy"), "--lse",
                     self.path("l.npy"))
        self.assert_close(read_npy(self.path("o.npy"))[0], [1.5], 1e-6)
        self.assert_close(read_npy(self.path("l.npy"))[0], [50.693147], 1e-6)

    def test_eight_bit_keys_and_values_with_descales(self):
        # R22: stored K = 4, 0 and V = 8, 2 in e4m3
        self.npy("q", [1, 1, 1, 1], numbers=[2])
        for name, values in (("k", b"\x48\x00"), ("v", b"\x50\x40")):
            header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 1, 1), }".ljust(117) + "\n"
            with open(self.path(name + ".npy"), "wb") as file:
                file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values)
        self.succeed("run", "--q", self.path("q.npy"), "--k", self.path("k.npy:f8e4m3"), "--v", self.path("v.npy:f8e4m3"),
                     "--k-descale", self.npy("kd", [1], numbers=[0.25]), "--v-descale", self.npy("vd", [1], numbers=[0.5]),
                     "--scale", "1", "--out", self.path("o.npy"), "--lse", self.path("l.npy"))
        self.assert_close(read_npy(self.path("o.npy"))[0], [3.642391], 1e-5)
        self.assert_close(read_npy(self.path("l.npy"))[0], [2.126928], 1e-5)

    def test_packed_sequences(self):
        # R11: lengths q 1, 0, 1 and k 3, 0, 5; V restarts at 1
        self.npy("q", [2, 1, 1], numbers=[0, 0])
        self.npy("k", [8, 1, 1], numbers=[1] * 8)
        self.npy("v", [8, 1, 1], numbers=[1, 2, 3, 1, 2, 3, 4, 5])
        self.succeed("run", *self.files(), "--cu-seqlens-q", self.npy("cq", [4], "i64", [0, 1, 1, 2]), "--cu-seqlens-k",
                     self.npy("ck", [4], "i32", [0, 3, 3, 8]), "--causal", "--out", self.path("o.npy"), "--lse",
                     self.path("l.npy"), "--check")
        self.assert_close(read_npy(self.path("o.npy"))[0], [2, 3], 1e-6)
        numbers, shape = read_npy(self.path("l.npy"))
        self.assertEqual(shape, [1, 2])
        self.assert_close(numbers, [math.log(3), math.log(5)], 1e-6)

    def test_paged_keys(self):
        # R09: page 4, 3 new queries after a prefix of 7, table [5, 2, 9, -1, 2^30], NaN in all memory not in use
        nan = math.nan
        pool = [[nan] * 4 for _ in range(10)]
        for token in range(10):
            pool[[5, 2, 9][token // 4]][token % 4] = token + 1.0
        flat = [x for page in pool for x in page]
        self.npy("q", [1, 3, 1, 1], numbers=[0] * 3)
        self.npy("v", [10, 4, 1, 1], numbers=flat)
        self.npy("k", [10, 4, 1, 1], numbers=flat)
        self.succeed("run", *self.files(), "--block-table", self.npy("bt", [1, 5], "i32", [5, 2, 9, -1, 1 << 30]),
                     "--seqused-k", self.npy("su", [1], "i32", [10]), "--causal", "--out", self.path("o.npy"), "--lse",
                     self.path("l.npy"), "--check")
        self.assert_close(read_npy(self.path("o.npy"))[0], [4.5, 5.0, 5.5], 1e-6)
        self.assert_close(read_npy(self.path("l.npy"))[0], [2.079442, 2.197225, 2.302585], 1e-6)

    def test_row_without_keys(self):
        # R02
        self.npy("q", [1, 5, 1, 1], numbers=[0] * 5)
        self.npy("k", [1, 2, 1, 1], numbers=[0] * 2)
        self.npy("v", [1, 2, 1, 1], numbers=[1, 2])
        document = self.document("run", *self.files(), "--causal", "--out", self.path("o.npy"), "--lse", self.path("l.npy"))
        self.assertEqual(read_npy(self.path("o.npy"))[0], [0, 0, 0, 1, 1.5])
        self.assertEqual(read_npy(self.path("l.npy"))[0][:3], [-math.inf] * 3)
        self.assertEqual(document["lse"]["num_infinite"], 3)
        self.assertEqual(document["lse"]["first"][0], "-inf")

    def test_empty_tensors(self):
        self.npy("q", [1, 0, 1, 4])
        self.npy("k", [1, 5, 1, 4])
        self.npy("v", [1, 5, 1, 4])
        self.succeed("run", *self.files(), "--out", self.path("o.npy"), "--check")
        self.assertEqual(read_npy(self.path("o.npy")), ([], [1, 0, 1, 4]))

    def test_nan_is_printed_without_a_sign(self):
        self.npy("q", [1, 1, 1, 2], numbers=[1, 1])
        self.npy("k", [1, 1, 1, 2], numbers=[1, 1])
        self.npy("v", [1, 1, 1, 2], numbers=[-math.nan, math.copysign(math.nan, -1)])
        self.assertIn("2 NaN; first nan nan", self.succeed("run", *self.files()))

    def test_dtype_converts_first(self):
        self.tensors()
        for dtype, tolerance in (("f16", 2e-3), ("bf16", 2e-2)):
            with self.subTest(dtype=dtype):
                document = self.document("run", *self.files(), "--dtype", dtype, "--out", self.path(dtype + ".npy"), "--check")
                self.assertEqual(document["problem"]["q_dtype"], dtype)
                self.assertEqual(document["out"]["dtype"], dtype)
                self.assertTrue(document["check"]["passed"])
                self.succeed("run", *self.files(), "--out", self.path("f32.npy"))
                got, want = read_npy(self.path(dtype + ".npy"))[0], read_npy(self.path("f32.npy"))[0]
                self.assert_close(got, want, tolerance * 4)
                self.assertNotEqual(got, want)

    def test_safetensors_in_and_out(self):
        q, k, v = self.tensors(sq=2, sk=3)
        path = write_safetensors(self.path("x.safetensors"), {
            name: ([x for row in rows for x in row], [1, len(rows), 1, 4], "f32") for name, rows in (("q", q), ("k", k), ("v", v))})
        both = self.path("y.safetensors")
        self.succeed("run", "--q", path + ":q", "--k", path + ":k", "--v", path + ":v", "--out", both + ":o", "--lse", both + ":lse")
        out, lse = attention(q, k, v, 0.5)
        numbers, shape = read_safetensors(both, "o")
        self.assertEqual(shape, [1, 2, 1, 4])
        self.assert_close(numbers, [x for row in out for x in row])
        self.assert_close(read_safetensors(both, "lse")[0], lse)

    def test_backends_agree(self):
        self.tensors(sq=17, sk=33, heads=2, d=8)
        results = []
        for options in (["--backend", "reference"], ["--backend", "cpu"], ["--backend", "cpu", "--threads", "1"],
                        ["--backend", "cpu", "--splits", "3"], []):
            self.succeed("run", *self.files(), "--causal", *options, "--out", self.path("o.npy"))
            results.append(read_npy(self.path("o.npy"))[0])
        for result in results[1:]:
            self.assert_close(result, results[0], 1e-5)

    def test_json_is_complete(self):
        self.tensors(sq=4, sk=6, heads=2)
        document = self.document("run", *self.files(), "--check", "--threads", "1", "--out", self.path("o.npy"))
        self.assertEqual(document["problem"]["seqlen_k"], 6)
        self.assertEqual(document["plan"]["implementation"], "cpu_simd")
        self.assertEqual(document["plan"]["num_threads"], 1)
        self.assertEqual(document["flops"], 4 * 4 * 6 * 4 * 2)
        self.assertGreater(document["seconds"], 0)
        numbers, _ = read_npy(self.path("o.npy"))
        self.assert_close(document["out"]["first"], numbers[:4], 1e-6)
        self.assert_close([document["out"][key] for key in ("min", "max", "mean")],
                          [min(numbers), max(numbers), sum(numbers) / len(numbers)], 1e-5)
        self.assertTrue(document["check"]["passed"])
        self.assertLessEqual(document["check"]["out"]["e"], document["check"]["out"]["bound"])
        self.assertEqual(document["written"], [self.path("o.npy")])

    def test_exact_work_of_ragged_sequences(self):
        self.npy("q", [4, 1, 2])
        self.npy("k", [4, 1, 2])
        self.npy("v", [4, 1, 2])
        cu = self.npy("cu", [3], "i32", [0, 1, 4])
        document = self.document("run", *self.files(), "--cu-seqlens-q", cu, "--cu-seqlens-k", cu, "--causal")
        self.assertEqual(document["flops"], 4 * 2 * (1 + 6))  # 1 pair, and 1 + 2 + 3

    def test_text_names_what_ran(self):
        self.tensors()
        text = self.succeed("run", *self.files(), "--check", "--out", self.path("o.npy"))
        for word in ("problem", "plan", "cpu_simd", "time", "FLOP/s", "out", "lse", "passed", self.path("o.npy")):
            self.assertIn(word, text)

    def test_outputs_replace_old_ones_and_leave_nothing_beside(self):
        self.tensors()
        before = set(os.listdir(self.folder))
        for _ in range(2):
            self.succeed("run", *self.files(), "--out", self.path("o.npy"))
        self.assertEqual(set(os.listdir(self.folder)) - before, {"o.npy"})

    def test_repository_example(self):
        example = os.path.join(os.environ["ONEPASS_SOURCE_DIR"], "examples", "data", "minilm.safetensors")
        document = self.document("run", "--q", example + ":q", "--k", example + ":k", "--v", example + ":v", "--check",
                                 "--out", self.path("o.npy"))
        self.assertTrue(document["check"]["passed"])
        self.assert_close(read_npy(self.path("o.npy"))[0], read_safetensors(example, "o")[0], 1e-5)


if __name__ == "__main__":
    unittest.main()
