#include "plan/workspace.h"

#include <fmt/format.h>

#include <limits>

#include "dispatch/key_parts.h"
#include "plan/make_plan.h"
#include "problem/attention_problem.h"
#include "support/message.h"

namespace onepass {
namespace {

constexpr auto kMostBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

[[noreturn]] void throw_too_large(const std::string& piece) {
  throw NotSupported(format_message(
      "plan", fmt::format("workspace piece {} has more than {} bytes", piece, kMostBytes),
      "the workspace fits in the address space", "ask for fewer splits or threads, or a smaller problem"));
}

}  // namespace

std::size_t workspace_product(const std::string& piece, std::size_t a, std::size_t b) {
  if (b != 0 && a > kMostBytes / b) throw_too_large(piece);
  return a * b;
}

std::size_t workspace_bytes(const WorkspacePieces& pieces) {
  if (pieces.empty()) return 0;
  const std::size_t end = pieces.back().offset_bytes + pieces.back().bytes;
  return (end + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

std::size_t Plan::workspace_bytes() const { return onepass::workspace_bytes(workspace); }

void add_workspace_piece(WorkspacePieces& pieces, const std::string& name, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t offset = workspace_bytes(pieces);
  if (bytes > kMostBytes - kWorkspaceAlignment - offset) throw_too_large(name);
  pieces.push_back({name, offset, bytes});
}

void add_workspace_piece(Plan& plan, const std::string& name, std::size_t bytes) {
  add_workspace_piece(plan.workspace, name, bytes);
}

void add_split_pieces(Plan& plan) {
  const auto rows = static_cast<std::size_t>(num_split_rows(*plan.problem));
  const std::size_t lse_bytes =
      workspace_product(kPieceSplitLse, rows, static_cast<std::size_t>(plan.num_splits) * sizeof(float));
  add_workspace_piece(
      plan, kPieceSplitOut,
      workspace_product(kPieceSplitOut, lse_bytes, static_cast<std::size_t>(plan.problem->head_dim_v)));
  add_workspace_piece(plan, kPieceSplitLse, lse_bytes);
}

std::span<std::byte> workspace_piece(const Plan& plan, std::span<std::byte> workspace, const char* name) {
  return workspace_piece(plan.workspace, workspace, name);
}

std::span<std::byte> workspace_piece(const WorkspacePieces& pieces, std::span<std::byte> workspace,
                                     std::string_view name) {
  for (const WorkspacePiece& piece : pieces) {
    if (piece.name != name) continue;
    if (piece.offset_bytes + piece.bytes > workspace.size()) {
      throw InternalError(
          format_message("run",
                         fmt::format("workspace has {} bytes, but piece {} ends at {}", workspace.size(),
                                     piece.name, piece.offset_bytes + piece.bytes),
                         "run checks the size before it hands out pieces", "please report this"));
    }
    return workspace.subspan(piece.offset_bytes, piece.bytes);
  }
  return {};
}

}  // namespace onepass
