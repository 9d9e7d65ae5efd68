// A whole decoder: two layers with random weights that read prompts and go on with the likeliest token. Keys
// and values live in a cache of pages, or of one piece of memory for each sequence; both must give the same
// tokens.
//
//   example_tiny_decoder         on the CPU, in f32 and bf16
//   example_tiny_decoder cuda    bf16 on GPU 0, too, against the CPU's tokens
//
// Every step is the same, whether it reads a prompt or one token of each sequence: append_kv turns queries
// and new keys (rotary embedding) and writes keys and values into the cache, forward attends over the cache.
// What is not attention runs in f32 on the CPU.
#include <onepass/append_kv.h>
#include <onepass/attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "device_memory.h"

namespace {

using example::Memory;
using onepass::DeviceKind;
using onepass::DType;

constexpr std::int64_t kVocabulary = 32, kWidth = 64, kHidden = 128, kLayers = 2;
constexpr std::int64_t kHeadsQ = 4, kHeadsK = 2, kHeadDim = 32;
constexpr std::int64_t kBatch = 3, kPageSize = 8, kMaxPages = 6, kCapacity = kPageSize * kMaxPages;
constexpr std::array<std::int64_t, kBatch> kPromptLengths = {3, 9, 17};
constexpr int kNewTokens = 16;

using Floats = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

// --- numbers

/// The same on every machine: splitmix64, and a sum of four uniform numbers for a bell.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float bell() {
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(next() >> 11) * 0x1p-53;
    return static_cast<float>(sum * std::sqrt(3.0));  // deviation 1
  }

 private:
  std::uint64_t state_;
};

/// Values as a tensor of `dtype` holds them.
std::vector<char> to_bytes(const Floats& values, DType dtype) {
  std::vector<char> bytes(values.size() * static_cast<std::size_t>(onepass::dtype_bytes(dtype)));
  if (dtype == DType::F32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {  // bf16: the upper half, rounded to nearest even
    std::uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof(bits));
    const auto upper = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    std::memcpy(&bytes[2 * i], &upper, sizeof(upper));
  }
  return bytes;
}

Floats to_floats(const std::vector<char>& bytes, DType dtype) {
  Floats values(bytes.size() / static_cast<std::size_t>(onepass::dtype_bytes(dtype)));
  if (dtype == DType::F32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, &bytes[2 * i], sizeof(upper));
    const std::uint32_t bits = static_cast<std::uint32_t>(upper) << 16;
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
  return values;
}

// --- the model

struct Matrix {
  std::int64_t rows = 0, columns = 0;
  Floats values;

  Matrix(std::int64_t num_rows, std::int64_t num_columns, Random& random, double gain)
      : rows(num_rows), columns(num_columns), values(static_cast<std::size_t>(num_rows * num_columns)) {
    const auto scale = static_cast<float>(gain / std::sqrt(static_cast<double>(num_rows)));
    for (float& x : values) x = scale * random.bell();
  }
};

/// x [n, rows] times m.
Floats times(const Floats& x, const Matrix& m) {
  const std::size_t rows = static_cast<std::size_t>(m.rows), columns = static_cast<std::size_t>(m.columns);
  Floats y(x.size() / rows * columns, 0.0f);
  for (std::size_t n = 0; n < x.size() / rows; ++n) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j)
        y[n * columns + j] += x[n * rows + i] * m.values[i * columns + j];
    }
  }
  return y;
}

void add(Floats& x, const Floats& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

/// Every row of kWidth elements divided by its root mean square.
Floats normalised(const Floats& x) {
  Floats y = x;
  for (std::size_t begin = 0; begin < x.size(); begin += kWidth) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + kWidth; ++i) sum += double{x[i]} * x[i];
    const auto factor = static_cast<float>(1 / std::sqrt(sum / kWidth + 1e-6));
    for (std::size_t i = begin; i < begin + kWidth; ++i) y[i] *= factor;
  }
  return y;
}

struct Layer {
  Matrix q, k, v, out, gate, up, down;
  explicit Layer(Random& random)
      : q(kWidth, kHeadsQ * kHeadDim, random, 1.5),
        k(kWidth, kHeadsK * kHeadDim, random, 1.5),
        v(kWidth, kHeadsK * kHeadDim, random, 1),
        out(kHeadsQ * kHeadDim, kWidth, random, 2),
        gate(kWidth, kHidden, random, 1),
        up(kWidth, kHidden, random, 1),
        down(kHidden, kWidth, random, 1) {}
};

struct Model {
  Random random;
  Matrix embedding, unembedding;
  std::vector<Layer> layers;
  Floats cos, sin;  // [kCapacity, kHeadDim / 2]

