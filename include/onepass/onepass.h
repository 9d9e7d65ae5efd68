/* onepass/onepass.h - exact attention from C, and from every language that can call C.
 *
 *   #include <onepass/onepass.h>
 *   onepass_tensor q = ONEPASS_TENSOR_INIT;
 *   const int64_t shape[4] = {batch, seqlen_q, num_heads_q, head_dim};
 *   onepass_tensor_make(q_data, ONEPASS_DTYPE_F32, 4, shape, NULL, &q);
 *   ... k, v, out alike ...
 *   onepass_forward_args args = ONEPASS_FORWARD_ARGS_INIT;
 *   args.q = &q; args.k = &k; args.v = &v; args.out = &out;
 *   onepass_forward_options options = ONEPASS_FORWARD_OPTIONS_INIT;
 *   options.causal = ONEPASS_CAUSAL_BOTTOM_RIGHT;
 *   if (onepass_forward(&args, &options) != ONEPASS_OK) puts(onepass_last_error_message());
 *
 * What is computed is written in onepass/attention.h; this is the same in plain structs and status codes.
 *
 * Growth. Every struct starts with `struct_size`, which the caller sets to the sizeof it was compiled with
 * (the ..._INIT macros do). A library newer than the caller takes the fields it does not get as their
 * defaults. A library older than the caller refuses fields that it does not know, unless they are zero.
 * Fields are only ever added at the end, and no struct has padding at its end.
 *
 * Errors. Functions that can fail return onepass_status. On anything but ONEPASS_OK (and ONEPASS_INTERNAL)
 * nothing was written to any output, tensors included, and onepass_last_error_message() says what was given,
 * what is allowed and what to do. No exception leaves these functions, and none of them prints.
 *
 * Threads. Any function may be called from any thread at any time; a call touches only what its arguments
 * point to. A plan may be run by several threads at once, each with a workspace and outputs of its own.
 * Nothing may destroy a plan that another thread still uses.
 *
 * Lifetime. Structs, tensors and strings given to a call are needed during that call only.
 */
#ifndef ONEPASS_ONEPASS_H_
#define ONEPASS_ONEPASS_H_

#include <stddef.h>
#include <stdint.h>

#include "onepass/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming, modernize-use-nullptr): names and text are C's. */

/* How a call ended. */
typedef enum onepass_status {
  ONEPASS_OK = 0,
  ONEPASS_INVALID_ARGUMENT = 1, /* a tensor, an option or a pointer breaks a rule of the interface */
  ONEPASS_NOT_SUPPORTED = 2,    /* well formed, but no implementation takes it; the message says why */
  ONEPASS_ENVIRONMENT = 3,      /* something outside the library is missing or failed */
  ONEPASS_INTERNAL = 4,         /* a fault of onepass; the message asks for a report */
  ONEPASS_OUT_OF_MEMORY = 5
} onepass_status;

/* Element types (onepass_tensor.dtype). */
enum {
  ONEPASS_DTYPE_F32 = 0,
  ONEPASS_DTYPE_F16 = 1,
  ONEPASS_DTYPE_BF16 = 2,
  ONEPASS_DTYPE_F8E4M3 = 3, /* OCP e4m3 without infinities; K and V only */
  ONEPASS_DTYPE_F8E5M2 = 4, /* K and V only */
  ONEPASS_DTYPE_I32 = 5,    /* index tensors only */
  ONEPASS_DTYPE_I8 = 6      /* K and V only, with factors (k_descale, v_descale) as a rule */
};

/* Where memory lives (onepass_tensor.device). */
enum { ONEPASS_DEVICE_CPU = 0, ONEPASS_DEVICE_CUDA = 1 };

/* Which keys a query may see because of its position (onepass_forward_options.causal). */
enum {
  ONEPASS_CAUSAL_NONE = 0,
  ONEPASS_CAUSAL_BOTTOM_RIGHT = 1, /* j <= i + Sk - Sq: the last query sees the last key */
  ONEPASS_CAUSAL_TOP_LEFT = 2      /* j <= i */
};

/* Who computes (onepass_forward_options.backend). */
enum {
  ONEPASS_BACKEND_AUTO = 0, /* the first implementation that accepts */
  ONEPASS_BACKEND_CPU = 1,
  ONEPASS_BACKEND_REFERENCE = 2, /* plain loops in float64 */
  ONEPASS_BACKEND_CUDA = 3
};

