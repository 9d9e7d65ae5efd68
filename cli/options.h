// What the command line asks for, as plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onepass/attention.h"

namespace onepass::cli {

/// For help texts and for the fixes of messages.
inline constexpr const char* kCaseExample = "bf16_b2_hq32_hk4_sq512_sk512_d128_causal";

enum class Verb { Run, Check, Bench, Plan, Kernels, Info };

const char* verb_name(Verb verb);

/// How to compute, for every verb that does.
struct ExecutionOptions {
  Backend backend = Backend::Auto;
  int num_threads = 0;
  int num_splits = 0;
  std::string instruction_set;  // of the CPU SIMD backend; empty: the best
};

/// Files hold one tensor each: "x.npy" or "x.safetensors:name". Empty: not given.
struct RunOptions {
  std::string q, k, v, out, lse;
  std::string cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, block_table;
  std::string alibi, bias, sinks, k_descale, v_descale;
  bool heads_first = false;  // 4-dimensional tensors are [batch, heads, seqlen, head_dim]
  std::optional<DType> dtype;
  ForwardOptions forward;  // mask, scale, softcap; the execution fields come from `execution`
  ExecutionOptions execution;
  bool check = false;
};

/// Cases by text and by file, in the order given on the command line.
struct CaseOptions {
  std::vector<std::string> texts;
  std::vector<std::string> files;
};

struct CheckOptions {
  CaseOptions cases;
  ExecutionOptions execution;
};

/// What is timed in turns, all on one processor.
struct BenchBackends {
  std::vector<Backend> list = {Backend::Cpu};
  bool naive = false;  // beside cuda: the plain evaluation of the same GPU
};

struct BenchOptions {
  CaseOptions cases;
  BenchBackends backends;
  ExecutionOptions execution;  // its backend is not used
  int repeat = 0;              // runs, or bursts on a GPU; 0: as many as min_seconds takes, or 15 bursts
  double min_seconds = 0.5;    // per case and backend
  bool check = true;
};

struct PlanOptions {
  std::string case_text;
  std::string device = "this-cpu";  // or a name of the GPU table, or "all"
  ExecutionOptions execution;
};

enum class KernelsAction { List, Warm, Clear, Compile, Bundle };

struct KernelsOptions {
  KernelsAction action = KernelsAction::List;
  CaseOptions cases;               // warm
  std::string device = "gpu";      // warm: the first of this machine, or a name of the GPU table
  std::vector<std::string> names;  // compile
  bool ptx = false;                // compile
  std::string out;                 // compile, bundle: the file to write
};

struct CommandLine {
  Verb verb = Verb::Info;
  bool json = false;
  bool progress = false;  // asked for, whatever stderr is
  RunOptions run;
  CheckOptions check;
  BenchOptions bench;
  PlanOptions plan;
  KernelsOptions kernels;
};

/// Empty when help or the version was asked for and printed.
/// @throws InvalidArgument for anything that is no valid command line.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv);

/// The verb as it stands in error messages, "onepass run"; "onepass" when argv names none. Never fails.
std::string call_name(int argc, const char* const* argv);

/// Whether argv asks for JSON, also when the rest of it is wrong. Never fails.
bool wants_json(int argc, const char* const* argv);

}  // namespace onepass::cli
