"""Every verb: what it prints, its JSON, its exit status."""

import glob
import os
import unittest

from support import SOURCE_DIR, CliTest

CASE = "bf16_b2_hq4_hk2_sq33_sk65_d64_causal"


class Help(CliTest):
    def test_help_lists_the_verbs_and_exit_statuses(self):
        text = self.succeed("--help")
        for word in ("run", "check", "bench", "plan", "kernels", "info", "Exit status: 0 done"):
            self.assertIn(word, text)

    def test_each_verb_has_help_with_json(self):
        for verb in ("run", "check", "bench", "plan", "kernels", "info"):
            text = self.succeed(verb, "--help")
            self.assertIn("--json", text)
            self.assertIn("Usage: onepass %s " % verb, text)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"^onepass \d+\.\d+\.\d+\n$")


class Info(CliTest):
    def test_text(self):
        text = self.succeed("info")
        for word in ("onepass", "built by", "cores", "vectors", "peaks", "GPUs", "kernel bundle", "kernel cache"):
            self.assertIn(word, text)

    def test_json(self):
        document = self.document("info")
        self.assertEqual(document["gpu"]["present"], not document["gpu"]["text"].startswith("none"))
        self.assertIn(document["instruction_sets"]["chosen"], document["instruction_sets"]["available"])
        self.assertGreater(document["cpu"]["num_processors"], 0)
        self.assertIn("h200", document["known_devices"])


