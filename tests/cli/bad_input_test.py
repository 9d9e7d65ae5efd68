"""Bad input gets one error in the three-line form, exit status 2, and nothing is written."""

import os
import struct
import unittest

from support import CliTest, npy_bytes, write_safetensors


class BadInput(CliTest):
    def setUp(self):
        super().setUp()
        self.q = self.npy("q", [1, 4, 2, 8])
        self.k = self.npy("k", [1, 6, 2, 8])
        self.v = self.npy("v", [1, 6, 2, 8])
        self.out = self.path("o.npy")
        self.lse = self.path("lse.npy")

    def run_refused(self, *options, says=(), **files):
        tensors = {"q": self.q, "k": self.k, "v": self.v, **files}
        return self.refused("run", *[a for name, path in tensors.items() for a in ("--" + name, path)],
                            "--out", self.out, "--lse", self.lse, *options, says=says)

    def file(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    # Shapes

    def test_key_length_that_differs_from_value_length(self):
        self.run_refused(v=self.npy("v5", [1, 5, 2, 8]), says=["v [1, 5, 2, 8]", "k [1, 6, 2, 8]"])

    def test_head_dim_that_differs(self):
        self.run_refused(k=self.npy("k9", [1, 6, 2, 9]), v=self.v, says=["head_dim 8"])

    def test_batch_that_differs(self):
        self.run_refused(k=self.npy("k2", [2, 6, 2, 8]), v=self.npy("v2", [2, 6, 2, 8]), says=["batch is 1"])

    def test_three_dimensions_without_cu_seqlens(self):
        self.run_refused(q=self.npy("q3", [4, 2, 8]), says=["q [4, 2, 8]", "3 dimensions", "cu_seqlens_q"])

    def test_five_dimensions(self):
        self.run_refused(q=self.npy("q5", [1, 1, 4, 2, 8]), says=["5 dimensions"])

    def test_no_heads(self):
        self.run_refused(q=self.npy("q0", [1, 4, 0, 8]), says=["no heads"])

    def test_head_dim_that_is_too_large(self):
        self.run_refused(q=self.npy("q2000", [1, 1, 1, 2000]), k=self.npy("k2000", [1, 1, 1, 2000]),
                         v=self.npy("v2000", [1, 1, 1, 2000]), says=["head_dim 2000", "1 to 1024"])

    # Heads

    def test_heads_that_do_not_divide(self):
        self.run_refused(q=self.npy("q3h", [1, 4, 3, 8]), says=["q has 3 heads, but k has 2"])

    def test_exchanged_layout_names_the_option(self):
        self.run_refused(q=self.npy("qx", [1, 4, 9, 8]), k=self.npy("kx", [1, 2, 7, 8]), v=self.npy("vx", [1, 2, 7, 8]),
                         says=["--layout bhsd"])

    # Dtypes

    def test_integer_queries(self):
        self.run_refused(q=self.npy("qi", [1, 4, 2, 8], "i32", [1] * 64), says=["q has dtype i32", "f32, f16, bf16"])

    def test_integer_queries_to_be_converted(self):
        self.run_refused("--dtype", "f16", q=self.npy("qi", [1, 4, 2, 8], "i32", [1] * 64), says=["--q", "i32"])

    def test_keys_of_another_dtype(self):
        self.run_refused(k=self.npy("kh", [1, 6, 2, 8], "f16"), says=["k has dtype f16"])

    def test_dtype_that_no_tensor_has(self):
        self.run_refused(q=self.file("qc.npy", npy_bytes([0.0] * 128, [1, 4, 2, 8], "f32", descr="<c8")), says=["<c8"])

    def test_value_that_the_target_dtype_cannot_hold(self):
        self.run_refused("--dtype", "f16", q=self.npy("big", [1, 4, 2, 8], numbers=[1e6] * 64), says=["1000000", "f16"])

    def test_float_index_tensor(self):
        self.run_refused("--seqused-k", self.npy("su", [1], "f32", [3.0]), says=["seqused_k has dtype f32"])

    # Strides: files are dense, so the one stride that a file can choose is the order of its dimensions.

    def test_big_endian_elements(self):
        self.run_refused(q=self.file("be.npy", npy_bytes([0.0] * 64, [1, 4, 2, 8], descr=">f4")), says=[">f4"])

    # Packed sequences

    def packed(self, cu_q, cu_k, **kwargs):
        self.run_refused("--cu-seqlens-q", self.npy("cuq", [len(cu_q)], "i32", cu_q),
                         "--cu-seqlens-k", self.npy("cuk", [len(cu_k)], "i32", cu_k),
                         q=self.npy("pq", [10, 2, 8]), k=self.npy("pk", [12, 2, 8]), v=self.npy("pv", [12, 2, 8]),
                         **kwargs)

    def test_decreasing_cu_seqlens_q(self):
        self.packed([0, 6, 4, 10], [0, 4, 8, 12], says=["cu_seqlens_q[2] is 4, but cu_seqlens_q[1] is 6"])

    def test_decreasing_cu_seqlens_k(self):
        self.packed([0, 4, 6, 10], [0, 9, 8, 12], says=["cu_seqlens_k[2] is 8"])

    def test_negative_start_of_cu_seqlens(self):
        self.packed([-1, 4, 6, 10], [0, 4, 8, 12], says=["cu_seqlens_q[0] is -1"])

    def test_cu_seqlens_past_the_rows(self):
        self.packed([0, 4, 6, 11], [0, 4, 8, 12], says=["cu_seqlens_q[3] is 11, but q has 10 rows"])

    def test_cu_seqlens_of_different_batches(self):
        self.packed([0, 4, 10], [0, 4, 8, 12], says=["cu_seqlens_k"])

    def test_empty_cu_seqlens(self):
        self.packed([], [0], says=["cu_seqlens_q is empty"])

    def test_index_past_32_bits(self):
        self.run_refused("--seqused-k", self.npy("su", [1], "i64", [1 << 40]), says=["1099511627776", "i32"])

    # Paged keys

    def paged(self, table, used, pages=3, page_size=4, **kwargs):
        pool = [pages, page_size, 2, 8]
        self.run_refused("--block-table", self.npy("bt", [1, len(table)], "i32", table),
                         "--seqused-k", self.npy("su", [1], "i32", used),
                         k=self.npy("kp", pool), v=self.npy("vp", pool), **kwargs)

    def test_page_past_the_pool(self):
        self.paged([0, 3], [8], says=["block_table[0][1] is 3, but the pool has 3 pages"])

    def test_negative_page(self):
        self.paged([-1, 1], [8], says=["block_table[0][0] is -1"])

    def test_length_past_the_table(self):
        self.paged([0, 1], [9], says=["seqused_k[0] is 9, but sequence 0 has room for 8 rows"])

    def test_negative_length(self):
        self.paged([0, 1], [-1], says=["seqused_k[0] is -1"])

    def test_block_table_without_lengths(self):
        pool = [3, 4, 2, 8]
        self.run_refused("--block-table", self.npy("bt", [1, 2], "i32", [0, 1]), k=self.npy("kp", pool),
                         v=self.npy("vp", pool), says=["seqused_k"])

    def test_length_past_the_dense_keys(self):
        self.run_refused("--seqused-k", self.npy("su", [1], "i32", [7]), says=["seqused_k[0] is 7"])

    # Score terms

    def test_alibi_of_another_head_count(self):
        self.run_refused("--alibi", self.npy("al", [3]), says=["alibi_slopes [3]"])

    def test_bias_that_does_not_cover(self):
        self.run_refused("--bias", self.npy("bias", [1, 1, 3, 6]), says=["bias [1, 1, 3, 6]"])

    def test_sinks_of_another_shape(self):
        self.run_refused("--sinks", self.npy("sinks", [2, 1]), says=["sinks [2, 1]"])

    def test_descale_of_another_shape(self):
        self.run_refused("--k-descale", self.npy("kd", [3]), says=["k_descale has shape [3]"])

    def test_negative_softcap(self):
        self.run_refused("--softcap", "-1", says=["softcap is -1"])

    def test_infinite_scale(self):
        self.run_refused("--scale", "inf", says=["--scale", "inf"])

    def test_window_below_minus_one(self):
        self.run_refused("--window", "-2,0", says=["--window", "-2,0"])

    # Files

    def test_missing_file(self):
        self.run_refused(q=self.path("no_such.npy"), says=["--q", "no_such.npy"])

    def test_folder_as_file(self):
        os.mkdir(self.path("folder.npy"))
        self.run_refused(q=self.path("folder.npy"), says=["folder.npy"])

    def test_unknown_suffix(self):
        self.run_refused(q=self.file("q.bin", b"123"), says=["q.bin"])

    def test_empty_npy(self):
        self.run_refused(q=self.file("e.npy", b""), says=["e.npy"])

    def test_npy_cut_anywhere(self):
        whole = npy_bytes(self.numbers(64), [1, 4, 2, 8])
        for length in (5, 9, 10, 40, 127, 128, len(whole) - 1):
            with self.subTest(length=length):
                self.run_refused(q=self.file("cut.npy", whole[:length]), says=["cut.npy"])

    def test_npy_with_more_bytes_than_elements(self):
        self.run_refused(q=self.file("long.npy", npy_bytes([0.0] * 65, [1, 4, 2, 8])), says=["long.npy"])

    def test_npy_shapes_that_lie(self):
        for shape in ([1 << 62, 4, 2, 8], [-1, 4, 2, 8], [1 << 32, 1 << 32, 2, 8], [1 << 70, 1, 1, 1], [10 ** 9, 4, 2, 8]):
            with self.subTest(shape=shape):
                self.run_refused(q=self.file("lie.npy", npy_bytes([0.0] * 64, shape)), says=["lie.npy"])

    def test_npy_header_that_is_no_header(self):
        for header in (b"{" * 118, b"{'descr': '<f4'}".ljust(118), b"\xff" * 118,
                       b"{'descr': '|O', 'fortran_order': False, 'shape': (64,), }".ljust(118)):
            with self.subTest(header=header[:30]):
                self.run_refused(q=self.file("h.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header + b"\0" * 256))

    def test_npy_header_length_past_the_file(self):
        self.run_refused(q=self.file("l.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xffffffff) + b"{'descr'"))

    def safetensors(self, header, body=b"\0" * 256, length=None):
        text = header.encode()
        return self.file("x.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + body) + ":q"

    def test_safetensors_that_lie(self):
        entry = '{"q":{"dtype":"F32","shape":%s,"data_offsets":%s}}'
        for shape, offsets in (("[1,4,2,8]", "[0,512]"),       # past the file
                               ("[1,4,2,8]", "[256,0]"),       # backwards
                               ("[1,4,2,8]", "[-256,0]"),      # negative
                               ("[1,4,2,9]", "[0,256]"),       # not the shape's size
                               ("[4294967296,4294967296,1,1]", "[0,256]"),  # overflows
                               ("[1,4,2,-8]", "[0,256]"),
                               ("[1,4,2,8]", "[0,18446744073709551616]"),
                               ("[1,4,2,1e1]", "[0,256]")):
            with self.subTest(shape=shape, offsets=offsets):
                self.run_refused(q=self.safetensors(entry % (shape, offsets)), says=["x.safetensors"])

    def test_safetensors_header_lengths(self):
        for length in (0, 1, 1 << 20, 1 << 62, (1 << 64) - 1):
            with self.subTest(length=length):
                self.run_refused(q=self.safetensors('{"q":{}}', length=length), says=["x.safetensors"])

    def test_safetensors_deep_nesting(self):
        self.run_refused(q=self.safetensors('{"q":' + "[" * 100000), says=["x.safetensors"])

    def test_safetensors_name_that_is_missing(self):
        path = write_safetensors(self.path("y.safetensors"), {"query": ([0.0] * 64, [1, 4, 2, 8], "f32")})
        self.run_refused(q=path + ":q", says=["q", "query"])

    # Outputs

    def test_output_in_a_missing_folder(self):
        self.run_refused("--out", self.path("no/o.npy"), says=["--out"])

    def test_output_that_is_a_folder(self):
        os.mkdir(self.path("dir.npy"))
        self.out = self.path("dir.npy")
        self.run_refused(says=["--out", "dir.npy"])

    def test_output_with_unknown_suffix(self):
        self.out = self.path("o.txt")
        self.run_refused(says=["--out", "o.txt"])

    def test_unwritable_lse_path_keeps_out_from_being_written(self):
        self.lse = self.path("no/lse.npy")
        self.run_refused(says=["--lse"])

    def test_one_place_for_two_outputs(self):
        self.lse = self.out
        self.run_refused(says=["o.npy"])

    def test_unwritable_output_is_found_before_inputs_are_read(self):
        self.out = self.path("no/o.npy")
        self.run_refused(q=self.path("no_such.npy"), says=["--out"])

    def test_an_old_output_survives_a_failure(self):
        with open(self.out, "wb") as file:
            file.write(b"precious")
        self.run_refused(v=self.npy("v5", [1, 5, 2, 8]))
        with open(self.out, "rb") as file:
            self.assertEqual(file.read(), b"precious")


class BadCommandLine(CliTest):
    def test_usage(self):
        for arguments, says in (
                ([], ["no verb"]),
                (["frobnicate"], ['"frobnicate" is no verb', "run, check, bench, plan, kernels, info"]),
                (["run"], ["--q is missing"]),
                (["run", "--q"], ["--q"]),
                (["run", "--windw", "1,0"], ["--windw"]),
                (["run", "stray"], ["stray"]),
                (["run", "--causal", "left"], ['--causal is "left"', "bottom-right, top-left"]),
                (["run", "--layout", "bdsh"], ["bshd, bhsd"]),
                (["run", "--dtype", "f8e4m3"], ["f32, f16, bf16"]),
                (["run", "--backend", "gpu"], ["auto, cpu, reference, cuda"]),
                (["check", "f32_b1_hq1_sq1_d8", "--threads", "-1"], ['--threads is "-1"', "0 to 4096"]),
                (["plan", "f32_b1_hq1_sq1_d8", "--splits", "5000"], ['--splits is "5000"', "0 to 1024"]),
                (["plan", "f32_b1_hq1_sq1_d8", "--splits", "x"], ['--splits is "x"', "whole number from 0 to 1024"]),
                (["run", "--threads", "two"], ["--threads"]),
                (["run", "--threads", "99999999999999999999"], ["--threads"]),
                (["run", "--scale", "1x"], ["--scale"]),
                (["run", "--window", "5"], ["L,R"]),
                (["check"], ["no case"]),
                (["check", "f32_b1_hq1"], ["sq"]),
                (["check", "f99_b1_hq1_sq1_d1"], ["f99"]),
                (["check", "f32_b1_hq3_hk2_sq1_d8"], ["q has 3 heads, but k has 2"]),
                (["check", "--file", "no/such/file.txt"], ["no/such/file.txt"]),
                (["check", "--file", "/"], ["--file"]),
                (["bench", "f32_b1_hq1_sq1_d8", "--repeat", "0"], ["--repeat"]),
                (["bench", "f32_b1_hq1_sq1_d8", "--backends", "cpu,cpu"], ["--backends"]),
                (["bench", "f32_b1_hq1_sq1_d8", "--min-time", "-1"], ["--min-time"]),
                (["plan"], ["no case"]),
                (["plan", "f32_b1_hq1_sq1_d8", "--device", "h900"], ["h900", "h200"]),
                (["plan", "f32_b1_hq1_sq1_d8", "f32_b1_hq1_sq2_d8"], ["sq2"]),
                (["info", "--case", "x"], ["--case"])):
            with self.subTest(arguments=arguments):
                self.refused(*arguments, says=says)

    def test_case_file_errors_name_the_line(self):
        with open(self.path("cases.txt"), "w") as file:
            file.write("# fine\nf32_b1_hq1_sq1_d8\n\nf32_b1_hq1_sq1\n")
        self.refused("check", "--file", self.path("cases.txt"), says=["cases.txt", "line 4"])

    def test_case_file_that_is_no_text(self):
        with open(self.path("cases.txt"), "wb") as file:
            file.write(bytes(range(256)) * 64)
        self.refused("check", "--file", self.path("cases.txt"), says=["cases.txt"])

    def test_cuda_without_a_gpu_is_one_error_before_anything_is_computed(self):
        if self.document("info")["gpu"]["present"]:
            self.skipTest("this machine has a GPU")
        q, k, v = (self.npy(name, [1, 4, 2, 8]) for name in "qkv")
        for arguments in (
                ["check", "bf16_b1_hq1_sq1_d8", "--backend", "cuda"],
                ["bench", "bf16_b1_hq1_sq1_d8", "--backends", "cuda"],
                ["bench", "bf16_b1_hq1_sq1_d8", "--backends", "cuda,naive"],
                ["run", "--q", q, "--k", k, "--v", v, "--out", self.path("o.npy"), "--dtype", "bf16",
                 "--backend", "cuda"]):
            with self.subTest(arguments=arguments):
                self.refused(*arguments, status=3, says=["an NVIDIA GPU with its driver"])

    def test_backends_of_two_processors_are_not_timed_in_turns(self):
        for text in ("cpu,cuda", "naive", "naive,cpu", "cuda,cuda", "auto", ""):
            with self.subTest(backends=text):
                self.refused("bench", "bf16_b1_hq1_sq1_d8", "--backends", text, says=["--backends", "cuda,naive"])

    def test_full_stdout(self):
        with open("/dev/full", "w") as full:
            done = self.onepass_to(full, "info")
        self.assertEqual(done.returncode, 3)
        self.assertIn("stdout cannot be written", done.stderr)

    def onepass_to(self, stdout, *arguments):
        import subprocess
        from support import ONEPASS
        return subprocess.run([ONEPASS, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)


if __name__ == "__main__":
    unittest.main()
