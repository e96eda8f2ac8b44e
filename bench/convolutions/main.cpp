// Convolutions of the networks of train_vision, forward and backward. TESSERA_CONVOLUTIONS says what computes them, so
// that one run for each value shows them beside each other.
//
// usage: convolutions [--precision P] [--threads N] [--rounds N] [--tiny]    prints figures, one per line
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/processor.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/vision/convolution.hpp"

namespace {

using namespace bench;
using namespace tessera;
using vision::ConvolutionShape;
using vision::ImageView;

struct Options {
  Precision precision = fp32_precision;
  std::size_t threads = 1;
  std::size_t rounds = 7;
  bool tiny = false;
};

struct Subject {
  std::string name;  // channels in and out, kernel, stride, side of the images
  ConvolutionShape shape;
  std::size_t images;
  std::size_t side;
};

std::vector<Subject> subjects(bool tiny) {
  if (tiny) return {{"2-3/3x3/5", {.in = 2, .out = 3, .kernel = 3, .padding = 1}, 2, 5}};
  return {{"1-32/3x3/28", {.in = 1, .out = 32, .kernel = 3, .padding = 1}, 64, 28},
          {"32-64/3x3/14", {.in = 32, .out = 64, .kernel = 3, .padding = 1}, 64, 14},
          {"3-64/3x3/32", {.in = 3, .out = 64, .kernel = 3, .padding = 1}, 32, 32},
          {"64-64/3x3/32", {.in = 64, .out = 64, .kernel = 3, .padding = 1}, 32, 32},
          {"64-128/3x3s2/32", {.in = 64, .out = 128, .kernel = 3, .stride = 2, .padding = 1}, 32, 32},
          {"128-128/3x3/16", {.in = 128, .out = 128, .kernel = 3, .padding = 1}, 32, 16},
          {"512-512/3x3/4", {.in = 512, .out = 512, .kernel = 3, .padding = 1}, 32, 4},
          {"64-128/1x1s2/32", {.in = 64, .out = 128, .kernel = 1, .stride = 2}, 32, 32},
          {"3-384/4x4s4/32", {.in = 3, .out = 384, .kernel = 4, .stride = 4}, 32, 32},
          {"3-64/7x7s2/224", {.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3}, 4, 224},
          {"256-64/1x1/56", {.in = 256, .out = 64, .kernel = 1}, 4, 56}};
}

// Everything that a convolution touches, one after the other in an arena.
template <typename T>
class Operands {
 public:
  explicit Operands(const Subject& of)
      : of_(of),
        result_(of.shape.output(of.side)),
        arena_(Device::cpu(), Bytes(2 * padded(x()) + padded(y()) + 2 * padded(weights()) + scratch())) {
    std::byte* at = arena_.data();
    const auto take = [&](std::size_t bytes) {
      T* const data = reinterpret_cast<T*>(at);
      at += bytes;
      return data;
    };
    x_ = take(padded(x())), dx_ = take(padded(x())), y_ = take(padded(y()));
    weight_ = take(padded(weights())), dweight_ = take(padded(weights()));
    scratch_ = reinterpret_cast<float*>(at);
    for (std::size_t i = 0; i < x(); ++i) x_[i] = static_cast<T>(static_cast<float>(i % 17) / 17.0f);
    for (std::size_t i = 0; i < weights(); ++i) weight_[i] = static_cast<T>(static_cast<float>(i % 13) / 13.0f - 0.5f);
  }

  void forward(Stream& stream) const {
    vision::convolution_forward<T>(
        stream, {.shape = of_.shape, .x = image(x_), .weight = weight_, .y = result(y_), .scratch = scratch_});
  }
  void backward(Stream& stream) const {
    vision::convolution_backward<T>(stream, {.shape = of_.shape,
                                             .x = image(x_),
                                             .weight = weight_,
                                             .dy = result(y_),
                                             .dx = image(dx_),
                                             .dweight = dweight_,
                                             .scratch = scratch_});
  }
  double operations() const { return 2.0 * static_cast<double>(y() * weights() / of_.shape.out); }  // forward

 private:
  static std::size_t padded(std::size_t elements) { return (elements * sizeof(T) + 63) / 64 * 64; }
  std::size_t x() const { return of_.images * of_.side * of_.side * of_.shape.in; }
  std::size_t y() const { return of_.images * result_.height * result_.width * of_.shape.out; }
  std::size_t weights() const {
    return of_.shape.out * of_.shape.in / of_.shape.groups * of_.shape.kernel.height * of_.shape.kernel.width;
  }
  std::size_t scratch() const {
    return sizeof(float) * vision::convolution_scratch<T>(of_.shape, of_.images, of_.side);
  }
  ImageView<T> image(T* data) const { return {data, of_.images, of_.side, of_.side, of_.shape.in}; }
  ImageView<T> result(T* data) const { return {data, of_.images, result_.height, result_.width, of_.shape.out}; }

  const Subject& of_;
  vision::HeightWidth result_;
  Arena arena_;
  T *x_, *dx_, *y_, *weight_, *dweight_;
  float* scratch_;
};

template <typename T>
void measure(const Subject& subject, std::size_t rounds) {
  const Operands<T> operands(subject);
  Stream stream(Device::cpu(), {.name = "bench", .mode = StreamMode::immediate});
  const std::vector<std::function<void()>> bodies{[&] { operands.forward(stream); },
                                                  [&] { operands.backward(stream); }};
  const std::vector<double> seconds = alternate(bodies, rounds);
  stream.rethrow_failure();
  print_figure(subject.name + "/forward", operands.operations() / seconds[0] / 1e9, "GFLOP/s");
  print_figure(subject.name + "/backward", 2.0 * operands.operations() / seconds[1] / 1e9, "GFLOP/s");
}

void run(const Options& options) {
  nn::set_threads(static_cast<int>(options.threads));
  fmt::print(stderr, "nn: {}; convolutions {}\n", nn::computed_with(), vision::convolutions_in_words(DeviceKind::cpu));
  tessera::nn::with_element(options.precision, [&](auto element) {
    for (const Subject& subject : subjects(options.tiny)) measure<decltype(element)>(subject, options.rounds);
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Convolutions of the networks of train_vision.", "");
  line.choice<Precision>("--precision", options.precision,
                         {{"fp32", fp32_precision}, {"bf16", bf16_mixed}, {"fp16", fp16_mixed}},
                         "of images and weights; sums are fp32");
  line.whole("--threads", options.threads, {1, 256}, "of each convolution");
  line.whole("--rounds", options.rounds, {1, 10000}, "of which the median counts");
  line.flag("--tiny", options.tiny, "a convolution that takes no time");
  return run_bench(line, argc, argv, [&] { run(options); });
}
