// Layer normalisation for any instruction set and format.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

// Two passes over the row: the mean, then the sum of squared differences from it.
template <typename Set, Format format>
[[gnu::always_inline]] inline void row_statistics(const LayerNormForwardRows& a, const void* x, Real<format>& mean,
                                                  Real<format>& inverse) {
  using V = Values<Set, format>;
  const auto dim = static_cast<Real<format>>(a.dim);
  V total{};
  for (std::size_t at = 0; at < a.dim; at += lane_count) total = total + read<Set, format>(x, at, a.dim - at);
  mean = sum(total) / dim;
  V squares{};
  for (std::size_t at = 0; at < a.dim; at += lane_count) {
    const V all_lanes = read<Set, format>(x, at, a.dim - at) - all<V>(mean);
    const V difference = first_lanes<Set, format>(a.dim - at, all_lanes, 0);
    squares = squares + difference * difference;
  }
  inverse = Real<format>{1} / square_root(sum(squares) / dim + static_cast<Real<format>>(a.epsilon));
}

template <typename Set, Format format>
void layer_norm_forward_of(const LayerNormForwardRows& a) {
  using V = Values<Set, format>;
  for (std::size_t row = 0; row < a.rows; ++row) {
    const auto* const x = row_of<format>(a.x, row, a.dim);
    auto* const y = row_of<format>(a.y, row, a.dim);
    Real<format> mean;
    Real<format> inverse;
    row_statistics<Set, format>(a, x, mean, inverse);
    static_cast<Real<format>*>(a.mean)[row] = mean;
    static_cast<Real<format>*>(a.inverse)[row] = inverse;
    for (std::size_t at = 0; at < a.dim; at += lane_count) {
      const std::size_t n = a.dim - at;
      const V normal = (read<Set, format>(x, at, n) - all<V>(mean)) * all<V>(inverse);
      write<Set, format>(y, at, n, normal * read<Set, format>(a.weight, at, n) + read<Set, format>(a.bias, at, n));
    }
  }
}

template <typename Set, Format format>
struct NormalRow {
  using V = Values<Set, format>;

  [[gnu::always_inline]] NormalRow(const LayerNormBackwardRows& a, std::size_t row)
      : x(row_of<format>(a.x, row, a.dim)),
        mean(all<V>(static_cast<const Real<format>*>(a.mean)[row])),
        inverse(all<V>(static_cast<const Real<format>*>(a.inverse)[row])) {}
  [[gnu::always_inline]] V at(std::size_t column, std::size_t n) const {
    return (read<Set, format>(x, column, n) - mean) * inverse;
  }

  const Stored<format>* x;
  V mean;
  V inverse;
};

// Columns of dweight and dbias: `blocks` × 16 at once, row after row.
template <typename Set, Format format, std::size_t blocks>
[[gnu::always_inline]] inline void parameter_columns(const LayerNormBackwardRows& a, std::size_t first) {
  using V = Values<Set, format>;
  V weight[blocks] = {};
  V bias[blocks] = {};
  for (std::size_t block = 0; a.accumulate && block < blocks; ++block) {
    const std::size_t at = first + block * lane_count;
    if (a.dweight != nullptr) weight[block] = read<Set, format>(a.dweight, at, a.dim - at);
    if (a.dbias != nullptr) bias[block] = read<Set, format>(a.dbias, at, a.dim - at);
  }
  for (std::size_t row = 0; row < a.rows; ++row) {
    const NormalRow<Set, format> normal(a, row);
    const auto* const dy = row_of<format>(a.dy, row, a.dim);
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t at = first + block * lane_count;
      const V gradient = read<Set, format>(dy, at, a.dim - at);
      weight[block] = weight[block] + gradient * normal.at(at, a.dim - at);
      bias[block] = bias[block] + gradient;
    }
  }
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t at = first + block * lane_count;
    const std::size_t n = a.dim - at;
    if (a.dweight != nullptr) write<Set, format>(a.dweight, at, n, weight[block]);
    if (a.dbias != nullptr) write<Set, format>(a.dbias, at, n, bias[block]);
  }
}

// Computes the columns from the first to before the last, which are multiples of 16, or all there are.
template <typename Set, Format format>
void parameter_gradients(const LayerNormBackwardRows& a, std::size_t first, std::size_t last) {
  constexpr std::size_t blocks = 4;
  std::size_t at = first;
  for (; at + blocks * lane_count <= last; at += blocks * lane_count) parameter_columns<Set, format, blocks>(a, at);
  for (; at < last; at += lane_count) parameter_columns<Set, format, 1>(a, at);
}

// dx = (g - mean(g) - normal · mean(g · normal)) · inverse, with g = dy · weight
template <typename Set, Format format>
void input_gradient(const LayerNormBackwardRows& a, std::size_t row) {
  using V = Values<Set, format>;
  const NormalRow<Set, format> normal(a, row);
  const auto* const dy = row_of<format>(a.dy, row, a.dim);
  V sum_g{};
  V sum_product{};
  for (std::size_t at = 0; at < a.dim; at += lane_count) {
    const std::size_t n = a.dim - at;
    const V g = read<Set, format>(dy, at, n) * read<Set, format>(a.weight, at, n);
    sum_g = sum_g + g;
    sum_product = sum_product + g * normal.at(at, n);
  }
  const auto dim = static_cast<Real<format>>(a.dim);
  const V mean_g = all<V>(sum(sum_g) / dim);
  const V mean_product = all<V>(sum(sum_product) / dim);
  auto* const dx = row_of<format>(a.dx, row, a.dim);
  for (std::size_t at = 0; at < a.dim; at += lane_count) {
    const std::size_t n = a.dim - at;
    const V g = read<Set, format>(dy, at, n) * read<Set, format>(a.weight, at, n);
    V gradient = (g - mean_g - normal.at(at, n) * mean_product) * normal.inverse;
    if (a.residual != nullptr) {
      gradient = read<Set, format>(row_of<format>(a.residual, row, a.dim), at, n) + gradient;
    }
    write<Set, format>(dx, at, n, gradient);
  }
}

template <typename Set>
void layer_norm_forward_lanes(const LayerNormForwardRows& a) {
  by_format(a.format, [&]<Format format>() { layer_norm_forward_of<Set, format>(a); });
}

template <typename Set>
void layer_norm_parameters_lanes(const LayerNormBackwardRows& a, std::size_t first, std::size_t last) {
  by_format(a.format, [&]<Format format>() { parameter_gradients<Set, format>(a, first, last); });
}

template <typename Set>
void layer_norm_input_lanes(const LayerNormBackwardRows& a, std::size_t first, std::size_t last) {
  by_format(a.format, [&]<Format format>() {
    for (std::size_t row = first; row < last; ++row) input_gradient<Set, format>(a, row);
  });
}

}  // namespace tessera::nn
