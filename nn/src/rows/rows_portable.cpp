// The row loops compiled for any processor.
#include "src/rows/table_of_rows.hpp"

namespace tessera::nn {

namespace {

struct Portable {
  static constexpr std::size_t floats = 4;
};

}  // namespace

const RowTable& portable_rows() { return table_of_rows<Portable>; }

}  // namespace tessera::nn
