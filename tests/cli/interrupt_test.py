"""Ctrl-C at any moment: the process ends by the signal, and files are whole or absent."""

import os
import signal
import subprocess
import time
import unittest

from support import ONEPASS, CliTest, read_npy


class Interrupt(CliTest):
    def start(self, *arguments):
        # A session of its own, so that the signal reaches this process alone.
        return subprocess.Popen([ONEPASS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def test_check_ends_by_the_signal(self):
        process = self.start("check", "f32_b1_hq64_sq2048_d128", "--backend", "reference")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_run_leaves_whole_files_or_none(self):
        for name in "qkv":
            self.npy(name, [1, 600, 2, 8])
        inputs = set(os.listdir(self.folder))
        arguments = ["run", *[a for name in "qkv" for a in ("--" + name, self.path(name + ".npy"))], "--backend",
                     "reference", "--out", self.path("o.npy")]
        outcomes = set()
        for wait in range(24):
            process = self.start(*arguments)
            time.sleep(0.004 * wait)
            process.send_signal(signal.SIGTERM if wait % 2 else signal.SIGINT)
            process.communicate(timeout=60)
            self.assertIn(process.returncode, (0, -signal.SIGINT, -signal.SIGTERM))
            new = set(os.listdir(self.folder)) - inputs
            if process.returncode == 0:
                self.assertEqual(new, {"o.npy"})
            self.assertLessEqual(new, {"o.npy"})
            if new:
                self.assertEqual(read_npy(self.path("o.npy"))[1], [1, 600, 2, 8])
                os.unlink(self.path("o.npy"))
            outcomes.add(process.returncode)
        self.assertTrue(outcomes & {-signal.SIGINT, -signal.SIGTERM})


if __name__ == "__main__":
    unittest.main()
