// The memory of a matrix.
#include "tessera/nn/matrix.hpp"

#include <new>

namespace tessera::nn {

namespace {

constexpr std::align_val_t alignment{64};

}  // namespace

void Matrix::Release::operator()(float* data) const { ::operator delete(data, alignment); }

MatrixView Matrix::reshape(Stream& stream, std::size_t rows, std::size_t columns) {
  const std::size_t elements = rows * columns;
  if (elements > capacity_) {
    stream.synchronize();
    data_.reset();
    capacity_ = 0;
    data_.reset(static_cast<float*>(::operator new(elements * sizeof(float), alignment)));
    capacity_ = elements;
  }
  rows_ = rows;
  columns_ = columns;
  return view();
}

}  // namespace tessera::nn
