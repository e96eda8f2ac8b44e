// AdamW, casts, sums over ranks and the norm on a CUDA device against what its memory can do: a copy from device to
// device. Each turn is a train of launches that the host waits for once, so launching costs nothing. Results are
// checked against the CPU's before times are taken.
//
// usage: cuda_kernels [--mib N] [--rounds N] [--launches N]    prints "NAME GB/s" lines; bytes are those read and
// written
#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/reduce.hpp"

namespace {

using namespace tessera;

struct Options {
  std::size_t mebibytes = 1024;
  std::size_t rounds = 7;
  std::size_t launches = 20;
};

struct Contestant {
  std::string name;
  double bytes;
  std::function<void()> run;
};

constexpr std::size_t checked = 4096;  // elements whose values are compared with the CPU's

// Memory of the device, with the same values in its first elements as `host`.
class Memory {
 public:
  Memory(Stream& stream, std::size_t mebibytes)
      : stream_(stream), arena_(stream.device(), Bytes(mebibytes << 20)), host_(checked) {
    for (std::size_t i = 0; i < checked; ++i) host_[i] = 0.001f * static_cast<float>(i % 997) + 0.001f;
  }
  std::size_t elements(std::size_t parts) const { return arena_.size().count() / sizeof(float) / parts / 256 * 256; }
  // Part `index` of `parts` equal ones; its first elements are the host's.
  float* part(std::size_t index, std::size_t parts) {
    float* const data = reinterpret_cast<float*>(arena_.data()) + index * elements(parts);
    kernels::copy(stream_, data, host_.data(), Bytes(checked * sizeof(float)));
    stream_.synchronize();
    return data;
  }
  const std::vector<float>& host() const { return host_; }
  std::vector<float> fetch(const float* data, std::size_t count) {
    std::vector<float> values(count);
    kernels::copy(stream_, values.data(), data, Bytes(count * sizeof(float)));
    stream_.synchronize();
    return values;
  }

