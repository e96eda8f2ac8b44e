// The runtime's kernels on CUDA devices: the bits of the CPU's. One source, because nvcc takes longer for headers than
// for kernels.
#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/dynamic_map.hpp"
#include "kernels/exact_arithmetic.hpp"
#include "kernels/step_arithmetic.hpp"
#include "tessera/device/cuda_launch.cuh"
#include "tessera/kernels/norm.hpp"

namespace tessera::kernels::cuda {

using tessera::cuda::launch;

// ---- casts, sums and quotients, element by element: one pass over memory each ----

namespace {

// `From` is a View, or Codes.
template <Format to_format, typename From>
struct CastElements {
  View<to_format> to;
  From from;

  __device__ void packed(std::size_t i) const {
    float values[pack];
    from.get(i, values);
    to.set(i, values);
  }
  __device__ void single(std::size_t i) const { to.set(i, from.get(i)); }
};

template <Format from_format>
struct AccumulateElements {
  View<Format::fp32> to;
  View<from_format> from;

  __device__ void packed(std::size_t i) const {
    float sum[pack];
    float values[pack];
    to.get(i, sum);
    from.get(i, values);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + values[k];
    to.set(i, sum);
  }
  __device__ void single(std::size_t i) const { to.set(i, to.get(i) + from.get(i)); }
};

struct DivideElements {
  View<Format::fp32> data;
  float divisor;

  __device__ void packed(std::size_t i) const {
    float values[pack];
    data.get(i, values);
    for (std::size_t k = 0; k < pack; ++k) values[k] = values[k] / divisor;
    data.set(i, values);
  }
  __device__ void single(std::size_t i) const { data.set(i, data.get(i) / divisor); }
};

template <Format format>
struct FillNegativeZero {
  View<format> data;

