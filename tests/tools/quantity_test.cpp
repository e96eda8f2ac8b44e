// Numbers with units: what is taken, to the last bit, what is refused and how, and how numbers are written.
#include "cost/quantity.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/trainer/number_text.hpp"

namespace tools::cost {

using tessera::trainer::grouped;

namespace {

void check_refused(const Quantity& quantity, std::string_view text) {
  CAPTURE(text);
  try {
    number("--name", text, quantity);
    FAIL("was taken");
  } catch (const tessera::UsageError& error) {
    const std::string what = error.what();
    CHECK(what.find("--name takes a") != std::string::npos);
    CHECK(what.find("not \"" + std::string(text) + "\"") != std::string::npos);
    CHECK(what.find(" such as ") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("sizes_rates_and_times_are_the_nearest_doubles") {
  using Case = std::pair<std::string_view, double>;
  for (const auto& [text, value] : {Case{"100MB", 1e8},
                                    {"100 MB", 1e8},
                                    {"7", 7},
                                    {"7B", 7},
                                    {"1.5KB", 1500},
                                    {"2kB", 2000},
                                    {"1e3B", 1000},
                                    {"3GB", 3e9},
                                    {"0.5TB", 5e11},
                                    {"1KiB", 1024},
                                    {"64MiB", 67108864},
                                    {"1GiB", 1073741824},
                                    {"1TiB", 1099511627776}}) {
    CHECK(number("--size", text, byte_size) == value);
  }
  for (const auto& [text, value] : {Case{"1.25GB/s", 1.25e9},
                                    {"10Gbit/s", 1.25e9},
                                    {"8bit/s", 1},
                                    {"1KiB/s", 1024},
                                    {"800Mbit/s", 1e8},
                                    {"1Tbit/s", 1.25e11},
                                    {"56Kbit/s", 7000},
                                    {"3TB/s", 3e12}}) {
    CHECK(number("--rate", text, byte_rate) == value);
  }
  for (const auto& [text, value] : {Case{"300ms", 0.3},
                                    {"9ms", 0.009},
                                    {"10us", 10e-6},
                                    {"5us", 5e-6},
                                    {"5µs", 5e-6},
                                    {"7ns", 7e-9},
                                    {"0s", 0},
                                    {".5s", 0.5},
                                    {"2min", 120},
                                    {"1.5h", 5400}}) {
    CHECK(number("--time", text, duration) == value);
  }
  CHECK(number("--part", "30%", fraction) == 0.3);
  CHECK(number("--part", "35%", fraction) == 0.35);
}

TEST_CASE("a_unit_of_another_kind_none_or_a_mistyped_one_is_refused") {
  for (const std::string_view text :
       {"",        " ",    "MB",   "100mb",  "100Mb",   "100 MB ", "100  MB",  " 100MB", "1,000B",
        "100MB/s", "100s", "0x10", "1..2MB", "+1MB",    "100MBMB", "nan",      "inf",    "nanMB",
        "infMB",   "-1MB", "0",    "0.5B",   "1e400MB", "1e19",    "2000000TB"}) {
    check_refused(byte_size, text);
  }
  for (const std::string_view text : {"1.25", "1.25GB", "10Gb/s", "-1GB/s", "0GB/s", "GB/s", "1e300GB/s"})
    check_refused(byte_rate, text);
  for (const std::string_view text : {"5", "-5us", "5S", "5 m", "1e30h", "nan"}) check_refused(duration, text);
  for (const std::string_view text : {"1.1", "-0.1", "101%", "10 percent"}) check_refused(fraction, text);
  check_refused(part, "1");
  check_refused(gain, "-30%");
}

TEST_CASE("counts_are_whole") {
  CHECK(whole_number("--n", "1280000", count) == 1280000);
  CHECK(whole_number("--n", "1.28M", count) == 1280000);
  CHECK(whole_number("--n", "4.35M", count) == 4350000);
  CHECK(whole_number("--n", "999999999999", count) == 999999999999);
  CHECK(whole_number("--n", "70B", count) == 70'000'000'000);
  CHECK(whole_number("--n", "1048576", rank_count) == 1048576);
  for (const char* text : {"0", "1.5", "-4", "1.0000000001", "1048577", "4K", "1e400"})
    CHECK_THROWS_AS(whole_number("--n", text, rank_count), tessera::UsageError);
}

TEST_CASE("lists_have_a_number_at_each_side_of_a_comma") {
  CHECK(whole_numbers("--n", "1,2,4", rank_count) == std::vector<std::uint64_t>{1, 2, 4});
  CHECK(numbers("--s", "0.01,10%", fraction) == std::vector<double>{0.01, 0.1});
  for (const char* text : {"", ",", "1,", ",1", "1,,2", "1;2", "1, 2"})
    CHECK_THROWS_AS(whole_numbers("--n", text, rank_count), tessera::UsageError);
}

TEST_CASE("texts_take_the_unit_that_fits") {
  CHECK(bytes_text(150e6) == "150 MB");
  CHECK(bytes_text(999) == "999 B");
  CHECK(bytes_text(1000) == "1 KB");
  CHECK(bytes_text(999'999) == "1 MB");
  CHECK(rate_text(1.25e9) == "1.25 GB/s");
  CHECK(seconds_text(0) == "0 s");
  CHECK(seconds_text(0.12) == "120 ms");
  CHECK(seconds_text(5e-6) == "5 us");
  CHECK(seconds_text(1e-10) == "0.1 ns");
  CHECK(seconds_text(119) == "119 s");
  CHECK(seconds_text(1367.52) == "22.79 min");
  CHECK(seconds_text(86400) == "24 h");
  CHECK(seconds_text(864000) == "10 days");
  CHECK(count_text(70e9) == "70 B");
  CHECK(count_text(12) == "12");
  CHECK(percent_text(0.12 / 0.42) == "28.6 %");
  CHECK(grouped(1) == "1");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(280000) == "280,000");
  CHECK(grouped(1280000) == "1,280,000");
}

}  // namespace tools::cost
