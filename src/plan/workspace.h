// The workspace of a plan: named pieces, aligned to 64 bytes, laid out once and carved by the same numbers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/plan.h"

namespace onepass {

inline constexpr std::size_t kWorkspaceAlignment = 64;  // a cache line, and the widest vector register

/// a * b. @throws NotSupported when the product does not fit in 63 bits, naming the piece.
std::size_t workspace_product(const std::string& piece, std::size_t a, std::size_t b);

using WorkspacePieces = std::vector<WorkspacePiece>;

/// Bytes of all pieces together.
std::size_t workspace_bytes(const WorkspacePieces& pieces);

/// Appends a piece behind the last one; a piece of 0 bytes is left out. @throws NotSupported as above.
void add_workspace_piece(WorkspacePieces& pieces, const std::string& name, std::size_t bytes);
void add_workspace_piece(Plan& plan, const std::string& name, std::size_t bytes);

/// The piece called `name` inside `workspace`; empty when there is none.
std::span<std::byte> workspace_piece(const WorkspacePieces& pieces, std::span<std::byte> workspace,
                                     std::string_view name);

/// The pieces for f32 partial results of plan.num_splits parts (names in make_plan.h).
void add_split_pieces(Plan& plan);

}  // namespace onepass
