// The bias gradient: sums over the rows of a matrix.
#include "src/cuda/column_sums.cuh"
#include "src/cuda/cuda_layers.hpp"

namespace tessera::nn::cuda {

namespace {

template <typename T>
struct Elements {
  static constexpr std::size_t terms = 1;
  const T* from;
  std::size_t columns;

  template <std::size_t width>
  __device__ void add(std::size_t row, std::size_t column, float (&sums)[terms][width]) const {
    float values[width];
    load<width>(from + row * columns + column, values);
    for (std::size_t k = 0; k < width; ++k) sums[0][k] = sums[0][k] + values[k];
  }
};

}  // namespace

void column_sums(void* native, const ColumnSums& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const Elements<T> elements{static_cast<const T*>(a.from), a.columns};
    sum_columns<T>(native, elements,
                   {.rows = a.rows,
                    .columns = a.columns,
                    .scratch = a.scratch,
                    .pairs = a.columns % 2 == 0 && packed<T>(a.from, 2),
                    .accumulate = a.accumulate},
                   SumTargets<T, 1>{{static_cast<T*>(a.to)}});
  });
}

std::size_t column_sums_scratch(std::size_t rows, std::size_t columns) { return parts_of(rows).count * columns; }

}  // namespace tessera::nn::cuda