  __device__ void packed(std::size_t i) const {
    float values[pack];
    for (std::size_t k = 0; k < pack; ++k) values[k] = -0.0f;
    data.set(i, values);
  }
  __device__ void single(std::size_t i) const { data.set(i, -0.0f); }
};

template <typename Body>
__global__ void run_elements(Body body, std::size_t count, bool packs) {
  for_each_element(count, packs, body);
}

template <typename Body>
void run(void* native, const Body& body, std::size_t count, bool packs) {
  if (count > 0) launch(native, launch_for(count, packs), run_elements<Body>, body, count, packs);
}

template <Format format>
View<format> view(const void* data) {
  return {static_cast<typename Stored<format>::Type*>(const_cast<void*>(data))};
}

__global__ void touch_bytes(std::byte* first, std::byte* last, bool write) {
  for (volatile std::byte* place : {first, last}) {
    const std::byte value = *place;
    if (write) *place = value;
  }
}

}  // namespace

void cast(void* native, const CastArguments& a) {
  for_format(a.to_format, [&](auto to) {
    for_format(a.from_format, [&](auto from) {
      constexpr Format t = decltype(to)::value;
      constexpr Format f = decltype(from)::value;
      const bool packs = packed<t>(a.to) && packed<f>(a.from);
      run(native, CastElements<t, View<f>>{view<t>(a.to), view<f>(a.from)}, a.count, packs);
    });
  });
}

void decode(void* native, const CastArguments& a) {
  for_format(a.to_format, [&](auto to) {
    constexpr Format t = decltype(to)::value;
    const bool packs = packed<t>(a.to) && packed<Format::fp32>(a.from);
    run(native, CastElements<t, Codes>{view<t>(a.to), {static_cast<const std::byte*>(a.from)}}, a.count, packs);
  });
}

void accumulate(void* native, const AccumulateArguments& a) {
  for_format(a.from_format, [&](auto from) {
    constexpr Format f = decltype(from)::value;
    const bool packs = packed<Format::fp32>(a.to) && packed<f>(a.from);
    run(native, AccumulateElements<f>{{a.to}, view<f>(a.from)}, a.count, packs);
  });
}

void divide(void* native, float* data, float divisor, std::size_t count) {
  run(native, DivideElements{{data}, divisor}, count, packed<Format::fp32>(data));
}

void fill_negative_zero(void* native, void* data, Format format, std::size_t count) {
  for_format(format, [&](auto stored) {
    constexpr Format f = decltype(stored)::value;
    run(native, FillNegativeZero<f>{view<f>(data)}, count, packed<f>(data));
  });
}

void touch(void* native, std::byte* first, std::byte* last, bool write) {
  launch(native, {.threads = 1}, touch_bytes, first, last, write);
}

// ---- the squared norm in norm.hpp's order. Four threads share a block of 1,024 elements, each with four of its 16
// lanes, so that every access is 16 bytes; blocks go to fp64 lanes in turn, and the last kernel adds the lanes up in
// pairs ----

namespace {

constexpr unsigned threads_per_lane = 4;
constexpr unsigned block_threads = 256;

// The elements i … i + 3, with zeros behind the end.
template <Format format>
__device__ void read(const View<format>& data, std::size_t count, std::size_t i, bool packs, float (&values)[pack]) {
  if (packs && i + pack <= count) return data.get(i, values);
  for (std::size_t k = 0; k < pack; ++k) values[k] = i + k < count ? data.get(i + k) : 0.0f;
}

__device__ inline void add_square(float (&sum)[pack], const float (&x)[pack]) {
  for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + x[k] * x[k];
}

// This thread's four lanes of a whole block, which it has from `data` on in packs. Many are under way at a time: there
// are too few threads to hide the memory's latency otherwise.
template <Format format>
__device__ void add_whole_block(const typename Stored<format>::Type* data, float (&sum)[pack]) {
  constexpr unsigned at_a_time = 16;
  constexpr unsigned row = threads_per_lane * pack;
  for (unsigned first = 0; first < norm_block; first += at_a_time * row) {
    Pack<format> stored[at_a_time];
#pragma unroll
    for (unsigned i = 0; i < at_a_time; ++i) stored[i] = *reinterpret_cast<const Pack<format>*>(data + first + i * row);
#pragma unroll
    for (unsigned i = 0; i < at_a_time; ++i) {
      float x[pack];
      for (std::size_t k = 0; k < pack; ++k) x[k] = to_float<format>(stored[i].element[k]);
      add_square(sum, x);
    }
  }
}

// This thread's four lanes of the block at `begin`.
template <Format format>
__device__ void add_squares(const View<format>& data, std::size_t count, std::size_t begin, bool packs,
                            float (&sum)[pack]) {
  for (std::size_t k = 0; k < pack; ++k) sum[k] = 0.0f;
  const std::size_t own = threadIdx.x % threads_per_lane * pack;
  if (packs && begin + norm_block <= count) return add_whole_block<format>(data.data + begin + own, sum);
  const std::size_t end = begin + norm_block < count ? begin + norm_block : count;
  for (std::size_t i = begin + own; i < end; i += threads_per_lane * pack) {
    float x[pack];
    read(data, count, i, packs, x);
    add_square(sum, x);
  }
}

// The lanes k and k + 8, k and k + 4 (other threads), k and k + 2, k and k + 1 (this thread's own).
__device__ float pairwise(const float (&sum)[pack]) {
  float four[pack];
  for (std::size_t k = 0; k < pack; ++k) {
    const float eight = sum[k] + __shfl_down_sync(0xffffffffu, sum[k], 2, threads_per_lane);
    four[k] = eight + __shfl_down_sync(0xffffffffu, eight, 1, threads_per_lane);
  }
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// Lanes in use: a power of two, norm_lanes or at least the number of blocks.
template <Format format>
__global__ void add_blocks(const View<format> data, std::size_t count, bool packs, double* lanes, std::size_t used) {
  const std::size_t lane = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) / threads_per_lane;
  const std::size_t blocks = (count + norm_block - 1) / norm_block;
  double sum = 0.0;
  for (std::size_t round = 0; round * used < blocks; ++round) {  // all threads alike: a warp shuffles together
    const std::size_t block = round * used + lane;
    float squares[pack];
    add_squares(data, count, block * norm_block, packs, squares);
    const float total = pairwise(squares);
    if (block < blocks) sum += static_cast<double>(total);
  }
  if (threadIdx.x % threads_per_lane == 0) lanes[lane] = sum;
}

// Lanes k and k + half, for halves from the largest down. Lanes beyond those in use are zeros, which change no sum.
__global__ void add_lanes(double* lanes, std::size_t used, double* result) {
  for (std::size_t half = used / 2; half > 0; half /= 2) {
    for (std::size_t k = threadIdx.x; k < half; k += blockDim.x) lanes[k] += lanes[k + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *result = lanes[0];
}

}  // namespace

void sum_of_squares(void* native, const NormArguments& a, double* lanes, double* result) {
  std::size_t used = block_threads / threads_per_lane;
  while (used < norm_lanes && used * norm_block < a.count) used *= 2;
  const auto blocks = static_cast<unsigned>(used * threads_per_lane / block_threads);
  for_format(a.format, [&](auto of) {
    constexpr Format format = decltype(of)::value;
    launch(native, {.blocks = dim3(blocks), .threads = block_threads}, add_blocks<format>, view<format>(a.data),
           a.count, packed<format>(a.data), lanes, used);
  });
  const auto pairs = static_cast<unsigned>(used / 2);
  launch(native, {.threads = pairs < 1024 ? pairs : 1024}, add_lanes, lanes, used, result);
}

// ---- the exact sum of squares (kernels/exact_squares.hpp). Each thread cuts its own packs into bins of its own; what
// threads and blocks have add up in any order ----

namespace {

// sums[0] becomes the sum of one of each thread of the block, whose number is a power of two. All threads call it.
template <typename Sum>
__device__ void add_up_in_block(Sum* sums) {
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) add_exactly(sums[threadIdx.x], sums[threadIdx.x + half]);
  }
}

constexpr unsigned exact_packs = 4;  // that a thread has under way at a time

__device__ ExactSquares squares_of(const float (&x)[exact_packs][pack]) {
  std::uint32_t largest = 0;
  for (unsigned p = 0; p < exact_packs; ++p) {
    for (std::size_t k = 0; k < pack; ++k) {
      const std::uint32_t magnitude = float_to_bits(x[p][k]) & 0x7fffffffu;
      largest = largest > magnitude ? largest : magnitude;
    }
  }
  const std::int64_t top = top_of(largest);
  if (!has_bins(top)) return {top, {}};
  const Rounders rounders = rounders_of(top);
  std::uint64_t sums[3] = {};
  for (unsigned p = 0; p < exact_packs; ++p) {
    for (std::size_t k = 0; k < pack; ++k) add_slices(static_cast<double>(x[p][k]), rounders, sums);
  }
  return sum_of_slices(top, sums, exact_packs * pack);
}

template <Format format>
__global__ void add_exact_squares(const View<format> data, std::size_t count, bool packs, ExactSquares* partials) {
  __shared__ ExactSquares sums[block_threads];
  const Sharing by = shared_by(gridDim.x, blockIdx.x);
  ExactSquares sum{};
  for (std::size_t first = by.thread * pack; first < count; first += by.threads * pack * exact_packs) {
    float x[exact_packs][pack];
#pragma unroll
    for (unsigned p = 0; p < exact_packs; ++p) read(data, count, first + p * by.threads * pack, packs, x[p]);
    add_exactly(sum, squares_of(x));
  }
  sums[threadIdx.x] = sum;
  add_up_in_block(sums);
  if (threadIdx.x == 0) partials[blockIdx.x] = sums[0];
}

__global__ void add_exact_partials(const ExactSquares* partials, std::size_t count, ExactSquares* result) {
  __shared__ ExactSquares sums[block_threads];
  ExactSquares sum{};
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) add_exactly(sum, partials[i]);
  sums[threadIdx.x] = sum;
  add_up_in_block(sums);
  if (threadIdx.x == 0) *result = sums[0];
}

}  // namespace

void exact_squares(void* native, const NormArguments& a, ExactSquares* partials, ExactSquares* result) {
  constexpr std::size_t of_a_block = block_threads * exact_packs * pack;
  const std::size_t blocks = std::clamp<std::size_t>((a.count + of_a_block - 1) / of_a_block, 1, most_exact_partials);
  for_format(a.format, [&](auto of) {
    constexpr Format format = decltype(of)::value;
    launch(native, {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = block_threads}, add_exact_squares<format>,
           view<format>(a.data), a.count, packed<format>(a.data), partials);
  });
  launch(native, {.threads = block_threads}, add_exact_partials, partials, blocks, result);
}

// ---- sums over ranks in rank order: each contribution is read once, the sum stays in registers ----

namespace {

// Where contribution r begins.
struct Pointers {
  const void* of_rank[most_contributions];
  template <typename Type>
  __device__ const Type* at(std::size_t rank) const {
    return static_cast<const Type*>(of_rank[rank]);
  }
};
struct Stride {
  const void* first;
  std::size_t bytes;
  template <typename Type>
  __device__ const Type* at(std::size_t rank) const {
    return reinterpret_cast<const Type*>(static_cast<const std::byte*>(first) + rank * bytes);
  }
};

struct SumSettings {
  std::size_t ranks;
  Accumulate accumulate;
  float divisor;
};

// `Brought` is a View, or Codes.
template <typename Brought, typename Places>
struct SumElements {
  Places places;
  View<Format::fp32> result;
  SumSettings settings;

