#include "tests/emulator/warp_instructions.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cuda/kernels/ptx/fragment_maps.h"
#include "support/float_types.h"
#include "tests/emulator/block.h"
#include "tests/emulator/builtins.h"

namespace onepass::emulator {
namespace {

struct LdmatrixOperands {
  std::array<std::uint16_t, 8> row;  // that the lane addresses
  std::uint32_t* registers;
};

std::uint32_t pair(std::uint16_t low, std::uint16_t high) {
  return static_cast<std::uint32_t>(high) << 16 | low;
}

template <bool kTransposed>
void distribute(const LaneOperands& lanes) {
  const auto element = [&lanes](std::size_t matrix, std::size_t row, std::size_t column) {
    return static_cast<const LdmatrixOperands*>(lanes[8 * matrix + row])->row[column];
  };
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::size_t major = lane / 4, minor = 2 * (lane % 4);
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      static_cast<LdmatrixOperands*>(lanes[lane])->registers[matrix] =
          kTransposed ? pair(element(matrix, minor, major), element(matrix, minor + 1, major))
                      : pair(element(matrix, major, minor), element(matrix, major, minor + 1));
    }
  }
}

struct StmatrixOperands {
  const std::uint32_t* registers;
  char* row;  // that the lane addresses
};

void gather_transposed(const LaneOperands& lanes) {
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::size_t matrix = lane / 8, row = lane % 8;
    std::array<std::uint16_t, 8> gathered{};
    for (std::size_t column = 0; column < gathered.size();
         ++column) {  // element (column, row) of the fragment
      const auto& owner = *static_cast<const StmatrixOperands*>(lanes[4 * column + row / 2]);
      gathered[column] = static_cast<std::uint16_t>(owner.registers[matrix] >> (row % 2 * 16));
    }
    std::memcpy(static_cast<const StmatrixOperands*>(lanes[lane])->row, gathered.data(), sizeof gathered);
  }
}

struct MmaOperands {
  float* d;
  const std::uint32_t* a;
  std::array<std::uint32_t, 2> b;
};

template <float (*kToFloat)(std::uint16_t)>
void multiply(const LaneOperands& lanes) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const MmaOperands*>(lanes[static_cast<std::size_t>(lane)]);
    for (int reg = 0; reg < 4; ++reg) {
      const cuda::TilePlace at = cuda::operand_a_place(lane, reg);
      a[at.row][at.column] = kToFloat(static_cast<std::uint16_t>(mine.a[reg]));
      a[at.row][at.column + 1] = kToFloat(static_cast<std::uint16_t>(mine.a[reg] >> 16));
    }
    for (int reg = 0; reg < 2; ++reg) {
      const cuda::TilePlace at = cuda::operand_b_place(lane, reg);
      const std::uint32_t two = mine.b[static_cast<std::size_t>(reg)];
      b[at.row][at.column] = kToFloat(static_cast<std::uint16_t>(two));
      b[at.row + 1][at.column] = kToFloat(static_cast<std::uint16_t>(two >> 16));
    }
  }
  float product[16][8] = {};
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) product[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<const MmaOperands*>(lanes[static_cast<std::size_t>(lane)])->d;
    for (int element = 0; element < 4; ++element) {
      const cuda::TilePlace at = cuda::accumulator_place(lane, element);
      d[element] += product[at.row][at.column];
    }
  }
}

struct MovmatrixOperands {
  std::uint32_t pair, result;
};

void transpose(const LaneOperands& lanes) {
  const auto element = [&lanes](std::size_t row, std::size_t column) {
    const std::uint32_t two = static_cast<const MovmatrixOperands*>(lanes[4 * row + column / 2])->pair;
    return static_cast<std::uint16_t>(column % 2 == 0 ? two : two >> 16);
  };
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::size_t row = lane / 4, column = 2 * (lane % 4);
    static_cast<MovmatrixOperands*>(lanes[lane])->result =
        pair(element(column, row), element(column + 1, row));
  }
}

template <class T>
struct ShuffleOperands {
  T value, result;
  std::size_t source_lane;
};

