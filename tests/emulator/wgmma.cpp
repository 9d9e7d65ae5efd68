#include "tests/emulator/wgmma.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernels/ptx/fragment_maps.h"
#include "store/wgmma_text.h"
#include "support/float_types.h"
#include "tests/emulator/block.h"
#include "tests/emulator/shared_memory.h"

namespace onepass::emulator {
namespace {

/// One instruction of a statement: operand numbers count accumulators first.
struct Step {
  int a = -1;         // the descriptor's low word; -1: in registers
  int registers = 0;  // the first of four
  int b = 0;
  std::uint32_t a_offset = 0, b_offset = 0;
};

struct Product {
  int n = 0;
  bool f16 = false, b_in_rows = false;
  int accumulate = -1;  // operand that says whether sums are kept; -1: they start anew
  std::vector<Step> steps;
};

/// The number behind the first `mark` at or after `from`; -1 where there is none.
int number_behind(const std::string& text, std::string_view mark, std::size_t from = 0) {
  const std::size_t at = text.find(mark, from);
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + mark.size()));
}

/// Only what wgmma_text.cpp writes; anything else is a fault.
Product parse(const std::string& text) {
  Product product;
  Step step;
  std::uint32_t offset = 0;
  int operand = -1;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    part.erase(0, part.find_first_not_of(" \n{"));
    if (part.starts_with("add.u32 low, %")) {
      operand = number_behind(part, "%");
      offset = static_cast<std::uint32_t>(number_behind(part, ", ", part.find('%')));
    } else if (part == "mov.b64 a, {low, high}") {
      step.a = operand;
      step.a_offset = offset;
    } else if (part == "mov.b64 b, {low, high}") {
      step.b = operand;
      step.b_offset = offset;
    } else if (part.starts_with("setp.ne.u32 first, ")) {
      product.accumulate = number_behind(part, "%");
    } else if (part.starts_with("wgmma.mma_async.sync.aligned.m64n")) {
      product.n = number_behind(part, "m64n");
      product.f16 = part.find(".f32.f16.f16 ") != std::string::npos;
      if (step.a < 0) step.registers = number_behind(part, "}, {%");
      product.b_in_rows = part.ends_with(", 1");
      if ((part.find(", first, 1, 1, ") != std::string::npos) != product.steps.empty())
        fault("only the first step of a product can start its sums anew: " + text);
      product.steps.push_back(step);
      step = {};
    } else if (!part.starts_with(".reg ") && part != fmt::format("mov.b32 high, {:#x}", kDescriptorHigh) &&
               part != "setp.eq.u32 more, 0, 0" && part != "}") {
      fault("a product that the emulator cannot read: " + part);
    }
  }
  if (product.steps.empty()) fault("a product without steps: " + text);
  return product;
}

const Product& product_of(const char* text) {
  static std::map<const char*, Product> parsed;
  const auto found = parsed.find(text);
  return found != parsed.end() ? found->second : parsed.emplace(text, parse(text)).first->second;
}

/// One thread's part of a product in flight.
struct Issue {
  const Product* product;
  float* d;
  const std::uint32_t* registers;
  std::vector<std::uint32_t> inputs;
  std::vector<float> sums;

  std::uint32_t input(int operand) const {
    return inputs[static_cast<std::size_t>(operand - product->n / 2)];
  }
};

struct ThreadState {
  std::vector<Issue> open;
  std::deque<std::vector<Issue>> groups;
};

ThreadState& own_state() {
  std::shared_ptr<void>& kept = thread_storage();
  if (kept == nullptr) kept = std::make_shared<ThreadState>();
  return *static_cast<ThreadState*>(kept.get());
}

/// 16 bytes of a swizzled tile: a matrix descriptor's start, and the bytes from there. What the warp reads
/// together counts as lane 0's, which lets buffers go.
std::array<std::uint16_t, 8> read_piece(std::uint32_t low, int offset) {
  const std::int64_t plain = static_cast<std::int64_t>(low & 0x3fff) * 16 + offset;
  std::array<std::uint16_t, 8> piece{};
  const ThreadPlace reader{static_cast<int>(thread_index()) / 32, 0};
  std::memcpy(piece.data(),
              SharedMemory::instance().read(reader, plain ^ (plain >> 7 & 7) << 4, 16, 16, "wgmma"), 16);
  return piece;
}

/// Rows of 128 bytes, eight of them in 1024.
int row_bytes(int row) { return row / 8 * 1024 + row % 8 * 128; }

