// Sizes: rounding and words.
#include "tessera/base/bytes.hpp"

#include <doctest/doctest.h>

using tessera::Bytes;
using tessera::round_up;

TEST_CASE("round_up gives the smallest multiple that is not below") {
  CHECK(round_up(Bytes(0), Bytes(4096)) == Bytes(0));
  CHECK(round_up(Bytes(1), Bytes(4096)) == Bytes(4096));
  CHECK(round_up(Bytes(4096), Bytes(4096)) == Bytes(4096));
  CHECK(round_up(Bytes(4097), Bytes(4096)) == Bytes(8192));
  CHECK(round_up(14, 7) == 14);
}

TEST_CASE("sizes are written with three significant digits, and four below the next unit") {
  CHECK(to_string(Bytes(0)) == "0 B");
  CHECK(to_string(Bytes(1023)) == "1023 B");
  CHECK(to_string(Bytes(1024)) == "1.00 KiB");
  CHECK(to_string(Bytes(3 << 19)) == "1.50 MiB");
  CHECK(to_string(Bytes(123 << 10)) == "123 KiB");
  CHECK(to_string(Bytes(99 * 1024 + 992)) == "100 KiB");
  CHECK(to_string(Bytes(9 * 1024 + 1020)) == "10.0 KiB");
  CHECK(to_string(Bytes(1000 << 10)) == "1000 KiB");
  CHECK(to_string(Bytes(1023 << 10)) == "1023 KiB");
  CHECK(to_string(Bytes((1 << 20) - 1)) == "1.00 MiB");
  CHECK(to_string(Bytes(~0ull)) == "16.0 EiB");
}
