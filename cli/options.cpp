#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>
#include <tuple>

#include "cli/option_values.h"
#include "cli/text_output.h"
#include "problem/checker.h"
#include "problem/validate.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

struct VerbText {
  Verb verb;
  const char* name;
  const char* description;
};

constexpr VerbText kVerbs[] = {
    {Verb::Run, "run", "compute attention on Q, K, V from files"},
    {Verb::Check, "check", "compare cases with a float64 evaluation"},
    {Verb::Bench, "bench", "time cases, each checked once before"},
    {Verb::Plan, "plan", "say what a case would do on a device, and what it costs at least"},
    {Verb::Kernels, "kernels", "list, compile and keep GPU kernels"},
    {Verb::Info, "info", "show this build and this machine"},
};

struct ActionText {
  KernelsAction action;
  const char* name;
  const char* description;
};

constexpr ActionText kActions[] = {
    {KernelsAction::List, "list", "show the kernels of the bundle and of the disk cache"},
    {KernelsAction::Warm, "warm", "compile what the plans of cases name into the disk cache"},
    {KernelsAction::Clear, "clear", "empty the disk cache"},
    {KernelsAction::Compile, "compile",
     "compile kernels by name and show what they take of a multiprocessor"},
    {KernelsAction::Bundle, "bundle", "compile the common kernels into the file that is shipped"},
};

/// Adds options to one verb. Values are parsed as they are met, so that an error names option, text and rule.
class VerbBuilder {
 public:
  VerbBuilder(CLI::App& app, const VerbText& verb, CommandLine& line)
      : sub_(*app.add_subcommand(verb.name, verb.description)), call_(fmt::format("onepass {}", verb.name)) {
    sub_.add_flag("--json", line.json, "print one JSON document");
    sub_.callback([&line, verb] { line.verb = verb.verb; });
  }

  /// An action of a verb, with options of its own.
  VerbBuilder(VerbBuilder& verb, const ActionText& action, CommandLine& line)
      : sub_(*verb.sub_.add_subcommand(action.name, action.description)),
        call_(fmt::format("{} {}", verb.call_, action.name)) {
    sub_.add_flag("--json", line.json, "print one JSON document");
    sub_.callback([&line, action] { line.kernels.action = action.action; });
  }

  CLI::App& app() { return sub_; }

  void file(const char* option, std::string& target, const char* description, const char* group = nullptr) {
    grouped(sub_.add_option(option, target, description)->type_name("FILE"), group);
  }

  /// `parse` takes (OptionName, text).
  template <class Parse>
  CLI::Option* value(const char* option, const char* type, Parse parse, const char* description,
                     const char* group = nullptr) {
    const OptionName name{call_, option};
    CLI::Option* added = sub_.add_option_function<std::string>(
        option, [name, parse](const std::string& text) { parse(name, text); }, description);
    return grouped(added->type_name(type), group);
  }

  void integer(const char* option, int& target, int min, int max, const char* description) {
    value(
        option, "N",
        [&target, min, max](const OptionName& name, const std::string& text) {
          target = static_cast<int>(parse_integer(name, text, min, max));
        },
        description);
  }

  void backend(Backend& target) {
    value(
        "--backend", "NAME",
        [&target](const OptionName& name, const std::string& text) { target = parse_backend(name, text); },
        "auto, cpu, reference or cuda");
  }

  /// All but the backend.
  void execution(ExecutionOptions& target) {
    integer("--threads", target.num_threads, 0, kMaxThreads, "CPU threads; 0 takes every core");
    integer("--splits", target.num_splits, 0, kMaxSplits,
            "parts the keys are split into; 0 lets the planner choose");
  }

  void instruction_set(ExecutionOptions& target) {
    sub_.add_option("--instruction-set", target.instruction_set,
                    "of the cpu backend, one that 'onepass info' lists; the best by default")
        ->type_name("NAME");
  }

