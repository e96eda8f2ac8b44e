// The rows between attention's products, for any instruction set, in fp32 or fp64.
#pragma once

#include "src/rows/dropout_lanes.hpp"
#include "src/rows/exponential_lanes.hpp"

namespace tessera::nn {

// The factors of a row's keys, for as many whole blocks of the mask as there are.
template <typename Set>
void draw_factors(const AttentionRows& a, std::size_t row, std::size_t keys) {
  const std::uint64_t mask_row = a.mask->first_row + row * a.mask_row_step;
  for (std::size_t first = 0; first < keys; first += mask_columns) {
    mask_block<Set>(*a.mask, mask_row, first / mask_columns, a.factors + first);
  }
}

// One query's row: `known` keys may be looked at, zeros follow up to a.keys.
template <typename Set, Format format>
struct AttentionRow {
  using V = Values<Set, format>;
  using R = Real<format>;

  [[gnu::always_inline]] AttentionRow(const AttentionRows& a, std::size_t row)
      : scores(static_cast<R*>(a.scores) + row * a.stride),
        gradients(a.gradients == nullptr ? nullptr : static_cast<R*>(a.gradients) + row * a.stride),
        known(a.first_keys + row * a.key_step),
        scale(static_cast<R>(a.scale)) {}

  // Returns a part of sixteen: the elements of known keys, then `rest`. Memory reaches to the end of the part.
  [[gnu::always_inline]] V part(const R* of, std::size_t at, R rest) const {
    return first_lanes<Set, format>(known - at, load_lanes<V>(of + at), rest);
  }

  R* scores;
  R* gradients;
  std::size_t known;
  R scale;
};

template <typename Set, Format format>
[[gnu::always_inline]] inline void softmax_row(const AttentionRows& a, std::size_t row) {
  using V = Values<Set, format>;
  using R = Real<format>;
  const AttentionRow<Set, format> of(a, row);
  V largest_lanes = all<V>(lowest<format>);
  for (std::size_t at = 0; at < of.known; at += lane_count) {
    largest_lanes = larger(largest_lanes, of.part(of.scores, at, lowest<format>));
  }
  const R largest = reduce<Larger>(largest_lanes);
  if (a.mask != nullptr) draw_factors<Set>(a, row, of.known);
  V total{};
  std::size_t at = 0;
  for (; at < of.known; at += lane_count) {
    const V shifted = (of.part(of.scores, at, lowest<format>) - all<V>(largest)) * all<V>(of.scale);
    V e = first_lanes<Set, format>(of.known - at, exponential<Set, format>(shifted), 0);
    total = total + e;
    if (a.mask != nullptr) e = e * factor_lanes<Set, format>(a.factors + at);
    store_lanes(of.scores + at, e);
  }
  for (; at < a.keys; at += lane_count) store_lanes(of.scores + at, V{});
  const R total_sum = sum(total);
  static_cast<R*>(a.inverse_sums)[row] = R{1} / total_sum;
  static_cast<R*>(a.new_statistics)[row] = largest * of.scale + logarithm(total_sum);
}

// Probabilities p from the logarithm of the sum, and with the gradients g of the dropped probabilities:
//   scores ← p · factor,  gradients ← p · (g · factor - Σ p · g · factor) · scale
template <typename Set, Format format>
[[gnu::always_inline]] inline void softmax_gradient_row(const AttentionRows& a, std::size_t row) {
  using V = Values<Set, format>;
  using R = Real<format>;
  const AttentionRow<Set, format> of(a, row);
  const V statistic = all<V>(static_cast<const R*>(a.statistics)[row]);
  if (a.mask != nullptr) draw_factors<Set>(a, row, of.known);
  V total{};
  for (std::size_t at = 0; at < of.known; at += lane_count) {
    const V exponent = of.part(of.scores, at, 0) * all<V>(of.scale) - statistic;
    const V p = first_lanes<Set, format>(of.known - at, exponential<Set, format>(exponent), 0);
    V g = of.part(of.gradients, at, 0);
    if (a.mask != nullptr) g = g * factor_lanes<Set, format>(a.factors + at);
    total = total + p * g;
    store_lanes(of.scores + at, p);
    store_lanes(of.gradients + at, g);
  }
  const V mean = all<V>(sum(total));
  std::size_t at = 0;
  for (; at < of.known; at += lane_count) {
    const V p = load_lanes<V>(of.scores + at);
    store_lanes(of.gradients + at, p * (load_lanes<V>(of.gradients + at) - mean) * all<V>(of.scale));
    if (a.mask != nullptr) store_lanes(of.scores + at, p * factor_lanes<Set, format>(a.factors + at));
  }
  for (; at < a.keys; at += lane_count) {
    store_lanes(of.scores + at, V{});
    store_lanes(of.gradients + at, V{});
  }
}

template <typename Set, Format format>
void attention_rows_of(const AttentionRows& a) {
  for (std::size_t row = 0; row < a.rows; ++row) {
    if (a.gradients == nullptr) softmax_row<Set, format>(a, row);
    if (a.gradients != nullptr) softmax_gradient_row<Set, format>(a, row);
  }
}

template <typename Set>
void attention_rows_lanes(const AttentionRows& a) {
  if (a.format == Format::fp64) return attention_rows_of<Set, Format::fp64>(a);
  attention_rows_of<Set, Format::fp32>(a);
}

}  // namespace tessera::nn
