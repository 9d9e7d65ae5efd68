/* Asks the reference for one row over 2^28 keys (2 GiB of float64 scores) in 1 GiB of address space. The keys
 * themselves are one row, repeated by a stride of 0. */
#include <math.h>
#include <onepass/onepass.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "not so: %s; the message is \"%s\"\n", what, onepass_last_error_message());
  ++failures;
}

int main(void) {
  static const float q[8] = {0}, k[8] = {0};
  float out[8];
  for (int i = 0; i < 8; ++i) out[i] = NAN;
  const int64_t keys = (int64_t)1 << 28;
  const int64_t shape_q[4] = {1, 1, 1, 8}, shape_k[4] = {1, keys, 1, 8}, strides_k[4] = {0, 0, 8, 1};
  onepass_tensor view_q = ONEPASS_TENSOR_INIT, view_k = ONEPASS_TENSOR_INIT, view_out = ONEPASS_TENSOR_INIT;
  expect(onepass_tensor_make(q, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_q) == ONEPASS_OK, "q is a view");
  expect(onepass_tensor_make(k, ONEPASS_DTYPE_F32, 4, shape_k, strides_k, &view_k) == ONEPASS_OK,
         "k is a view");
  expect(onepass_tensor_make(out, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_out) == ONEPASS_OK,
         "out is a view");
  onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
  args.q = &view_q;
  args.k = &view_k;
  args.v = &view_k;
  args.out = &view_out;
  onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
  options.backend = ONEPASS_BACKEND_REFERENCE;
  options.num_threads = 1;

  const struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
  if (setrlimit(RLIMIT_AS, &limit) != 0) {
    perror("setrlimit");
    return 1;
  }
  expect(onepass_forward(&args, &options) == ONEPASS_OUT_OF_MEMORY, "the status is ONEPASS_OUT_OF_MEMORY");
  expect(strstr(onepass_last_error_message(), "onepass_forward: ") != NULL, "the message names the call");
  expect(strstr(onepass_last_error_message(), "gave no memory") != NULL, "the message names the fault");
  for (int i = 0; i < 8; ++i) expect(isnan(out[i]), "nothing was written");

  /* The library is as good as before. */
  view_k.shape[1] = 2;
  expect(onepass_forward(&args, &options) == ONEPASS_OK && out[0] == 0.0f, "a smaller call succeeds");
  return failures == 0 ? 0 : 1;
}