  __device__ Brought contribution(std::size_t rank) const {
    using Type = typename Brought::Type;
    return {const_cast<Type*>(places.template at<Type>(rank))};
  }
  __device__ void add_to_result(std::size_t i, float (&sum)[pack]) const {
    float before[pack];
    result.get(i, before);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = before[k] + sum[k];
  }
  __device__ float divided(float sum) const { return settings.divisor == 1.0f ? sum : sum / settings.divisor; }
  __device__ void packed(std::size_t i) const {
    float sum[pack];
    float next[pack];
    contribution(0).get(i, sum);
    if (settings.accumulate == Accumulate::terms) add_to_result(i, sum);
    for (std::size_t rank = 1; rank < settings.ranks; ++rank) {
      contribution(rank).get(i, next);
      for (std::size_t k = 0; k < pack; ++k) sum[k] = sum[k] + next[k];
    }
    if (settings.accumulate == Accumulate::sum) add_to_result(i, sum);
    for (std::size_t k = 0; k < pack; ++k) sum[k] = divided(sum[k]);
    result.set(i, sum);
  }
  __device__ void single(std::size_t i) const {
    float sum = contribution(0).get(i);
    if (settings.accumulate == Accumulate::terms) sum = result.get(i) + sum;
    for (std::size_t rank = 1; rank < settings.ranks; ++rank) sum = sum + contribution(rank).get(i);
    if (settings.accumulate == Accumulate::sum) sum = result.get(i) + sum;
    result.set(i, divided(sum));
  }
};

template <typename Body>
__global__ void run_sum(const Body body, std::size_t count, bool packs) {
  for_each_element(count, packs, body);
}

template <typename Brought, typename Places>
void sum(void* native, const RankedSumArguments& a, const Places& places, bool packs) {
  using Body = SumElements<Brought, Places>;
  const Body body{places, {a.result}, {a.ranks, a.accumulate, a.divisor}};
  launch(native, launch_for(a.count, packs), run_sum<Body>, body, a.count, packs && packed<Format::fp32>(a.result));
}

// function(constant of the format, one of what a rank brings).
template <typename Function>
void for_brought(Format format, bool of_codes, const Function& function) {
  if (of_codes) return function(FormatConstant<Format::fp32>{}, Codes{});
  for_format(format, [&](auto of) { function(of, View<decltype(of)::value>{}); });
}

}  // namespace

void ranked_sum(void* native, const RankedSumArguments& a, bool of_codes) {
  if (a.ranks > most_contributions) throw InternalError("more contributions than a kernel takes pointers");
  if (a.count == 0) return;
  for_brought(a.format, of_codes, [&](auto of, auto brought) {
    Pointers places{};
    bool packs = true;
    for (std::size_t rank = 0; rank < a.ranks; ++rank) {
      places.of_rank[rank] = a.contributions[rank];
      packs = packs && packed<decltype(of)::value>(a.contributions[rank]);
    }
    sum<decltype(brought)>(native, a, places, packs);
  });
}

void strided_ranked_sum(void* native, const RankedSumArguments& a, const StridedContributions& contributions,
                        bool of_codes) {
  if (a.count == 0) return;
  for_brought(a.format, of_codes, [&](auto of, auto brought) {
    constexpr Format format = decltype(of)::value;
    const std::size_t stride = contributions.stride.count();
    const bool packs = packed<format>(contributions.first) && stride % sizeof(Pack<format>) == 0;
    sum<decltype(brought)>(native, a, Stride{contributions.first, stride}, packs);
  });
}

// ---- blocks of codes: a warp has a block, of which each lane has two packs ----

namespace {

constexpr unsigned warp = 32;
constexpr unsigned packs_of_lane = coded_elements / (warp * pack);

// Magnitudes are compared as integers, so that the order does not count. All lanes call it, and have the result.
__device__ float largest_in_warp(const float (&values)[packs_of_lane][pack]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (unsigned p = 0; p < packs_of_lane; ++p) {
    for (std::size_t k = 0; k < pack; ++k) {
      const std::uint32_t magnitude = float_to_bits(values[p][k]) & 0x7fffffffu;
      largest = largest > magnitude ? largest : magnitude;
    }
  }
  for (unsigned lanes = warp / 2; lanes > 0; lanes /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, largest, static_cast<int>(lanes));
    largest = largest > other ? largest : other;
  }
  return bits_to_float(largest);
}

template <Format format>
__global__ void run_encode(std::byte* to, const View<format> from, std::size_t count, bool packs) {
  const Sharing by = shared_by(gridDim.x, blockIdx.x);
  const unsigned lane = threadIdx.x % warp;
  for (std::size_t at = by.thread / warp * coded_elements; at < count; at += by.threads / warp * coded_elements) {
    float values[packs_of_lane][pack];
#pragma unroll
    for (unsigned p = 0; p < packs_of_lane; ++p) {
      const std::size_t i = at + (p * warp + lane) * pack;
      if (packs) from.get(i, values[p]);
      for (std::size_t k = 0; !packs && k < pack; ++k) values[p][k] = from.get(i + k);
    }
    const CodedBlock block = coded_block(largest_in_warp(values));
    std::byte* const place = to + at / coded_elements * coded_bytes;
    if (lane == 0) *reinterpret_cast<float*>(place) = block.scale;
#pragma unroll
    for (unsigned p = 0; p < packs_of_lane; ++p) {
      std::uint32_t codes = 0;
      for (std::size_t k = 0; k < pack; ++k) {
        const std::uint32_t code = float_to_bits(values[p][k] * block.inverse + code_rounder) & 0xffu;
        codes |= (block.inverse == 0.0f ? 0u : code) << (8 * k);
      }
      reinterpret_cast<std::uint32_t*>(place + sizeof(float))[p * warp + lane] = codes;
    }
  }
}

}  // namespace

void encode(void* native, const CastArguments& a) {
  if (a.count == 0) return;
  for_format(a.from_format, [&](auto from) {
    constexpr Format f = decltype(from)::value;
    launch(native, launch_for(a.count / packs_of_lane, true), run_encode<f>, static_cast<std::byte*>(a.to),
           view<f>(a.from), a.count, packed<f>(a.from));
  });
}

// ---- fused updates, operation by operation as optimizer.hpp writes them; what begin_update decided is read on the
// device ----

namespace {

using Floats = View<Format::fp32>;

// The new masters once more, in another format; of fp32 nothing is written.
template <Format format>
struct RoundedMasters {
  static constexpr bool rounds = format != Format::fp32;
  void* data;

