// Rates come from medians of repeated runs; latency from collectives of a few bytes.
#include "machine/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <thread>

#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/vision/convolution.hpp"
#include "trace/summary.hpp"

namespace tools {

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t least_runs = 5;
constexpr std::size_t most_runs = 400;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The median of so many runs as fit into the time, after one that does not count.
double median_seconds(double budget, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  const auto begin = Clock::now();
  while (times.size() < least_runs || (seconds_since(begin) < budget && times.size() < most_runs)) {
    const auto start = Clock::now();
    body();
    times.push_back(seconds_since(start));
  }
  return median(std::move(times));
}

// All ranks make the same number of runs, which they begin together; those of rank 0 count.
double median_together(World& world, std::size_t runs, const std::function<void(std::size_t run)>& body) {
  std::vector<double> times;
  for (std::size_t run = 0; run < runs; ++run) {
    world.barrier("together");
    const auto start = Clock::now();
    body(run);
    times.push_back(seconds_since(start));
  }
  return median(std::move(times));
}

// ---- products ----

struct LinearSize {
  std::size_t rows, in, out;
};
constexpr LinearSize linear_sizes[] = {{32, 128, 128},   {64, 256, 256},    {128, 512, 512},
                                       {64, 2048, 2048}, {512, 1024, 1024}, {512, 2048, 4096}};

// A forward pass has one product; a backward pass two, which are about as fast together.
template <typename T>
std::pair<double, double> product_rate(const LinearSize& size, double budget) {
  const std::size_t x = size.rows * size.in, weight = size.in * size.out, y = size.rows * size.out;
  Arena arena(Device::cpu(), Bytes((x + weight + y) * sizeof(T)));
  T* const data = reinterpret_cast<T*>(arena.data());
  std::fill_n(data, x + weight + y, T(1.0f));
  std::vector<float> scratch(nn::linear_scratch<T>(size.rows, size.in, size.out));
  Stream stream(Device::cpu(), {.name = "calibrate", .mode = StreamMode::immediate});
  const nn::LinearForward<T> forward{.x = {data, size.rows, size.in},
                                     .weight = {data + x, size.out, size.in},
                                     .y = {data + x + weight, size.rows, size.out},
                                     .scratch = scratch.data()};
  const double seconds = median_seconds(budget, [&] { nn::linear_forward<T>(stream, forward); });
  const double flops = 2.0 * static_cast<double>(size.rows * size.in * size.out);
  return {flops, flops / seconds};
}

// Returns the mean time of one product while so many threads multiply at once, over what it takes alone: other than a
// median a mean has the moments in which a thread had to wait for a processor. Weights are in no cache.
double all_busy(std::size_t ranks, double budget) {
  constexpr LinearSize size = {64, 2048, 2048};
  constexpr std::size_t weight = size.in * size.out, places = 6;
  const auto mean_seconds = [&](std::size_t at_once) {
    double mean = 0;
    launch({.ranks = static_cast<int>(at_once), .threads = 1}, [&](World& world) {
      constexpr std::size_t x = size.rows * size.in, y = size.rows * size.out;
      Arena arena(Device::cpu(), Bytes((x + y + places * weight) * sizeof(float)));
      float* const data = reinterpret_cast<float*>(arena.data());
      std::fill_n(data, x + y + places * weight, 1e-3f);
      std::vector<float> scratch(nn::linear_scratch<float>(size.rows, size.in, size.out));
      Stream stream(Device::cpu(), {.name = "calibrate", .mode = StreamMode::immediate});
      std::size_t runs = 0;
      const auto multiply = [&] {
        const float* const weights = data + x + y + runs++ % places * weight;
        nn::linear_forward<float>(stream, {.x = {data, size.rows, size.in},
                                           .weight = {weights, size.out, size.in},
                                           .y = {data + x, size.rows, size.out},
                                           .scratch = scratch.data()});
      };
      for (std::size_t warm = 0; warm < places; ++warm) multiply();
      world.barrier("together");
      runs = 0;
      const auto begin = Clock::now();
      while (seconds_since(begin) < budget / 2) multiply();
      if (world.rank() == 0) mean = seconds_since(begin) / static_cast<double>(runs);
    });
    return mean;
  };
  return std::max(1.0, mean_seconds(ranks) / mean_seconds(1));
}

template <typename T>
Curve product_curve(double budget) {
  std::map<double, double> rates;
  for (const LinearSize& size : linear_sizes) {
    const auto [flops, rate] = product_rate<T>(size, budget / std::size(linear_sizes));
    rates[flops] = std::max(rates[flops], rate);
  }
  return Curve({rates.begin(), rates.end()});
}

// ---- convolutions ----

struct ConvolutionSize {
  ConvolutionClass of;
  tessera::vision::ConvolutionShape shape;
  std::size_t images;
  std::size_t side;  // of the images
};

// The sizes are those of networks on small images and on large ones.
std::vector<ConvolutionSize> convolution_sizes() {
  using enum ConvolutionClass;
  const auto three = [](std::size_t in, std::size_t out) {
    return tessera::vision::ConvolutionShape{.in = in, .out = out, .kernel = 3, .padding = 1};
  };
  const auto one = [](std::size_t in, std::size_t out) {
    return tessera::vision::ConvolutionShape{.in = in, .out = out, .kernel = 1};
  };
  return {{pointwise, one(64, 64), 2, 14},
          {pointwise, one(64, 256), 4, 28},
          {pointwise, one(1024, 256), 8, 14},
          {wide, three(32, 64), 1, 14},
          {wide, three(64, 64), 4, 28},
          {wide, three(256, 256), 8, 14},
          {narrow, three(1, 32), 4, 28},
          {narrow, three(3, 64), 16, 32},
          {narrow, {.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3}, 4, 224}};
}

// Both directions of one: FLOPs of a product, and its rates.
struct ConvolutionRate {
  double flops;
  double forward;
  double backward;
};

template <typename T>
ConvolutionRate convolution_rate(const ConvolutionSize& size, double budget) {
  const tessera::vision::HeightWidth result = size.shape.output(size.side);
  const std::size_t x = size.images * size.side * size.side * size.shape.in;
  const std::size_t y = size.images * result.height * result.width * size.shape.out;
  const std::size_t depth = size.shape.in * size.shape.kernel.height * size.shape.kernel.width;
  const std::size_t weight = size.shape.out * depth;
  const std::size_t scratch = tessera::vision::convolution_scratch<T>(size.shape, size.images, size.side);
  Arena arena(Device::cpu(), Bytes(scratch * sizeof(float) + 2 * (x + weight + y) * sizeof(T)));
  T* const data = reinterpret_cast<T*>(arena.data() + scratch * sizeof(float));
  std::fill_n(data, 2 * (x + weight + y), T(1.0f));
  const tessera::vision::ImageView<T> image{data, size.images, size.side, size.side, size.shape.in};
  const tessera::vision::ImageView<T> results{data + 2 * x, size.images, result.height, result.width, size.shape.out};
  T* const weights = data + 2 * (x + y);
  auto* const room = reinterpret_cast<float*>(arena.data());
  Stream stream(Device::cpu(), {.name = "calibrate", .mode = StreamMode::immediate});
  const tessera::vision::ConvolutionForward<T> forward{
      .shape = size.shape, .x = image, .weight = weights, .y = results, .scratch = room};
  tessera::vision::ImageView<T> dx = image, dy = results;
  dx.data += x, dy.data += y;
  // Few channels are an image's, whose gradient no network asks for: there is one product then.
  const bool one_product = size.of == ConvolutionClass::narrow;
  if (one_product) dx = {};
  const tessera::vision::ConvolutionBackward<T> backward{.shape = size.shape,
                                                         .x = image,
                                                         .weight = weights,
                                                         .dy = dy,
                                                         .dx = dx,
                                                         .dweight = weights + weight,
                                                         .scratch = room};
  const double flops = 2.0 * static_cast<double>(y * depth);
  return {flops, flops / median_seconds(budget / 2, [&] { tessera::vision::convolution_forward<T>(stream, forward); }),
          (one_product ? 1 : 2) * flops /
              median_seconds(budget / 2, [&] { tessera::vision::convolution_backward<T>(stream, backward); })};
}

template <typename T>
ConvolutionClasses convolution_rates(double budget) {
  const std::vector<ConvolutionSize> sizes = convolution_sizes();
  std::array<std::map<double, double>, std::tuple_size_v<ConvolutionClasses>> forward, backward;
  for (const ConvolutionSize& size : sizes) {
    const ConvolutionRate rate = convolution_rate<T>(size, budget / static_cast<double>(sizes.size()));
    forward[static_cast<std::size_t>(size.of)][rate.flops] = rate.forward;
    backward[static_cast<std::size_t>(size.of)][rate.flops] = rate.backward;
  }
  ConvolutionClasses classes;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = {.forward = Curve({forward[i].begin(), forward[i].end()}),
                  .backward = Curve({backward[i].begin(), backward[i].end()})};
  }
  return classes;
}