  explicit Model(std::uint64_t seed)
      : random(seed),
        embedding(kVocabulary, kWidth, random, std::sqrt(double{kVocabulary})),
        unembedding(kWidth, kVocabulary, random, 1) {
    for (int i = 0; i < kLayers; ++i) layers.emplace_back(random);
    for (std::int64_t position = 0; position < kCapacity; ++position) {
      for (std::int64_t i = 0; i < kHeadDim / 2; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(1e4, -2.0 * static_cast<double>(i) / kHeadDim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
};

// --- decoding

enum class CacheKind { Contiguous, Paged };

/// Sequences under way: their cache on a device, and what a step needs there.
class Decoder {
 public:
  Decoder(const Model& model, DeviceKind device, DType dtype, CacheKind kind)
      : model_(model),
        device_(device),
        dtype_(dtype),
        kind_(kind),
        cos_(table(model.cos)),
        sin_(table(model.sin)),
        block_table_(device, kBatch * kMaxPages * sizeof(std::int32_t)) {
    const std::size_t bytes =
        static_cast<std::size_t>(kBatch * kCapacity * kHeadsK * kHeadDim * onepass::dtype_bytes(dtype));
    for (std::int64_t i = 0; i < kLayers; ++i)
      caches_.push_back({Memory(device, bytes), Memory(device, bytes)});
    Tokens pages;  // handed out from the last to the first, sequence by sequence in turns
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kMaxPages; ++i) {
        pages.push_back(static_cast<std::int32_t>(kBatch * kMaxPages - 1 - (i * kBatch + b)));
      }
    }
    block_table_.write(pages.data(), pages.size() * sizeof(std::int32_t));
  }

  /// Reads the next tokens of every sequence, any number of each, and returns the likeliest to follow.
  Tokens step(const std::vector<Tokens>& tokens) {
    Tokens starts = {0};
    Floats x;
    std::int64_t longest = 0;
    for (const Tokens& of_sequence : tokens) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(of_sequence.size()));
      longest = std::max(longest, static_cast<std::int64_t>(of_sequence.size()));
      for (const std::int32_t token : of_sequence) {
        const auto row = model_.embedding.values.begin() + token * kWidth;
        x.insert(x.end(), row, row + kWidth);
      }
    }
    const Memory cu_seqlens = indices(starts), lengths = indices(lengths_);
    for (std::size_t b = 0; b < tokens.size(); ++b)
      lengths_[b] += static_cast<std::int32_t>(tokens[b].size());
    const Memory lengths_then(device_, kBatch * sizeof(std::int32_t));

    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const Layer& layer = model_.layers[i];
      add(x, times(attend(layer, caches_[i], normalised(x), longest, cu_seqlens, lengths, lengths_then),
                   layer.out));
      Floats gate = times(normalised(x), layer.gate);
      const Floats up = times(normalised(x), layer.up);
      for (std::size_t n = 0; n < gate.size(); ++n) gate[n] = gate[n] / (1 + std::exp(-gate[n])) * up[n];
      add(x, times(gate, layer.down));
    }
    return likeliest(times(normalised(x), model_.unembedding), starts);
  }

  /// How far the best token was ahead of the second, where that was closest.
  float smallest_lead() const { return smallest_lead_; }

 private:
  struct LayerCache {
    Memory k, v;
  };

  Memory on_device(const Floats& values) const {
    const std::vector<char> bytes = to_bytes(values, dtype_);
    Memory memory(device_, bytes.size());
    memory.write(bytes.data(), bytes.size());
    return memory;
  }
  Memory table(const Floats& values) const {
    Memory memory(device_, values.size() * sizeof(float));
    memory.write(values.data(), values.size() * sizeof(float));
    return memory;
  }
  Memory indices(const Tokens& values) const {
    Memory memory(device_, values.size() * sizeof(std::int32_t));
    memory.write(values.data(), values.size() * sizeof(std::int32_t));
    return memory;
  }

  Floats attend(const Layer& layer, const LayerCache& cache, const Floats& x, std::int64_t longest,
                const Memory& cu_seqlens, const Memory& lengths, const Memory& lengths_then) const {
    const auto rows = static_cast<std::int64_t>(x.size()) / kWidth;
    const Memory q = on_device(times(x, layer.q)), k = on_device(times(x, layer.k)),
                 v = on_device(times(x, layer.v));
    const bool paged = kind_ == CacheKind::Paged;
    const std::int64_t blocks = paged ? kBatch * kMaxPages : kBatch, block = paged ? kPageSize : kCapacity;

    onepass::AppendArguments append;
    append.k_new = k.view(dtype_, {rows, kHeadsK, kHeadDim});
    append.v_new = v.view(dtype_, {rows, kHeadsK, kHeadDim});
    append.cu_seqlens_new = append.cu_seqlens_q = cu_seqlens.view(DType::I32, {kBatch + 1});
    append.k_cache = cache.k.view(dtype_, {blocks, block, kHeadsK, kHeadDim});
    append.v_cache = cache.v.view(dtype_, {blocks, block, kHeadsK, kHeadDim});
    if (paged) append.block_table = block_table_.view(DType::I32, {kBatch, kMaxPages});
    append.cache_seqlens = lengths.view(DType::I32, {kBatch});
    append.seqlens_out = lengths_then.view(DType::I32, {kBatch});
    append.q = append.q_out = q.view(dtype_, {rows, kHeadsQ, kHeadDim});
    append.rotary_cos = cos_.view(DType::F32, {kCapacity, kHeadDim / 2});
    append.rotary_sin = sin_.view(DType::F32, {kCapacity, kHeadDim / 2});
    onepass::append_kv(append);

    const std::size_t bytes =
        static_cast<std::size_t>(rows * kHeadsQ * kHeadDim * onepass::dtype_bytes(dtype_));
    const Memory out(device_, bytes);
    onepass::ForwardArguments args;
    args.q = append.q_out;
    args.cu_seqlens_q = append.cu_seqlens_q;
    args.k = append.k_cache;
    args.v = append.v_cache;
    args.block_table = append.block_table;
    args.seqused_k = append.seqlens_out;
    args.out = out.view(dtype_, {rows, kHeadsQ, kHeadDim});
    onepass::ForwardOptions options;
    options.causal = onepass::Causal::BottomRight;
    options.max_seqlen_q = longest;
    options.max_seqlen_k = kCapacity;
    onepass::forward(args, options);

    std::vector<char> result(bytes);
    out.read(result.data(), bytes);
    return to_floats(result, dtype_);
  }

  /// After the last row of every sequence.
  Tokens likeliest(const Floats& logits, const Tokens& starts) {
    Tokens best;
    for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
      const auto row = logits.begin() + (starts[b + 1] - 1) * kVocabulary;
      const auto first = std::max_element(row, row + kVocabulary);
      float second = -INFINITY;
      for (auto at = row; at != row + kVocabulary; ++at) {
        if (at != first) second = std::max(second, *at);
      }
      smallest_lead_ = std::min(smallest_lead_, *first - second);
      best.push_back(static_cast<std::int32_t>(first - row));
    }
    return best;
  }

  const Model& model_;
  DeviceKind device_;
  DType dtype_;
  CacheKind kind_;
  Memory cos_, sin_, block_table_;
  std::vector<LayerCache> caches_;
  Tokens lengths_ = Tokens(kBatch, 0);
  float smallest_lead_ = INFINITY;
};