  __device__ View<format> view() const { return {static_cast<typename Stored<format>::Type*>(data)}; }
  __device__ void set(std::size_t i, const float (&values)[pack]) const {
    if constexpr (rounds) view().set(i, values);
  }
  __device__ void set(std::size_t i, float value) const {
    if constexpr (rounds) view().set(i, value);
  }
};

// Gradients are of one type in all of an update, so that no warp takes two ways.
template <Format format>
__device__ View<format> gradient_view(const Source& gradient) {
  return {static_cast<typename Stored<format>::Type*>(const_cast<void*>(gradient.data))};
}
__device__ void get_gradient(const Source& gradient, std::size_t i, float (&values)[pack]) {
  if (gradient.type == DType::fp32) return gradient_view<Format::fp32>(gradient).get(i, values);
  if (gradient.type == DType::bf16) return gradient_view<Format::bf16>(gradient).get(i, values);
  gradient_view<Format::fp16>(gradient).get(i, values);
}
__device__ float gradient_at(const Source& gradient, std::size_t i) {
  if (gradient.type == DType::fp32) return gradient_view<Format::fp32>(gradient).get(i);
  return gradient.type == DType::bf16 ? gradient_view<Format::bf16>(gradient).get(i)
                                      : gradient_view<Format::fp16>(gradient).get(i);
}
bool is_packed_gradient(const Source& gradient) {
  return gradient.type == DType::fp32 ? packed<Format::fp32>(gradient.data) : packed<Format::bf16>(gradient.data);
}

// function(format), `format` being fp32 where nothing is rounded.
template <typename Function>
void for_rounding(const Target& rounded, const Function& function) {
  for_format(rounded.data == nullptr       ? Format::fp32
             : rounded.type == DType::bf16 ? Format::bf16
                                           : Format::fp16,
             function);
}

// Runs of one launch, whose blocks are theirs in turn. Arguments of a kernel are 4 KiB at most.
template <typename Settings>
struct RunsOfLaunch {
  static constexpr unsigned most_runs = sizeof(Settings) > sizeof(AdamWSettings) ? 32 : 64;
  struct Run {
    std::size_t first;
    std::size_t count;
    Settings settings;
    unsigned first_block;
    bool packs;
  };
  Run run[most_runs];
  unsigned count = 0;
  unsigned blocks = 0;

  void add(const UpdateRun<Settings>& of, float learning_rate, bool packs) {
    run[count] = {of.first, of.count, of.settings, blocks, packs};
    run[count++].settings.learning_rate = learning_rate * of.settings.learning_rate;
    blocks += launch_for(of.count, packs).blocks.x;
  }
  __device__ unsigned of_block(unsigned block) const {
    unsigned found = 0;
    for (unsigned step = most_runs / 2; step > 0; step /= 2) {
      if (found + step < count && run[found + step].first_block <= block) found += step;
    }
    return found;
  }
  __device__ Sharing sharing(unsigned which, unsigned block) const {
    const unsigned end = which + 1 < count ? run[which + 1].first_block : blocks;
    return shared_by(end - run[which].first_block, block - run[which].first_block);
  }
};
static_assert(sizeof(RunsOfLaunch<AdamWSettings>) + sizeof(AdamWSpans) + sizeof(void*) <= 4096);
static_assert(sizeof(RunsOfLaunch<AdamWSettings>) + sizeof(AdamW8bitSpans) + sizeof(void*) <= 4096);
static_assert(sizeof(RunsOfLaunch<SgdSettings>) + sizeof(SgdSpans) + sizeof(void*) <= 4096);
static_assert(sizeof(RunsOfLaunch<RootScaledSettings>) + sizeof(RootScaledSpans) + sizeof(void*) <= 4096);

// f(runs) for each launch. `is_packed` says it of a run.
template <typename Settings, typename Packed, typename Function>
void for_each_launch(std::span<const UpdateRun<Settings>> runs, float learning_rate, const Packed& is_packed,
                     const Function& function) {
  constexpr std::size_t most_runs = RunsOfLaunch<Settings>::most_runs;
  for (std::size_t first = 0; first < runs.size(); first += most_runs) {
    RunsOfLaunch<Settings> together{};
    for (const UpdateRun<Settings>& run : runs.subspan(first, std::min(most_runs, runs.size() - first))) {
      if (run.count > 0) together.add(run, learning_rate, is_packed(run));
    }
    if (together.count > 0) function(together);
  }
}

template <Format rounded>
TESSERA_ANY_DEVICE void move_rounded(Target& to, std::size_t first) {
  if constexpr (rounded != Format::fp32) to.data = static_cast<typename Stored<rounded>::Type*>(to.data) + first;
}
TESSERA_ANY_DEVICE void move_gradient(Source& gradient, std::size_t first) {
  gradient.data = static_cast<const std::byte*>(gradient.data) + first * (gradient.type == DType::fp32 ? 4 : 2);
}
template <Format rounded>
TESSERA_ANY_DEVICE AdamWSpans from_element(AdamWSpans all, std::size_t first) {
  all.master += first;
  all.first_moment += first;
  all.second_moment += first;
  move_gradient(all.gradient, first);
  move_rounded<rounded>(all.rounded, first);
  return all;
}
template <Format rounded>
TESSERA_ANY_DEVICE SgdSpans from_element(SgdSpans all, std::size_t first) {
  all.master += first;
  if (all.velocity != nullptr) all.velocity += first;
  move_gradient(all.gradient, first);
  move_rounded<rounded>(all.rounded, first);
  return all;
}

template <Format rounded>
TESSERA_ANY_DEVICE RootScaledSpans from_element(RootScaledSpans all, std::size_t first) {
  all.master += first;
  all.squares += first;
  if (all.mean != nullptr) all.mean += first;
  if (all.velocity != nullptr) all.velocity += first;
  move_gradient(all.gradient, first);
  move_rounded<rounded>(all.rounded, first);
  return all;
}

struct AdamWElement {
  float factor;
  float correction1;
  float correction2;
  AdamWSettings settings;

  __device__ void update(float& master, float& m, float& v, float gradient) const {
    float g = gradient * factor;
    if (settings.coupled) g = fmaf(settings.weight_decay, master, g);
    m = fmaf(settings.beta1, m, (1.0f - settings.beta1) * g);
    v = fmaf(settings.beta2, v, ((1.0f - settings.beta2) * g) * g);
    const float m_hat = m / correction1;
    const float v_hat = v / correction2;
    const float kept = settings.coupled ? 1.0f : 1.0f - settings.learning_rate * settings.weight_decay;
    const float decayed = master * kept;
    master = decayed - settings.learning_rate * (m_hat / (sqrtf(v_hat) + settings.epsilon));
  }
};
__device__ AdamWElement adamw_element(const StepScalars& scalars, const AdamWSettings& settings) {
  const BiasCorrections corrections = bias_corrections(scalars, settings);
  return {scalars.gradient_factor, corrections.first, corrections.second, settings};
}

template <Format rounded>
struct AdamWElements {
  AdamWSpans spans;
  AdamWElement element;

