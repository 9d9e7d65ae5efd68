#include "io/npy_header.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace onepass::io {
namespace {

// numpy stops at 64 dimensions; the limit here keeps a hostile header from growing the list without end.
constexpr std::size_t kMaxExtents = 64;

/// Walks over the text once, without recursion: the grammar is a flat dictionary.
class Reader {
 public:
  Reader(std::string_view text, const FileContext& context) : text_(text), context_(context) {}

  NpyHeader header() {
    NpyHeader header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::size_t key_position = position_;
      const std::string key = string();
      expect(':');
      if (key == "descr" && !has_descr) {
        has_descr = true;
        header.descr = descr();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = shape();
      } else {
        position_ = key_position;
        const bool again = key == "descr" || key == "fortran_order" || key == "shape";
        fail(fmt::format("{} key {}", again ? "a second" : "an unknown", quote(key)));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) fail("text after the closing '}'");
    if (!has_descr) fail("no key \"descr\"");
    if (!has_order) fail("no key \"fortran_order\"");
    if (!has_shape) fail("no key \"shape\"");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    context_.fail(fmt::format("has a damaged header: {} at byte {} of {}", what, position_, quote(text_)),
                  "a header like {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                  "write the file again with numpy.save");
  }

  void skip_space() {
    while (position_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }

  bool accept(char wanted) {
    skip_space();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) fail(fmt::format("no '{}'", wanted));
  }

  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  std::string string() {
    skip_space();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') fail("no string");
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) fail("a string without end");
    const std::string_view value = text_.substr(position_ + 1, end - position_ - 1);
    if (value.find('\\') != std::string_view::npos) fail("a string with an escape");
    position_ = end + 1;
    return std::string(value);
  }

  std::string descr() {
    skip_space();
    if (position_ < text_.size() && text_[position_] == '[') {
      context_.fail("holds records (its descr is a list of fields)", "arrays of one element type",
                    "save one field as an array of its own");
    }
    return string();
  }

  bool boolean() {
    if (accept_word("True")) return true;
    if (accept_word("False")) return false;
    fail("neither True nor False");
  }

  std::int64_t extent() {
    skip_space();
    const char* begin = text_.data() + position_;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) {
      fail(fmt::format("an extent beyond {}", std::numeric_limits<std::int64_t>::max()));
    }
    if (error != std::errc()) fail("no whole number");
    if (value < 0) fail(fmt::format("the negative extent {}", value));
    position_ += static_cast<std::size_t>(end - begin);
    if (position_ < text_.size() && text_[position_] == 'L') ++position_;  // Python 2 wrote 3L
    return value;
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> extents;
    expect('(');
    while (!accept(')')) {
      if (extents.size() == kMaxExtents) fail(fmt::format("more than {} extents", kMaxExtents));
      extents.push_back(extent());
      if (accept(',')) continue;
      if (extents.size() == 1) fail("a number in parentheses, which is no tuple,");
      expect(')');
      break;
    }
    return extents;
  }

  std::string_view text_;
  const FileContext& context_;
  std::size_t position_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const FileContext& context) {
  return Reader(text, context).header();
}

}  // namespace onepass::io