// ---- memory and launches ----

Curve memory_curve(double budget) {
  constexpr std::size_t sizes[] = {mebibyte / 4, mebibyte, 8 * mebibyte, 64 * mebibyte};
  Stream stream(Device::cpu(), {.name = "calibrate", .mode = StreamMode::immediate});
  std::vector<std::pair<double, double>> points;
  for (const std::size_t size : sizes) {
    Arena arena(Device::cpu(), Bytes(2 * size));
    const double seconds = median_seconds(
        budget / std::size(sizes), [&] { kernels::copy(stream, arena.data() + size, arena.data(), Bytes(size)); });
    points.emplace_back(2.0 * static_cast<double>(size), 2.0 * static_cast<double>(size) / seconds);
  }
  return Curve(std::move(points));
}

// Measures so many threads that copy at once, each its own bytes.
Curve host_memory_curve(std::size_t ranks, double budget) {
  constexpr std::size_t sizes[] = {mebibyte / 4, mebibyte, 8 * mebibyte, 64 * mebibyte};
  constexpr std::size_t least_copied = 64 * mebibyte;  // in one run, so that all copy for most of it
  std::vector<std::pair<double, double>> points;
  launch({.ranks = static_cast<int>(ranks), .threads = 1}, [&](World& world) {
    Stream stream(Device::cpu(), {.name = fmt::format("calibrate.{}", world.rank()), .mode = StreamMode::immediate});
    for (const std::size_t size : sizes) {
      Arena arena(Device::cpu(), Bytes(2 * size));
      const std::size_t copies = std::max<std::size_t>(1, least_copied / size);
      const auto bytes = 2.0 * static_cast<double>(size);
      const auto runs =
          static_cast<std::size_t>(budget / std::size(sizes) * 3e10 / (bytes * static_cast<double>(copies)));
      const double seconds =
          median_together(world, std::clamp<std::size_t>(runs, least_runs, most_runs), [&](std::size_t) {
            for (std::size_t copy = 0; copy < copies; ++copy) {
              kernels::copy(stream, arena.data() + size, arena.data(), Bytes(size));
            }
          });
      const double rate = bytes * static_cast<double>(copies * ranks) / seconds;
      if (world.rank() == 0) points.emplace_back(bytes, rate);
    }
  });
  return Curve(std::move(points));
}

