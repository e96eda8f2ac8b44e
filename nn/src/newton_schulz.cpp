// Products of the linear layer, between which elements are combined.
#include "src/newton_schulz.hpp"

#include <algorithm>

#include "tessera/kernels/muon.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/nn/linear.hpp"

namespace tessera::nn {

namespace {

constexpr int newton_schulz_steps = 5;
constexpr float of_x = 3.4445f, of_gram = -4.7750f, of_square = 2.0315f;

// Where things stand in the workspace, in bytes. Square matrices are as large as the shorter side.
struct NewtonSchulzPlaces {
  NewtonSchulzPlaces(std::size_t rows, std::size_t columns, DeviceKind device) {
    const std::size_t shorter = std::min(rows, columns);
    gram = take(shorter * shorter * sizeof(bf16));
    square = take(shorter * shorter * sizeof(bf16));
    product = take(rows * columns * sizeof(bf16));
    norm = take(sizeof(double));
    scratch = take(sizeof(float) * std::max(linear_scratch<bf16>(rows, columns, shorter, device),
                                            linear_scratch<bf16>(shorter, shorter, shorter, device)));
  }
  std::size_t size = 0;
  std::size_t gram, square, product, norm, scratch;

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t begin = size;
    size += (bytes + 511) / 512 * 512;
    return begin;
  }
};

// A matrix of more rows than columns is multiplied from the right, so that square matrices are small.
class NewtonSchulz {
 public:
  NewtonSchulz(Stream& stream, MatrixView<bf16> x, std::byte* workspace)
      : stream_(stream), tall_(x.rows > x.columns), x_(x) {
    const NewtonSchulzPlaces places(x.rows, x.columns, stream.device().kind());
    const std::size_t shorter = std::min(x.rows, x.columns);
    gram_ = {reinterpret_cast<bf16*>(workspace + places.gram), shorter, shorter};
    square_ = {reinterpret_cast<bf16*>(workspace + places.square), shorter, shorter};
    product_ = {reinterpret_cast<bf16*>(workspace + places.product), x.rows, x.columns};
    norm_ = reinterpret_cast<double*>(workspace + places.norm);
    scratch_ = reinterpret_cast<float*>(workspace + places.scratch);
  }

  void run(float least_norm) {
    kernels::sum_of_squares(stream_, {x_.data, DType::bf16}, x_.elements(), norm_);
    kernels::divide_by_norm(stream_, x_.data, x_.elements(), norm_, least_norm);
    for (int step = 0; step < newton_schulz_steps; ++step) {
      form_gram();
      // It is symmetric, and so its own transpose.
      linear_forward<bf16>(stream_, {.x = gram_, .weight = gram_, .y = square_, .scratch = scratch_});
      kernels::combine(stream_, {square_.data, of_gram, gram_.data, of_square, square_.data, square_.elements()});
      multiply();
      kernels::combine(stream_, {x_.data, of_x, x_.data, 1.0f, product_.data, x_.elements()});
    }
  }

 private:
  void form_gram() {
    if (!tall_) return linear_forward<bf16>(stream_, {.x = x_, .weight = x_, .y = gram_, .scratch = scratch_});
    linear_backward<bf16>(stream_,
                          {.x = x_, .weight = gram_, .dy = x_, .dx = {}, .dweight = gram_.data, .scratch = scratch_});
  }
  void multiply() {
    if (tall_) {
      return linear_forward<bf16>(stream_, {.x = x_, .weight = square_, .y = product_, .scratch = scratch_});
    }
    linear_backward<bf16>(stream_, {.x = x_, .weight = x_, .dy = square_, .dx = product_, .scratch = scratch_});
  }

  Stream& stream_;
  bool tall_;
  MatrixView<bf16> x_, gram_, square_, product_;
  double* norm_;
  float* scratch_;
};

}  // namespace

void orthogonalise(Stream& stream, MatrixView<bf16> x, float least_norm, std::byte* workspace) {
  NewtonSchulz(stream, x, workspace).run(least_norm);
}

Bytes newton_schulz_workspace(std::size_t rows, std::size_t columns, DeviceKind device) {
  return Bytes(NewtonSchulzPlaces(rows, columns, device).size);
}

std::uint64_t newton_schulz_flops(std::size_t rows, std::size_t columns) {
  const std::uint64_t shorter = std::min(rows, columns), all = std::uint64_t{rows} * columns;
  return newton_schulz_steps * (4 * shorter * all + 2 * shorter * shorter * shorter);
}

}  // namespace tessera::nn
