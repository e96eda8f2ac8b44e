// The row loops compiled for AVX2.
#include "src/rows/table_of_rows.hpp"

namespace tessera::nn {

namespace {

struct Avx2 {
  static constexpr std::size_t floats = 8;
};

}  // namespace

const RowTable& avx2_rows() { return table_of_rows<Avx2>; }

}  // namespace tessera::nn
