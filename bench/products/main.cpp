// The matrix products of the trainers' steps, one by one: nn's beside OpenBLAS's and oneDNN's, in turn, and on one
// thread beside as many multiply-adds on registers alone.
//
// usage: products [--threads N] [--precision P] [--rounds N] [--tiny]    prints figures, one per line
//
// Each shape has the three products of a linear layer: forward x Wᵀ, dx = dy W, and dw = dyᵀ x. Instruction sets are
// capped by TESSERA_INSTRUCTION_SET (the rows), TESSERA_PRODUCTS, OPENBLAS_CORETYPE and ONEDNN_MAX_CPU_ISA.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "products/contestants.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/processor.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/nn/with_element.hpp"

namespace {

using namespace bench;
using namespace tessera;

struct Options {
  std::size_t threads = 1;
  std::size_t rounds = 15;
  Precision precision = fp32_precision;
  bool tiny = false;
};

struct Shape {
  const char* name;
  std::size_t rows;
  std::size_t in;
  std::size_t out;
};

// The shapes are those of bench/step_mlp and bench/step_gpt, whose logits are as large as a projection.
constexpr Shape shapes[] = {{"mlp-hidden", 64, 2048, 2048},     {"gpt-qkv", 1024, 256, 768},
                            {"gpt-projection", 1024, 256, 256}, {"gpt-up", 1024, 256, 1024},
                            {"gpt-down", 1024, 1024, 256},      {"large", 2048, 2048, 2048}};
constexpr Shape tiny_shapes[] = {{"tiny", 5, 7, 11}};

// A layer's matrices, in an arena.
template <typename T>
struct Layer {
  explicit Layer(const Shape& of) : shape(of), arena(Device::cpu(), Bytes(bytes(of))), memory(arena.data()) {
    x = take(shape.rows, shape.in);
    weight = take(shape.out, shape.in);
    dy = take(shape.rows, shape.out);
    y = take(shape.rows, shape.out);
    dx = take(shape.rows, shape.in);
    dweight = take(shape.out, shape.in);
    theirs = take(std::max(shape.rows, shape.out), std::max(shape.in, shape.out));
    scratch = reinterpret_cast<float*>(memory);
    for (const auto& [view, seed] : {std::pair{x, 1u}, {weight, 2u}, {dy, 3u}}) fill(view, seed);
  }