  void cases(CaseOptions& target) {
    sub_.add_option("CASE", target.texts, fmt::format("case texts such as {}", kCaseExample))->type_name("");
    sub_.add_option("--file", target.files, "files with a case text on each line; # starts a comment")
        ->type_name("FILE")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  void device(std::string& target, const std::string& names) {
    sub_.add_option("--device", target, names)->type_name("NAME");
  }

  void progress(CommandLine& line) {
    sub_.add_flag("--progress", line.progress, "show progress on stderr even if it is no terminal");
  }

 private:
  static CLI::Option* grouped(CLI::Option* option, const char* group) {
    return group == nullptr ? option : option->group(group);
  }

  CLI::App& sub_;
  std::string call_;
};

void add_run(CLI::App& app, const VerbText& text, CommandLine& line) {
  VerbBuilder verb(app, text, line);
  RunOptions& o = line.run;
  constexpr const char* kTensors = "Tensors (x.npy or x.safetensors:name)";
  verb.file("--q", o.q, "queries [B, S, H, D], or packed [T, H, D]", kTensors);
  verb.file("--k", o.k, "keys, likewise; or a paged pool [pages, page_size, H, D]", kTensors);
  verb.file("--v", o.v, "values, likewise", kTensors);
  verb.file("--out", o.out, "write the output here, in q's layout and dtype", kTensors);
  verb.file("--lse", o.lse, "write the log-sum-exp here, f32 [B, H, S] or packed [H, T]", kTensors);
  verb.value(
      "--layout", "NAME",
      [&o](const OptionName& n, const std::string& t) { o.heads_first = parse_heads_first(n, t); },
      "of 4-dimensional tensors: bshd (default) or bhsd", kTensors);
  verb.value(
      "--dtype", "NAME",
      [&o](const OptionName& n, const std::string& t) { o.dtype = parse_float_dtype(n, t); },
      "convert q, k and v first: f32, f16 or bf16", kTensors);

  constexpr const char* kSequences = "Packed and paged sequences (int32 files)";
  verb.file("--cu-seqlens-q", o.cu_seqlens_q, "[B+1] first row of each sequence: q is packed", kSequences);
  verb.file("--cu-seqlens-k", o.cu_seqlens_k, "[B+1] likewise for k and v", kSequences);
  verb.file("--seqused-q", o.seqused_q, "[B] query rows in use", kSequences);
  verb.file("--seqused-k", o.seqused_k, "[B] key rows in use", kSequences);
  verb.file("--block-table", o.block_table, "[B, max_pages] pages of each sequence: k and v are paged",
            kSequences);

  constexpr const char* kScores = "Scores";
  verb.value(
          "--causal", "[KIND]",
          [&o](const OptionName& n, const std::string& t) { o.forward.causal = parse_causal(n, t); },
          "bottom-right (the default of a bare --causal) or top-left", kScores)
      ->expected(0, 1);
  verb.value(
      "--window", "L,R",
      [&o](const OptionName& n, const std::string& t) {
        std::tie(o.forward.window_left, o.forward.window_right) = parse_window(n, t);
      },
      "keys left and right of the query's position; -1: no limit", kScores);
  verb.value(
      "--scale", "X",
      [&o](const OptionName& n, const std::string& t) { o.forward.softmax_scale = parse_number(n, t); },
      "factor of the scores; 1/sqrt(head_dim) by default", kScores);
  verb.value(
      "--softcap", "X",
      [&o](const OptionName& n, const std::string& t) { o.forward.softcap = parse_number(n, t); },
      "score = X * tanh(score / X)", kScores);
  verb.file("--alibi", o.alibi, "f32 [H] or [B, H] slopes", kScores);
  verb.file("--bias", o.bias, "[B or 1, H or 1, Sq, Sk] added to the scores", kScores);
  verb.file("--sinks", o.sinks, "f32 [H] attention sinks", kScores);
  verb.file("--k-descale", o.k_descale, "f32 [1], [H], [B, H] or [pages, 1, H or 1] factor of k", kScores);
  verb.file("--v-descale", o.v_descale, "likewise for v", kScores);

  verb.backend(o.execution.backend);
  verb.execution(o.execution);
  verb.instruction_set(o.execution);
  verb.app().add_flag("--check", o.check, "compare with a float64 evaluation; exit status 1 past the bound");
  verb.progress(line);
}

void add_check(CLI::App& app, const VerbText& text, CommandLine& line) {
  VerbBuilder verb(app, text, line);
  verb.cases(line.check.cases);
  verb.backend(line.check.execution.backend);
  verb.execution(line.check.execution);
  verb.instruction_set(line.check.execution);
  verb.progress(line);
}

void add_bench(CLI::App& app, const VerbText& text, CommandLine& line) {
  VerbBuilder verb(app, text, line);
  BenchOptions& o = line.bench;
  verb.cases(o.cases);
  verb.value(
      "--backends", "LIST",
      [&o](const OptionName& n, const std::string& t) { o.backends = parse_backends(n, t); },
      "to time in turns: cpu,reference, or cuda,naive; cpu by default");
  verb.execution(o.execution);
  verb.instruction_set(o.execution);
  verb.integer("--repeat", o.repeat, 1, 1'000'000, "timed runs (bursts on a GPU) of each case and backend");
  verb.value(
      "--min-time", "SECONDS",
      [&o](const OptionName& n, const std::string& t) { o.min_seconds = parse_seconds(n, t); },
      "without --repeat: time each case and backend for at least this long (0.5)");
  verb.app().add_flag_callback(
      "--no-check", [&o] { o.check = false; }, "skip the comparison with float64 before timing");
  verb.progress(line);
}

std::string device_list() {
  std::string devices;
  for (const std::string& name : known_devices()) devices += name + ", ";
  return devices;
}

void add_plan(CLI::App& app, const VerbText& text, CommandLine& line) {
  VerbBuilder verb(app, text, line);
  verb.app()
      .add_option("CASE", line.plan.case_text, fmt::format("a case text such as {}", kCaseExample))
      ->type_name("");
  verb.device(line.plan.device, fmt::format("this-cpu (default), {}or all", device_list()));
  verb.backend(line.plan.execution.backend);
  verb.execution(line.plan.execution);
}

void add_action(VerbBuilder& verb, const ActionText& text, CommandLine& line) {
  VerbBuilder action(verb, text, line);
  KernelsOptions& o = line.kernels;
  switch (text.action) {
    case KernelsAction::List:
    case KernelsAction::Clear: return;
    case KernelsAction::Warm:
      action.cases(o.cases);
      action.device(o.device, device_list() + "or gpu (default), the first of this machine");
      return;
    case KernelsAction::Compile:
      action.app().add_option("NAME", o.names, "kernel names as 'onepass plan' prints them")->type_name("");
      action.app().add_flag("--ptx", o.ptx, "PTX instead of machine code");
      action.file("--out", o.out, "write the image of the one kernel here");
      return;
    case KernelsAction::Bundle:
      action.file("--out", o.out, "the bundle to write");
      action.progress(line);
      return;
  }
}

void add_kernels(CLI::App& app, const VerbText& text, CommandLine& line) {
  VerbBuilder verb(app, text, line);
  verb.app().require_subcommand(1);
  for (const ActionText& action : kActions) add_action(verb, action, line);
}

void add_info(CLI::App& app, const VerbText& text, CommandLine& line) { VerbBuilder(app, text, line); }

const VerbText* find_verb(std::string_view name) {
  for (const VerbText& verb : kVerbs) {
    if (name == verb.name) return &verb;
  }
  return nullptr;
}

/// Names of a table, separated by commas.
template <class Text, std::size_t N>
std::string name_list(const Text (&texts)[N]) {
  std::string list;
  for (const Text& text : texts) list += fmt::format("{}{}", list.empty() ? "" : ", ", text.name);
  return list;
}

bool is_action(std::string_view name) {
  return std::any_of(std::begin(kActions), std::end(kActions),
                     [&](const ActionText& action) { return name == action.name; });
}

/// The word at argv[1] (after the verb: argv[2]...) that is no option; empty when there is none.
std::string_view first_word(int argc, const char* const* argv, int from) {
  for (int i = from; i < argc; ++i) {
    if (std::string_view(argv[i]).substr(0, 1) != "-") return argv[i];
  }
  return {};
}

/// CLI11 would name neither the word that is no verb nor the verbs there are.
void require_verb(int argc, const char* const* argv) {
  const std::string_view first = argc < 2 ? "" : argv[1];
  if (first == "-h" || first == "--help" || first == "--version" || find_verb(first) != nullptr) return;
  throw_invalid(
      "onepass",
      first.substr(0, 1) == "-" || argc < 2 ? "no verb is given" : fmt::format("\"{}\" is no verb", first),
      name_list(kVerbs), "start with 'onepass --help'");
}

/// Likewise for the actions of `kernels`.
void require_action(int argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != verb_name(Verb::Kernels)) return;
  const std::string_view action = first_word(argc, argv, 2);
  const bool asks_for_help =
      std::any_of(argv + 2, argv + argc, [](std::string_view a) { return a == "-h" || a == "--help"; });
  if (is_action(action) || (action.empty() && asks_for_help)) return;
  throw_invalid("onepass kernels",
                action.empty() ? "no action is given" : fmt::format("\"{}\" is no action", action),
                name_list(kActions), "start with 'onepass kernels --help'");
}