double launch_seconds() {
  constexpr int tasks = 1000;
  Stream stream(Device::cpu(), {.name = "calibrate", .mode = StreamMode::immediate});
  return median_seconds(0.1,
                        [&] {
                          for (int task = 0; task < tasks; ++task) stream.submit([] {});
                        }) /
         tasks;
}

// ---- collectives ----

struct CollectiveTimes {
  std::vector<std::pair<double, double>> gathers;  // bytes of the whole, seconds
  std::vector<std::pair<double, double>> sums;
};

constexpr std::size_t whole_sizes[] = {4096, mebibyte, 8 * mebibyte, 32 * mebibyte, 128 * mebibyte};

double collective_median(World& world, Stream& stream, std::size_t runs,
                         const std::function<void(std::size_t run)>& launch) {
  return median_together(world, runs, [&](std::size_t run) {
    launch(run);
    stream.synchronize();
  });
}

CollectiveTimes measure_collectives(World& world, double budget) {
  const auto ranks = static_cast<std::size_t>(world.size());
  Arena data = world.make_arena(Bytes(whole_sizes[std::size(whole_sizes) - 1]));
  Arena sum = world.make_arena(Bytes(data.size().count() / ranks));
  std::memset(data.data(), 0, data.size().count());
  const auto communicator = world.make_communicator("calibrate");
  Stream stream(Device::cpu(), {.name = fmt::format("calibrate.{}", world.rank()), .mode = StreamMode::queued});
  CollectiveTimes result;
  for (const std::size_t whole : whole_sizes) {
    // About as many as fit into the time at 5 GB/s.
    const double each = budget / (2 * std::size(whole_sizes));
    const auto runs =
        std::clamp<std::size_t>(static_cast<std::size_t>(each * 5e9 / static_cast<double>(whole)), 7, 201);
    // A collective of nothing would say nothing of the latency.
    const std::size_t elements = std::max<std::size_t>(whole / ranks / sizeof(float) / 128 * 128, 128);
    const auto bytes = static_cast<double>(elements * sizeof(float) * ranks);
    // Every run has bytes of its own: a step's collectives find theirs in memory, not in the caches where the run
    // before has left them.
    const std::size_t places = data.size().count() / whole;
    result.gathers.emplace_back(bytes, collective_median(world, stream, runs, [&](std::size_t run) {
                                  communicator->all_gather(stream, {.data = data.data() + run % places * whole,
                                                                    .shard = Bytes(elements * sizeof(float)),
                                                                    .label = "gather"});
                                }));
    result.sums.emplace_back(bytes, collective_median(world, stream, runs, [&](std::size_t run) {
                               communicator->reduce_scatter(
                                   stream, {.data = data.data() + run % places * whole,
                                            .result = reinterpret_cast<float*>(sum.data()) + run % places * elements,
                                            .shard_elements = elements,
                                            .label = "sum"});
                             }));
  }
  return result;
}

