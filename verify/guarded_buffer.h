// Memory that shows when something read or wrote past its ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace onepass::verify {

/// All bits set: NaN in f32, f16, bf16, e4m3 and e5m2, so whatever reads it by mistake shows in a result.
inline constexpr unsigned char kPoison = 0xff;

/// `bytes` bytes between two guards. Everything starts as poison.
class GuardedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kGuardBytes = 4 * kAlignment;

  /// data() lies `shift` bytes past a 64-byte boundary; shift < 64.
  explicit GuardedBuffer(std::size_t bytes, std::size_t shift = 0)
      : bytes_(bytes), front_(kGuardBytes + shift), total_(front_ + bytes + kGuardBytes) {
    memory_.reset(static_cast<unsigned char*>(::operator new[](total_, std::align_val_t{kAlignment})));
    std::memset(memory_.get(), kPoison, total_);
  }

  void* data() { return memory_.get() + front_; }
  const unsigned char* bytes() const { return memory_.get() + front_; }
  std::size_t size() const { return bytes_; }

  void fill(unsigned char value) { std::memset(memory_.get() + front_, value, bytes_); }

  bool guards_intact() const {
    for (std::size_t i = 0; i < front_; ++i) {
      if (memory_[i] != kPoison) return false;
    }
    for (std::size_t i = front_ + bytes_; i < total_; ++i) {
      if (memory_[i] != kPoison) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(unsigned char* p) const { ::operator delete[](p, std::align_val_t{kAlignment}); }
  };
  std::size_t bytes_, front_, total_;
  std::unique_ptr<unsigned char[], Free> memory_;
};

}  // namespace onepass::verify
