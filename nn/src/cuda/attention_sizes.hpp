// How attention on tensor cores is cut: what a block and a warp have of a head, and the shared memory that a block
// takes.
#pragma once

#include <cstddef>

namespace tessera::nn::cuda {

inline constexpr unsigned tile_warps = 4;
inline constexpr unsigned tile_threads = tile_warps * 32;
inline constexpr unsigned walked = 64;        // keys or queries of a step of a block's walk
inline constexpr unsigned pack_elements = 8;  // of 16 bytes

// Sixteens of rows of a warp, and how many of the tile's keys or queries it takes at a time. Two sixteens share what is
// read from shared memory; there are registers for so many only.
struct Extent {
  unsigned sixteens;
  unsigned columns;
};
template <unsigned width, bool dropping>
inline constexpr Extent forward_extent = width <= 64 ? Extent{2, 64}
                                         : dropping  ? Extent{1, 64}
                                                     : Extent{2, 32};
template <unsigned width, bool dropping>
inline constexpr Extent gradient_extent = width <= 64 && !dropping ? Extent{2, 32} : Extent{1, 64};
template <unsigned sixteens>
inline constexpr unsigned block_rows = tile_warps * 16 * sixteens;

// Rows in shared memory are longer by what spreads eight of them over all banks.
template <unsigned width>
inline constexpr unsigned row_stride = width + 8;

// Two tiles' masks have a byte for each query and counter, which four keys share.
template <unsigned keys>
inline constexpr unsigned kept_counters = keys / 4;
template <bool dropping, unsigned queries, unsigned keys>
inline constexpr unsigned kept_bytes = dropping ? 2 * queries* kept_counters<keys> : 0;

struct BlockSizes {
  unsigned rows;
  std::size_t shared_bytes;
};
// Tiles of its own rows, and two stages of two tiles that it walks over, of elements of two bytes.
template <unsigned width, unsigned rows, unsigned tiles>
inline constexpr std::size_t tile_bytes = std::size_t{2} * (tiles * rows + 4 * walked) * row_stride<width>;
template <unsigned width, bool dropping, unsigned rows = block_rows<forward_extent<width, dropping>.sixteens>>
inline constexpr BlockSizes forward_block = {rows, tile_bytes<width, rows, 1> + kept_bytes<dropping, rows, walked>};
template <unsigned width, bool dropping, unsigned rows = block_rows<gradient_extent<width, dropping>.sixteens>>
inline constexpr BlockSizes query_gradients_block = {rows,
                                                     tile_bytes<width, rows, 2> + kept_bytes<dropping, rows, walked>};
// Two stages of statistics and deltas besides.
template <unsigned width, bool dropping, unsigned rows = block_rows<gradient_extent<width, dropping>.sixteens>>
inline constexpr BlockSizes key_gradients_block = {
    rows, tile_bytes<width, rows, 2> + kept_bytes<dropping, walked, rows> + 4 * walked * sizeof(float)};

}  // namespace tessera::nn::cuda
