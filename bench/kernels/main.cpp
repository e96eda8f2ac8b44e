// AdamW, casts and both norms against what memory can do: the triad with the better of ordinary and streaming stores,
// and a plain read of as many bytes. One thread; contestants take turns. Results are checked before times are taken.
//
// usage: kernels [--mib N] [--rounds N]    prints "NAME GB/s" lines; bytes are those read and written. Of norms also
// the ns of an element: with --mib 8 those of a core that finds its data in the last cache.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "measure/bandwidth.hpp"
#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/norm.hpp"
#include "tessera/kernels/optimizer.hpp"

namespace {

using namespace tessera;

struct Options {
  // No power of two: an optimizer's four buffers would stand 256 MiB apart, in the same banks of memory, which costs
  // some machines two thirds of their bandwidth (a Zen 4: 17.5 instead of 53 GB/s).
  std::size_t mebibytes = 1000;
  std::size_t rounds = 9;
};

struct Contestant {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::size_t elements = 0;  // of a norm
};

void require(bool right, const char* what) {
  if (!right) throw InternalError(fmt::format("{} computes something else than it should", what));
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(b)); }

// The buffers of contestants, in one arena.
class Memory {
 public:
  explicit Memory(std::size_t mebibytes)
      : arena_(Device::cpu(), Bytes(mebibytes << 20)), floats_(arena_.size().count() / sizeof(float)) {
    for (std::size_t i = 0; i < floats_; ++i) data()[i] = value(i);
  }
  // Part `index` of `parts` equal ones.
  float* part(std::size_t index, std::size_t parts) { return data() + index * elements(parts); }
  std::size_t elements(std::size_t parts) const { return floats_ / parts / 256 * 256; }
  static float value(std::size_t i) { return 0.001f * static_cast<float>(i % 997) + 0.001f; }

 private:
  float* data() { return reinterpret_cast<float*>(arena_.data()); }
  Arena arena_;
  std::size_t floats_;
};

Contestant triad_of(Memory& memory, const char* name, void (*run)(const bench::Triad&)) {
  const bench::Triad of{memory.part(0, 3), memory.part(1, 3), memory.part(2, 3), 0.5f, memory.elements(3)};
  run(of);
  require(of.a[77] == of.b[77] + 0.5f * of.c[77], name);
  return {name, 12.0 * static_cast<double>(of.count), [of, run] { run(of); }};
}

Contestant read_of(Memory& memory) {
  const float* data = memory.part(0, 1);
  const std::size_t count = memory.elements(1);
  return {"read", 4.0 * static_cast<double>(count),
          [data, count] { require(bench::read_all(data, count) > 0, "read"); }};
}

Contestant norm_of(Memory& memory, Stream& stream) {
  const float* data = memory.part(0, 1);
  const std::size_t count = memory.elements(1);
  double squares = 0.0;
  kernels::sum_of_squares(stream, data, kernels::norm_block, &squares);
  double expected = 0.0;
  for (std::size_t i = 0; i < kernels::norm_block; ++i) expected += static_cast<double>(data[i] * data[i]);
  require(near(squares, expected), "norm");
  return {"norm", 4.0 * static_cast<double>(count),
          [data, count, &stream] {
            double result = 0.0;
            kernels::sum_of_squares(stream, data, count, &result);
            require(result > 0.0, "norm");
          },
          count};
}

Contestant exact_norm_of(Memory& memory, Stream& stream) {
  const float* data = memory.part(0, 1);
  const std::size_t count = memory.elements(1);
  kernels::ExactSquares squares{};
  kernels::exact_squares(stream, data, kernels::norm_block, &squares);
  double expected = 0.0;
  for (std::size_t i = 0; i < kernels::norm_block; ++i) expected += static_cast<double>(data[i] * data[i]);
  require(near(kernels::value_of(squares), expected), "exact norm");
  return {"exact-norm", 4.0 * static_cast<double>(count),
          [data, count, &stream] {
            kernels::ExactSquares result{};
            kernels::exact_squares(stream, data, count, &result);
            require(result.top > 0, "exact norm");
          },
          count};
}