 private:
  Stream& stream_;
  Arena arena_;
  std::vector<float> host_;
};

void require(bool right, const char* what) {
  if (!right) throw InternalError(fmt::format("{} computes something else than the CPU", what));
}

Contestant copy_of(Memory& memory, Stream& stream) {
  float* const to = memory.part(0, 2);
  const float* const from = memory.part(1, 2);
  const Bytes size(memory.elements(2) * sizeof(float));
  return {"copy", 2.0 * static_cast<double>(size.count()), [=, &stream] { kernels::copy(stream, to, from, size); }};
}

// In one run, or in as many as parameter groups may cut a unit into.
Contestant adamw_of(Memory& memory, Stream& stream, Stream& host, std::size_t cuts) {
  static Arena scalars_memory(stream.device(), Bytes(sizeof(kernels::StepScalars)));
  auto* const scalars = reinterpret_cast<kernels::StepScalars*>(scalars_memory.data());
  kernels::StepScalars values;
  values.decay_power[0] = 0.729;
  values.decay_power[1] = 0.997;
  kernels::set_scalars(stream, scalars, values);
  const kernels::AdamWSettings settings{1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f};
  const kernels::AdamWSpans spans{memory.part(0, 4), memory.part(1, 4), memory.part(2, 4), memory.part(3, 4),
                                  memory.elements(4)};
  std::vector<float> w = memory.host(), m = w, v = w;
  kernels::adamw(host, {w.data(), m.data(), v.data(), memory.host().data(), checked}, settings, &values);
  kernels::adamw(stream, {spans.master, spans.first_moment, spans.second_moment, spans.gradient, checked}, settings,
                 scalars);
  require(memory.fetch(spans.master, checked) == w && memory.fetch(spans.second_moment, checked) == v, "adamw");
  std::vector<kernels::AdamWRun> runs;
  for (std::size_t i = 0; i < cuts; ++i) {
    const std::size_t first = spans.count * i / cuts;
    runs.push_back({first, spans.count * (i + 1) / cuts - first, settings});
  }
  return {cuts == 1 ? "adamw" : "adamw-in-runs", 28.0 * static_cast<double>(spans.count),
          [=, &stream] { kernels::adamw(stream, spans, runs, 1.0f, scalars); }};
}

Contestant cast_of(Memory& memory, Stream& stream, bool widens) {
  float* const wide = memory.part(0, 2);
  float* const narrow = memory.part(1, 2);
  const std::size_t count = memory.elements(2);
  const kernels::Target to = widens ? kernels::Target{wide, DType::fp32} : kernels::Target{narrow, DType::bf16};
  const kernels::Source from = widens ? kernels::Source{narrow, DType::bf16} : kernels::Source{wide, DType::fp32};
  return {widens ? "cast-bf16-fp32" : "cast-fp32-bf16", 6.0 * static_cast<double>(count),
          [=, &stream] { kernels::cast(stream, to, from, count); }};
}

Contestant norm_of(Memory& memory, Stream& stream, Stream& host) {
  const float* const data = memory.part(0, 1);
  static Arena result(stream.device(), Bytes(sizeof(double)));
  auto* const squares = reinterpret_cast<double*>(result.data());
  double expected = 0.0;
  double found = 0.0;
  kernels::sum_of_squares(host, memory.host().data(), checked, &expected);
  kernels::sum_of_squares(stream, data, checked, squares);
  kernels::copy(stream, &found, squares, Bytes(sizeof found));
  stream.synchronize();
  require(found == expected, "norm");
  const std::size_t count = memory.elements(1);
  return {"norm", 4.0 * static_cast<double>(count),
          [=, &stream] { kernels::sum_of_squares(stream, data, count, squares); }};
}

Contestant exact_norm_of(Memory& memory, Stream& stream, Stream& host) {
  const float* const data = memory.part(0, 1);
  static Arena result(stream.device(), Bytes(sizeof(kernels::ExactSquares)));
  auto* const squares = reinterpret_cast<kernels::ExactSquares*>(result.data());
  kernels::ExactSquares expected{}, found{};
  kernels::exact_squares(host, memory.host().data(), checked, &expected);
  kernels::exact_squares(stream, data, checked, squares);
  kernels::copy(stream, &found, squares, Bytes(sizeof found));
  stream.synchronize();
  require(found == expected, "exact norm");
  const std::size_t count = memory.elements(1);
  return {"exact-norm", 4.0 * static_cast<double>(count),
          [=, &stream] { kernels::exact_squares(stream, data, count, squares); }};
}

Contestant ranked_sum_of(Memory& memory, Stream& stream) {
  constexpr std::size_t ranks = 4;
  const std::size_t shard = memory.elements(8);
  float* const result = memory.part(7, 8);
  const void* const first = memory.part(0, 8);
  const kernels::RankedSum sum{
      .contributions = {}, .type = DType::bf16, .result = result, .count = shard, .divisor = 4.0f};
  return {"sum-of-4-bf16", (2.0 * ranks + 4.0) * static_cast<double>(shard), [=, &stream] {
            stream.submit([=, native = native_stream(stream)] {
              kernels::ranked_sum_cuda(native, sum, {first, shard * size_of(DType::bf16), ranks});
            });
          }};
}

void measure_all(const Options& options) {
  Stream stream(Device::cuda(0), {.name = "bench", .mode = StreamMode::immediate});
  Stream host(Device::cpu(), {.name = "host", .mode = StreamMode::immediate});
  Memory memory(stream, options.mebibytes);
  constexpr std::size_t some_runs = 16;
  std::vector<Contestant> all{adamw_of(memory, stream, host, 1), norm_of(memory, stream, host),
                              copy_of(memory, stream),           cast_of(memory, stream, false),
                              cast_of(memory, stream, true),     ranked_sum_of(memory, stream)};
  all.push_back(adamw_of(memory, stream, host, some_runs));
  all.push_back(exact_norm_of(memory, stream, host));
  std::vector<std::function<void()>> bodies;
  for (const Contestant& each : all) {
    bodies.push_back([&] {
      for (std::size_t i = 0; i < options.launches; ++i) each.run();
      stream.synchronize();
    });
  }
  const std::vector<double> seconds = bench::alternate(bodies, options.rounds);
  const auto rate = [&](std::size_t i) {
    return all[i].bytes * static_cast<double>(options.launches) / seconds[i] / 1e9;
  };
  const double ceiling = rate(2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    bench::print_figure("cuda_kernels/" + all[i].name, rate(i), "GB/s");
    bench::print_figure("cuda_kernels/" + all[i].name + "/of-copy", rate(i) / ceiling, "times");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Kernels of a CUDA device against its memory's bandwidth.", "");
  line.whole("--mib", options.mebibytes, {1, 1 << 16}, "bytes that a contestant's buffers take together, in MiB");
  line.whole("--rounds", options.rounds, {1, 1000}, "how often each takes its turn");
  line.whole("--launches", options.launches, {1, 10000}, "launches in a turn");
  return bench::run_bench(line, argc, argv, [&] { measure_all(options); });
}
