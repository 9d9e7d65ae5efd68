#include "problem/case_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "support/message.h"

namespace onepass {
namespace {

constexpr std::int64_t kMaxWindow = std::int64_t{1} << 40;
constexpr double kMaxMagnitude = 1e30;
constexpr double kMaxMean = 1e4;

/// Tokens of one kind exclude each other.
enum class Kind {
  Batch,
  HeadsQ,
  HeadsK,
  SeqlenQ,
  SeqlenK,
  HeadDim,
  HeadDimV,
  Causal,
  WindowLeft,
  WindowRight,
  Scale,
  Softcap,
  Alibi,
  Bias,
  BiasInf,
  Sink,
  KvDtype,
  Descale,
  Packed,
  Page,
  Ragged,
  Gap,
  MaxLen,
  Order,
  Mean,
  MeanV,
  Seed,
  Split,
  Invariant,
  Backward,
  Dlse,
  Dout,
  NoLse,
  NoPoison,
};
constexpr std::size_t kNumKinds = static_cast<std::size_t>(Kind::NoPoison) + 1;

struct Integer {
  const char* prefix;
  Kind kind;
  std::int64_t Case::*field;
  std::int64_t min, max;
  const char* meaning;
};

constexpr Integer kIntegers[] = {
    {"b", Kind::Batch, &Case::batch, 0, Case::kMaxBatch, "sequences"},
    {"hq", Kind::HeadsQ, &Case::num_heads_q, 1, Case::kMaxHeads, "query heads"},
    {"hk", Kind::HeadsK, &Case::num_heads_k, 1, Case::kMaxHeads, "key heads"},
    {"sq", Kind::SeqlenQ, &Case::seqlen_q, 0, Case::kMaxSeqlen, "query rows"},
    {"sk", Kind::SeqlenK, &Case::seqlen_k, 0, Case::kMaxSeqlen, "key rows"},
    {"d", Kind::HeadDim, &Case::head_dim, 1, Case::kMaxHeadDim, "head dim of Q and K"},
    {"dv", Kind::HeadDimV, &Case::head_dim_v, 1, Case::kMaxHeadDim, "head dim of V and O"},
    {"wl", Kind::WindowLeft, &Case::window_left, 0, kMaxWindow, "keys to the left"},
    {"wr", Kind::WindowRight, &Case::window_right, 0, kMaxWindow, "keys to the right"},
    {"page", Kind::Page, &Case::page_size, 1, Case::kMaxPageSize, "slots of a page"},
    {"seed", Kind::Seed, &Case::seed, 0, INT64_MAX, "seed of the random inputs"},
    {"split", Kind::Split, &Case::num_splits, 1, Case::kMaxSplits, "parts of the keys"},
};

struct Real {
  const char* prefix;
  Kind kind;
  double max;
  bool positive;
};

constexpr Real kReals[] = {
    {"scale", Kind::Scale, kMaxMagnitude, false},
    {"softcap", Kind::Softcap, kMaxMagnitude, true},
    {"mean", Kind::Mean, kMaxMean, false},
    {"meanv", Kind::MeanV, kMaxMean, false},
};

struct Word {
  const char* word;
  Kind kind;
  void (*apply)(Case&);
};

template <bool kPerBatch, bool kPerHead, bool kF32>
void apply_bias(Case& c) {
  c.has_bias = true;
  c.bias_per_batch = kPerBatch;
  c.bias_per_head = kPerHead;
  c.bias_dtype = kF32 ? DType::F32 : c.dtype;
}

template <MemoryOrder kOrder>
void apply_order(Case& c) {
  c.order = kOrder;
}

// Printed by the first matching word, so aliases stand last.
constexpr Word kWords[] = {
    {"causal", Kind::Causal, [](Case& c) { c.causal = Causal::BottomRight; }},
    {"causaltl", Kind::Causal, [](Case& c) { c.causal = Causal::TopLeft; }},
    {"alibi", Kind::Alibi, [](Case& c) { c.alibi = PerHead::Heads; }},
    {"alibib", Kind::Alibi, [](Case& c) { c.alibi = PerHead::BatchHeads; }},
    {"bias11", Kind::Bias, apply_bias<false, false, false>},
    {"biasb1", Kind::Bias, apply_bias<true, false, false>},
    {"bias1h", Kind::Bias, apply_bias<false, true, false>},
    {"biasbh", Kind::Bias, apply_bias<true, true, false>},
    {"bias11f32", Kind::Bias, apply_bias<false, false, true>},
    {"biasb1f32", Kind::Bias, apply_bias<true, false, true>},
    {"bias1hf32", Kind::Bias, apply_bias<false, true, true>},
    {"biasbhf32", Kind::Bias, apply_bias<true, true, true>},
    {"bias", Kind::Bias, apply_bias<true, true, false>},
    {"biasinf", Kind::BiasInf, [](Case& c) { c.bias_has_inf = true; }},
    {"sink", Kind::Sink, [](Case& c) { c.has_sinks = true; }},
    {"kvf8e4m3", Kind::KvDtype, [](Case& c) { c.kv_dtype = DType::F8E4M3; }},
    {"kvf8e5m2", Kind::KvDtype, [](Case& c) { c.kv_dtype = DType::F8E5M2; }},
    {"kvi8", Kind::KvDtype, [](Case& c) { c.kv_dtype = DType::I8; }},
    {"descale1", Kind::Descale, [](Case& c) { c.descale = PerHead::One; }},
    {"descaleh", Kind::Descale, [](Case& c) { c.descale = PerHead::Heads; }},
    {"descalebh", Kind::Descale, [](Case& c) { c.descale = PerHead::BatchHeads; }},
    {"descalep", Kind::Descale, [](Case& c) { c.descale = PerHead::Pages; }},
    {"descaleph", Kind::Descale, [](Case& c) { c.descale = PerHead::PageHeads; }},
    {"packed", Kind::Packed, [](Case& c) { c.packed_q = c.packed_k = true; }},
    {"packedq", Kind::Packed, [](Case& c) { c.packed_q = true; }},
    {"packedk", Kind::Packed, [](Case& c) { c.packed_k = true; }},
    {"ragged", Kind::Ragged, [](Case& c) { c.ragged = true; }},
    {"gap", Kind::Gap, [](Case& c) { c.gaps = true; }},
    {"maxlen", Kind::MaxLen, [](Case& c) { c.gives_max_seqlen = true; }},
    {"bhsd", Kind::Order, apply_order<MemoryOrder::Bhsd>},
    {"qkvpacked", Kind::Order, apply_order<MemoryOrder::QkvPacked>},
    {"dimstride2", Kind::Order, apply_order<MemoryOrder::DimStride2>},
    {"broadcastk", Kind::Order, apply_order<MemoryOrder::BroadcastK>},
    {"broadcastb", Kind::Order, apply_order<MemoryOrder::BroadcastB>},
    {"reversed", Kind::Order, apply_order<MemoryOrder::Reversed>},
    {"invariant", Kind::Invariant, [](Case& c) { c.batch_invariant = true; }},
    {"bwd", Kind::Backward, [](Case& c) { c.backward = true; }},
    {"dlse", Kind::Dlse, [](Case& c) { c.has_dlse = true; }},
    {"doutone", Kind::Dout, [](Case& c) { c.dout = DoutOrder::One; }},
    {"doutother", Kind::Dout, [](Case& c) { c.dout = DoutOrder::Other; }},
    {"nolse", Kind::NoLse, [](Case& c) { c.has_lse = false; }},
    {"nopoison", Kind::NoPoison, [](Case& c) { c.poison = false; }},
};

constexpr const char* kAllTokens =
    "b<N> hq<N> hk<N> sq<N> sk<N> d<N> dv<N> causal causaltl wl<N> wr<N> scale<X> softcap<X> alibi alibib "
    "bias[<b|1><h|1>[f32]] biasinf sink kvf8e4m3 kvf8e5m2 kvi8 descale1 descaleh descalebh "
    "descalep descaleph "
    "packed packedq packedk page<N> ragged gap maxlen bhsd qkvpacked dimstride2 broadcastk broadcastb "
    "reversed mean<X> meanv<X> seed<N> "
    "split<N> invariant "
    "bwd dlse doutone doutother nolse nopoison";
constexpr const char* kExample = "write it like bf16_b2_hq32_hk4_sq512_sk512_d128_causal";

/// Part of the text for a message: short, printable.
std::string quote(std::string_view text) {
  constexpr std::size_t kMaxShown = 48;
  std::string shown(text.substr(0, kMaxShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char ch) { return ch < ' ' || ch > '~'; }, '?');
  return fmt::format("'{}{}'", shown, text.size() > kMaxShown ? "..." : "");
}

[[noreturn]] void fail(const std::string& given, const std::string& allowed, const std::string& fix) {
  throw_invalid("case text", given, allowed, fix);
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Case parse() {
    std::string_view rest = text_;
    dtype(next(rest));
    while (rest.data() != nullptr) token(next(rest));
    required();
    defaults();
    combinations();
    sizes();
    return c_;
  }

 private:
  /// Cuts the part before the next '_' off; `rest` becomes null after the last.
  static std::string_view next(std::string_view& rest) {
    const std::size_t end = rest.find('_');
    const std::string_view part = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    return part;
  }

  void dtype(std::string_view name) {
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      if (name == dtype_name(dtype)) {
        c_.dtype = c_.kv_dtype = dtype;
        return;
      }
    }
    fail(fmt::format("{} starts with {}, which is no dtype", quote(text_), quote(name)),
         "f32, f16 or bf16 first", kExample);
  }