// Both directions move 6 bytes per element; the 16-bit side stands in the second half.
Contestant cast_of(Memory& memory, Stream& stream, DType wide_to, DType narrow, bool widens) {
  const kernels::Target wide{memory.part(0, 2), wide_to};
  const kernels::Target half{memory.part(1, 2), narrow};
  const std::size_t count = memory.elements(2);
  const kernels::Target to = widens ? wide : half;
  const kernels::Source from = widens ? kernels::Source{half.data, half.type} : kernels::Source{wide.data, wide.type};
  const std::string name = fmt::format("cast-{}-{}", to_string(from.type), to_string(to.type));
  auto* floats = static_cast<float*>(wide.data);
  floats[5] = 1.0f / 3.0f;
  kernels::cast(stream, half, {wide.data, wide.type}, 64);
  if (widens) kernels::cast(stream, wide, {half.data, half.type}, 64);
  const float rounded =
      narrow == DType::bf16 ? static_cast<float>(bf16(1.0f / 3.0f)) : static_cast<float>(fp16(1.0f / 3.0f));
  require(widens ? floats[5] == rounded : floats[5] == 1.0f / 3.0f, name.c_str());
  return {name, 6.0 * static_cast<double>(count), [=, &stream] { kernels::cast(stream, to, from, count); }};
}

Contestant adamw_of(Memory& memory, Stream& stream, const kernels::StepScalars& scalars) {
  const kernels::AdamWSpans spans{memory.part(0, 4), memory.part(1, 4), memory.part(2, 4), memory.part(3, 4),
                                  memory.elements(4)};
  const kernels::AdamWSettings settings{1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f};
  const double w = static_cast<double>(spans.master[3]);
  const double g = static_cast<double>(memory.part(3, 4)[3]);
  const double m = 0.9 * static_cast<double>(spans.first_moment[3]) + 0.1 * g;
  const double v = 0.999 * static_cast<double>(spans.second_moment[3]) + 0.001 * g * g;
  kernels::adamw(stream, spans, settings, &scalars);
  const double step = (m / (1 - scalars.decay_power[0])) / (std::sqrt(v / (1 - scalars.decay_power[1])) + 1e-8);
  require(near(static_cast<double>(spans.master[3]), w * (1 - 1e-5) - 1e-3 * step), "adamw");
  return {"adamw", 28.0 * static_cast<double>(spans.count),
          [=, &stream, &scalars] { kernels::adamw(stream, spans, settings, &scalars); }};
}

void measure(const std::vector<Contestant>& contestants, std::size_t rounds) {
  std::vector<std::function<void()>> bodies;
  for (const Contestant& each : contestants) bodies.push_back(each.run);
  const std::vector<double> seconds = bench::alternate(bodies, rounds);
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    const auto& [name, bytes, run, elements] = contestants[i];
    bench::print_figure("kernels/" + name, bytes / seconds[i] / 1e9, "GB/s");
    if (elements == 0) continue;
    bench::print_figure("kernels/" + name + "/element", seconds[i] / static_cast<double>(elements) * 1e9, "ns");
  }
}

void measure_all(const Options& options) {
  Memory memory(options.mebibytes);
  Memory of_optimizer(
      options.mebibytes);  // its own: what others leave behind is no second moment, nor its values theirs
  Stream stream(Device::cpu(), {.name = "bench", .mode = StreamMode::immediate});
  kernels::StepScalars scalars;
  scalars.step = 3;
  scalars.decay_power[0] = 0.729;
  scalars.decay_power[1] = 0.997;
  std::vector<Contestant> all{adamw_of(of_optimizer, stream, scalars)};
  all.push_back(norm_of(memory, stream));
  all.push_back(exact_norm_of(memory, stream));
  all.push_back(read_of(memory));
  for (const DType narrow : {DType::bf16, DType::fp16}) {
    for (const bool widens : {false, true}) all.push_back(cast_of(memory, stream, DType::fp32, narrow, widens));
  }
  all.push_back(triad_of(memory, "triad", bench::triad));
  all.push_back(triad_of(memory, "triad-streaming", bench::triad_streaming));
  measure(all, options.rounds);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Kernels against the bandwidth of memory.", "");
  line.whole("--mib", options.mebibytes, {1, 1 << 16}, "bytes that a contestant's buffers take together, in MiB");
  line.whole("--rounds", options.rounds, {1, 1000}, "how often each takes its turn");
  return bench::run_bench(line, argc, argv, [&] { measure_all(options); });
}
