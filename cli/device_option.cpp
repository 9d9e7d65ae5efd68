#include "cli/device_option.h"

#include <fmt/format.h>

#include "support/message.h"

namespace onepass::cli {

DeviceInfo device_by_name(const std::string& call, const std::string& name, const std::string& also_allowed) {
  if (name == kThisCpu) return this_cpu();
  if (const auto device = find_device(name)) return *device;
  std::string known = kThisCpu;
  for (const std::string& device : known_devices()) known += ", " + device;
  throw_invalid(call, fmt::format("--device is \"{}\"", name), fmt::format("{}, {}", known, also_allowed),
                fmt::format("use --device {}", kThisCpu));
}

}  // namespace onepass::cli
