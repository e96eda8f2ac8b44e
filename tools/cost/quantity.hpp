// Numbers with units: as people write them on a command line, read strictly, so that nothing is taken for another unit,
// and as people read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tools::cost {

struct Unit {
  std::string_view name;
  double times = 1;
  double over = 1;  // a divisor apart, so that 300ms is the double nearest to 0.3
};

struct Quantity {
  std::string_view what;        // with an example and its units, for the error's text
  std::span<const Unit> units;  // "" among them where a bare number has a meaning
  double least;
  double most;
  std::string_view range;  // the limits in words
};

extern const Quantity byte_size;    // in bytes; 100MB, 64MiB; bare: bytes
extern const Quantity byte_rate;    // in bytes per second; 1.25GB/s, 10Gbit/s
extern const Quantity duration;     // in seconds; 5us, 300ms; a bare 0 too
extern const Quantity fraction;     // 0.1 or 10%; from 0 to 1
extern const Quantity gain;         // 0.3 or 30%; from 0 to 1000
extern const Quantity part;         // 0.1 or 10%; from 0, below 1
extern const Quantity count;        // from 1 to 10^12: 1280000, 1.28M, 70B
extern const Quantity rank_count;   // from 1 to 2^20
extern const Quantity epoch_count;  // from 1 to 10^6
extern const Quantity sample_rate;  // per second; 200 or 200/s
extern const Quantity learning_rate;

// A digit or a point, digits, an exponent, and a unit, with at most one blank before it. Throws OptionError with
// the option, what it takes, its limits and the text.
double number(const std::string& option, std::string_view text, const Quantity& quantity);

// The same, where only whole numbers have a meaning.
std::uint64_t whole_number(const std::string& option, std::string_view text, const Quantity& quantity);

// Between commas: 1,2,4.
std::vector<double> numbers(const std::string& option, std::string_view text, const Quantity& quantity);
std::vector<std::uint64_t> whole_numbers(const std::string& option, std::string_view text, const Quantity& quantity);

// Numbers for people: four significant digits and the unit that fits, in powers of ten.
std::string bytes_text(double bytes);            // "150 MB"
std::string rate_text(double bytes_per_second);  // "1.25 GB/s"
std::string seconds_text(double seconds);        // "120 ms", "22.79 min", "34.19 h"
std::string count_text(double count);            // "70 B": K, M, B (10^9), T
std::string percent_text(double part);           // 0.2857 is "28.6 %"

}  // namespace tools::cost