  void token(std::string_view token) {
    for (const Word& word : kWords) {
      if (token == word.word) {
        once(word.kind, token);
        word.apply(c_);
        return;
      }
    }
    const auto digits = static_cast<std::size_t>(
        std::find_if(token.begin(), token.end(), [](char ch) { return ch < 'a' || ch > 'z'; }) -
        token.begin());
    const std::string_view prefix = token.substr(0, digits), number = token.substr(digits);
    for (const Integer& integer : kIntegers) {
      if (prefix == integer.prefix) return this->integer(integer, token, number);
    }
    for (const Real& real : kReals) {
      if (prefix == real.prefix) return this->real(real, token, number);
    }
    fail(fmt::format("token {} is unknown", quote(token)), kAllTokens, kExample);
  }

  void integer(const Integer& integer, std::string_view token, std::string_view number) {
    once(integer.kind, token);
    const auto value = parse_number<std::int64_t>(number);
    if (!value || *value < integer.min || *value > integer.max) {
      fail(fmt::format("token {} does not give a number of {} in range", quote(token), integer.meaning),
           fmt::format("{}<N> with N from {} to {}", integer.prefix, integer.min, integer.max),
           fmt::format("correct the number after '{}'", integer.prefix));
    }
    c_.*integer.field = *value;
  }

