// Tensors from and to files: .npy and .safetensors. docs/file-formats.md says what is read, written, refused.
//
// A spec names one tensor:
//   x.npy               the array in the file
//   x.npy:f8e4m3        the same, its 1-byte (f8e4m3, f8e5m2) or 2-byte (bf16, f16) raw or unsigned elements
//                       taken as that type, since .npy has no name for it
//   x.safetensors:name  the tensor of that name
//   x.safetensors       reading only: the one tensor that the file holds
//
// `call` is what messages begin with; the command line passes e.g. "onepass run: --q".
#pragma once

#include <span>
#include <string>

#include "io/host_tensor.h"

namespace onepass::io {

/// Reads one tensor into memory: its bytes are copied once, from the file to their place.
///
/// Stored types f32, f16, bf16, f8e4m3, f8e5m2, i8 and i32 stay as they are. i64 becomes i32 and f64 becomes
/// f32 (rounded to nearest); a value that does not fit is refused. Column-major .npy files become strides. A
/// scalar (rank 0) becomes shape [1].
/// @throws InvalidArgument when the spec, the file or its contents are not as documented, before memory is
///   allocated for the elements; EnvironmentError when memory is short or the disk fails.
HostTensor read_tensor(const std::string& spec, const std::string& call = "read_tensor");

/// Checks that outputs with these specs can be written: the specs are well formed and name different places,
/// the folders exist and take new files, nothing but writable files stands in the way. Leaves nothing behind.
/// Call it before long work.
/// @throws InvalidArgument.
void check_writable(std::span<const std::string> specs, const std::string& call = "write_tensors");
void check_writable(const std::string& spec, const std::string& call = "write_tensor");

/// One output and its place.
struct OutputTensor {
  std::string spec;
  TensorView view;  ///< in CPU memory, any strides
};

/// Writes every tensor, row-major. Outputs with the same .safetensors path go into one file. A file that
/// exists is replaced as a whole. Each file is written beside its final place and renamed once all are
/// complete, so that a failure leaves the old files as they were and nothing half-written.
/// .npy holds bf16 as '<V2' (as ml_dtypes does) and f8 as '|V1'.
/// @throws InvalidArgument when a spec or view is wrong, or two outputs claim one place;
///   EnvironmentError when the disk is full or fails.
void write_tensors(std::span<const OutputTensor> outputs, const std::string& call = "write_tensors");

/// write_tensors for one output.
void write_tensor(const std::string& spec, const TensorView& view, const std::string& call = "write_tensor");

}  // namespace onepass::io
