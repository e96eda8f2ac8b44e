// Two copies stand around each all-to-all: one brings together what goes to each rank, the other takes what came to its
// place.
#include "tessera/nn/context.hpp"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "src/cuda/cuda_layers.hpp"
#include "src/operation.hpp"
#include "src/shared_rows.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

void copy_now(const ChunkCopy& of) {
  const std::size_t outer = of.extents[0] * of.extents[1];
  const auto shares = shares_of_rows(outer, of.extents[2] * of.chunk / sizeof(float));
  parallel::in_shares(shares, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t at = begin; at < end; ++at) {
      const std::size_t i = at / of.extents[1], j = at % of.extents[1];
      const std::byte* from = of.from + i * of.from_strides[0] + j * of.from_strides[1];
      std::byte* to = of.to + i * of.to_strides[0] + j * of.to_strides[1];
      for (std::size_t k = 0; k < of.extents[2]; ++k, from += of.from_strides[2], to += of.to_strides[2]) {
        std::memcpy(to, from, of.chunk);
      }
    }
  });
}

void copy_chunks(Stream& stream, const ChunkCopy& of) {
  if (of.count() == 0) return;
  if (on_cuda(stream)) {
    return stream.submit([native = native_stream(stream), of] { cuda::copy_chunks(native, of); });
  }
  stream.submit([of] { copy_now(of); });
}

template <Element T>
CollectiveOptions options_of(const ContextParts& parts) {
  CollectiveOptions options{.kind = CollectiveKind::all_to_all,
                            .backward = !parts.in_two,
                            .backward_input = parts.in_two,
                            .evaluate = true,
                            .axes = Axis::context};
  if constexpr (!std::is_same_v<T, double>) options.type = dtype_of<T>;
  return options;
}

}  // namespace

// The chunks of a matrix: where they stand there, and how far apart they travel, by the other rank that has to do with
// them and two indices of this one's. In elements.
template <Element T>
struct ContextExchange<T>::Chunks {
  std::size_t size;
  std::size_t extents[3];
  std::size_t strides[3];
  std::size_t travelling[2];  // from the second index on; ranks have parts of their own
};

template <Element T>
ContextExchange<T>::ContextExchange(const ContextParts& parts, std::size_t columns, std::size_t blocks)
    : parts_(parts),
      columns_(columns),
      blocks_(blocks),
      collective_(parts.rows * columns / parts.count, options_of<T>(parts)) {}

// Columns of every row go to each rank.
template <Element T>
typename ContextExchange<T>::Chunks ContextExchange<T>::of_positions(std::size_t rows) const {
  const std::size_t block = columns_ / blocks_, each = block / parts_.count;
  return {.size = each,
          .extents = {parts_.count, rows, blocks_},
          .strides = {each, columns_, block},
          .travelling = {each * blocks_, each}};
}

// Rows of every sequence do.
template <Element T>
typename ContextExchange<T>::Chunks ContextExchange<T>::of_heads(std::size_t rows, std::size_t length) const {
  const std::size_t each = length * columns_ / parts_.count;
  return {.size = each,
          .extents = {parts_.count, rows / length, 1},
          .strides = {each, each * parts_.count, 0},
          .travelling = {each, 0}};
}

template <Element T>
void ContextExchange<T>::to_heads(Window& window, MatrixView<const T> x, MatrixView<T> y, std::size_t length) {
  exchange(window, x, of_positions(x.rows), y, of_heads(x.rows, length));
}

template <Element T>
void ContextExchange<T>::to_positions(Window& window, MatrixView<const T> x, MatrixView<T> y, std::size_t length) {
  exchange(window, x, of_heads(y.rows, length), y, of_positions(y.rows));
}

template <Element T>
void ContextExchange<T>::exchange(Window& window, MatrixView<const T> x, const Chunks& going, MatrixView<T> y,
                                  const Chunks& coming) {
  if (x.elements() > collective_.elements() * parts_.count) {
    throw UsageError(fmt::format("context: a pass of {} rows, and the largest was said to have {}",
                                 x.elements() / columns_, parts_.rows));
  }
  const std::span<T> brought = window.contribution<T>(collective_);
  if (window.computes() && brought.size() != collective_.elements() * parts_.count) {
    throw UsageError(
        fmt::format("context: sequences are in {} parts, and {} ranks exchange them: give the mesh as many "
                    "places along context as ContextParts::count says",
                    parts_.count, brought.size() / collective_.elements()));
  }
  const auto copy = [&](const T* from, T* to, const Chunks& chunks, std::size_t stride, bool goes) {
    ChunkCopy of{.from = reinterpret_cast<const std::byte*>(from),
                 .to = reinterpret_cast<std::byte*>(to),
                 .chunk = chunks.size * sizeof(T),
                 .extents = {chunks.extents[0], chunks.extents[1], chunks.extents[2]}};
    const std::size_t travelling[3] = {stride, chunks.travelling[0], chunks.travelling[1]};
    for (std::size_t index = 0; index < 3; ++index) {
      (goes ? of.from_strides : of.to_strides)[index] = chunks.strides[index] * sizeof(T);
      (goes ? of.to_strides : of.from_strides)[index] = travelling[index] * sizeof(T);
    }
    enqueue(window, copy_chunks, of);
  };
  copy(x.data, brought.data(), going, collective_.elements(), true);
  const Collected<T> came = window.collect<T>(collective_);
  copy(came.first, y.data, coming, came.stride, false);
}

#define TESSERA_CONTEXT(T) template class ContextExchange<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_CONTEXT)

}  // namespace tessera::nn