  void real(const Real& real, std::string_view token, std::string_view number) {
    once(real.kind, token);
    const auto value = parse_number<double>(number);
    if (!value || !std::isfinite(*value) || std::abs(*value) > real.max || (real.positive && *value <= 0)) {
      fail(fmt::format("token {} does not give a number in range", quote(token)),
           fmt::format("{}<X> with X {} {}", real.prefix, real.positive ? "over 0 and up to" : "within +-",
                       real.max),
           fmt::format("correct the number after '{}'", real.prefix));
    }
    if (real.kind == Kind::Scale) c_.softmax_scale = *value;
    if (real.kind == Kind::Softcap) c_.softcap = *value;
    if (real.kind == Kind::Mean) c_.mean = *value;
    if (real.kind == Kind::MeanV) c_.mean_v = *value;
  }

  void once(Kind kind, std::string_view token) {
    bool& seen = seen_[static_cast<std::size_t>(kind)];
    if (seen) {
      fail(fmt::format("token {} repeats or contradicts an earlier one", quote(token)),
           "each kind of token once", "drop one of the two");
    }
    seen = true;
  }

  bool seen(Kind kind) const { return seen_[static_cast<std::size_t>(kind)]; }

  void required() const {
    for (const Integer& integer : kIntegers) {
      const bool needed = integer.kind == Kind::Batch || integer.kind == Kind::HeadsQ ||
                          integer.kind == Kind::SeqlenQ || integer.kind == Kind::HeadDim;
      if (needed && !seen(integer.kind)) {
        fail(fmt::format("{} has no token {}<N> ({})", quote(text_), integer.prefix, integer.meaning),
             "a dtype and b, hq, sq, d at least", kExample);
      }
    }
  }

  void defaults() {
    if (!seen(Kind::HeadsK)) c_.num_heads_k = c_.num_heads_q;
    if (!seen(Kind::SeqlenK)) c_.seqlen_k = c_.seqlen_q;
    if (!seen(Kind::HeadDimV)) c_.head_dim_v = c_.head_dim;
  }

  void combinations() const {
    if (c_.page_size > 0 && c_.packed_k) {
      fail("keys are both packed and paged", "page<N> with packedq, or without packed",
           "write packedq for packed queries");
    }
    if (c_.has_page_factors() && (c_.page_size == 0 || c_.kv_dtype == c_.dtype)) {
      fail("factors of pages are given without 8-bit pages",
           "descalep and descaleph with page<N> and kvf8e4m3, kvf8e5m2 or kvi8", "add both, or use descaleh");
    }
    if (c_.gaps && !c_.packed_q && !c_.packed_k) {
      fail("token 'gap' is given without packed sequences", "gap with packed, packedq or packedk",
           "add packed, or use ragged");
    }
    if (c_.bias_has_inf && !c_.has_bias) {
      fail("token 'biasinf' is given without a bias", "biasinf with bias", "add bias");
    }
    if (c_.batch_invariant && c_.num_splits > 0) {
      fail("tokens 'split' and 'invariant' are both given",
           "one of them: parts of a batch-invariant call have a fixed size", "drop one of the two");
    }
    if (!c_.backward && (c_.has_dlse || c_.dout != DoutOrder::AsOut)) {
      fail("a token of a backward call is given without 'bwd'", "dlse, doutone and doutother with bwd",
           "add bwd");
    }
    if (c_.backward && !c_.has_lse) {
      fail("token 'nolse' is given with 'bwd'", "backward calls, which need an LSE, without nolse",
           "drop nolse");
    }
    if (c_.order == MemoryOrder::BroadcastB && (c_.packed_k || c_.page_size > 0)) {
      fail("token 'broadcastb' is given with packed or paged keys", "broadcastb with dense keys",
           "drop broadcastb");
    }
  }