  __device__ void packed(std::size_t i) const {
    float master[pack], m[pack], v[pack], g[pack];
    Floats{spans.master}.get(i, master);
    Floats{spans.first_moment}.get(i, m);
    Floats{spans.second_moment}.get(i, v);
    get_gradient(spans.gradient, i, g);
    for (std::size_t k = 0; k < pack; ++k) element.update(master[k], m[k], v[k], g[k]);
    Floats{spans.first_moment}.set(i, m);
    Floats{spans.second_moment}.set(i, v);
    Floats{spans.master}.set(i, master);
    RoundedMasters<rounded>{spans.rounded.data}.set(i, master);
  }
  __device__ void single(std::size_t i) const {
    element.update(spans.master[i], spans.first_moment[i], spans.second_moment[i], gradient_at(spans.gradient, i));
    RoundedMasters<rounded>{spans.rounded.data}.set(i, spans.master[i]);
  }
};

template <Format rounded>
__global__ void run_adamw(const AdamWSpans all, const __grid_constant__ RunsOfLaunch<AdamWSettings> runs,
                          const StepScalars* scalars) {
  if (scalars->skip != 0) return;
  const unsigned which = runs.of_block(blockIdx.x);
  const auto& run = runs.run[which];
  const AdamWElements<rounded> body{from_element<rounded>(all, run.first), adamw_element(*scalars, run.settings)};
  for_each_element(run.count, run.packs, runs.sharing(which, blockIdx.x), body);
}

// ---- the same with 8-bit moments: a warp has a block of moments, of which each lane has two packs ----

__device__ const DynamicMap dynamic_maps[] = {dynamic_map::make(true), dynamic_map::make(false)};

static_assert(packs_of_lane == moment_block / (warp * pack));

// A map where all threads of a block are near it.
struct NearMap {
  const float* value;
  const float* border;
  std::uint32_t first_code;

  __device__ float number(std::uint8_t code, float scale) const { return value[code] * scale; }
  __device__ std::uint8_t code(float moment, float scale) const {
    const float x = moment / (scale == 0.0f ? 1.0f : scale);
    return static_cast<std::uint8_t>(borders_below(border, x) + first_code);
  }
};

struct alignas(pack) PackOfCodes {
  std::uint8_t code[pack];
};

// A block of moments of `count` elements that begins with element `begin` of the spans; a whole one is read and written
// in packs. Its loops over packs are unrolled, so that all that they carry stays in registers.
template <Format rounded, bool whole>
struct AdamW8bitBlock {
  AdamW8bitSpans spans;
  std::size_t begin;
  std::size_t count;

  __device__ static std::size_t place(unsigned p) { return (p * warp + threadIdx.x % warp) * pack; }
  __device__ bool has(unsigned p, std::size_t k) const { return whole || place(p) + k < count; }

  __device__ PackOfCodes codes_of(const Moments8bit& from, unsigned p) const {
    const std::uint8_t* const codes = from.codes + begin + place(p);
    if constexpr (whole) return *reinterpret_cast<const PackOfCodes*>(codes);
    PackOfCodes result{};
#pragma unroll
    for (std::size_t k = 0; k < pack; ++k) {
      if (has(p, k)) result.code[k] = codes[k];
    }
    return result;
  }

  // Zeros behind the end.
  __device__ void get(const Moments8bit& from, const NearMap& map, unsigned p, float (&moments)[pack]) const {
    const float scale = from.scales[begin / moment_block];
    const PackOfCodes codes = codes_of(from, p);
#pragma unroll
    for (std::size_t k = 0; k < pack; ++k) moments[k] = has(p, k) ? map.number(codes.code[k], scale) : 0.0f;
  }

  __device__ void set(const Moments8bit& to, const NearMap& map, float scale,
                      const float (&moments)[packs_of_lane][pack]) const {
#pragma unroll
    for (unsigned p = 0; p < packs_of_lane; ++p) {
      std::uint8_t* const codes = to.codes + begin + place(p);
      PackOfCodes found;
#pragma unroll
      for (std::size_t k = 0; k < pack; ++k) found.code[k] = map.code(moments[p][k], scale);
      if constexpr (whole) *reinterpret_cast<PackOfCodes*>(codes) = found;
#pragma unroll
      for (std::size_t k = 0; k < pack; ++k) {
        if (!whole && has(p, k)) codes[k] = found.code[k];
      }
    }
    if (threadIdx.x % warp == 0) to.scales[begin / moment_block] = scale;
  }

  __device__ void update_masters(const AdamWElement& element, unsigned p, float (&m)[pack], float (&v)[pack]) const {
    const std::size_t i = begin + place(p);
    if constexpr (whole) {
      float master[pack], g[pack];
      Floats{spans.master}.get(i, master);
      get_gradient(spans.gradient, i, g);
#pragma unroll
      for (std::size_t k = 0; k < pack; ++k) element.update(master[k], m[k], v[k], g[k]);
      Floats{spans.master}.set(i, master);
      RoundedMasters<rounded>{spans.rounded.data}.set(i, master);
    }
#pragma unroll
    for (std::size_t k = 0; k < pack; ++k) {
      if (whole || !has(p, k)) continue;
      element.update(spans.master[i + k], m[k], v[k], gradient_at(spans.gradient, i + k));
      RoundedMasters<rounded>{spans.rounded.data}.set(i + k, spans.master[i + k]);
    }
  }

  __device__ void update(const AdamWElement& element, const NearMap& first, const NearMap& second) const {
    float m[packs_of_lane][pack], v[packs_of_lane][pack];
#pragma unroll
    for (unsigned p = 0; p < packs_of_lane; ++p) {
      get(spans.first, first, p, m[p]);
      get(spans.second, second, p, v[p]);
      update_masters(element, p, m[p], v[p]);
    }
    // Every lane has read the old scales, by which all codes are read, before one writes the new ones.
    __syncwarp();
    set(spans.first, first, largest_in_warp(m), m);
    set(spans.second, second, largest_in_warp(v), v);
  }
};

template <Format rounded>
__global__ void run_adamw8bit(const AdamW8bitSpans all, const __grid_constant__ RunsOfLaunch<AdamWSettings> runs,
                              const StepScalars* scalars) {
  if (scalars->skip != 0) return;
  __shared__ float values[2 * 256];
  __shared__ float borders[2 * 256];
  for (unsigned i = threadIdx.x; i < 2 * 256; i += blockDim.x) {
    values[i] = dynamic_maps[i / 256].value[i % 256];
    borders[i] = dynamic_maps[i / 256].border[i % 256];
  }
  __syncthreads();
  const NearMap first{values, borders, dynamic_maps[0].first_code};
  const NearMap second{values + 256, borders + 256, dynamic_maps[1].first_code};
  const unsigned which = runs.of_block(blockIdx.x);
  const auto& run = runs.run[which];
  const AdamWElement element = adamw_element(*scalars, run.settings);
  const Sharing by = runs.sharing(which, blockIdx.x);
  for (std::size_t at = by.thread / warp * moment_block; at < run.count; at += by.threads / warp * moment_block) {
    const std::size_t count = run.count - at < moment_block ? run.count - at : moment_block;
    if (run.packs && count == moment_block) {
      AdamW8bitBlock<rounded, true>{all, run.first + at, count}.update(element, first, second);
    } else {
      AdamW8bitBlock<rounded, false>{all, run.first + at, count}.update(element, first, second);
    }
  }
}

template <Format rounded, bool with_velocity>
struct SgdElements {
  SgdSpans spans;
  float factor;
  float kept;  // of the gradient beside the velocity
  SgdSettings settings;

