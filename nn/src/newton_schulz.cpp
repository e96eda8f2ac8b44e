// Products of a batch, between which elements are combined.
#include "src/newton_schulz.hpp"

#include <algorithm>

#include "src/batched_product.hpp"
#include "tessera/kernels/muon.hpp"
#include "tessera/kernels/norm.hpp"

namespace tessera::nn {

namespace {

constexpr int newton_schulz_steps = 5;
constexpr float of_x = 3.4445f, of_gram = -4.7750f, of_square = 2.0315f;

// One matrix takes so much beside itself: two square ones as large as the shorter side, and a product of its own size.
std::size_t bytes_of_one(std::size_t rows, std::size_t columns) {
  const std::size_t shorter = std::min(rows, columns);
  return (2 * shorter * shorter + rows * columns) * sizeof(bf16);
}

// Where things stand in the workspace, in bytes.
struct NewtonSchulzPlaces {
  NewtonSchulzPlaces(std::size_t rows, std::size_t columns, DeviceKind device)
      : most(newton_schulz_batch(rows, columns, device)) {
    const std::size_t shorter = std::min(rows, columns), longer = std::max(rows, columns);
    gram = take(of_all(shorter, shorter));
    square = take(of_all(shorter, shorter));
    product = take(of_all(rows, columns));
    norms = take(most * sizeof(double));
    scratch = take(std::max(batched_product_scratch(shorter, shorter, longer, most, device),
                            batched_product_scratch(shorter, longer, shorter, most, device)));
  }
  std::size_t most;
  std::size_t size = 0;
  std::size_t gram, square, product, norms, scratch;

 private:
  std::size_t of_all(std::size_t rows, std::size_t columns) const {
    return most * MatrixBatch{nullptr, rows, columns, most}.step() * sizeof(bf16);
  }
  std::size_t take(std::size_t bytes) {
    const std::size_t begin = size;
    size += (bytes + 511) / 512 * 512;
    return begin;
  }
};

// Matrices of more rows than columns are multiplied from the right, so that square matrices are small.
class NewtonSchulz {
 public:
  NewtonSchulz(Stream& stream, const MatrixBatch& x, std::byte* workspace)
      : stream_(stream), tall_(x.rows > x.columns), x_(x) {
    const NewtonSchulzPlaces places(x.rows, x.columns, stream.device().kind());
    const std::size_t shorter = std::min(x.rows, x.columns);
    most_ = places.most;
    gram_ = {reinterpret_cast<bf16*>(workspace + places.gram), shorter, shorter, x.count};
    square_ = {reinterpret_cast<bf16*>(workspace + places.square), shorter, shorter, x.count};
    product_ = {reinterpret_cast<bf16*>(workspace + places.product), x.rows, x.columns, x.count};
    norms_ = reinterpret_cast<double*>(workspace + places.norms);
    scratch_ = workspace + places.scratch;
  }

  void run(float least_norm) {
    for (std::size_t n = 0; n < x_.count; ++n) {
      kernels::sum_of_squares(stream_, {x_.data + n * x_.step(), DType::bf16}, x_.elements(), norms_ + n);
    }
    kernels::divide_by_norm(stream_, {.x = x_.data,
                                      .count = x_.elements(),
                                      .stride = x_.step(),
                                      .matrices = x_.count,
                                      .squares = norms_,
                                      .least = least_norm});
    for (int step = 0; step < newton_schulz_steps; ++step) {
      multiply(x_, x_, gram_, {.a_transposed = tall_, .b_transposed = !tall_});
      // It is symmetric, and so its own transpose.
      multiply(gram_, gram_, square_, {.b_transposed = true});
      kernels::combine(stream_, {square_.data, of_gram, gram_.data, of_square, square_.data, square_.span()});
      if (tall_) multiply(x_, square_, product_, {.b_transposed = true});
      if (!tall_) multiply(square_, x_, product_, {});
      kernels::combine(stream_, {x_.data, of_x, x_.data, 1.0f, product_.data, x_.span()});
    }
  }

 private:
  struct Transposed {
    bool a_transposed = false;
    bool b_transposed = false;
  };
  void multiply(const MatrixBatch& a, const MatrixBatch& b, const MatrixBatch& c, const Transposed& as) {
    nn::multiply(stream_, {.a = {a.data, a.step(), as.a_transposed},
                           .b = {b.data, b.step(), as.b_transposed},
                           .c = c.data,
                           .c_step = c.step(),
                           .m = c.rows,
                           .n = c.columns,
                           .k = as.a_transposed ? a.rows : a.columns,
                           .count = x_.count,
                           .most = most_,
                           .scratch = scratch_});
  }

  Stream& stream_;
  bool tall_;
  std::size_t most_;
  MatrixBatch x_, gram_, square_, product_;
  double* norms_;
  std::byte* scratch_;
};

}  // namespace

void orthogonalise(Stream& stream, const MatrixBatch& x, float least_norm, std::byte* workspace) {
  NewtonSchulz(stream, x, workspace).run(least_norm);
}

std::size_t newton_schulz_batch(std::size_t rows, std::size_t columns, DeviceKind device) {
  const bool on_cuda = device == DeviceKind::cuda;
  const std::size_t bytes = std::size_t{on_cuda ? 32u : 4u} << 20, most = on_cuda ? 64 : 8;
  return std::clamp<std::size_t>(bytes / std::max<std::size_t>(1, bytes_of_one(rows, columns)), 1, most);
}

Bytes newton_schulz_workspace(std::size_t rows, std::size_t columns, DeviceKind device) {
  return Bytes(NewtonSchulzPlaces(rows, columns, device).size);
}

std::uint64_t newton_schulz_flops(std::size_t rows, std::size_t columns) {
  const std::uint64_t shorter = std::min(rows, columns), all = std::uint64_t{rows} * columns;
  return newton_schulz_steps * (4 * shorter * all + 2 * shorter * shorter * shorter);
}

}  // namespace tessera::nn
