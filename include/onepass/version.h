// onepass/version.h - the library's version, as macros (C and C++) and as what is loaded at run time (C++).
// The build reads its version from the macros: this file is the one place that says it.
#pragma once

#define ONEPASS_VERSION_MAJOR 0
#define ONEPASS_VERSION_MINOR 1
#define ONEPASS_VERSION_PATCH 0
#define ONEPASS_VERSION_STRING "0.1.0"

// Marks what the shared library exports; everything else stays hidden.
#if defined(__GNUC__)
#define ONEPASS_API __attribute__((visibility("default")))
#else
#define ONEPASS_API
#endif

#ifdef __cplusplus
namespace onepass {

/// The version of the library that is linked or loaded, "major.minor.patch". Differs from
/// ONEPASS_VERSION_STRING when headers and library come from different releases. Never fails.
ONEPASS_API const char* version() noexcept;

}  // namespace onepass
#endif
