"""onepass kernels: what each action prints and leaves behind, with and without the run-time compiler."""

import json
import os
import subprocess
import unittest

from support import ONEPASS, CliTest

CASE = "bf16_b1_hq8_hk2_sq1_sk4096_d64_causal"
KERNEL = "merge_splits_bf16_d64_v64_m0n0w4c1s1b1_l16s16_sm90"


class Kernels(CliTest):
    def setUp(self):
        super().setUp()
        self.set_variable("ONEPASS_CACHE_DIR", self.path("cache"))
        self.set_variable("ONEPASS_BUNDLE", self.path("no.bundle"))

    def need_compiler(self):
        text = self.document("info")["gpu"]["compiler"]
        if not text.startswith("NVRTC"):
            self.skipTest(text)

    def test_help_lists_the_actions(self):
        text = self.succeed("kernels", "--help")
        for action in ("list", "warm", "clear", "compile", "bundle"):
            self.assertIn(action, text)
            help_text = self.succeed("kernels", action, "--help")
            self.assertIn("--json", help_text)
            self.assertIn("Usage: onepass kernels %s " % action, help_text)

    def test_no_action_and_an_unknown_one_are_refused(self):
        self.refused("kernels", says=["no action is given", "list, warm, clear, compile, bundle"])
        self.refused("kernels", "burn", says=['"burn" is no action'])
        self.refused("kernels", "list", "--deep", says=["onepass kernels list: "])

    def test_list_and_clear_of_nothing(self):
        document = self.document("kernels", "list")
        self.assertEqual(document["kernels"], [])
        self.assertFalse(document["bundle"]["in_use"])
        self.assertEqual(document["cache"], {"folder": self.path("cache"), "kernels": 0, "bytes": 0})
        self.assertIn("not used", self.succeed("kernels", "list"))
        self.assertEqual(self.document("kernels", "clear")["removed"], 0)

    def test_entries_of_another_version_are_listed_as_stale_and_cleared(self):
        os.mkdir(self.path("cache"))
        for name in (KERNEL + "-0123456789abcdef.cubin", "renamed_family-0.cubin"):
            with open(os.path.join(self.path("cache"), name), "w") as file:
                file.write("old")
        rows = self.document("kernels", "list")["kernels"]
        self.assertEqual([row["origin"] for row in rows], ["disk cache, stale"] * 2)
        self.assertEqual([row["architecture"] for row in rows], ["sm_90a", "unknown"])
        self.assertIn("2 kernels, 6 B", self.succeed("info"))
        self.assertIn("removed 2 kernels", self.succeed("kernels", "clear"))
        self.assertEqual(os.listdir(self.path("cache")), [])

    @unittest.skipIf(os.geteuid() == 0, "root may remove everything")
    def test_clearing_what_may_not_be_removed_says_so(self):
        os.mkdir(self.path("cache"))
        with open(os.path.join(self.path("cache"), KERNEL + "-0123456789abcdef.cubin"), "w") as file:
            file.write("old")
        os.chmod(self.path("cache"), 0o500)
        self.addCleanup(os.chmod, self.path("cache"), 0o700)
        self.refused("kernels", "clear", status=3, says=["1 of 1 kernels", "ONEPASS_CACHE_DIR"])

    def test_warm_fills_the_cache_once(self):
        self.need_compiler()
        first = self.document("kernels", "warm", CASE, "--device", "a100")["kernels"]
        self.assertEqual([kernel["origin"] for kernel in first], ["compiled"] * 2)
        self.assertIn("sm80_forward", first[0]["name"])
        again = self.document("kernels", "warm", CASE, "--device", "a100")["kernels"]
        self.assertEqual([kernel["origin"] for kernel in again], ["disk cache"] * 2)
        rows = self.document("kernels", "list")["kernels"]
        self.assertEqual(sorted(row["name"] for row in rows), sorted(kernel["name"] for kernel in first))
        self.assertEqual({row["origin"] for row in rows}, {"disk cache"})
        self.assertIn("disk cache", self.succeed("kernels", "warm", CASE, "--device", "a100"))

    def test_processes_that_compile_the_same_kernels_all_succeed_and_leave_one_entry_each(self):
        self.need_compiler()
        command = [ONEPASS, "kernels", "warm", CASE, "--device", "a100", "--json"]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
        for process in running:
            out, err = process.communicate(timeout=240)
            self.assertEqual((process.returncode, err), (0, b""))
            for kernel in json.loads(out)["kernels"]:
                self.assertIn(kernel["origin"], ("compiled", "disk cache"))
        self.assertEqual(len(os.listdir(self.path("cache"))), 2)
        kernels = self.document("kernels", "warm", CASE, "--device", "a100")["kernels"]
        self.assertEqual([kernel["origin"] for kernel in kernels], ["disk cache"] * 2)

    def test_warm_into_a_folder_that_takes_nothing_says_so(self):
        self.need_compiler()
        with open(self.path("file"), "w"):
            pass
        self.set_variable("ONEPASS_CACHE_DIR", self.path("file/cache"))
        self.refused("kernels", "warm", CASE, "--device", "h200", status=3, says=["does not keep it", "ONEPASS_CACHE_DIR"])

    def test_warm_is_refused_what_is_no_case_and_no_gpu(self):
        self.refused("kernels", "warm", "--device", "h200", says=["no case is given"])
        for device in ("h900", "this-cpu"):
            text = self.refused("kernels", "warm", CASE, "--device", device, says=['"%s"' % device])
            self.assertIn("Allowed: gpu (the first of this machine), a100, h100, h200", text)
        self.refused("kernels", "warm", "f32_b1_hq1_sq8_d8", "--device", "h200", status=3,
                     says=["q is f32", "compute this on a CPU"])

    def test_warm_without_a_gpu_here_asks_for_a_name(self):
        if self.document("info")["gpu"]["present"]:
            self.skipTest("this machine has a GPU")
        self.refused("kernels", "warm", CASE, status=3, says=["--device h200"])

    def test_compile_says_what_a_kernel_takes(self):
        self.need_compiler()
        row = self.document("kernels", "compile", KERNEL, "--out", self.path("kernel.cubin"))["kernels"][0]
        self.assertEqual(row["architecture"], "sm_90a")
        self.assertLessEqual(row["registers"], row["register_budget"])
        self.assertEqual((row["local_bytes"], row["spilled_bytes"], row["over_budget"]), (0, 0, None))
        self.assertEqual(os.path.getsize(self.path("kernel.cubin")), row["bytes"])
        self.assertIn(KERNEL, self.succeed("kernels", "compile", KERNEL))

    def test_compile_to_ptx(self):
        self.need_compiler()
        self.succeed("kernels", "compile", KERNEL, "--ptx", "--out", self.path("kernel.ptx"))
        with open(self.path("kernel.ptx")) as file:
            self.assertIn(".entry " + KERNEL, file.read())

    def test_compile_is_refused_what_is_no_kernel(self):
        self.refused("kernels", "compile", says=["no kernel is given"])
        self.refused("kernels", "compile", "sm80_forward_f64", says=['"sm80_forward_f64"'])
        self.refused("kernels", "compile", KERNEL, KERNEL, "--out", self.path("k"), says=["--out"])

    def test_compile_tries_its_output_before_it_compiles(self):
        self.need_compiler()
        # Compiling this one would fail with status 3.
        impossible = KERNEL.replace("_sm90", "_sm7")
        self.refused("kernels", "compile", impossible, "--out", self.path("no/folder"), says=["--out", "cannot be created"])

    def test_bundle_needs_a_place(self):
        self.refused("kernels", "bundle", says=["no --out"])

    def test_a_bundle_that_is_none_is_named_and_not_used(self):
        with open(self.path("no.bundle"), "w") as file:
            file.write("onepass" * 100)
        bundle = self.document("kernels", "list")["bundle"]
        self.assertFalse(bundle["in_use"])
        self.assertEqual(bundle["path"], self.path("no.bundle"))
        self.assertIn("no kernel bundle", bundle["problem"])


class WithoutCompiler(Kernels):
    """Nothing that needs NVRTC is refused without its reason."""

    def setUp(self):
        super().setUp()
        for name in ("ONEPASS_NVRTC", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"):
            self.set_variable(name, "")
        self.set_variable("PYTHONUSERBASE", self.path("nothing"))

    def test_compiling_says_what_to_install(self):
        if self.document("info")["gpu"]["compiler"].startswith("NVRTC"):
            self.skipTest("the system has a compiler")
        one_kernel = "bf16_b1_hq1_sq70_d64"  # of several, any may be the first that fails
        for action in (("warm", one_kernel, "--device", "h200"), ("compile", KERNEL)):
            self.refused("kernels", *action, status=3, says=["no NVRTC found (tried", "nvidia-cuda-nvrtc"])


if __name__ == "__main__":
    unittest.main()
