// onepass kernels: what there is (list), and emptying the disk cache (clear). The other actions have files of
// their own.
#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/kernels_actions.h"
#include "cli/text_output.h"
#include "io/atomic_file.h"
#include "plan/explain.h"
#include "store/bundle.h"
#include "store/disk_cache.h"
#include "store/nvrtc.h"
#include "support/config.h"
#include "support/message.h"

namespace onepass::cli {
namespace {

std::vector<DiskCache::Entry> cache_entries() { return DiskCache(config().cache_folder).entries(); }

std::uint64_t total_bytes(const std::vector<DiskCache::Entry>& entries) {
  return std::accumulate(entries.begin(), entries.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const DiskCache::Entry& entry) { return sum + entry.bytes; });
}

/// The spec in a cache key ("<name>-<hash>"); nothing for names of another version.
std::optional<KernelSpec> spec_of_key(const std::string& key) {
  try {
    return parse_kernel_name(key.substr(0, key.rfind('-')));
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

struct Row {
  std::string name, architecture, origin;
  std::uint64_t bytes;
};

/// `nvrtc` null: which compiler an entry came from cannot be told, and it is not used either.
Row cache_row(const DiskCache::Entry& entry, const Nvrtc* nvrtc) {
  const std::optional<KernelSpec> spec = spec_of_key(entry.key);
  const bool current = spec && nvrtc != nullptr && cache_key(*spec, nvrtc->version()) == entry.key;
  return {entry.key.substr(0, entry.key.rfind('-')),
          spec ? architecture_text(*spec, ImageKind::Cubin) : "unknown",
          current ? "disk cache" : "disk cache, stale", entry.bytes};
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const Bundle::Entry& entry : Bundle::shipped().entries()) {
    const bool ptx = entry.kind == ImageKind::Ptx;
    rows.push_back({entry.name, architecture_text(parse_kernel_name(entry.name), entry.kind),
                    ptx ? "bundle, PTX" : "bundle", entry.stored_bytes});
  }
  const std::vector<DiskCache::Entry> cached = cache_entries();
  const Nvrtc* nvrtc = cached.empty() ? nullptr : Nvrtc::instance();
  for (const DiskCache::Entry& entry : cached) rows.push_back(cache_row(entry, nvrtc));
  return rows;
}

}  // namespace

void try_out_file(const std::string& call, const std::string& path) {
  const DeferInterrupts remove_it_first;
  const io::AtomicFile file({call + ": --out", path});
}

void write_out_file(const std::string& call, const std::string& path, std::string_view bytes) {
  const DeferInterrupts finish_it_first;
  io::AtomicFile file({call + ": --out", path});
  file.write(std::as_bytes(std::span(bytes)));
  file.finish();
  file.commit();
}

std::string architecture_text(const KernelSpec& spec, ImageKind kind) {
  if (kind == ImageKind::Ptx) return fmt::format("compute_{}", spec.architecture);
  return fmt::format("sm_{}{}", spec.architecture, spec.architecture == 90 ? "a" : "");
}

std::string bundle_text() { return describe(Bundle::shipped()); }

std::string cache_text() {
  const std::string& folder = config().cache_folder;
  if (folder.empty()) return "none: neither ONEPASS_CACHE_DIR, XDG_CACHE_HOME nor HOME is set";
  const std::vector<DiskCache::Entry> entries = cache_entries();
  return fmt::format("{} kernels, {} ({})", entries.size(),
                     bytes_text(static_cast<double>(total_bytes(entries))), folder);
}

Json bundle_to_json() {
  const Bundle& bundle = Bundle::shipped();
  return {{"path", bundle.path()},
          {"in_use", bundle.problem().empty()},
          {"problem", bundle.problem()},
          {"kernels", bundle.entries().size()},
          {"compiler", bundle.compiler()}};
}

Json cache_to_json() {
  const std::vector<DiskCache::Entry> entries = cache_entries();
  return {{"folder", config().cache_folder}, {"kernels", entries.size()}, {"bytes", total_bytes(entries)}};
}

ExitStatus list_kernels(const CommandLine& line) {
  const std::vector<Row> rows = all_rows();
  if (line.json) {
    Json list = Json::array();
    for (const Row& row : rows) {
      list.push_back({{"name", row.name},
                      {"architecture", row.architecture},
                      {"bytes", row.bytes},
                      {"origin", row.origin}});
    }
    print_json({{"bundle", bundle_to_json()}, {"cache", cache_to_json()}, {"kernels", std::move(list)}});
    return ExitStatus::Done;
  }
  print_text(labelled("bundle", bundle_text()) + labelled("disk cache", cache_text()));
  if (rows.empty()) return ExitStatus::Done;
  Table table({"kernel", "architecture", "bytes", "origin"});
  for (const Row& row : rows) table.add({row.name, row.architecture, std::to_string(row.bytes), row.origin});
  print_text("\n" + table.text());
  return ExitStatus::Done;
}

ExitStatus clear_kernels(const CommandLine& line) {
  const std::string& folder = config().cache_folder;
  const std::size_t before = cache_entries().size();
  const int removed = DiskCache(folder).clear();
  if (const std::size_t left = cache_entries().size(); left > 0 && left >= before) {
    throw EnvironmentError(
        format_message("onepass kernels clear",
                       fmt::format("{} of {} kernels cannot be removed from {}", left, before, folder),
                       "a disk cache whose files this user may remove",
                       "clear it as the user who owns it, or set ONEPASS_CACHE_DIR to a folder of your own"));
  }
  if (line.json) {
    print_json({{"folder", folder}, {"removed", removed}});
  } else {
    print_text(fmt::format("removed {} kernels from {}\n", removed, folder.empty() ? "no folder" : folder));
  }
  return ExitStatus::Done;
}

ExitStatus kernels_command(const CommandLine& line) {
  switch (line.kernels.action) {
    case KernelsAction::List: return list_kernels(line);
    case KernelsAction::Warm: return warm_kernels(line);
    case KernelsAction::Clear: return clear_kernels(line);
    case KernelsAction::Compile: return compile_kernels(line);
    case KernelsAction::Bundle: return bundle_kernels(line);
  }
  return ExitStatus::Cannot;
}

}  // namespace onepass::cli
