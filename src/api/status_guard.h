// Where C++ ends: runs a body, turns whatever it throws into a status and this thread's error message.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "onepass/error.h"
#include "onepass/onepass.h"

namespace onepass::c {

/// Empties this thread's message.
void clear_last_error() noexcept;

/// Keeps `message` as this thread's, in the name of `call`: the C++ call that begins it ("forward: ...") is
/// replaced. A fixed text takes its place when there is no memory left for it.
void set_last_error(const char* call, std::string_view message) noexcept;

/// The same for something that no message form exists for.
void set_unexpected_error(const char* call, std::string_view what) noexcept;
void set_out_of_memory_error(const char* call) noexcept;

/// Never null.
const char* last_error() noexcept;

/// Runs `body`, which returns nothing. Nothing escapes.
template <class Body>
onepass_status guarded(const char* call, Body&& body) noexcept {
  try {
    body();
    clear_last_error();
    return ONEPASS_OK;
  } catch (const InvalidArgument& error) {
    set_last_error(call, error.what());
    return ONEPASS_INVALID_ARGUMENT;
  } catch (const NotSupported& error) {
    set_last_error(call, error.what());
    return ONEPASS_NOT_SUPPORTED;
  } catch (const EnvironmentError& error) {
    set_last_error(call, error.what());
    return ONEPASS_ENVIRONMENT;
  } catch (const Error& error) {  // InternalError, or a kind that this list does not know yet
    set_last_error(call, error.what());
    return ONEPASS_INTERNAL;
  } catch (const std::bad_alloc&) {
    set_out_of_memory_error(call);
    return ONEPASS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_unexpected_error(call, error.what());
    return ONEPASS_INTERNAL;
  } catch (...) {
    set_unexpected_error(call, "an exception of unknown type");
    return ONEPASS_INTERNAL;
  }
}

}  // namespace onepass::c