  static std::size_t bytes(const Shape& of) {
    const std::size_t elements = 2 * of.rows * of.in + 2 * of.out * of.in + 2 * of.rows * of.out +
                                 std::max(of.rows, of.out) * std::max(of.in, of.out);
    return elements * sizeof(T) + 8 * 64 + nn::linear_scratch<T>(of.rows, of.in, of.out) * sizeof(float);
  }
  nn::MatrixView<T> take(std::size_t rows, std::size_t columns) {
    auto* const data = reinterpret_cast<T*>(memory);
    memory += (rows * columns * sizeof(T) + 63) / 64 * 64;
    return {data, rows, columns};
  }
  static void fill(const nn::MatrixView<T>& view, unsigned seed) {
    for (std::size_t i = 0; i < view.elements(); ++i) {
      seed = seed * 1664525u + 1013904223u;
      view.data[i] = static_cast<T>(static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
    }
  }

  Shape shape;
  Arena arena;
  std::byte* memory;
  nn::MatrixView<T> x, weight, dy, y, dx, dweight, theirs;
  float* scratch;
};

// One of the layer's products, as nn computes it and as a library may.
template <typename T>
struct Way {
  const char* name;
  PlainProduct plain;
  nn::MatrixView<T> ours;
  std::function<void(Stream&)> run;
};

template <typename T>
std::vector<Way<T>> ways_of(const Layer<T>& layer) {
  const DType type = dtype_of<T>;
  const auto& [rows, in, out] = std::tuple(layer.shape.rows, layer.shape.in, layer.shape.out);
  const nn::LinearForward<T> forward{.x = layer.x, .weight = layer.weight, .y = layer.y, .scratch = layer.scratch};
  nn::LinearBackward<T> dx{
      .x = layer.x, .weight = layer.weight, .dy = layer.dy, .dx = layer.dx, .scratch = layer.scratch};
  nn::LinearBackward<T> dw = dx;
  dw.dx = {};
  dw.dweight = layer.dweight.data;
  void* const c = layer.theirs.data;
  const Factor x{layer.x.data, in, 1}, dy{layer.dy.data, out, 1};
  return {{"forward",
           {type, x, {layer.weight.data, 1, in}, c, rows, out, in},
           layer.y,
           [forward](Stream& stream) { nn::linear_forward(stream, forward); }},
          {"dx",
           {type, dy, {layer.weight.data, in, 1}, c, rows, in, out},
           layer.dx,
           [dx](Stream& stream) { nn::linear_backward(stream, dx); }},
          {"dw", {type, {layer.dy.data, 1, out}, x, c, out, in, rows}, layer.dweight, [dw](Stream& stream) {
             nn::linear_backward(stream, dw);
           }}};
}

// The same numbers, as far as sums in another order and results of this type are.
template <typename T>
void require_same(const Way<T>& way, const T* theirs, const std::string& who) {
  const double tolerance = (sizeof(T) == 4 ? 1e-4 : 2e-2) * std::sqrt(static_cast<double>(way.plain.k));
  for (std::size_t i = 0; i < way.ours.elements(); ++i) {
    const auto mine = static_cast<double>(static_cast<float>(way.ours.data[i]));
    if (std::abs(mine - static_cast<double>(static_cast<float>(theirs[i]))) <= tolerance) continue;
    throw InternalError(fmt::format("{} of {}: element {} is {}, but nn's is {}", way.name, who, i,
                                    static_cast<float>(theirs[i]), mine));
  }
}

template <typename T>
void measure_shape(const Shape& shape, const Options& options) {
  const Layer<T> layer(shape);
  Stream stream(Device::cpu(), {.name = "bench", .mode = StreamMode::immediate});
  for (const Way<T>& way : ways_of(layer)) {
    std::vector<Contestant> all{{"nn", [&] { way.run(stream); }}};
    all.front().run();
    for (Contestant& each : libraries(way.plain, static_cast<int>(options.threads))) {
      each.run();
      require_same(way, layer.theirs.data, each.name);
      all.push_back(std::move(each));
    }
    const std::size_t operations = 2 * way.plain.m * way.plain.n * way.plain.k;
    if (auto limit = multiply_adds(operations); limit && options.threads == 1) all.push_back({"limit", *limit});
    std::vector<std::function<void()>> bodies;
    for (const Contestant& each : all) bodies.push_back(each.run);
    const std::vector<double> seconds = alternate(bodies, options.rounds);
    for (std::size_t i = 0; i < all.size(); ++i) {
      print_figure(fmt::format("{}/{}/{}", shape.name, way.name, all[i].name),
                   static_cast<double>(operations) / seconds[i] / 1e9, "GFLOP/s");
    }
  }
  stream.rethrow_failure();
}

void run(const Options& options) {
  nn::set_threads(static_cast<int>(options.threads));
  fmt::print(stderr, "nn: {}\n{}\n", nn::computed_with(), onednn_in_words());
  tessera::nn::with_element(options.precision, [&](auto element) {
    const auto measure_all = [&](const auto& of) {
      for (const Shape& shape : of) measure_shape<decltype(element)>(shape, options);
    };
    options.tiny ? measure_all(tiny_shapes) : measure_all(shapes);
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Matrix products of the trainers, beside those of libraries.", "");
  line.choice<Precision>("--precision", options.precision,
                         {{"fp32", fp32_precision}, {"bf16", bf16_mixed}, {"fp16", fp16_mixed}},
                         "of all matrices; sums are fp32");
  line.whole("--threads", options.threads, {1, 256}, "of each product");
  line.whole("--rounds", options.rounds, {1, 10000}, "of which the median counts");
  line.flag("--tiny", options.tiny, "a shape that takes no time");
  return run_bench(line, argc, argv, [&] { run(options); });
}