#define ONEPASS_MAX_RANK 5

/* A view of memory that the caller owns. */
typedef struct onepass_tensor {
  size_t struct_size;
  void* data;                        /* address of element [0, 0, ...]; inputs are never written */
  int32_t dtype;                     /* ONEPASS_DTYPE_... */
  int32_t rank;                      /* 1 to ONEPASS_MAX_RANK; 0 means absent */
  int64_t shape[ONEPASS_MAX_RANK];   /* the first `rank` count */
  int64_t strides[ONEPASS_MAX_RANK]; /* in elements; 0 (a broadcast) and negative strides are allowed */
  int32_t device;                    /* ONEPASS_DEVICE_... */
  int32_t device_idx;                /* which GPU; ignored for the CPU */
} onepass_tensor;

#define ONEPASS_TENSOR_INIT                                                               \
  {                                                                                       \
    sizeof(onepass_tensor), NULL, ONEPASS_DTYPE_F32, 0, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, \
        ONEPASS_DEVICE_CPU, 0                                                             \
  }

/* The tensors of one forward call; NULL (or rank 0) where optional ones are absent.
 *
 * Symbols: B sequences, Sq/Sk query/key length, Hq/Hk query/key heads (Hq a multiple of Hk), D head_dim of
 * Q and K, Dv head_dim of V and out (1 to 1024 both), Tq/Tk rows of packed buffers.
 * Dtypes: q and out one of f32, f16, bf16, equal; k and v equal to each other, of q's dtype, f8 or i8.
 *
 *   dense   q [B, Sq, Hq, D]   out [B, Sq, Hq, Dv]   softmax_lse [B, Hq, Sq]
 *   packed  q [Tq, Hq, D]      out [Tq, Hq, Dv]      softmax_lse [Hq, Tq]      with cu_seqlens_q
 *   dense   k [B, Sk, Hk, D]   v [B, Sk, Hk, Dv]
 *   packed  k [Tk, Hk, D]      v [Tk, Hk, Dv]                                  with cu_seqlens_k
 *   paged   k [pages, page_size, Hk, D], v [pages, page_size, Hk, Dv]          with block_table, seqused_k
 */
typedef struct onepass_forward_args {
  size_t struct_size;
  const onepass_tensor* q;
  const onepass_tensor* k;
  const onepass_tensor* v;
  const onepass_tensor* out;          /* written: every element */
  const onepass_tensor* softmax_lse;  /* optional, f32, written: natural-log sum of exp(score) */
  const onepass_tensor* cu_seqlens_q; /* optional, i32 [B + 1]: sequence b starts at row cu_seqlens_q[b] */
  const onepass_tensor* cu_seqlens_k; /* optional, i32 [B + 1] */
  const onepass_tensor* seqused_q;    /* optional, i32 [B]: query rows of b in use, from its start */
  const onepass_tensor* seqused_k;    /* optional, i32 [B]: key rows of b in use, from its start */
  const onepass_tensor* block_table;  /* optional, i32 [B, max_pages]: token t is in page
                                         block_table[b][t / page_size] */
  const onepass_tensor* alibi_slopes; /* optional, f32 [Hq] or [B, Hq]: score -= slope * |i + off - j| */
  const onepass_tensor* bias;         /* optional, f32 or q's dtype, [B or 1, Hq or 1, Sq, Sk], the longest
                                         lengths or more: added to the score */
  const onepass_tensor* sinks;        /* optional, f32 [Hq]: exp(sink) joins the denominator */
  const onepass_tensor* k_descale;    /* optional, f32 [1], [Hk] or [B, Hk]: stored K times this is K; of
                                         8-bit pages also [pages, 1, Hk or 1] */
  const onepass_tensor* v_descale;    /* optional, likewise for V, in a shape of its own */
  void* stream;                       /* GPU: the CUstream or cudaStream_t of the tensors' device on which
                                         the work is queued; NULL is the default stream. A CPU ignores it
                                         and has finished when the call returns. */
} onepass_forward_args;

