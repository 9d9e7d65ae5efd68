#include "onepass/version.h"

namespace onepass {

const char* version() noexcept { return ONEPASS_VERSION_STRING; }

}  // namespace onepass