  __device__ void update(float& master, float& velocity, float gradient) const {
    const float g = fmaf(settings.weight_decay, master, gradient * factor);
    float direction = g;
    if constexpr (with_velocity) {
      velocity = fmaf(settings.momentum, velocity, kept * g);
      direction = settings.nesterov ? fmaf(settings.momentum, velocity, g) : velocity;
    }
    master = fmaf(-settings.learning_rate, direction, master);
  }
  __device__ void packed(std::size_t i) const {
    float master[pack], velocity[pack] = {}, g[pack];
    Floats{spans.master}.get(i, master);
    if constexpr (with_velocity) Floats{spans.velocity}.get(i, velocity);
    get_gradient(spans.gradient, i, g);
    for (std::size_t k = 0; k < pack; ++k) update(master[k], velocity[k], g[k]);
    if constexpr (with_velocity) Floats{spans.velocity}.set(i, velocity);
    Floats{spans.master}.set(i, master);
    RoundedMasters<rounded>{spans.rounded.data}.set(i, master);
  }
  __device__ void single(std::size_t i) const {
    float velocity = with_velocity ? spans.velocity[i] : 0.0f;
    update(spans.master[i], velocity, gradient_at(spans.gradient, i));
    if constexpr (with_velocity) spans.velocity[i] = velocity;
    RoundedMasters<rounded>{spans.rounded.data}.set(i, spans.master[i]);
  }
};

template <Format rounded, bool with_velocity>
__global__ void run_sgd(const SgdSpans all, const __grid_constant__ RunsOfLaunch<SgdSettings> runs,
                        const StepScalars* scalars) {
  if (scalars->skip != 0) return;
  const unsigned which = runs.of_block(blockIdx.x);
  const auto& run = runs.run[which];
  const SgdElements<rounded, with_velocity> body{from_element<rounded>(all, run.first), scalars->gradient_factor,
                                                 kept_gradient(*scalars, run.settings), run.settings};
  for_each_element(run.count, run.packs, runs.sharing(which, blockIdx.x), body);
}

// Which states there are is the same for all of an update, so no warp takes two ways.
template <Format rounded>
struct RootScaledElements {
  RootScaledSpans spans;
  float factor;
  float rate;
  RootScaledSettings settings;

  __device__ void update(float& master, float& squares, float& mean, float& velocity, float gradient) const {
    const float rest = rest_of(settings);
    const float g = fmaf(settings.weight_decay, master, gradient * factor);
    squares = fmaf(rest * g, g, settings.decay * squares);
    float under = squares + settings.initial;
    if (spans.mean != nullptr) {
      mean = fmaf(rest, g - mean, mean);
      under = squares - mean * mean;
    }
    float direction = g / (sqrtf(under) + settings.epsilon);
    if (spans.velocity != nullptr) direction = velocity = fmaf(settings.momentum, velocity, direction);
    master = fmaf(-rate, direction, master);
  }
  __device__ void packed(std::size_t i) const {
    float master[pack], squares[pack], mean[pack] = {}, velocity[pack] = {}, g[pack];
    Floats{spans.master}.get(i, master);
    Floats{spans.squares}.get(i, squares);
    if (spans.mean != nullptr) Floats{spans.mean}.get(i, mean);
    if (spans.velocity != nullptr) Floats{spans.velocity}.get(i, velocity);
    get_gradient(spans.gradient, i, g);
    for (std::size_t k = 0; k < pack; ++k) update(master[k], squares[k], mean[k], velocity[k], g[k]);
    Floats{spans.squares}.set(i, squares);
    if (spans.mean != nullptr) Floats{spans.mean}.set(i, mean);
    if (spans.velocity != nullptr) Floats{spans.velocity}.set(i, velocity);
    Floats{spans.master}.set(i, master);
    RoundedMasters<rounded>{spans.rounded.data}.set(i, master);
  }
  __device__ void single(std::size_t i) const {
    float mean = spans.mean != nullptr ? spans.mean[i] : 0.0f;
    float velocity = spans.velocity != nullptr ? spans.velocity[i] : 0.0f;
    update(spans.master[i], spans.squares[i], mean, velocity, gradient_at(spans.gradient, i));
    if (spans.mean != nullptr) spans.mean[i] = mean;
    if (spans.velocity != nullptr) spans.velocity[i] = velocity;
    RoundedMasters<rounded>{spans.rounded.data}.set(i, spans.master[i]);
  }
};

template <Format rounded>
__global__ void run_root_scaled(const RootScaledSpans all, const __grid_constant__ RunsOfLaunch<RootScaledSettings> runs,
                                const StepScalars* scalars) {
  if (scalars->skip != 0) return;
  const unsigned which = runs.of_block(blockIdx.x);
  const auto& run = runs.run[which];
  const RootScaledElements<rounded> body{from_element<rounded>(all, run.first), scalars->gradient_factor,
                                         rate_of(*scalars, run.settings), run.settings};
  for_each_element(run.count, run.packs, runs.sharing(which, blockIdx.x), body);
}

struct OuterElements {
  OuterSpans spans;
  OuterSettings settings;

  __device__ void update(float& anchor, float& momentum, float mean) const {
    const float d = anchor - mean;
    momentum = settings.momentum * momentum + d;
    const float rest = 1.0f - settings.learning_rate;
    const float pull = settings.learning_rate * settings.momentum;
    anchor = (mean + rest * d) - pull * momentum;
  }
  __device__ void packed(std::size_t i) const {
    float anchor[pack], momentum[pack], mean[pack];
    Floats{spans.anchor}.get(i, anchor);
    Floats{spans.momentum_buffer}.get(i, momentum);
    Floats{const_cast<float*>(spans.mean)}.get(i, mean);
    for (std::size_t k = 0; k < pack; ++k) update(anchor[k], momentum[k], mean[k]);
    Floats{spans.anchor}.set(i, anchor);
    Floats{spans.momentum_buffer}.set(i, momentum);
    Floats{spans.master}.set(i, anchor);
  }
  __device__ void single(std::size_t i) const {
    update(spans.anchor[i], spans.momentum_buffer[i], spans.mean[i]);
    spans.master[i] = spans.anchor[i];
  }
};

template <typename... Pointers>
bool all_packed(const Pointers*... data) {
  return (packed<Format::fp32>(data) && ...);
}

}  // namespace

