// A row-major fp32 matrix: Matrix owns its memory, the views do not. What layers pass to each other and keep.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tessera/base/bytes.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::nn {

// rows × columns elements, rows following each other without gaps, in the memory of the stream's device.
struct MatrixView {
  float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;

  std::size_t elements() const { return rows * columns; }
};

struct ConstMatrixView {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;

  ConstMatrixView() = default;
  ConstMatrixView(const float* data_, std::size_t rows_, std::size_t columns_)
      : data(data_), rows(rows_), columns(columns_) {}
  ConstMatrixView(MatrixView view)  // NOLINT(google-explicit-constructor): as span<T> becomes span<const T>
      : data(view.data), rows(view.rows), columns(view.columns) {}

  std::size_t elements() const { return rows * columns; }
};

class Matrix {
 public:
  // The matrix with this shape; its elements are undefined. Memory is kept and used again; only when it is too small,
  // the stream (whose queued work may still use it) is synchronised and the memory replaced. CPU memory, aligned to 64
  // bytes.
  MatrixView reshape(Stream& stream, std::size_t rows, std::size_t columns);

  MatrixView view() { return {data_.get(), rows_, columns_}; }
  Bytes bytes() const { return Bytes(capacity_ * sizeof(float)); }  // held, whatever the shape

 private:
  struct Release {
    void operator()(float* data) const;
  };
  std::unique_ptr<float, Release> data_;
  std::size_t capacity_ = 0;  // elements
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

}  // namespace tessera::nn
