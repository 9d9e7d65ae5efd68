"""The parts of bench/ that need neither torch nor a GPU: cases, timing, tables. Python's standard library only."""

import contextlib
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ["ONEPASS_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "bench"))

import cases  # noqa: E402  (after the path)
import decode_tables  # noqa: E402
import gpu_tables  # noqa: E402
import make_tables  # noqa: E402
import timing  # noqa: E402


class Cases(unittest.TestCase):
    def test_forward_suite_has_16k_tokens_and_hidden_size_2048(self):
        problems = [p for p in cases.gpu_forward_problems() if p.dtype_name == "bf16"]
        self.assertEqual(len(problems), 3 * 2 * 6)
        for p in problems:
            self.assertEqual((p.batch * p.seqlen_q, p.num_heads_q * p.head_dim), (16384, 2048), p.text)

    def test_every_case_text_is_unique(self):
        texts = [p.text for suite in cases.GPU_SUITES.values() for p in suite()]
        repeated = {t for t in texts if texts.count(t) > 1}
        self.assertEqual(repeated, {"f16_b8_hq16_hk16_sq4096_sk4096_d64"})  # in forward and in naive

    def test_causal_flops_by_hand(self):
        p = cases.square("bf16", 2, 3, 4, 8, causal=True)
        self.assertEqual(p.flops, 4 * 2 * 3 * (1 + 2 + 3 + 4) * 8)
        self.assertEqual(p.conventional_flops, 4 * 2 * 3 * 4 * 4 * 8 // 2)

    def test_decode_inputs_exceed_the_cache(self):
        for p in cases.gpu_decode_problems():
            sets = p.num_input_sets(60 << 20)
            self.assertTrue(sets >= 3 and sets * p.bytes_read >= 1.5 * (60 << 20), p.text)

    def test_shrunk_keeps_everything_but_the_lengths(self):
        p = cases.Problem("bf16", 4, 32, 8, 1, 4096, 128)
        self.assertEqual(p.shrunk(64).text, "bf16_b4_hq32_hk8_sq1_sk64_d128")


class FakeClock:
    """A call takes as long as it says, nothing else takes any time."""

    def __init__(self):
        self.pauses = 0

    def settle(self):
        self.pauses += 1

    def time_calls(self, calls, first, count):
        return sum(calls[i % len(calls)]() for i in range(first, first + count)) / count


class Timing(unittest.TestCase):
    def test_interleave_fills_the_sample_and_rotates_inputs(self):
        used = []

        def call(name, index, seconds):
            def run():
                used.append((name, index))
                return seconds
            return run
        contenders = {n: [call(n, i, s) for i in range(3)] for n, s in (("a", 1e-3), ("b", 4e-3))}
        clock = FakeClock()
        samples = timing.interleave(contenders, 2, 8e-3, clock)
        self.assertEqual(clock.pauses, 2 * 2)
        for name, seconds, count in (("a", 1e-3, 8), ("b", 4e-3, 2)):
            self.assertEqual(len(samples[name]), 2)
            for sample in samples[name]:
                self.assertAlmostEqual(sample, seconds)
            order = [i for n, i in used if n == name]
            self.assertEqual(len(order), 2 + 2 * (1 + count))  # warm-up and estimate, then two samples
            timed = order[2:]
            self.assertEqual(timed, [i % 3 for i in range(len(timed))])

    def test_interleave_stops_adding_rounds_when_the_deadline_has_passed(self):
        samples = timing.interleave({"a": [lambda: 1e-3]}, 5, 1e-3, FakeClock(), deadline=timing.Deadline(0))
        self.assertEqual(len(samples["a"]), 1)  # the first round is always whole

    def test_calls_are_made_in_their_scope(self):
        inside = []

        @contextlib.contextmanager
        def scope():
            inside.append(True)
            yield
            inside.pop()

        def call():
            self.assertTrue(inside)
            return 1e-3
        timing.interleave({"a": [call]}, 2, 1e-3, FakeClock(), {"a": scope})

    def test_summary_by_hand(self):
        summary = timing.summary([5.0, 1.0, 3.0, 2.0, 4.0])
        self.assertEqual((summary["median_s"], summary["quartiles_s"], summary["min_s"]), (3.0, [1.5, 4.5], 1.0))
        self.assertEqual(summary["spread"], 0.5)


def invented_result():
    """Two prefill cases and a decode case: onepass is twice as fast as torch_flash in the one that both have."""
    def timed(seconds, tflops, gbytes):
        return {"median_s": seconds, "spread": 0.01, "samples": 5, "tflops": tflops, "gbytes_per_s": gbytes,
                "graph": "used" if gbytes == 2000.0 else "not used", "host_s": 1e-5, "beyond_bytes": 3 << 20, "max_abs_error": 0.0, "max_abs_error_allowed": 1.0}

    def case(suite, text, kind, results, refused):
        return {"suite": suite, "case": text, "kind": kind, "flops": 10**12, "bytes": 10**9, "results": results,
                "refused": refused}
    return {
        "gpu": {"name": "GPU X", "idle": {"driver": "580"}}, "images": ["gpu_x_roofline.svg"],
        "versions": {"torch": "2", "cuda": "13", "cudnn": "9.19.0"}, "commit": "abc", "date": "2026-01-01", "rounds": 5,
        "peaks": {"matmul_bf16_tflops": 800.0, "matmul_f16_tflops": 800.0, "copy_gbytes_per_s": 4000.0,
                  "under_load": {"sm_mhz": "1980", "power_w": "600"}},
        "absent": {"fa3": "No module"}, "failed": {}, "cut": ["bf16_b1_cut"],
        "cases": [
            case("forward", "bf16_b1_one", "prefill",
                 {"onepass": timed(1e-3, 400.0, 100.0), "torch_flash": timed(2e-3, 200.0, 50.0)}, {}),
            case("forward", "bf16_b1_two", "prefill", {"onepass": timed(1e-3, 400.0, 100.0)},
                 {"torch_flash": "RuntimeError: no | kernel"}),
            case("naive", "f16_b8_three", "prefill",
                 {"onepass": timed(1e-3, 400.0, 100.0), "torch_math": timed(4e-3, 100.0, 25.0)}, {}),
            case("decode", "bf16_b1_four", "decode",
                 {"onepass": timed(1e-5, 1.0, 2000.0), "torch_flash": timed(1e-5, 1.0, 2000.0),
                  "torch_cudnn": timed(1e-5, 1.0, 1500.0)}, {})]}


class Tables(unittest.TestCase):
    def test_summary_compares_only_what_both_have(self):
        text = gpu_tables.summary(invented_result())
        self.assertIn("| forward (1 case) | torch, FLASH_ATTENTION | 2.00x (2.00 to 2.00) | 50 % of the matrix product |",
                      text)
        self.assertIn("| decode (1 case) | torch, FLASH_ATTENTION | 1.00x (1.00 to 1.00) | 50 % of the copy bandwidth |",
                      text)
        self.assertNotIn("CUDNN", text)

    def test_full_has_every_case_and_says_what_has_no_number(self):
        text = gpu_tables.full(invented_result())
        self.assertIn("| `bf16_b1_two` | 400 ±1.0% | - | - | 50 % | 10 us |", text)
        self.assertIn("| `f16_b8_three` | 1 ms, 3.0 MiB | 4 ms, 3.0 MiB |", text)
        self.assertIn("| `bf16_b1_four` | 10 us, 2000 ±1.0% | 10 us, 2000 ±1.0% | 10 us, 1500 ±1.0% (calls) | 1.00 | - |",
                      text)  # a time in calls is shown, not compared with one in a graph
        self.assertIn("torch, FLASH_ATTENTION has no time for `bf16_b1_two`: RuntimeError: no ; kernel", text)
        self.assertIn("FlashAttention-3 was not on the machine", text)
        self.assertIn("Not run: `bf16_b1_cut`", text)
        self.assertIn("(images/gpu_x_roofline.svg)", text)

    def test_a_table_has_as_many_cells_in_every_row(self):
        for line_group in gpu_tables.full(invented_result()).split("\n\n"):
            widths = {line.count("|") for line in line_group.splitlines() if line.startswith("|")}
            self.assertLessEqual(len(widths), 1, line_group)

    def test_decode_is_compared_with_the_better_layout_of_the_peer(self):
        def timed(us):
            return {"median_s": us * 1e-6, "tbytes_per_s": 10 / us}
        result = {"gpu": {"name": "X"}, "versions": {"cuda": "13", "cudnn": "9", "torch": "2"}, "commit": "c", "date": "d",
                  "points": [{"context": 1024, "batch": 1, "results": {
                                 "dense": timed(5), "page64": timed(6), "cudnn_bshd": timed(10), "cudnn_bhsd": timed(8)}},
                             {"context": 4096, "batch": 8, "results": {"dense": timed(20), "cudnn_bshd": timed(18)}}]}
        text = decode_tables.summary(result)
        self.assertIn("(1.20x (0.90 to 1.60))", text)
        self.assertIn("| 1,024 | 5 us (1.60x) | - |", text)
        self.assertIn("| 4,096 | - | 20 us (0.90x) |", text)
        self.assertIn("| 1,024, 1 | 5.0 (2.00) | 6.0 (1.67) | - | 10.0 (1.00) | 8.0 (1.25) |", decode_tables.full(result))

    def test_markers_are_replaced_and_kept_when_there_is_no_result(self):
        page = "a\n<!-- bench:gpu:begin -->\nold\n<!-- bench:gpu:end -->\nb\n"
        new = make_tables.replace_between_markers(page, "gpu", "new", "page")
        self.assertEqual(new, page.replace("old", "new"))
        self.assertEqual(make_tables.replace_between_markers(new, "gpu", "", "page"), page.replace("old\n", ""))
        with self.assertRaises(SystemExit):
            make_tables.replace_between_markers(page, "cpu", "new", "page")


if __name__ == "__main__":
    unittest.main()
