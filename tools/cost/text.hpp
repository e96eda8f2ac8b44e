// Numbers for people: four significant digits and the unit that fits, in powers of ten.
#pragma once

#include <cstdint>
#include <string>

namespace tools::cost {

std::string bytes_text(double bytes);            // "150 MB"
std::string rate_text(double bytes_per_second);  // "1.25 GB/s"
std::string seconds_text(double seconds);        // "120 ms", "22.79 min", "34.19 h"
std::string count_text(double count);            // "70 B": K, M, B (10^9), T
std::string percent_text(double part);           // 0.2857 is "28.6 %"
std::string grouped(std::uint64_t number);       // "1,280,000"

}  // namespace tools::cost
