// Batch normalisation for any instruction set and format. Lanes are channels, so a channel's sums are formed row after
// row in every instruction set.
#pragma once

#include "nn/src/rows/elements.hpp"
#include "nn/src/rows/rectifier_lanes.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

// So many rows are added up in the type of arithmetic, before doubles take them.
inline constexpr std::size_t batch_norm_run = 64;

// Sums `blocks` × 16 channels from `first` on.
template <typename Set, Format format, std::size_t blocks>
[[gnu::always_inline]] inline void batch_norm_channels(const BatchNormSums& a, std::size_t first) {
  using V = Values<Set, format>;
  double sums[2][blocks * lane_count] = {};
  V mean[blocks];
  V inverse[blocks];
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t at = first + block * lane_count;
    mean[block] = read<Set, arithmetic_format<format>>(a.mean, at, a.channels - at);
    inverse[block] = all<V>(Real<format>{1});
    if (a.inverse != nullptr) inverse[block] = read<Set, arithmetic_format<format>>(a.inverse, at, a.channels - at);
  }
  for (std::size_t run = 0; run < a.rows; run += batch_norm_run) {
    V one[blocks] = {};
    V two[blocks] = {};
    const std::size_t end = run + batch_norm_run < a.rows ? run + batch_norm_run : a.rows;
    for (std::size_t row = run; row < end; ++row) {
      for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t at = first + block * lane_count;
        const std::size_t n = a.channels - at;
        const V x = (read<Set, format>(row_of<format>(a.x, row, a.channels), at, n) - mean[block]) * inverse[block];
        V dy = x;
        if (a.dy != nullptr) dy = read<Set, format>(row_of<format>(a.dy, row, a.channels), at, n);
        if (a.y != nullptr) {
          dy = let_through(read<Set, format>(row_of<format>(a.y, row, a.channels), at, n), dy, Real<format>{});
        }
        one[block] = one[block] + dy;
        two[block] = two[block] + dy * x;
      }
    }
    for (std::size_t block = 0; block < blocks; ++block) {
      Real<format> values[2][lane_count];
      store_lanes(values[0], one[block]);
      store_lanes(values[1], two[block]);
      for (std::size_t lane = 0; lane < lane_count; ++lane) {
        sums[0][block * lane_count + lane] += static_cast<double>(values[0][lane]);
        sums[1][block * lane_count + lane] += static_cast<double>(values[1][lane]);
      }
    }
  }
  const std::size_t left = a.channels - first;
  const std::size_t count = left < blocks * lane_count ? left : blocks * lane_count;
  __builtin_memcpy(a.sums + first, sums[0], count * sizeof(double));
  __builtin_memcpy(a.sums + a.channels + first, sums[1], count * sizeof(double));
}

template <typename Set>
void batch_norm_sums_lanes(const BatchNormSums& a) {
  by_format(a.format, [&]<Format format>() {
    constexpr std::size_t blocks = 4;
    std::size_t at = 0;
    for (; at + blocks * lane_count <= a.channels; at += blocks * lane_count) {
      batch_norm_channels<Set, format, blocks>(a, at);
    }
    for (; at < a.channels; at += lane_count) batch_norm_channels<Set, format, 1>(a, at);
  });
}

template <typename Set>
void batch_norm_scale_lanes(const BatchNormRows& a) {
  by_format(a.format, [&]<Format format>() {
    using V = Values<Set, format>;
    constexpr Format real = arithmetic_format<format>;
    for (std::size_t row = 0; row < a.rows; ++row) {
      const auto* const x = row_of<format>(a.x, row, a.channels);
      auto* const to = row_of<format>(a.to, row, a.channels);
      for (std::size_t at = 0; at < a.channels; at += lane_count) {
        const std::size_t n = a.channels - at;
        const V centred = read<Set, format>(x, at, n) - read<Set, real>(a.mean, at, n);
        const V scale = read<Set, real>(a.scale, at, n);
        const V shift = read<Set, real>(a.shift, at, n);
        V result = centred * scale + shift;
        if (a.residual != nullptr) {
          result = result + read<Set, format>(row_of<format>(a.residual, row, a.channels), at, n);
        }
        if (a.relu) result = rectified(result, Real<format>{});
        if (a.dy != nullptr) {
          V dy = read<Set, format>(row_of<format>(a.dy, row, a.channels), at, n);
          if (a.y != nullptr) {
            dy = let_through(read<Set, format>(row_of<format>(a.y, row, a.channels), at, n), dy, Real<format>{});
          }
          result = (dy - shift - centred * read<Set, real>(a.slope, at, n)) * scale;
        }
        write<Set, format>(to, at, n, result);
      }
    }
  });
}

}  // namespace tessera::vision
