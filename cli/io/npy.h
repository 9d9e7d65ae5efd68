// NumPy's .npy format, versions 1.0, 2.0 and 3.0.
// Sources: NumPy enhancement proposal 1 and the reference page of numpy.lib.format.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "io/byte_sink.h"
#include "io/byte_source.h"
#include "io/file_context.h"
#include "io/host_tensor.h"

namespace onepass::io {

/// Reads the array. `raw_type` names the type of raw or unsigned elements (see tensor_file.h).
/// @throws InvalidArgument, EnvironmentError (see read_tensor).
HostTensor read_npy(const ByteSource& source, std::optional<DType> raw_type, const FileContext& context);

/// The same from memory.
HostTensor parse_npy(std::span<const std::byte> bytes, std::optional<DType> raw_type = {});

/// Writes version 1.0, row-major; the elements begin at a multiple of 64 bytes.
void write_npy(ByteSink& sink, const TensorView& view);

}  // namespace onepass::io
