#include "io/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "io/atomic_file.h"
#include "io/byte_source.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "support/message.h"

namespace onepass::io {
namespace {

enum class Format : std::uint8_t { Npy, Safetensors };

/// A spec, taken apart.
struct Place {
  Format format = Format::Npy;
  std::string path;
  std::string name;               // of the tensor in a .safetensors file
  std::optional<DType> raw_type;  // of a .npy file
};

std::optional<DType> raw_type_named(const std::string& name) {
  static constexpr std::array kRawTypes = {DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2};
  for (const DType dtype : kRawTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

/// The path ends at the first ".npy" or ".safetensors" that a colon or the end of the spec follows.
Place parse_spec(const std::string& spec, const std::string& call) {
  constexpr std::array kEndings = {std::pair{std::string_view(".npy"), Format::Npy},
                                   std::pair{std::string_view(".safetensors"), Format::Safetensors}};
  std::size_t path_end = std::string::npos;
  Place place;
  for (const auto& [ending, format] : kEndings) {
    std::size_t end = spec.find(std::string(ending) + ":");
    if (end == std::string::npos && spec.ends_with(ending)) end = spec.size() - ending.size();
    if (end == std::string::npos || end + ending.size() > path_end) continue;
    path_end = end + ending.size();
    place.format = format;
  }
  const FileContext context{call, spec};
  if (path_end == std::string::npos) {
    context.fail("names no .npy or .safetensors file", "x.npy or x.safetensors:name",
                 "give the file one of these endings");
  }
  place.path = spec.substr(0, path_end);
  if (path_end == spec.size()) return place;
  place.name = spec.substr(path_end + 1);
  if (place.format == Format::Npy) {
    place.raw_type = raw_type_named(place.name);
    if (!place.raw_type) {
      context.fail(fmt::format("asks for elements of type {}", quote(place.name)),
                   "x.npy, or x.npy:bf16, :f16, :f8e4m3, :f8e5m2 for elements that .npy has no name for",
                   "leave out what follows .npy");
    }
  } else if (!valid_tensor_name(place.name)) {
    context.fail(fmt::format("asks for the tensor {}", quote(place.name)),
                 "names in UTF-8 that are not empty and not \"__metadata__\"",
                 "name a tensor after the colon");
  }
  return place;
}

Place parse_output_spec(const std::string& spec, const std::string& call) {
  Place place = parse_spec(spec, call);
  if (place.format == Format::Safetensors && place.name.empty()) {
    FileContext{call, spec}.fail("does not name the tensor", "x.safetensors:name",
                                 "add a name, for example :out");
  }
  return place;
}

void check_output(const OutputTensor& output, const Place& place, const std::string& call) {
  const TensorView& view = output.view;
  const FileContext context{call, output.spec};
  if (!view.present()) context.fail("is given no tensor", "a tensor of rank 1 or more", "pass a view");
  if (view.device != DeviceKind::Cpu) {
    context.fail("is given a tensor on a GPU", "tensors in CPU memory", "copy the tensor to the CPU first");
  }
  if (view.data == nullptr && view.num_elements() > 0) {
    context.fail(fmt::format("is given {} without memory", shape_string(view)), "an address for the elements",
                 "set data");
  }
  if (place.raw_type && *place.raw_type != view.dtype) {
    context.fail(fmt::format("is given {} elements", dtype_name(view.dtype)), "the type that the spec names",
                 "leave out what follows .npy");
  }
}

/// What goes into one file.
struct PlannedFile {
  Format format;
  std::string path;
  std::filesystem::path identity;  // the same for all spellings of a path
  std::vector<NamedTensor> tensors;
};

std::filesystem::path identity_of(const std::string& path) {
  std::error_code unresolvable;  // whoever opens the path reports why
  std::filesystem::path identity = std::filesystem::weakly_canonical(path, unresolvable);
  return unresolvable ? std::filesystem::path(path) : identity;
}

std::vector<PlannedFile> group_by_file(std::span<const OutputTensor> outputs, const std::string& call) {
  std::vector<PlannedFile> files;
  for (const OutputTensor& output : outputs) {
    const Place place = parse_output_spec(output.spec, call);
    const std::filesystem::path identity = identity_of(place.path);
    auto file = std::find_if(files.begin(), files.end(),
                             [&](const PlannedFile& known) { return known.identity == identity; });
    if (file == files.end()) file = files.insert(files.end(), {place.format, place.path, identity, {}});
    const bool taken = std::any_of(
        file->tensors.begin(), file->tensors.end(),
        [&](const NamedTensor& tensor) { return place.format == Format::Npy || tensor.name == place.name; });
    if (taken) {
      FileContext{call, output.spec}.fail("is named for two outputs",
                                          "one tensor in a .npy file, different names in a .safetensors file",
                                          "give each output its own place");
    }
    file->tensors.push_back({place.name, output.view});
  }
  return files;
}

}  // namespace

HostTensor read_tensor(const std::string& spec, const std::string& call) {
  const Place place = parse_spec(spec, call);
  const FileContext context{call, place.path};
  const FileSource source(context);
  return place.format == Format::Npy ? read_npy(source, place.raw_type, context)
                                     : read_safetensors(source, place.name, context);
}

void check_writable(std::span<const std::string> specs, const std::string& call) {
  std::vector<OutputTensor> outputs;
  for (const std::string& spec : specs) outputs.push_back({spec, {}});
  for (const PlannedFile& plan : group_by_file(outputs, call)) {
    // Creating the temporary file is the one test that also knows read-only and special file systems.
    AtomicFile({call, plan.path});
  }
}

void check_writable(const std::string& spec, const std::string& call) {
  check_writable(std::span(&spec, 1), call);
}

void write_tensors(std::span<const OutputTensor> outputs, const std::string& call) {
  const std::vector<PlannedFile> planned = group_by_file(outputs, call);
  for (const OutputTensor& output : outputs) check_output(output, parse_output_spec(output.spec, call), call);
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (const PlannedFile& plan : planned) {
    AtomicFile& file = *files.emplace_back(std::make_unique<AtomicFile>(FileContext{call, plan.path}));
    if (plan.format == Format::Npy) {
      write_npy(file, plan.tensors.front().view);
    } else {
      write_safetensors(file, plan.tensors);
    }
    file.finish();
  }
  for (const auto& file : files) file->commit();
}

void write_tensor(const std::string& spec, const TensorView& view, const std::string& call) {
  write_tensors(std::array{OutputTensor{spec, view}}, call);
}

}  // namespace onepass::io
