// Any bytes as a case text: refused with a message, or a case whose printed text means the same case.
#include <cstdint>
#include <string>
#include <string_view>

#include "onepass/error.h"
#include "problem/case_text.h"
#include "property.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onepass;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Case parsed;
  if (!fuzz::accepted<InvalidArgument>([&] { parsed = parse_case(text); })) return 0;
  const std::string printed = to_string(parsed);
  const Case again = parse_case(printed);
  fuzz::require(again == parsed, "a printed case means the same case: " + printed);
  fuzz::require(to_string(again) == printed, "a printed case is canonical: " + printed);
  return 0;
}
