// What the tests of the file readers share.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/byte_source.h"
#include "io/host_tensor.h"
#include "onepass/error.h"

namespace onepass::io {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// The message of the Expected that `action` throws, which must have the three lines of every message.
template <class Expected = InvalidArgument, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Expected& error) {
    const std::string message = error.what();
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
    EXPECT_NE(message.find("\n  Allowed: "), std::string::npos) << message;
    EXPECT_NE(message.find("\n  Fix: "), std::string::npos) << message;
    return message;
  }
  return "nothing thrown";
}

/// Elements of a row-major read-out, in the native type.
template <class T>
std::vector<T> elements(const TensorView& view) {
  std::vector<T> out;
  std::vector<std::int64_t> index(static_cast<std::size_t>(view.rank), 0);
  for (std::int64_t n = view.num_elements(); n > 0; --n) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < index.size(); ++i) offset += index[i] * view.strides[i];
    out.push_back(static_cast<const T*>(view.data)[offset]);
    for (std::size_t i = index.size(); i-- > 0;) {
      if (++index[i] < view.shape[i]) break;
      index[i] = 0;
    }
  }
  return out;
}

/// The elements as bytes, row-major, whatever the dtype.
inline std::vector<std::uint32_t> element_bits(const TensorView& view) {
  const auto widen = [](const auto& values) {
    return std::vector<std::uint32_t>(values.begin(), values.end());
  };
  switch (dtype_bytes(view.dtype)) {
    case 1: return widen(elements<std::uint8_t>(view));
    case 2: return widen(elements<std::uint16_t>(view));
    default: return elements<std::uint32_t>(view);
  }
}

/// A row-major tensor of random bits.
inline HostTensor random_bits(DType dtype, std::vector<std::int64_t> shape, std::mt19937& rng) {
  HostTensor tensor = allocate_tensor(dtype, shape);
  std::generate_n(tensor.storage.get(), tensor.num_bytes(), [&] { return static_cast<std::byte>(rng()); });
  return tensor;
}

/// What a byte is changed to: each of its bits turned, and the ends of its range.
inline std::string changed_bytes(char byte) {
  std::string values("\0\xff", 2);
  for (int bit = 0; bit < 8; ++bit) values += static_cast<char>(byte ^ (1 << bit));
  return values;
}

/// A file whose size nobody has to store: the header, then zeros.
class SparseSource final : public ByteSource {
 public:
  SparseSource(std::string header, std::uint64_t size) : header_(std::move(header)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) const override {
    ASSERT_LE(offset + out.size(), header_.size()) << "bytes are read before they are checked";
    std::memcpy(out.data(), header_.data() + offset, out.size());
  }

 private:
  std::string header_;
  std::uint64_t size_;
};

/// Tests that write files get a folder of their own, which goes with them.
class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "onepass_io_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string put(const std::string& name, std::string_view contents) const {
    std::ofstream(path(name), std::ios::binary) << contents;
    return path(name);
  }

  std::string contents(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.insert(entry.path().filename());
    return found;
  }

 private:
  std::filesystem::path folder_;
};

constexpr DType kAllDtypes[] = {DType::F32,    DType::F16, DType::BF16, DType::F8E4M3,
                                DType::F8E5M2, DType::I8,  DType::I32};

}  // namespace onepass::io
