// The .safetensors format: header length, JSON header, data.
// Source: the format section of the README of huggingface/safetensors.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/byte_sink.h"
#include "io/byte_source.h"
#include "io/file_context.h"
#include "io/host_tensor.h"

namespace onepass::io {

/// Reads the tensor `name`, or the only one when name is empty.
/// @throws InvalidArgument, EnvironmentError (see read_tensor).
HostTensor read_safetensors(const ByteSource& source, const std::string& name, const FileContext& context);

/// The same from memory.
HostTensor parse_safetensors(std::span<const std::byte> bytes, const std::string& name = "");

struct NamedTensor {
  std::string name;
  TensorView view;
};

/// Whether a tensor may have this name: not empty, UTF-8, not "__metadata__".
bool valid_tensor_name(const std::string& name);

/// Writes a file with these tensors, row-major. Names are valid and differ.
void write_safetensors(ByteSink& sink, std::vector<NamedTensor> tensors);

}  // namespace onepass::io
