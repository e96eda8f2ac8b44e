// The row loops compiled for AVX-512 (F, BW, VL, DQ).
#include "src/rows/table_of_rows.hpp"

namespace tessera::nn {

namespace {

struct Avx512 {
  static constexpr std::size_t floats = 16;
};

}  // namespace

const RowTable& avx512_rows() { return table_of_rows<Avx512>; }

}  // namespace tessera::nn
