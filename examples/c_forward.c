/* The C interface: causal attention with a plan and a workspace of its own, checked against plain loops.
 * Any language that can call C does the same. */
#include <onepass/onepass.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCH = 1, SEQLEN = 50, HEADS_Q = 4, HEADS_K = 2, HEAD_DIM = 32 };
enum { NUM_Q = BATCH * SEQLEN * HEADS_Q * HEAD_DIM, NUM_K = BATCH * SEQLEN * HEADS_K * HEAD_DIM };

static float q[NUM_Q], k[NUM_K], v[NUM_K], out[NUM_Q];

static void check(onepass_status status) {
  if (status == ONEPASS_OK) return;
  fprintf(stderr, "%s\n", onepass_last_error_message());
  exit(1);
}

static void fill(float* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = 2.0f * (float)rand() / (float)RAND_MAX - 0.5f;
}

/* Element [s, h, 0] of a [1, SEQLEN, heads, HEAD_DIM] tensor. */
static const float* row(const float* x, int heads, int s, int h) { return x + (s * heads + h) * HEAD_DIM; }

/* The largest difference between `out` and the definition of attention. */
static double largest_difference(void) {
  double worst = 0;
  for (int i = 0; i < SEQLEN; ++i) {
    for (int h = 0; h < HEADS_Q; ++h) {
      double expected[HEAD_DIM] = {0}, sum = 0;
      const int h_k = h / (HEADS_Q / HEADS_K);
      for (int j = 0; j <= i; ++j) {
        double score = 0;
        for (int d = 0; d < HEAD_DIM; ++d)
          score += (double)row(q, HEADS_Q, i, h)[d] * row(k, HEADS_K, j, h_k)[d];
        const double weight = exp(score / sqrt(HEAD_DIM));
        sum += weight;
        for (int d = 0; d < HEAD_DIM; ++d) expected[d] += weight * row(v, HEADS_K, j, h_k)[d];
      }
      for (int d = 0; d < HEAD_DIM; ++d) {
        const double difference = fabs(row(out, HEADS_Q, i, h)[d] - expected[d] / sum);
        if (!(difference <= worst)) worst = difference; /* a NaN stays */
      }
    }
  }
  return worst;
}

int main(void) {
  srand((unsigned)time(NULL));
  fill(q, NUM_Q);
  fill(k, NUM_K);
  fill(v, NUM_K);

  const int64_t shape_q[4] = {BATCH, SEQLEN, HEADS_Q, HEAD_DIM};
  const int64_t shape_k[4] = {BATCH, SEQLEN, HEADS_K, HEAD_DIM};
  onepass_tensor view_q = ONEPASS_TENSOR_INIT, view_k = ONEPASS_TENSOR_INIT;
  onepass_tensor view_v = ONEPASS_TENSOR_INIT, view_out = ONEPASS_TENSOR_INIT;
  check(onepass_tensor_make(q, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_q));
  check(onepass_tensor_make(k, ONEPASS_DTYPE_F32, 4, shape_k, NULL, &view_k));
  check(onepass_tensor_make(v, ONEPASS_DTYPE_F32, 4, shape_k, NULL, &view_v));
  check(onepass_tensor_make(out, ONEPASS_DTYPE_F32, 4, shape_q, NULL, &view_out));

  onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
  args.q = &view_q;
  args.k = &view_k;
  args.v = &view_v;
  args.out = &view_out;
  onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
  options.causal = ONEPASS_CAUSAL_BOTTOM_RIGHT;

  onepass_plan* plan = NULL;
  size_t bytes = 0;
  const char* text = NULL;
  check(onepass_plan_create(&args, &options, NULL, &plan));
  check(onepass_plan_workspace_bytes(plan, &bytes));
  check(onepass_plan_explain(plan, &text));
  printf("onepass %s\n%s\n", onepass_version(), text);

  /* aligned_alloc is C11; 63 spare bytes do the same in C99. */
  char* memory = malloc(bytes + 63);
  if (memory == NULL) return 1;
  void* workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
  check(onepass_plan_run(plan, &args, workspace, bytes));
  free(memory);
  onepass_plan_destroy(plan);

  const double worst = largest_difference();
  printf("largest difference from the definition: %.2e\n", worst);
  return worst <= 1e-5 ? 0 : 1;
}
