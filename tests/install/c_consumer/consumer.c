/* One call and one error through the C interface of an installed onepass. */
#include <onepass/onepass.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[8] = {0}, k[16] = {0}, v[16] = {1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4};
  float out[8] = {0};
  const int64_t shape_q[4] = {1, 1, 1, 8}, shape_k[4] = {1, 2, 1, 8};
  onepass_tensor view_q = ONEPASS_TENSOR_INIT, view_k = ONEPASS_TENSOR_INIT;
  onepass_tensor view_v = ONEPASS_TENSOR_INIT, view_out = ONEPASS_TENSOR_INIT;
  onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
  if (strcmp(onepass_version(), ONEPASS_VERSION_STRING) != 0) return 1;
  if (onepass_tensor_make(q, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_q) != ONEPASS_OK) return 2;
  if (onepass_tensor_make(k, ONEPASS_DTYPE_F32, 4, shape_k, NULL, &view_k) != ONEPASS_OK) return 2;
  if (onepass_tensor_make(v, ONEPASS_DTYPE_F32, 4, shape_k, NULL, &view_v) != ONEPASS_OK) return 2;
  if (onepass_tensor_make(out, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_out) != ONEPASS_OK) return 2;
  args.q = &view_q;
  args.k = &view_k;
  args.v = &view_v;
  args.out = &view_out;
  if (onepass_forward(&args, NULL) != ONEPASS_OK) {
    fprintf(stderr, "%s\n", onepass_last_error_message());
    return 3;
  }
  if (out[0] != 2.5f || out[7] != 2.5f) return 4;
  args.v = NULL;
  if (onepass_forward(&args, NULL) != ONEPASS_INVALID_ARGUMENT) return 5;
  if (strncmp(onepass_last_error_message(), "onepass_forward: v is missing", 29) != 0) return 6;
  return 0;
}
