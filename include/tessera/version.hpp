// The version of these headers.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

namespace tessera {

inline constexpr std::string_view version = "0.1.0";

}  // namespace tessera

#pragma GCC visibility pop