template <class T>
void shuffle(const LaneOperands& lanes) {
  for (void* lane : lanes) {
    auto& mine = *static_cast<ShuffleOperands<T>*>(lane);
    mine.result = static_cast<const ShuffleOperands<T>*>(lanes[mine.source_lane])->value;
  }
}

void any(const LaneOperands& lanes) {
  const bool result =
      std::any_of(lanes.begin(), lanes.end(), [](void* lane) { return *static_cast<bool*>(lane); });
  for (void* lane : lanes) *static_cast<bool*>(lane) = result;
}

struct BallotOperands {
  bool value;
  unsigned result;
};
void ballot(const LaneOperands& lanes) {
  unsigned result = 0;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    result |= static_cast<unsigned>(static_cast<BallotOperands*>(lanes[lane])->value) << lane;
  for (void* lane : lanes) static_cast<BallotOperands*>(lane)->result = result;
}

void require_all_lanes(unsigned mask, const char* instruction) {
  if (mask != 0xffffffffu)
    fault(std::string(instruction) + " of some lanes only; the emulator has it for all");
}

}  // namespace

void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address, bool transposed) {
  const char* instruction = transposed ? "ldmatrix.trans" : "ldmatrix";
  LdmatrixOperands mine{{}, r};
  std::memcpy(mine.row.data(), read_shared(address, 16, 16, instruction), 16);
  meet_warp(instruction, &mine, transposed ? distribute<true> : distribute<false>);
}

void stmatrix_x4_trans(std::uint32_t address, const std::uint32_t* r) {
  StmatrixOperands mine{r, write_shared(address, 16, 16, "stmatrix.trans")};
  meet_warp("stmatrix.trans", &mine, gather_transposed);
}

std::uint32_t movmatrix_trans(std::uint32_t pair) {
  MovmatrixOperands mine{pair, 0};
  meet_warp("movmatrix", &mine, transpose);
  return mine.result;
}

void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  MmaOperands mine{d, a, {b0, b1}};
  meet_warp("mma", &mine, multiply<bf16_to_float>);
}

void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  MmaOperands mine{d, a, {b0, b1}};
  meet_warp("mma", &mine, multiply<f16_to_float>);
}

}  // namespace onepass::emulator

float __shfl_xor_sync(unsigned mask, float value, int lane_mask) {
  using namespace onepass::emulator;
  require_all_lanes(mask, "shfl");
  ShuffleOperands<float> mine{value, 0.0f, (thread_index() ^ static_cast<unsigned>(lane_mask)) & 31u};
  meet_warp("shfl.bfly", &mine, shuffle<float>);
  return mine.result;
}

unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane_mask) {
  using namespace onepass::emulator;
  require_all_lanes(mask, "shfl");
  ShuffleOperands<unsigned> mine{value, 0, (thread_index() ^ static_cast<unsigned>(lane_mask)) & 31u};
  meet_warp("shfl.bfly", &mine, shuffle<unsigned>);
  return mine.result;
}

template <class T>
static T shuffle_from(unsigned mask, T value, int source_lane) {
  using namespace onepass::emulator;
  require_all_lanes(mask, "shfl");
  ShuffleOperands<T> mine{value, 0, static_cast<unsigned>(source_lane) & 31u};
  meet_warp("shfl.idx", &mine, shuffle<T>);
  return mine.result;
}

int __shfl_sync(unsigned mask, int value, int source_lane) { return shuffle_from(mask, value, source_lane); }
float __shfl_sync(unsigned mask, float value, int source_lane) {
  return shuffle_from(mask, value, source_lane);
}

bool __any_sync(unsigned mask, bool value) {
  using namespace onepass::emulator;
  require_all_lanes(mask, "vote");
  meet_warp("vote", &value, any);
  return value;
}

unsigned __ballot_sync(unsigned mask, bool value) {
  using namespace onepass::emulator;
  require_all_lanes(mask, "vote");
  BallotOperands mine{value, 0};
  meet_warp("vote.ballot", &mine, ballot);
  return mine.result;
}