  /// Every product that tensors of this case need stays far inside 64 bits.
  void sizes() const {
    const auto limit = [](const char* what, std::initializer_list<std::int64_t> extents, std::int64_t max) {
      double product = 1;  // exact enough: each factor is below 2^53, and limits are far from 2^63
      for (const std::int64_t extent : extents) product *= static_cast<double>(extent);
      if (product <= static_cast<double>(max)) return;
      fail(fmt::format("{} would have {:.3g} elements", what, product), fmt::format("up to {}", max),
           "make the case smaller");
    };
    const std::int64_t d = std::max(c_.head_dim, c_.head_dim_v);
    limit("q or out", {c_.batch, c_.seqlen_q, c_.num_heads_q, d}, Case::kMaxElements);
    limit("k or v", {c_.batch, c_.seqlen_k + c_.page_size, c_.num_heads_k, d}, Case::kMaxElements);
    if (c_.has_bias) {
      limit(
          "bias",
          {c_.bias_per_batch ? c_.batch : 1, c_.bias_per_head ? c_.num_heads_q : 1, c_.seqlen_q, c_.seqlen_k},
          Case::kMaxElements);
    }
    if (c_.packed_q) limit("packed q (rows)", {c_.batch, c_.seqlen_q}, Case::kMaxRows);
    if (c_.packed_k || c_.page_size > 0) {
      limit("packed or paged k (rows)", {c_.batch, c_.seqlen_k + c_.page_size}, Case::kMaxRows);
    }
  }

  std::string_view text_;
  Case c_;
  std::array<bool, kNumKinds> seen_{};
};

}  // namespace

Case parse_case(std::string_view text) { return Parser(text).parse(); }

std::string to_string(const Case& c) {
  std::string text = dtype_name(c.dtype);
  const auto add = [&](const std::string& token) { text += "_" + token; };
  const auto number = [&](const char* prefix, std::int64_t value) {
    add(fmt::format("{}{}", prefix, value));
  };
  /// The word of `kind` that says what c says.
  const auto word = [&](Kind kind) {
    for (const Word& w : kWords) {
      Case applied = c;
      if (w.kind != kind) continue;
      w.apply(applied);
      if (applied == c) return add(w.word);
    }
  };

  number("b", c.batch);
  number("hq", c.num_heads_q);
  number("hk", c.num_heads_k);
  number("sq", c.seqlen_q);
  number("sk", c.seqlen_k);
  number("d", c.head_dim);
  if (c.head_dim_v != c.head_dim) number("dv", c.head_dim_v);
  if (c.causal != Causal::None) word(Kind::Causal);
  if (c.window_left >= 0) number("wl", c.window_left);
  if (c.window_right >= 0) number("wr", c.window_right);
  if (c.softmax_scale) add(fmt::format("scale{}", *c.softmax_scale));
  if (c.softcap > 0) add(fmt::format("softcap{}", c.softcap));
  if (c.alibi != PerHead::None) word(Kind::Alibi);
  if (c.has_bias) word(Kind::Bias);
  if (c.bias_has_inf) word(Kind::BiasInf);
  if (c.has_sinks) word(Kind::Sink);
  if (c.kv_dtype != c.dtype) word(Kind::KvDtype);
  if (c.descale != PerHead::None) word(Kind::Descale);
  if (c.packed_q && c.packed_k) {
    add("packed");
  } else if (c.packed_q || c.packed_k) {
    add(c.packed_q ? "packedq" : "packedk");
  }
  if (c.page_size > 0) number("page", c.page_size);
  if (c.ragged) word(Kind::Ragged);
  if (c.gaps) word(Kind::Gap);
  if (c.gives_max_seqlen) word(Kind::MaxLen);
  if (c.order != MemoryOrder::RowMajor) word(Kind::Order);
  if (c.mean != Case{}.mean) add(fmt::format("mean{}", c.mean));
  if (c.mean_v != Case{}.mean_v) add(fmt::format("meanv{}", c.mean_v));
  if (c.seed != 0) number("seed", c.seed);
  if (c.num_splits > 0) number("split", c.num_splits);
  if (c.batch_invariant) word(Kind::Invariant);
  if (c.backward) word(Kind::Backward);
  if (c.has_dlse) word(Kind::Dlse);
  if (c.dout != DoutOrder::AsOut) word(Kind::Dout);
  if (!c.has_lse) word(Kind::NoLse);
  if (!c.poison) word(Kind::NoPoison);
  return text;
}

}  // namespace onepass