void adamw(void* native, const AdamWSpans& spans, std::span<const AdamWRun> runs, float learning_rate,
           const StepScalars* scalars) {
  for_rounding(spans.rounded, [&](auto rounded) {
    constexpr Format format = decltype(rounded)::value;
    const auto is_packed = [&](const AdamWRun& run) {
      const AdamWSpans own = from_element<format>(spans, run.first);
      return all_packed(own.master, own.first_moment, own.second_moment) && is_packed_gradient(own.gradient) &&
             packed<format>(own.rounded.data);
    };
    for_each_launch(runs, learning_rate, is_packed, [&](const RunsOfLaunch<AdamWSettings>& together) {
      launch(native, {.blocks = dim3(together.blocks)}, run_adamw<format>, spans, together, scalars);
    });
  });
}

void adamw8bit(void* native, const AdamW8bitSpans& spans, std::span<const AdamWRun> runs, float learning_rate,
               const StepScalars* scalars) {
  for_rounding(spans.rounded, [&](auto rounded) {
    constexpr Format format = decltype(rounded)::value;
    const auto is_packed = [&](const AdamWRun&) {
      const auto codes =
          reinterpret_cast<std::uintptr_t>(spans.first.codes) | reinterpret_cast<std::uintptr_t>(spans.second.codes);
      return codes % pack == 0 && packed<Format::fp32>(spans.master) && is_packed_gradient(spans.gradient) &&
             packed<format>(spans.rounded.data);
    };
    for_each_launch(runs, learning_rate, is_packed, [&](const RunsOfLaunch<AdamWSettings>& together) {
      launch(native, {.blocks = dim3(together.blocks)}, run_adamw8bit<format>, spans, together, scalars);
    });
  });
}

void sgd(void* native, const SgdSpans& spans, std::span<const SgdRun> runs, float learning_rate,
         const StepScalars* scalars) {
  for_rounding(spans.rounded, [&](auto rounded) {
    constexpr Format format = decltype(rounded)::value;
    const auto is_packed = [&](const SgdRun& run) {
      const SgdSpans own = from_element<format>(spans, run.first);
      return all_packed(own.master, own.velocity) && is_packed_gradient(own.gradient) &&
             packed<format>(own.rounded.data);
    };
    const auto kernel = spans.velocity == nullptr ? run_sgd<format, false> : run_sgd<format, true>;
    for_each_launch(runs, learning_rate, is_packed, [&](const RunsOfLaunch<SgdSettings>& together) {
      launch(native, {.blocks = dim3(together.blocks)}, kernel, spans, together, scalars);
    });
  });
}

void root_scaled(void* native, const RootScaledSpans& spans, std::span<const RootScaledRun> runs, float learning_rate,
                 const StepScalars* scalars) {
  for_rounding(spans.rounded, [&](auto rounded) {
    constexpr Format format = decltype(rounded)::value;
    const auto is_packed = [&](const RootScaledRun& run) {
      const RootScaledSpans own = from_element<format>(spans, run.first);
      return all_packed(own.master, own.squares, own.mean, own.velocity) && is_packed_gradient(own.gradient) &&
             packed<format>(own.rounded.data);
    };
    for_each_launch(runs, learning_rate, is_packed, [&](const RunsOfLaunch<RootScaledSettings>& together) {
      launch(native, {.blocks = dim3(together.blocks)}, run_root_scaled<format>, spans, together, scalars);
    });
  });
}

void outer_update(void* native, const OuterSpans& spans, const OuterSettings& settings) {
  const bool packs = all_packed(spans.master, spans.anchor, spans.momentum_buffer, spans.mean);
  run(native, OuterElements{spans, settings}, spans.count, packs);
}

// ---- Muon's elementwise parts ----

namespace {

using Halves = View<Format::bf16>;

Halves halves(const bf16* data) { return view<Format::bf16>(data); }
bool halves_packed(const bf16* data) { return packed<Format::bf16>(data); }

struct MuonDirectionElements {
  View<Format::fp32> momentum;
  View<Format::fp32> gradient;
  Halves direction;
  MuonSettings settings;
  const StepScalars* scalars;

  __device__ float update(float& m, float gradient_element) const {
    const float rest = 1.0f - settings.momentum;
    const float g = gradient_element * scalars->gradient_factor;
    m = m + rest * (g - m);
    return settings.nesterov ? m + rest * (g - m) : m;
  }
  __device__ void packed(std::size_t i) const {
    if (scalars->skip != 0) return;
    float m[pack], g[pack];
    momentum.get(i, m);
    gradient.get(i, g);
    for (std::size_t k = 0; k < pack; ++k) g[k] = update(m[k], g[k]);
    momentum.set(i, m);
    direction.set(i, g);
  }
  __device__ void single(std::size_t i) const {
    if (scalars->skip != 0) return;
    float m = momentum.get(i);
    direction.set(i, update(m, gradient.get(i)));
    momentum.set(i, m);
  }
};

struct MuonApplyElements {
  View<Format::fp32> master;
  Halves direction;
  MuonStep step;
  const StepScalars* scalars;

  __device__ float update(float weight, float d) const {
    const float kept = weight * (1.0f - step.learning_rate * step.weight_decay);
    return kept - (step.learning_rate * step.scale) * d;
  }
  __device__ void packed(std::size_t i) const {
    if (scalars->skip != 0) return;
    float weights[pack], d[pack];
    master.get(i, weights);
    direction.get(i, d);
    for (std::size_t k = 0; k < pack; ++k) weights[k] = update(weights[k], d[k]);
    master.set(i, weights);
  }
  __device__ void single(std::size_t i) const {
    if (scalars->skip == 0) master.set(i, update(master.get(i), direction.get(i)));
  }
};

struct UnitNormElements {
  Halves x;
  const double* squares;
  std::size_t stride;
  float least;

  __device__ float norm(std::size_t i) const {
    const float of = static_cast<float>(sqrt(squares[i / stride]));
    return of < least ? least : of;
  }
  __device__ void packed(std::size_t i) const {  // strides are whole packs
    float values[pack];
    x.get(i, values);
    const float divisor = norm(i);
    for (std::size_t k = 0; k < pack; ++k) values[k] = values[k] / divisor;
    x.set(i, values);
  }
  __device__ void single(std::size_t i) const { x.set(i, x.get(i) / norm(i)); }
};

struct CombineElements {
  Halves to, x, y;
  float a, b;

