// Layers that work element by element: one pass over memory each. The formulas are those of the CPU's row loops.
#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"
#include "src/cuda/mask.cuh"

namespace tessera::nn::cuda {

namespace {

struct GeluShare {
  static constexpr float linear = static_cast<float>(2.0 * 0.79788456080286535588);
  static constexpr float cubic = static_cast<float>(2.0 * 0.79788456080286535588 * 0.044715);

  // (1 + tanh(u)) / 2
  __device__ static float of(float x) { return __fdividef(1.0f, 1.0f + __expf(x * (-linear - cubic * (x * x)))); }
};

struct GeluForward {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x * GeluShare::of(x); }
};

struct GeluBackward {
  static constexpr bool two = true;
  __device__ float operator()(float x, float dy) const {
    const float share = GeluShare::of(x);
    const float slope = GeluShare::linear + 3.0f * GeluShare::cubic * (x * x);
    return dy * (share + x * share * (1.0f - share) * slope);
  }
};

struct ReluForward {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x <= 0.0f ? 0.0f : x; }
};

struct ReluBackward {
  static constexpr bool two = true;
  __device__ float operator()(float y, float dy) const { return y <= 0.0f ? 0.0f : dy; }
};

struct Sum {
  static constexpr bool two = true;
  __device__ float operator()(float a, float b) const { return a + b; }
};

// to[i] = body(a[i], b[i])
template <typename T>
struct Places {
  const T* a;
  const T* b;
  T* to;
  std::size_t count;
};

template <std::size_t width, typename Body, typename T>
__device__ void map_at(const Body& body, const Places<T>& places, std::size_t i) {
  float a[width];
  float b[width] = {};
  load<width>(places.a + i, a);
  if constexpr (Body::two) load<width>(places.b + i, b);
#pragma unroll
  for (std::size_t k = 0; k < width; ++k) a[k] = body(a[k], b[k]);
  store<width>(places.to + i, a);
}

template <typename Body, typename T>
__global__ void map_elements(const Body body, const Places<T> places, bool packs) {
  constexpr std::size_t width = pack_width<T>;
  const std::size_t whole = packs ? places.count / width : 0;
  for (std::size_t i = thread_of_grid(); i < whole; i += threads_of_grid()) map_at<width>(body, places, i * width);
  for (std::size_t i = whole * width + thread_of_grid(); i < places.count; i += threads_of_grid()) {
    map_at<1>(body, places, i);
  }
}

struct Rows {
  Format format;
  const void* a;
  const void* b;
  void* to;
  std::size_t count;
};

template <typename Body>
void map(void* native, const Body& body, const Rows& rows) {
  if (rows.count == 0) return;
  for_element(rows.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const Places<T> places{static_cast<const T*>(rows.a), static_cast<const T*>(rows.b), static_cast<T*>(rows.to),
                           rows.count};
    const bool packs = packed<T>(rows.a) && packed<T>(rows.b) && packed<T>(rows.to);
    const std::size_t items = packs ? (rows.count + pack_width<T> - 1) / pack_width<T> : rows.count;
    launch(native, blocks_for(items), map_elements<Body, T>, body, places, packs);
  });
}

template <typename T>
__global__ void spread(const T* row, T* y, std::size_t columns, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) {
    y[i] = row == nullptr ? to_element<T>(0.0f) : row[i % columns];
  }
}

template <typename Piece>
__global__ void copy_pieces(const ChunkCopy a, std::size_t pieces) {
  const std::size_t of_chunk = a.chunk / sizeof(Piece);
  for (std::size_t at = thread_of_grid(); at < pieces; at += threads_of_grid()) {
    std::size_t chunk = at / of_chunk;
    std::size_t from = at % of_chunk * sizeof(Piece), to = from;
#pragma unroll
    for (int dimension = 2; dimension >= 0; --dimension) {
      const std::size_t index = chunk % a.extents[dimension];
      chunk /= a.extents[dimension];
      from += index * a.from_strides[dimension];
      to += index * a.to_strides[dimension];
    }
    *reinterpret_cast<Piece*>(a.to + to) = *reinterpret_cast<const Piece*>(a.from + from);
  }
}

// A thread has one counter of the mask, and with it four elements of a row.
template <typename T>
__global__ void drop(const DropoutRows a, std::size_t counters) {
  const auto* const x = static_cast<const T*>(a.x);
  const auto* const residual = static_cast<const T*>(a.residual);
  auto* const y = static_cast<T*>(a.y);
  for (std::size_t i = thread_of_grid(); i < a.rows * counters; i += threads_of_grid()) {
    const std::size_t row = i / counters;
    const std::size_t counter = i % counters;
    float factors[4];
    mask_factors(a.mask, a.mask.first_row + row, static_cast<std::uint32_t>(counter), factors);
    for (std::size_t word = 0; word < 4; ++word) {
      const std::size_t column = mask_column(counter, word);
      if (column >= a.columns) continue;
      const std::size_t at = row * a.columns + column;
      const float dropped = to_float(x[at]) * factors[word];
      y[at] = to_element<T>(residual == nullptr ? dropped : to_float(residual[at]) + dropped);
    }
  }
}

}  // namespace

// In the largest pieces of which everything is a multiple.
void copy_chunks(void* native, const ChunkCopy& a) {
  std::uintptr_t all = reinterpret_cast<std::uintptr_t>(a.from) | reinterpret_cast<std::uintptr_t>(a.to) | a.chunk;
  for (int dimension = 0; dimension < 3; ++dimension) all |= a.from_strides[dimension] | a.to_strides[dimension];
  const auto copy = [&](auto piece) {
    using Piece = decltype(piece);
    const std::size_t pieces = a.count() / sizeof(Piece);
    launch(native, blocks_for(pieces), copy_pieces<Piece>, a, pieces);
  };
  if (all % sizeof(uint4) == 0) return copy(uint4{});
  if (all % sizeof(std::uint32_t) == 0) return copy(std::uint32_t{});
  copy(std::uint16_t{});
}

void gelu(void* native, const GeluRow& a) {
  if (a.dy == nullptr) return map(native, GeluForward{}, {a.format, a.x, nullptr, a.to, a.count});
  map(native, GeluBackward{}, {a.format, a.x, a.dy, a.to, a.count});
}

void relu(void* native, const ReluRow& a) {
  if (a.dy == nullptr) return map(native, ReluForward{}, {a.format, a.y, nullptr, a.to, a.count});
  map(native, ReluBackward{}, {a.format, a.y, a.dy, a.to, a.count});
}

void add(void* native, const AddRow& a) { map(native, Sum{}, {a.format, a.a, a.b, a.y, a.count}); }

void spread_row(void* native, const SpreadRow& a) {
  const std::size_t count = a.rows * a.columns;
  if (count == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(count), spread<T>, static_cast<const T*>(a.row), static_cast<T*>(a.y), a.columns, count);
  });
}

void dropout(void* native, const DropoutRows& a) {
  const std::size_t counters = mask_counters(a.columns);
  if (a.rows * counters == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    launch(native, blocks_for(a.rows * counters), drop<T>, a, counters);
  });
}

}  // namespace tessera::nn::cuda