#define ONEPASS_FORWARD_ARGS_INIT                                                                         \
  {                                                                                                       \
    sizeof(onepass_forward_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL                                                                            \
  }

/* The values of one forward call. */
typedef struct onepass_forward_options {
  size_t struct_size;
  int32_t causal;            /* ONEPASS_CAUSAL_... */
  int32_t has_softmax_scale; /* 0: the scale is 1 / sqrt(D), and softmax_scale must be 0 */
  double softmax_scale;      /* -1e30 to 1e30, also 0 and negative */
  double softcap;            /* score = softcap * tanh(score / softcap) when > 0; at most 1e30 */
  int64_t window_left;       /* row i sees keys from i + off - window_left; -1: no limit */
  int64_t window_right;      /* ... to i + off + window_right; -1: no limit */
  int64_t max_seqlen_q;      /* upper bound of packed lengths; -1: read cu_seqlens_q (host memory) */
  int64_t max_seqlen_k;      /* likewise for packed or paged keys */
  int32_t backend;           /* ONEPASS_BACKEND_... */
  int32_t num_threads;       /* CPU: 0 takes every core this process may use; at most 4096 */
  int32_t num_splits;        /* parts the keys are split into; 0 lets the planner choose; at most 1024 */
  int32_t batch_invariant;   /* 0 or 1: the bits of a row follow from its own sequence (attention.h) */
} onepass_forward_options;

#define ONEPASS_FORWARD_OPTIONS_INIT                                                                         \
  {                                                                                                          \
    sizeof(onepass_forward_options), ONEPASS_CAUSAL_NONE, 0, 0.0, 0.0, -1, -1, -1, -1, ONEPASS_BACKEND_AUTO, \
        0, 0, 0                                                                                              \
  }

/* The tensors of one backward call. What is computed is written in onepass/attention.h. */
typedef struct onepass_backward_args {
  size_t struct_size;
  const onepass_forward_args* forward; /* as onepass_forward got it; out and softmax_lse, both required, hold
                                          what it wrote, and nothing in it is written. Its stream counts.
                                          Not for paged keys, 8-bit keys or descale factors. */
  const onepass_tensor* dout;          /* as out, its dtype, any strides, 0 included */
  const onepass_tensor* dq;            /* written: every element; shape and dtype of q */
  const onepass_tensor* dk;            /* likewise of k */
  const onepass_tensor* dv;            /* likewise of v */
  const onepass_tensor* dlse;   /* optional, f32, as softmax_lse: the loss's gradient with respect to it */
  const onepass_tensor* dsinks; /* optional, f32 [Hq], written; needs forward->sinks */
  const onepass_tensor* dbias;  /* optional, f32 or bias's dtype, bias's shape, written: every element;
                                          summed over the sequences or heads that share the bias */
} onepass_backward_args;

#define ONEPASS_BACKWARD_ARGS_INIT \
  { sizeof(onepass_backward_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Two partial results over disjoint key sets, and where their union goes.
 *   out_a, out_b, out   [B, Sq, Hq, Dv] or [Tq, Hq, Dv]; f32, f16 or bf16, each its own; any strides
 *   lse_a, lse_b, lse   [B, Hq, Sq] or [Hq, Tq]; f32, natural logarithm
 * out may be out_a or out_b, lse may be lse_a or lse_b. */
typedef struct onepass_merge_args {
  size_t struct_size;
  const onepass_tensor* out_a;
  const onepass_tensor* lse_a;
  const onepass_tensor* out_b;
  const onepass_tensor* lse_b;
  const onepass_tensor* out; /* written */
  const onepass_tensor* lse; /* optional, written */
  void* stream;              /* as in onepass_forward_args */
} onepass_merge_args;

#define ONEPASS_MERGE_ARGS_INIT \
  { sizeof(onepass_merge_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* New keys and values for a cache; onepass/append_kv.h says more. NULL where optional ones are absent.
 *   dense       k_new [B, Sn, Hk, D], v_new [B, Sn, Hk, Dv];  q, q_out [B, Sq, Hq, D]
 *   packed      k_new [Tn, Hk, D],    v_new [Tn, Hk, Dv];     q, q_out [Tq, Hq, D]; with their cu_seqlens
 *   contiguous  k_cache [B, capacity, Hk, D], v_cache [B, capacity, Hk, Dv]; with cache_batch_idx [rows, ...]
 *   paged       k_cache [pages, page_size, Hk, D], v_cache [pages, page_size, Hk, Dv]; with block_table
 * Dtypes: f32, f16 or bf16 (on a GPU f16 or bf16), all equal; k_cache and v_cache may both be f8 or i8
 * instead. */
typedef struct onepass_append_args {
  size_t struct_size;
  const onepass_tensor* k_new;
  const onepass_tensor* v_new;
  const onepass_tensor* k_cache;          /* written: the new rows, and nothing else */
  const onepass_tensor* v_cache;          /* likewise */
  const onepass_tensor* cu_seqlens_new;   /* optional, i32 [B + 1]: packed new rows */
  const onepass_tensor* seqused_new;      /* optional, i32 [B]: new rows of b in use, from its start */
  const onepass_tensor* cache_seqlens;    /* optional, i32 [B]: rows that the cache holds; absent: 0 */
  const onepass_tensor* block_table;      /* optional, i32 [B, max_pages] */
  const onepass_tensor* cache_batch_idx;  /* optional, i32 [B]: where b is in a contiguous cache */
  const onepass_tensor* rotary_cos;       /* optional, f32 or k_new's dtype, [positions, R / 2] */
  const onepass_tensor* rotary_sin;       /* with rotary_cos */
  const onepass_tensor* rotary_positions; /* optional, i32 [B]: of the first new row; absent: cache_seqlens */
  const onepass_tensor* q;                /* optional, needs rotary_cos */
  const onepass_tensor* q_out;            /* with q, written; may be q */
  const onepass_tensor* cu_seqlens_q;     /* optional, i32 [B + 1]: packed q */
  const onepass_tensor* seqlens_out;      /* optional, i32 [B], written: rows that the cache holds then */
  const onepass_tensor* overflow;         /* optional, i32 [B]: GPU: set to 1 where b did not fit */
  void* stream;                           /* as in onepass_forward_args */
  int32_t rotary_interleaved;             /* pair i: 0 elements i and i + R / 2, 1 elements 2 i and 2 i + 1 */
  int32_t q_at_first_position;            /* 1: every row of q stands at its sequence's first position */
  /* Of a cache with 8 bits, which holds the new rows divided by these, f32, in the shapes that
     onepass_forward_args has: optional; absent: 1. */
  const onepass_tensor* k_descale;
  const onepass_tensor* v_descale;
} onepass_append_args;

#define ONEPASS_APPEND_ARGS_INIT                                                                         \
  {                                                                                                      \
    sizeof(onepass_append_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL                                             \
  }

/* Attention of sequences that begin with the same keys; onepass/cascade.h says more. */
typedef struct onepass_cascade_args {
  size_t struct_size;
  const onepass_forward_args* own;     /* the call over each sequence's own keys, and its stream */
  const onepass_tensor* k_prefix;      /* [Sp, Hk, D], or pages [pages, page_size, Hk, D] with prefix_table */
  const onepass_tensor* v_prefix;      /* [Sp, Hk, Dv], or pages alike */
  const onepass_tensor* prefix_table;  /* optional, i32 [max_pages]: pages of the prefix */
  const onepass_tensor* prefix_seqlen; /* i32 [1]: keys of the prefix in use; optional without prefix_table */
} onepass_cascade_args;

#define ONEPASS_CASCADE_ARGS_INIT \
  { sizeof(onepass_cascade_args), NULL, NULL, NULL, NULL, NULL }

/* What a cascade would do: both passes and the workspace. */
typedef struct onepass_cascade_plan onepass_cascade_plan;

/* A plan: which implementation runs and how. Made for shapes, strides, dtypes, options and length bounds;
 * holds no data and may be run any number of times. */
typedef struct onepass_plan onepass_plan;

/* "major.minor.patch" of the library that is loaded; ONEPASS_VERSION_STRING is that of this header.
 * Never fails. */
ONEPASS_API const char* onepass_version(void);

/* The message of this thread's last call that returned a status: three lines (what was given, what is
 * allowed, what to do), or "" when that call returned ONEPASS_OK. Valid until the thread's next such call.
 * Never fails, never returns NULL. */
ONEPASS_API const char* onepass_last_error_message(void);

/* Writes the defaults to the first `struct_size` bytes of `options` and sets its struct_size: what
 * ONEPASS_FORWARD_OPTIONS_INIT does, for languages without macros. Pass sizeof(onepass_forward_options).
 * ONEPASS_INVALID_ARGUMENT when options is NULL or struct_size is no size of this struct. */
ONEPASS_API onepass_status onepass_forward_options_init(onepass_forward_options* options, size_t struct_size);

/* Describes CPU memory: fills *tensor, whose struct_size the caller has set (ONEPASS_TENSOR_INIT).
 *   data     may be NULL for planning
 *   rank     1 to ONEPASS_MAX_RANK; shape has that many entries, and strides too
 *   strides  in elements; NULL means row-major
 * ONEPASS_INVALID_ARGUMENT on NULL tensor or shape, an unknown dtype, another rank, a negative extent, or
 * more elements than 64 bits count. */
ONEPASS_API onepass_status onepass_tensor_make(const void* data, int32_t dtype, int32_t rank,
                                               const int64_t* shape, const int64_t* strides,
                                               onepass_tensor* tensor);

/* Describes a DLPack tensor: `dl_tensor` points to a DLTensor (dlpack.h 0.2 to 1.x; the dl_tensor member
 * of a DLManagedTensor). Fills *tensor, whose struct_size the caller has set. byte_offset is added to the
 * address, NULL strides mean row-major, strides of extent-1 dimensions are ignored. Ownership stays with
 * the caller.
 * ONEPASS_INVALID_ARGUMENT on NULL pointers, a device other than kDLCPU, kDLCUDA, kDLCUDAHost or
 * kDLCUDAManaged, a dtype other than those above, lanes other than 1, a rank outside 1 to ONEPASS_MAX_RANK,
 * a negative extent, or an address that is not aligned to the element. */
ONEPASS_API onepass_status onepass_tensor_from_dlpack(const void* dl_tensor, onepass_tensor* tensor);

/* out = softmax(scale * q k^T + mask) v. `options` may be NULL for the defaults. Plans, allocates a
 * workspace and runs; to keep both across calls, use a plan. On a GPU the work is queued on args->stream
 * when the call returns, and tensors must stay until it is done.
 * ONEPASS_INVALID_ARGUMENT, ONEPASS_NOT_SUPPORTED, ONEPASS_OUT_OF_MEMORY, on a GPU ONEPASS_ENVIRONMENT. */
ONEPASS_API onepass_status onepass_forward(const onepass_forward_args* args,
                                           const onepass_forward_options* options);

/* Checks every rule, chooses an implementation and stores a new plan in *plan (NULL on failure); give it to
 * onepass_plan_destroy. Depends on shapes, strides, dtypes, options, length bounds and `device` only: tensor
 * data may be NULL, except that bounds not given in `options` are read from index tensors in host memory.
 *   options  may be NULL for the defaults
 *   device   NULL for the one that the tensors are on, or a known GPU: "a100", "h100", "h200", "l40s",
 *            "rtx4090", "b200"
 * ONEPASS_INVALID_ARGUMENT, ONEPASS_NOT_SUPPORTED, ONEPASS_OUT_OF_MEMORY; for tensors on a GPU
 * ONEPASS_ENVIRONMENT, too. */
ONEPASS_API onepass_status onepass_plan_create(const onepass_forward_args* args,
                                               const onepass_forward_options* options, const char* device,
                                               onepass_plan** plan);

/* Frees a plan; NULL is allowed. Does not change the last error message. */
ONEPASS_API void onepass_plan_destroy(onepass_plan* plan);

/* The bytes of workspace that onepass_plan_run needs. ONEPASS_INVALID_ARGUMENT on NULL. */
ONEPASS_API onepass_status onepass_plan_workspace_bytes(const onepass_plan* plan, size_t* bytes);

/* The plan as text for people: problem, declines, steps, workspace, accounting. *text belongs to the plan.
 * ONEPASS_INVALID_ARGUMENT on NULL, ONEPASS_OUT_OF_MEMORY. */
ONEPASS_API onepass_status onepass_plan_explain(const onepass_plan* plan, const char** text);

/* Carries out a plan. `args` has the shapes, strides and dtypes that the plan was made for, and lengths
 * within its bounds. `workspace` is aligned to 64 bytes and holds at least onepass_plan_workspace_bytes
 * (NULL when that is 0) of the tensors' device; its contents need no preparation, and nothing more is
 * allocated for tensors. On a GPU the work is queued on args->stream when the call returns.
 * ONEPASS_INVALID_ARGUMENT, and on a GPU ONEPASS_ENVIRONMENT, before anything is written. */
ONEPASS_API onepass_status onepass_plan_run(const onepass_plan* plan, const onepass_forward_args* args,
                                            void* workspace, size_t workspace_bytes);

/* The workspace of such a call, without keeping a plan: a pure function of shapes, strides, dtypes, options,
 * length bounds and device. Arguments and errors as for onepass_plan_create; `bytes` is required. */
ONEPASS_API onepass_status onepass_workspace_bytes(const onepass_forward_args* args,
                                                   const onepass_forward_options* options, const char* device,
                                                   size_t* bytes);

/* Gradients with respect to q, k, v (and sinks, bias) of a loss whose gradient with respect to out (and
 * softmax_lse) is given. `options` are those that onepass_forward got; num_splits plays no part, and
 * batch_invariant none on the CPU. Plans, allocates a workspace and runs, as onepass_forward does. The same
 * call gives the same bits in every run.
 * ONEPASS_INVALID_ARGUMENT, ONEPASS_NOT_SUPPORTED, ONEPASS_OUT_OF_MEMORY, on a GPU ONEPASS_ENVIRONMENT. */
ONEPASS_API onepass_status onepass_backward(const onepass_backward_args* args,
                                            const onepass_forward_options* options);

/* onepass_plan_create for a backward call. Such a plan is run by onepass_backward_plan_run; the other
 * functions of a plan take it, too. */
ONEPASS_API onepass_status onepass_backward_plan_create(const onepass_backward_args* args,
                                                        const onepass_forward_options* options,
                                                        const char* device, onepass_plan** plan);

/* onepass_plan_run for a plan that onepass_backward_plan_create made. */
ONEPASS_API onepass_status onepass_backward_plan_run(const onepass_plan* plan,
                                                     const onepass_backward_args* args, void* workspace,
                                                     size_t workspace_bytes);

/* lse = logaddexp(lse_a, lse_b); out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b. -inf on one side
 * returns the other side bit for bit (dtypes allowing); on both gives 0 and -inf. On a GPU the work is queued
 * on args->stream when the call returns.
 *   num_threads  CPU: 0 takes every core this process may use; at most 4096
 * ONEPASS_INVALID_ARGUMENT, and on a GPU ONEPASS_NOT_SUPPORTED (more rows than one grid holds) and
 * ONEPASS_ENVIRONMENT. */
ONEPASS_API onepass_status onepass_merge(const onepass_merge_args* args, int32_t num_threads);

/* Writes new keys and values behind those that a cache holds, with rotary embedding (keys and q) if tables
 * are given. No workspace; on a GPU the work is queued on args->stream when the call returns and can be
 * captured in a graph. A sequence that does not fit is an error on the CPU; on a GPU nothing is written for
 * it and its overflow is set or, without that tensor, the next call on this GPU reports it.
 *   num_threads  CPU: 0 takes every core this process may use; at most 4096
 * ONEPASS_INVALID_ARGUMENT, and on a GPU ONEPASS_NOT_SUPPORTED (f32; more rows than one grid holds) and
 * ONEPASS_ENVIRONMENT. */
ONEPASS_API onepass_status onepass_append_kv(const onepass_append_args* args, int32_t num_threads);

/* Attention over a common prefix, computed once for all sequences, and each sequence's own keys. `options`
 * may be NULL for the defaults. Allocates a workspace; to keep it across calls, use a plan.
 * ONEPASS_INVALID_ARGUMENT, ONEPASS_NOT_SUPPORTED, ONEPASS_OUT_OF_MEMORY, on a GPU ONEPASS_ENVIRONMENT. */
ONEPASS_API onepass_status onepass_cascade(const onepass_cascade_args* args,
                                           const onepass_forward_options* options);

/* The same in steps, each as the function of onepass_plan_... with that name. */
ONEPASS_API onepass_status onepass_cascade_plan_create(const onepass_cascade_args* args,
                                                       const onepass_forward_options* options,
                                                       const char* device, onepass_cascade_plan** plan);
ONEPASS_API void onepass_cascade_plan_destroy(onepass_cascade_plan* plan);
ONEPASS_API onepass_status onepass_cascade_plan_workspace_bytes(const onepass_cascade_plan* plan,
                                                                size_t* bytes);
ONEPASS_API onepass_status onepass_cascade_plan_run(const onepass_cascade_plan* plan,
                                                    const onepass_cascade_args* args, void* workspace,
                                                    size_t workspace_bytes);

/* NOLINTEND(readability-identifier-naming, modernize-use-nullptr) */

#ifdef __cplusplus
}
#endif

#endif /* ONEPASS_ONEPASS_H_ */