  __device__ void packed(std::size_t i) const {
    float first[pack], second[pack];
    x.get(i, first);
    y.get(i, second);
    for (std::size_t k = 0; k < pack; ++k) first[k] = a * first[k] + b * second[k];
    to.set(i, first);
  }
  __device__ void single(std::size_t i) const { to.set(i, a * x.get(i) + b * y.get(i)); }
};

}  // namespace

void muon_direction(void* native, const MuonSpans& spans, const MuonSettings& settings, const StepScalars* scalars) {
  const bool packs = all_packed(spans.momentum, spans.gradient) && halves_packed(spans.direction);
  run(native,
      MuonDirectionElements{
          {spans.momentum}, view<Format::fp32>(spans.gradient), halves(spans.direction), settings, scalars},
      spans.count, packs);
}

void muon_apply(void* native, float* master, const bf16* direction, std::size_t count, const MuonStep& step,
                const StepScalars* scalars) {
  const bool packs = all_packed(master) && halves_packed(direction);
  run(native, MuonApplyElements{{master}, halves(direction), step, scalars}, count, packs);
}

void divide_by_norm(void* native, const NormedMatrices& of) {
  const bool packs = halves_packed(of.x) && of.stride % pack == 0;
  run(native, UnitNormElements{halves(of.x), of.squares, of.stride, of.least},
      (of.matrices - 1) * of.stride + of.count, packs);
}

void combine(void* native, const Combination& of) {
  const bool packs = halves_packed(of.to) && halves_packed(of.x) && halves_packed(of.y);
  run(native, CombineElements{halves(of.to), halves(of.x), halves(of.y), of.a, of.b}, of.count, packs);
}

// ---- stochastic rounding: a thread has a counter, whose words are for eight elements (kernels/rounding.hpp) ----

namespace {

constexpr std::size_t rounding_lanes = 16, rounding_block = 8 * rounding_lanes;

struct RoundElements {
  std::uint16_t* to;
  const float* from;
  std::size_t count;
  std::uint32_t key[2];
  std::uint64_t first;
};

__device__ void round_element(const RoundElements& of, std::uint64_t element, std::uint32_t drawn) {
  if (element < of.first || element - of.first >= of.count) return;
  const std::size_t i = element - of.first;
  const std::uint32_t bits = float_to_bits(of.from[i]);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  of.to[i] = static_cast<std::uint16_t>((nan ? bits | 0x400000u : bits + drawn) >> 16);
}

__global__ void round_elements(const RoundElements of, std::size_t counters, const StepScalars* scalars) {
  const auto step = static_cast<std::uint64_t>(scalars->step);
  const std::size_t first = of.first / rounding_block * rounding_lanes;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t k = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; k < counters; k += stride) {
    const std::uint64_t counter = first + k;
    std::uint32_t words[4] = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                              static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)};
    philox_rounds<RoundElements>(words, of.key[0], of.key[1]);
    const std::uint64_t place = counter / rounding_lanes * rounding_block + counter % rounding_lanes;
    for (std::size_t word = 0; word < 4; ++word) {
      round_element(of, place + 2 * word * rounding_lanes, words[word] & 0xffffu);
      round_element(of, place + (2 * word + 1) * rounding_lanes, words[word] >> 16);
    }
  }
}

}  // namespace

void round_stochastically(void* native, const RoundedSpans& spans, const StepScalars* scalars) {
  const std::size_t begin = spans.first / rounding_block, end = (spans.first + spans.count - 1) / rounding_block + 1;
  const std::size_t counters = (end - begin) * rounding_lanes;
  launch(native, tessera::cuda::blocks_for(counters), round_elements,
         RoundElements{reinterpret_cast<std::uint16_t*>(spans.to),
                       spans.from,
                       spans.count,
                       {spans.key[0], spans.key[1]},
                       spans.first},
         counters, scalars);
}

// ---- the step's scalars: one thread decides, so that there is one order ----

namespace {

constexpr unsigned most_loaders = 256;  // threads that bring partial sums near the one that adds

// In (unit, rank) order; partial sums stand in (rank, unit) order.
__global__ void decide(StepScalars* scalars, const NormPartials partials, const StepSettings settings) {
  __shared__ double near[most_loaders];
  const std::size_t loaders = blockDim.x;
  const std::size_t count = partials.units * partials.ranks;
  const std::size_t row = row_of(partials);
  double sum = 0.0;
  for (std::size_t first = 0; first < count; first += loaders) {
    const std::size_t i = first + threadIdx.x;
    if (i < count) near[threadIdx.x] = partials.values[i % partials.ranks * row + i / partials.ranks];
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::size_t here = count - first < loaders ? count - first : loaders;
      for (std::size_t k = 0; k < here; ++k) sum += near[k];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) set_step(*scalars, sqrt(sum), sum_of_parts(partials), settings);
}

__global__ void decide_exactly(StepScalars* scalars, const NormPartials partials, const StepSettings settings) {
  __shared__ ExactTotal totals[most_loaders];
  ExactTotal total{};
  const std::size_t count = partials.units * partials.ranks;
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) add_exactly(total, exact_term(partials, i));
  totals[threadIdx.x] = total;
  add_up_in_block(totals);
  if (threadIdx.x == 0) set_step(*scalars, sqrt(fp64_of(totals[0])), sum_of_parts(partials), settings);
}

template <typename T>
__global__ void store(T* place, const T value) {
  *place = value;
}

__global__ void store_weights(double* places, const __grid_constant__ FewWeights few) {
  if (threadIdx.x < few.count) places[threadIdx.x] = few.weight[threadIdx.x];
}

}  // namespace

void begin_update(void* native, StepScalars* scalars, const NormPartials& partials, const StepSettings& settings) {
  if (partials.exact || partials.any_order) {
    return launch(native, {.threads = most_loaders}, decide_exactly, scalars, partials, settings);
  }
  const std::size_t count = partials.units * partials.ranks;
  const unsigned loaders =
      count < most_loaders ? (static_cast<unsigned>(count) + 31) / 32 * 32 + (count == 0 ? 32 : 0) : most_loaders;
  launch(native, {.threads = loaders}, decide, scalars, partials, settings);
}

void set_scalars(void* native, StepScalars* scalars, const StepScalars& values) {
  launch(native, {.threads = 1}, store<StepScalars>, scalars, values);
}

void set_weights(void* native, double* places, const FewWeights& few) {
  launch(native, {.threads = FewWeights::most}, store_weights, places, few);
}

void set_part(void* native, StepPart* part, const StepPart& value) {
  launch(native, {.threads = 1}, store<StepPart>, part, value);
}

}  // namespace tessera::kernels::cuda