class Plan(CliTest):
    def test_this_cpu(self):
        text = self.succeed("plan", CASE)
        for word in ("implementation", "cpu_simd", "declined", "sm80_forward", "tiles", "workspace", "ridge", "at least"):
            self.assertIn(word, text)

    def test_json(self):
        document = self.document("plan", CASE)
        self.assertEqual(document["case"], CASE)
        self.assertEqual(document["problem"]["num_heads_q"], 4)
        self.assertEqual(document["plan"]["implementation"], "cpu_simd")
        self.assertEqual([d["implementation"] for d in document["plan"]["declines"]], ["sm90_forward", "sm90_decode", "sm80_forward"])
        self.assertEqual(document["device"]["kind"], "cpu")
        pairs = sum(min(65, i + 65 - 33 + 1) for i in range(33))
        self.assertEqual(document["accounting"]["flops"], 2 * 4 * pairs * 4 * 64)

    def test_reference_backend(self):
        self.assertEqual(self.document("plan", CASE, "--backend", "reference")["plan"]["implementation"], "cpu_reference")

    def test_gpu_that_is_not_here_gets_its_bound_and_an_honest_decline(self):
        document = self.document("plan", "f32_b1_hq1_sq4096_d128", "--device", "a100")
        self.assertIsNone(document["plan"])
        self.assertEqual([d["implementation"] for d in document["declines"]],
                         ["sm90_forward", "sm90_decode", "sm80_forward", "cpu_simd", "cpu_reference"])
        self.assertIn("compute capability 9.0, and a100 has 8.0", document["declines"][0]["reason"])
        self.assertIn("q is f32", document["declines"][2]["reason"])
        self.assertIn("q is f32", self.succeed("plan", "f32_b1_hq1_sq4096_d128", "--device", "a100"))

    def test_gpu_that_is_not_here_is_planned_with_kernel_and_bytes(self):
        document = self.document("plan", "bf16_b1_hq1_sq4096_d128", "--device", "a100")
        self.assertEqual(document["plan"]["implementation"], "sm80_forward")
        # spec section 7: 8.6 GFLOP, 132 MiB materialised, at least 4 MiB, A100
        accounting = document["accounting"]
        self.assertEqual(accounting["flops"], 4 * 4096 * 4096 * 128)
        self.assertEqual(accounting["bytes_materialised"], 132 * 2 ** 20)
        self.assertEqual(accounting["bytes_lower_bound"], 4 * 2 ** 20)
        self.assertEqual(accounting["bytes_one_pass"], 66 * 2 ** 20)
        text = self.succeed("plan", "bf16_b1_hq1_sq4096_d128", "--device", "a100")
        self.assertIn("sm80_forward_bf16_d128_v128", text)
        self.assertIn("132.0 MiB", text)

    def test_prefill_on_hopper_names_its_kernel_and_its_ticket(self):
        document = self.document("plan", "bf16_b1_hq1_sq4096_d128_causal", "--device", "h200")
        self.assertEqual(document["plan"]["implementation"], "sm90_forward")
        text = self.succeed("plan", "bf16_b1_hq1_sq4096_d128_causal", "--device", "h200")
        self.assertIn("sm90_forward_bf16_d128_v128", text)
        self.assertIn("ticket", text)

    def test_an_attention_kernel_has_what_it_takes_of_a_multiprocessor(self):
        self.set_variable("ONEPASS_BUNDLE", self.path("no.bundle"))
        case = "bf16_b2_hq32_hk8_sq4096_d128_causal"
        lines = self.succeed("plan", case, "--device", "h200").split("\n")
        step = next(i for i, line in enumerate(lines) if line.startswith("step 1 "))
        self.assertEqual(lines[step + 1:step + 6], [
            "  buffers         2 for Q, 2 for K and V each",
            "  shared memory   192.4 KiB a block, 84 % of the 228.0 KiB of a multiprocessor",
            "  registers       at most 168 a thread, by the bound at launch; no machine code is at hand",
            "  occupancy       1 block a multiprocessor (shared memory 1, threads 5, registers 1 or more)",
            "  tiles           2048 for 132 blocks that stay, 15.52 each; the last round fills 52 % of the GPU"])
        occupancy = self.document("plan", case, "--device", "h200")["plan"]["steps"][0]["occupancy"]
        self.assertEqual((occupancy["query_buffers"], occupancy["key_value_stages"]), (2, 2))
        self.assertEqual((occupancy["registers"], occupancy["registers_from"]), (168, "launch bound"))
        self.assertEqual((occupancy["blocks_per_processor"], occupancy["exact_blocks"]), (1, True))
        self.assertEqual((occupancy["tiles"], occupancy["waves"]), (2048, None))
        self.assertAlmostEqual(occupancy["tiles_per_block"], 2048 / 132)
        self.assertAlmostEqual(occupancy["last_round"], 68 / 132)

    def test_waves_are_those_of_an_attention_kernel(self):
        self.set_variable("ONEPASS_BUNDLE", self.path("no.bundle"))
        document = self.document("plan", "bf16_b1_hq32_hk8_sq1_sk8192_d128_causal", "--device", "a100")
        attention, merge = document["plan"]["steps"]
        self.assertNotIn("occupancy", merge)
        occupancy = attention["occupancy"]
        self.assertEqual((occupancy["registers_from"], occupancy["exact_blocks"]), ("launch bound", False))
        self.assertEqual((occupancy["tiles"], occupancy["last_round"]), (None, None))
        self.assertAlmostEqual(occupancy["waves"], attention["num_work_items"] / occupancy["blocks_at_once"])
        text = self.succeed("plan", "bf16_b1_hq32_hk8_sq1_sk8192_d128_causal", "--device", "a100")
        self.assertIn("\n  waves           at most 1.00, with 216 blocks or more at once\n", text)

    def test_every_known_device(self):
        for device in self.document("info")["known_devices"]:
            self.assertEqual(self.document("plan", CASE, "--device", device)["device"]["name"], device)

    def test_all_devices_side_by_side(self):
        document = self.document("plan", CASE, "--device", "all")
        known = self.document("info")["known_devices"]
        self.assertEqual([d["device"]["name"] for d in document["devices"]][1:], known)
        text = self.succeed("plan", CASE, "--device", "all")
        for device in ["this-cpu"] + known:
            self.assertIn("\n" + device + " ", text)

    def test_a_problem_larger_than_memory(self):
        document = self.document("plan", "bf16_b64_hq64_hk8_sq131072_sk131072_d128_causal", "--device", "h200")
        self.assertGreater(document["accounting"]["bytes_lower_bound"], 2 ** 37)