// Bytes that a rank moves per second, without the latency, which is the first point's whole time.
Curve link_curve(const std::vector<std::pair<double, double>>& times, double share, double latency) {
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const auto [bytes, seconds] = times[i];
    points.emplace_back(bytes, share * bytes / std::max(seconds - latency, 0.1 * seconds));
  }
  return Curve(std::move(points));
}

Link measure_link(std::size_t ranks, double budget) {
  CollectiveTimes times;
  launch({.ranks = static_cast<int>(ranks), .threads = 1}, [&](World& world) {
    CollectiveTimes mine = measure_collectives(world, budget);
    if (world.rank() == 0) times = std::move(mine);
  });
  const double latency = std::min(times.gathers.front().second, times.sums.front().second);
  const auto share = [&](bool sums) {
    return moved_share(CollectiveAlgorithm::direct, static_cast<double>(ranks), sums);
  };
  return {.latency = latency,
          .bandwidth = link_curve(times.gathers, share(false), latency),
          .summing = link_curve(times.sums, share(true), latency)};
}

// ---- disk ----

// A unit whose gradient nobody computes.
struct Idle final : Module {
  explicit Idle(std::size_t elements) : values({elements}, Initial::uniform(-1.0f, 1.0f)) {}
  void visit(ModuleVisitor& visitor) override { visitor("values", values); }
  void forward(Window&) {}
  void backward(Window& window) {
    const std::span<float> gradient = window.gradient<float>(values);
    window.stream().submit([gradient] { std::fill(gradient.begin(), gradient.end(), 1e-3f); });
  }
  Parameter values;
};

// A rank's reads of its file, or its writes, each beside the other, as updates make them: values come from there unit
// by unit and go back while the next ones come, so an update lasts as long as reading all of them and writing the last.
std::pair<double, double> disk_rate(const std::filesystem::path& folder, std::size_t bytes_of_unit, double budget) {
  constexpr std::size_t units = 4;
  double seconds = 0;
  launch({.ranks = 1, .threads = 1}, [&](World& world) {
    std::vector<Idle> layers(units, Idle(bytes_of_unit / (2 * sizeof(float))));  // AdamW has two states
    FullyShard model(world, {.offload = {.optimizer = MemorySpace::disk}, .disk = folder});
    for (std::size_t unit = 0; unit < units; ++unit) model.add(layers[unit], fmt::format("unit{}", unit));
    model.finalize(AdamW{});
    const auto step = [&] {
      for (Idle& layer : layers) model.forward(layer);
      for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) model.backward(*layer);
      model.update();
      model.synchronize();
    };
    step();  // what was never written is not read from the disk
    seconds = median_seconds(budget, step);
  });
  const auto bytes = static_cast<double>(bytes_of_unit);
  return {bytes, static_cast<double>(units + 1) * bytes / seconds};
}

}  // namespace

