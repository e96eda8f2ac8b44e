// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)

namespace tessera::trainer {

std::string grouped(std::uint64_t value);   // "1,234,567"
std::string duration(double seconds);       // "0:07", "12:34", "3:25:45"
std::string shown_seconds(double seconds);  // "0.42 s", "7.1 s", "12:34"

}  // namespace tessera::trainer

#pragma GCC visibility pop