std::string sentence_part(std::string text) {
  const std::size_t last = text.find_last_not_of(" \n.");
  text.resize(last == std::string::npos ? 0 : last + 1);
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace

const char* verb_name(Verb verb) {
  for (const VerbText& text : kVerbs) {
    if (text.verb == verb) return text.name;
  }
  return "?";
}

std::string call_name(int argc, const char* const* argv) {
  if (argc < 2 || find_verb(argv[1]) == nullptr) return "onepass";
  const std::string_view action = first_word(argc, argv, 2);
  if (find_verb(argv[1])->verb == Verb::Kernels && is_action(action)) {
    return fmt::format("onepass kernels {}", action);
  }
  return fmt::format("onepass {}", argv[1]);
}

bool wants_json(int argc, const char* const* argv) {
  return std::any_of(argv + 1, argv + std::max(argc, 1), [](std::string_view a) { return a == "--json"; });
}

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv) {
  const std::string call = call_name(argc, argv);
  require_verb(argc, argv);
  require_action(argc, argv);
  CommandLine line;
  CLI::App app("Exact attention, softmax(scale * Q K^T + mask) V, in one pass over K and V.", "onepass");
  app.set_version_flag("--version", fmt::format("onepass {}", version()));
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 done, 1 a check failed, 2 the request is wrong, 3 the environment cannot do it.");
  constexpr void (*kAdd[])(CLI::App&, const VerbText&, CommandLine&) = {add_run,  add_check,   add_bench,
                                                                        add_plan, add_kernels, add_info};
  for (std::size_t i = 0; i < std::size(kVerbs); ++i) kAdd[i](app, kVerbs[i], line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* chosen = &app;
    std::string before;
    while (!chosen->get_subcommands().empty()) {
      before += (before.empty() ? "" : " ") + chosen->get_name();
      chosen = chosen->get_subcommands().front();
    }
    print_text(chosen->help(before));
    return std::nullopt;
  } catch (const CLI::CallForVersion& e) {
    print_text(fmt::format("{}\n", e.what()));
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    throw_invalid(call, sentence_part(e.what()), fmt::format("what '{} --help' lists", call),
                  fmt::format("compare the command line with '{} --help'", call));
  }
  return line;
}

}  // namespace onepass::cli