/// The tokens that follow the prompts, sequence after sequence.
std::vector<Tokens> generate(const Model& model, DeviceKind device, DType dtype, CacheKind kind) {
  Random random(7);
  std::vector<Tokens> next, text(kBatch);
  for (const std::int64_t length : kPromptLengths) {
    next.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      next.back().push_back(static_cast<std::int32_t>(random.next() % kVocabulary));
    }
  }
  Decoder decoder(model, device, dtype, kind);
  for (int n = 0; n < kNewTokens; ++n) {
    const Tokens tokens = decoder.step(next);
    for (std::size_t b = 0; b < text.size(); ++b) {
      text[b].push_back(tokens[b]);
      next[b] = {tokens[b]};
    }
  }
  std::printf("%-4s %-4s %-10s smallest lead %.4f:", device == DeviceKind::Cpu ? "cpu" : "cuda",
              onepass::dtype_name(dtype), kind == CacheKind::Paged ? "paged" : "contiguous",
              double{decoder.smallest_lead()});
  for (const std::int32_t token : text.back()) std::printf(" %d", token);
  std::printf("\n");
  return text;
}

bool decode(bool on_gpu) {
  const Model model(20);  // chosen: no two tokens are nearly as likely as each other
  bool same = true;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const std::vector<Tokens> expected = generate(model, DeviceKind::Cpu, dtype, CacheKind::Contiguous);
    same = same && generate(model, DeviceKind::Cpu, dtype, CacheKind::Paged) == expected;
    if (!on_gpu || dtype == DType::F32) continue;  // GPUs take f16 and bf16
    for (const CacheKind kind : {CacheKind::Contiguous, CacheKind::Paged}) {
      same = same && generate(model, DeviceKind::Cuda, dtype, kind) == expected;
    }
  }
  std::printf(same ? "all tokens agree\n" : "tokens differ\n");
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return decode(argc > 1 && std::string_view(argv[1]) == "cuda") ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