class Check(CliTest):
    def test_passes(self):
        text = self.succeed("check", CASE, "f32_b1_hq1_sq5_d8")
        self.assertIn("ok    " + CASE, text)
        self.assertIn("2 of 2 passed", text)

    def test_json(self):
        document = self.document("check", CASE, "--backend", "reference")
        self.assertEqual((document["cases"], document["failed"]), (1, 0))
        result = document["results"][0]
        self.assertEqual(result["case"], CASE)
        self.assertTrue(result["passed"])
        self.assertLessEqual(result["out"]["e"], result["out"]["bound"])
        self.assertEqual(result["out"]["elements"], 2 * 33 * 4 * 64)
        self.assertEqual(result["repeat"], "onepass check %s --backend reference" % CASE)

    def test_every_instruction_set(self):
        for name in self.document("info")["instruction_sets"]["available"]:
            self.succeed("check", CASE, "--instruction-set", name, "--backend", "cpu")

    def test_unknown_instruction_set(self):
        self.refused("check", CASE, "--instruction-set", "AVX99", says=["AVX99"])

    def test_lists_of_cases(self):
        self.succeed("check", "--file", os.path.join(SOURCE_DIR, "cases", "smoke.txt"))
        self.succeed("check", "--file", os.path.join(SOURCE_DIR, "cases", "ci.txt"))

    def test_every_list_is_valid(self):
        for path in glob.glob(os.path.join(SOURCE_DIR, "cases", "**", "*.txt"), recursive=True):
            with open(path) as file:
                cases = [line.split("#")[0].strip() for line in file]
            cases = [case for case in cases if case]
            self.assertTrue(cases, path)
            for case in cases:
                self.document("plan", case)

    def test_text_and_file_together(self):
        with open(self.path("cases.txt"), "w") as file:
            file.write("  f32_b1_hq1_sq2_d8  # a comment\n\n# f16_b1_hq1_sq1_d1\nf16_b1_hq1_sq3_d8\r\n")
        document = self.document("check", "f32_b1_hq1_sq1_d8", "--file", self.path("cases.txt"))
        self.assertEqual([r["case"].split("_sq")[1][0] for r in document["results"]], ["1", "2", "3"])

    def test_splits_are_part_of_the_case(self):
        document = self.document("check", "f32_b1_hq1_sq1_sk500_d64", "--splits", "3")
        self.assertTrue(document["results"][0]["case"].endswith("_split3"))

    def test_progress_on_request(self):
        done = self.onepass("check", "f32_b1_hq8_sq512_d64", "f32_b1_hq8_sq512_d64", "--progress")
        self.assertEqual(done.returncode, 0)
        self.assertIn("/2] f32_b1_hq8", done.stderr)


class Bench(CliTest):
    def test_text(self):
        text = self.succeed("bench", "f32_b1_hq2_sq64_d64", "--min-time", "0.01")
        for word in ("measured peaks", "FLOP/s", "B/s", "median", "spread", "f32_b1_hq2_hk2_sq64_sk64_d64"):
            self.assertIn(word, text)

    def test_json(self):
        document = self.document("bench", "f32_b1_hq2_sq64_d64", "bf16_b1_hq2_sq1_sk300_d64", "--backends", "cpu,reference",
                                 "--repeat", "4")
        self.assertGreater(document["machine"]["f32_flops_per_second"], 0)
        self.assertGreater(document["machine"]["read_bytes_per_second"], 0)
        results = document["results"]
        self.assertEqual([r["backend"] for r in results], ["cpu", "reference"] * 2)
        for r in results:
            self.assertTrue(r["check"]["passed"])
            self.assertEqual(r["runs"], 4)
            seconds = r["seconds"]
            self.assertLessEqual(seconds["min"], seconds["lower_quartile"])
            self.assertLessEqual(seconds["lower_quartile"], seconds["median"])
            self.assertLessEqual(seconds["median"], seconds["upper_quartile"])
            self.assertLessEqual(seconds["upper_quartile"], seconds["max"])
            self.assertAlmostEqual(r["flops_per_second"] * seconds["median"] / r["flops"], 1)
        self.assertEqual(results[0]["flops"], 4 * 64 * 64 * 64 * 2)

    def test_without_check(self):
        document = self.document("bench", "f32_b1_hq1_sq8_d8", "--repeat", "1", "--no-check")
        self.assertIsNone(document["results"][0]["check"])

    def test_invalid_case_is_found_before_anything_runs(self):
        self.refused("bench", "f32_b1_hq1_sq8_d8", "f32_b1_hq3_hk2_sq8_d8", says=["q has 3 heads, but k has 2"])


if __name__ == "__main__":
    unittest.main()
