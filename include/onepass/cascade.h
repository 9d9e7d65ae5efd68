// onepass/cascade.h - attention of sequences that begin with the same keys: the common prefix is read once
// for all of them, and what each has of its own is merged with it.
//
//   #include <onepass/cascade.h>
//   onepass::CascadeArguments args;
//   args.own.q = ...; args.own.k = ...; args.own.v = ...; args.own.out = ...;   // as for forward
//   args.k_prefix = ...; args.v_prefix = ...;
//   onepass::cascade(args, {.causal = onepass::Causal::BottomRight});
//
// The result is that of forward over the prefix followed by each sequence's own keys (the merge of spec.md,
// section 3). Two passes and a merge: worth it where the prefix is long and many sequences share it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "onepass/attention.h"

namespace onepass {

/// The tensors of one call. Symbols as in attention.h; Sp keys of the prefix.
struct CascadeArguments {
  /// The call over each sequence's own keys, any layout. Every row sees the whole prefix, and of its own keys
  /// what the mask allows; a sequence may have none. Windows to the left, ALiBi and bias are not taken, and
  /// descale factors are the same for all sequences, or those of the pages of one pool that holds the prefix,
  /// too. A dense q has its rows evenly spaced.
  ForwardArguments own;
  /// [Sp, Hk, D] and [Sp, Hk, Dv], or pages [pages, page_size, Hk, D] and [pages, page_size, Hk, Dv] (those
  /// of own.k and own.v, or others) with prefix_table; own.k's dtype
  TensorView k_prefix, v_prefix;
  TensorView prefix_table;   ///< optional, i32 [max_pages]: the prefix's token t is in page [t / page_size]
  TensorView prefix_seqlen;  ///< i32 [1]: keys of the prefix in use; optional without prefix_table
};

/// What a cascade would do: a value, as Plan.
struct ONEPASS_API CascadePlan {
  Plan prefix, own;  ///< each without the other; both results are merged
  std::vector<WorkspacePiece> workspace;

  /// Bytes that run() needs; a pure function of the problem, the options and the device.
  std::size_t workspace_bytes() const;
  /// Both plans as text for people.
  std::string explain() const;
};

/// As for ForwardArguments: pure, and data may be null but for bounds that `options` does not give.
/// max_seqlen_q and max_seqlen_k are of the own rows and keys; the prefix has at most the rows or pages that
/// it is given.
/// @throws InvalidArgument, NotSupported.
ONEPASS_API CascadePlan plan(const CascadeArguments& args, const ForwardOptions& options,
                             const DeviceInfo& device);
/// The same for the device that the tensors are on.
/// @throws EnvironmentError too, when that is a GPU and the driver is missing or fails.
ONEPASS_API CascadePlan plan(const CascadeArguments& args, const ForwardOptions& options = {});

/// Carries out a plan, as run() of a forward plan does.
/// @throws InvalidArgument, and on a GPU EnvironmentError, before anything is written.
ONEPASS_API void run(const CascadePlan& plan, const CascadeArguments& args, std::span<std::byte> workspace,
                     Stream stream = {});

/// plan + a workspace + run.
/// @throws InvalidArgument, NotSupported, on a GPU EnvironmentError, and std::bad_alloc.
ONEPASS_API void cascade(const CascadeArguments& args, const ForwardOptions& options = {},
                         Stream stream = {});

}  // namespace onepass