Machine calibrate(const Calibration& calibration) {
  if (calibration.ranks < 2) throw UsageError("collectives are measured between 2 ranks or more");
  const double part = calibration.seconds / 4;
  Machine machine;
  machine.name = calibration.name;
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  machine.about =
      fmt::format("measured by tessera calibrate: {} cores, {} ranks that are threads", cores, calibration.ranks);
  machine.ranks_per_host = 1024;
  machine.processors = cores;
  machine.immediate_compute = true;
  machine.algorithm = CollectiveAlgorithm::direct;
  machine.products[static_cast<std::size_t>(DType::fp32)] = product_curve<float>(part / 2);
  machine.products[static_cast<std::size_t>(DType::bf16)] = product_curve<bf16>(part / 2);
  machine.convolutions[static_cast<std::size_t>(DType::fp32)] = convolution_rates<float>(part / 2);
  machine.convolutions[static_cast<std::size_t>(DType::bf16)] = convolution_rates<bf16>(part / 2);
  for (std::size_t type = 0; type < machine.products.size(); ++type) {
    for (const auto& [size, rate] : machine.products[type].points()) {
      machine.peak[type] = std::max(machine.peak[type], rate);
    }
  }
  machine.all_busy = all_busy(std::min<std::size_t>(cores, calibration.ranks), part / 2);
  machine.memory = memory_curve(part / 4);
  machine.host_memory = host_memory_curve(std::min<std::size_t>(cores, calibration.ranks), part / 4);
  machine.to_disk =
      Curve({disk_rate(calibration.disk, mebibyte, part / 8), disk_rate(calibration.disk, 16 * mebibyte, part / 8)});
  machine.launch = launch_seconds();
  machine.host = measure_link(calibration.ranks, part);
  return machine;
}

// ---- from traces ----

namespace {

// The curve has for each size the median of what slices say.
Curve curve_of(const std::map<double, std::vector<double>>& rates) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [size, values] : rates) points.emplace_back(size, median(values));
  return Curve(std::move(points));
}

}  // namespace

Machine from_traces(Machine base, const std::vector<TraceFile>& traces) {
  std::map<double, std::vector<double>> gathers, sums, passes;
  for (const TraceFile& trace : traces) {
    const auto ranks = static_cast<double>(trace.ranks);
    // A collective ends at the same time everywhere, so its shortest slice waits least for peers.
    std::map<std::pair<std::size_t, std::string>, std::pair<double, double>> shortest;
    for (const Slice& slice : trace.slices) {
      const auto bytes = static_cast<double>(slice.bytes);
      if (slice.time() <= 0 || bytes <= 0) continue;
      if (slice.kind == SliceKind::computation) passes[bytes].push_back(bytes / (slice.time() * 1e-6));
      if (slice.kind != SliceKind::communication || ranks == 1) continue;
      auto& least = shortest.try_emplace({slice.step, slice.name}, slice.time(), bytes).first->second;
      least.first = std::min(least.first, slice.time());
    }
    for (const auto& [key, least] : shortest) {
      const bool is_sum = key.second.starts_with("reduce-scatter");
      const double seconds = std::max(least.first * 1e-6 - base.host.latency, 1e-7);
      const double moved = moved_share(base.algorithm, ranks, is_sum) * least.second;
      (is_sum ? sums : gathers)[least.second].push_back(moved / seconds);
    }
  }
  if (gathers.empty() && sums.empty() && passes.empty()) {
    throw UsageError("the traces have no collectives and no passes over memory");
  }
  if (!gathers.empty()) base.host.bandwidth = curve_of(gathers);
  if (!sums.empty()) base.host.summing = curve_of(sums);
  if (!passes.empty()) base.memory = curve_of(passes);
  return base;
}

}  // namespace tools