/// The rows of one warp, all lanes at the same product.
void multiply(const std::array<const Issue*, 32>& lanes, int warp) {
  const Issue& any = *lanes[0];
  const Product& product = *any.product;
  const auto to_float = [&](std::uint16_t x) { return product.f16 ? f16_to_float(x) : bf16_to_float(x); };
  const auto n = static_cast<std::size_t>(product.n);
  std::vector<float> d(16 * n);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < product.n / 2; ++i) {
      const cuda::TilePlace at = cuda::accumulator_place(lane, i % 4);
      d[static_cast<std::size_t>(at.row * product.n + i / 4 * 8 + at.column)] =
          lanes[static_cast<std::size_t>(lane)]->sums[static_cast<std::size_t>(i)];
    }
  }
  for (const Step& step : product.steps) {
    float a[16][16];
    if (step.a < 0) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int reg = 0; reg < 4; ++reg) {
          const cuda::TilePlace at = cuda::operand_a_place(lane, reg);
          const std::uint32_t pair = lanes[static_cast<std::size_t>(lane)]->input(step.registers + reg);
          a[at.row][at.column] = to_float(static_cast<std::uint16_t>(pair));
          a[at.row][at.column + 1] = to_float(static_cast<std::uint16_t>(pair >> 16));
        }
      }
    } else {
      const std::uint32_t low = any.input(step.a) + step.a_offset;
      for (int row = 0; row < 16; ++row) {
        for (int half = 0; half < 2; ++half) {
          const auto piece = read_piece(low, row_bytes(16 * warp + row) + 16 * half);
          for (std::size_t i = 0; i < 8; ++i)
            a[row][8 * static_cast<std::size_t>(half) + i] = to_float(piece[i]);
        }
      }
    }
    const std::uint32_t low = any.input(step.b) + step.b_offset;
    std::vector<float> b(16 * n);  // (k, column)
    if (product.b_in_rows) {
      const int block_bytes = static_cast<int>(low >> 16 & 0x3fff) * 16;
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < product.n; column += 8) {
          const auto piece = read_piece(low, column / 64 * block_bytes + row_bytes(k) + column % 64 * 2);
          for (std::size_t i = 0; i < 8; ++i)
            b[static_cast<std::size_t>(k) * n + static_cast<std::size_t>(column) + i] = to_float(piece[i]);
        }
      }
    } else {
      for (int column = 0; column < product.n; ++column) {
        for (std::size_t half = 0; half < 2; ++half) {
          const auto piece = read_piece(low, row_bytes(column) + 16 * static_cast<int>(half));
          for (std::size_t i = 0; i < 8; ++i)
            b[(8 * half + i) * n + static_cast<std::size_t>(column)] = to_float(piece[i]);
        }
      }
    }
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t k = 0; k < 16; ++k) {
        for (std::size_t column = 0; column < n; ++column)
          d[row * n + column] += a[row][k] * b[k * n + column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < product.n / 2; ++i) {
      const cuda::TilePlace at = cuda::accumulator_place(lane, i % 4);
      lanes[static_cast<std::size_t>(lane)]->d[i] =
          d[static_cast<std::size_t>(at.row * product.n + i / 4 * 8 + at.column)];
    }
  }
}

void multiply_warp(const LaneOperands& operands) {
  std::array<const Issue*, 32> lanes{};
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    lanes[lane] = static_cast<const Issue*>(operands[lane]);
    if (lanes[lane]->product != lanes[0]->product) fault("lanes of a warp have different products in flight");
    for (const Step& step : lanes[0]->product->steps) {
      if (lanes[lane]->input(step.b) != lanes[0]->input(step.b) ||
          (step.a >= 0 && lanes[lane]->input(step.a) != lanes[0]->input(step.a)))
        fault(fmt::format("lanes 0 and {} of a warp describe different matrices: B at {:#x} and {:#x}", lane,
                          lanes[0]->input(step.b), lanes[lane]->input(step.b)));
    }
  }
  multiply(lanes, static_cast<int>(thread_index()) / 32 % 4);
}

}  // namespace

void issue_wgmma(const char* text, float* d, const std::uint32_t* registers,
                 std::initializer_list<std::uint32_t> inputs) {
  const Product& product = product_of(text);
  Issue issue{&product, d, registers, inputs, std::vector<float>(static_cast<std::size_t>(product.n / 2))};
  const bool keeps = product.accumulate >= 0 && issue.input(product.accumulate) != 0;
  for (std::size_t i = 0; i < issue.sums.size(); ++i) {
    if (keeps) issue.sums[i] = d[i];
    d[i] = std::numeric_limits<float>::quiet_NaN();
  }
  own_state().open.push_back(std::move(issue));
}

void commit_wgmma() {
  ThreadState& state = own_state();
  state.groups.push_back(std::move(state.open));
  state.open.clear();
}

void wait_wgmma(int most_pending) {
  ThreadState& state = own_state();
  while (state.groups.size() > static_cast<std::size_t>(most_pending)) {
    for (Issue& issue : state.groups.front()) {
      if (issue.registers != nullptr &&
          !std::equal(issue.registers, issue.registers + 4 * issue.product->steps.size(),
                      issue.inputs.begin()))
        fault("registers of A have changed while their product was in flight");
      meet_warp("wgmma", &issue, multiply_warp);
    }
    state.groups.pop_front();
  }
}

}  // namespace onepass::emulator
