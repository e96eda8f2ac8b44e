// The layers of a GPT by themselves on a CUDA device, in bf16: products and attention in TFLOP/s, rows in GB/s of what
// each has to read and write. Each turn is a train of launches that the host waits for once, so launching costs
// nothing. That results are right is the tests' matter (tests/cuda). peer.py prints PyTorch's figures on the same
// shapes.
//
// usage: cuda_layers [--only NAME] [--batch N] [--seq N] [--rounds N] [--launches N]    prints "NAME VALUE UNIT" lines
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "measure/figure.hpp"
#include "measure/program.hpp"
#include "measure/timing.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/attention.hpp"
#include "tessera/nn/cross_entropy.hpp"
#include "tessera/nn/embedding.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/linear.hpp"

namespace {

using namespace tessera;

struct Options {
  std::string only;
  std::size_t batch = 32;
  std::size_t seq = 1024;
  std::size_t dim = 768;
  std::size_t heads = 12;
  std::size_t vocabulary = 50304;
  std::size_t rounds = 5;
  std::size_t launches = 10;

  std::size_t rows() const { return batch * seq; }
};

// Memory of the device, with values that are neither zero nor equal: GPUs draw less power, and are faster, with those.
class Memory {
 public:
  explicit Memory(Stream& stream) : stream_(stream) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> values(-1.0f, 1.0f);
    for (bf16& each : pattern_) each = bf16(values(random));
  }

  bf16* elements(std::size_t count) {
    auto* const data = reinterpret_cast<bf16*>(take(count * sizeof(bf16)));
    for (std::size_t done = 0; done < count; done += pattern_.size()) {
      const std::size_t part = std::min(pattern_.size(), count - done);
      kernels::copy(stream_, data + done, pattern_.data(), Bytes(part * sizeof(bf16)));
    }
    stream_.synchronize();
    return data;
  }
  nn::MatrixView<bf16> matrix(std::size_t rows, std::size_t columns) {
    return {elements(rows * columns), rows, columns};
  }
  float* floats(std::size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); }
  std::int32_t* integers(std::size_t count, std::size_t below) {
    auto* const data = reinterpret_cast<std::int32_t*>(take(count * sizeof(std::int32_t)));
    std::minstd_rand random(2);
    std::vector<std::int32_t> drawn(count);
    for (std::int32_t& each : drawn) each = static_cast<std::int32_t>(random() % std::max(below, std::size_t{1}));
    kernels::copy(stream_, data, drawn.data(), Bytes(count * sizeof(std::int32_t)));
    stream_.synchronize();
    return data;
  }

 private:
  std::byte* take(std::size_t bytes) {
    arenas_.push_back(std::make_unique<Arena>(stream_.device(), Bytes(bytes)));
    return arenas_.back()->data();
  }

  Stream& stream_;
  std::vector<bf16> pattern_ = std::vector<bf16>(1 << 20);
  std::vector<std::unique_ptr<Arena>> arenas_;
};

struct Contestant {
  std::string name;
  double work;  // floating-point operations, or bytes
  const char* unit;
  std::function<void()> run;
};

class Layers {
 public:
  Layers(const Options& options, Stream& stream) : options_(options), stream_(stream), memory_(stream) {}

  std::vector<Contestant> take() {
    const auto wanted = [&](const char* name) { return options_.only.empty() || options_.only == name; };
    if (wanted("attention")) attention();
    if (wanted("products")) products();
    if (wanted("layer_norm")) layer_norm();
    if (wanted("loss")) loss();
    if (wanted("embedding")) embedding();
    if (all_.empty()) {
      throw UsageError(
          fmt::format("--only {}: there are attention, products, layer_norm, loss and embedding", options_.only));
    }
    return std::move(all_);
  }

 private:
  void add(std::string name, double flops, std::function<void()> run) {
    all_.push_back({std::move(name), flops / 1e12, "TFLOP/s", std::move(run)});
  }
  void add_bytes(std::string name, std::size_t elements, std::function<void()> run) {
    all_.push_back({std::move(name), static_cast<double>(elements * sizeof(bf16)) / 1e9, "GB/s", std::move(run)});
  }

  void attention();
  void products();
  void product(const char* name, std::size_t in, std::size_t out);
  void layer_norm();
  void loss();
  void embedding();

  const Options& options_;
  Stream& stream_;
  Memory memory_;
  std::vector<Contestant> all_;
};

// Causal attention forms half of the scores: two products forward, five backward.
void Layers::attention() {
  const nn::AttentionShape shape{.sequences = options_.batch,
                                 .sequence = options_.seq,
                                 .heads = options_.heads,
                                 .head_dim = options_.dim / options_.heads};
  const nn::AttentionForward<bf16> forward{
      .shape = shape,
      .qkv = memory_.matrix(shape.rows(), 3 * shape.dim()),
      .out = memory_.matrix(shape.rows(), shape.dim()),
      .statistics = memory_.floats(shape.statistics()),
      .scratch = memory_.floats(nn::attention_forward_scratch<bf16>(shape, DeviceKind::cuda))};
  const nn::AttentionBackward<bf16> backward{
      .shape = shape,
      .qkv = forward.qkv,
      .statistics = forward.statistics,
      .out = forward.out,
      .dout = memory_.matrix(shape.rows(), shape.dim()),
      .dqkv = memory_.matrix(shape.rows(), 3 * shape.dim()),
      .scratch = memory_.floats(nn::attention_backward_scratch<bf16>(shape, DeviceKind::cuda))};
  const double product = static_cast<double>(shape.rows() * options_.seq * shape.dim());
  add("attention/forward", 2.0 * product, [=, this] { nn::attention_forward(stream_, forward); });
  add("attention/backward", 5.0 * product, [=, this] { nn::attention_backward(stream_, backward); });
}

void Layers::product(const char* name, std::size_t in, std::size_t out) {
  const std::size_t rows = options_.rows();
  float* const scratch = memory_.floats(nn::linear_scratch<bf16>(rows, in, out, DeviceKind::cuda));
  const nn::LinearForward<bf16> forward{.x = memory_.matrix(rows, in),
                                        .weight = memory_.matrix(out, in),
                                        .y = memory_.matrix(rows, out),
                                        .scratch = scratch};
  const nn::LinearBackward<bf16> backward{.x = forward.x,
                                          .weight = forward.weight,
                                          .dy = forward.y,
                                          .dx = memory_.matrix(rows, in),
                                          .dweight = memory_.elements(out * in),
                                          .scratch = scratch};
  const double product = 2.0 * static_cast<double>(rows * in * out);
  add(fmt::format("products/{}/forward", name), product, [=, this] { nn::linear_forward(stream_, forward); });
  add(fmt::format("products/{}/backward", name), 2.0 * product, [=, this] { nn::linear_backward(stream_, backward); });
}

void Layers::products() {
  product("c_attn", options_.dim, 3 * options_.dim);
  product("c_proj", options_.dim, options_.dim);
  product("c_fc", options_.dim, 4 * options_.dim);
  product("mlp_proj", 4 * options_.dim, options_.dim);
  product("head", options_.dim, options_.vocabulary);
}

void Layers::layer_norm() {
  const std::size_t rows = options_.rows();
  const nn::LayerNormForward<bf16> forward{.x = memory_.matrix(rows, options_.dim),
                                           .weight = memory_.elements(options_.dim),
                                           .bias = memory_.elements(options_.dim),
                                           .y = memory_.matrix(rows, options_.dim),
                                           .mean = memory_.floats(rows),
                                           .inverse = memory_.floats(rows)};
  const nn::LayerNormBackward<bf16> backward{
      .x = forward.x,
      .weight = forward.weight,
      .mean = forward.mean,
      .inverse = forward.inverse,
      .dy = forward.y,
      .residual = memory_.elements(rows * options_.dim),
      .dx = memory_.matrix(rows, options_.dim),
      .dweight = memory_.elements(options_.dim),
      .dbias = memory_.elements(options_.dim),
      .scratch = memory_.floats(nn::layer_norm_scratch(rows, options_.dim, DeviceKind::cuda))};
  add_bytes("layer_norm/forward", 2 * rows * options_.dim, [=, this] { nn::layer_norm_forward(stream_, forward); });
  add_bytes("layer_norm/backward", 4 * rows * options_.dim, [=, this] { nn::layer_norm_backward(stream_, backward); });
}

// The gradient takes the logits' place; that they are other ones from then on changes no time.
void Layers::loss() {
  const std::size_t rows = options_.rows();
  const nn::MatrixView<bf16> logits = memory_.matrix(rows, options_.vocabulary);
  const nn::CrossEntropyRows<bf16> of{
      .logits = logits,
      .labels = memory_.integers(rows, options_.vocabulary),
      .denominator = static_cast<float>(rows),
      .statistics = memory_.floats(nn::cross_entropy_at_once_statistics(rows, 0.0f, DeviceKind::cuda))};
  float* const loss = memory_.floats(2);  // and the loss scale
  add_bytes("loss/forward", rows * options_.vocabulary, [=, this] { nn::cross_entropy_forward(stream_, of, loss); });
  add_bytes("loss/backward", 2 * rows * options_.vocabulary,
            [=, this] { nn::cross_entropy_backward(stream_, of, loss + 1, logits); });
  add_bytes("loss/at_once", 2 * rows * options_.vocabulary,
            [=, this] { nn::cross_entropy_at_once(stream_, of, loss, loss + 1, logits); });
}

void Layers::embedding() {
  const std::size_t rows = options_.rows();
  const std::int32_t* const ids = memory_.integers(rows, options_.vocabulary);
  const nn::EmbeddingForward<bf16> forward{.table = memory_.matrix(options_.vocabulary, options_.dim),
                                           .positions = memory_.matrix(options_.seq, options_.dim),
                                           .ids = ids,
                                           .sequence = options_.seq,
                                           .y = memory_.matrix(rows, options_.dim)};
  const nn::EmbeddingBackward<bf16> backward{
      .ids = ids,
      .sequence = options_.seq,
      .dy = forward.y,
      .dtable = memory_.matrix(options_.vocabulary, options_.dim),
      .dpositions = memory_.matrix(options_.seq, options_.dim),
      .scratch = memory_.integers(nn::embedding_scratch(rows, options_.vocabulary), 1)};
  add_bytes("embedding/forward", 2 * rows * options_.dim, [=, this] { nn::embedding_forward(stream_, forward); });
  add_bytes("embedding/backward", (rows + options_.vocabulary) * options_.dim,
            [=, this] { nn::embedding_backward(stream_, backward); });
}

void measure_all(const Options& options) {
  Stream stream(Device::cuda(0), {.name = "bench", .mode = StreamMode::immediate});
  Layers layers(options, stream);
  const std::vector<Contestant> all = layers.take();
  std::vector<std::function<void()>> bodies;
  for (const Contestant& each : all) {
    bodies.push_back([&] {
      for (std::size_t i = 0; i < options.launches; ++i) each.run();
      stream.synchronize();
    });
  }
  const std::vector<double> seconds = bench::alternate(bodies, options.rounds);
  for (std::size_t i = 0; i < all.size(); ++i) {
    bench::print_figure("cuda_layers/" + all[i].name, all[i].work * static_cast<double>(options.launches) / seconds[i],
                        all[i].unit);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("Layers of a GPT on a CUDA device, each by itself.", "");
  line.text("--only", options.only, "attention, products, layer_norm, loss or embedding [all]");
  line.whole("--batch", options.batch, {1, 1 << 16}, "sequences");
  line.whole("--seq", options.seq, {1, 1 << 16}, "tokens of a sequence");
  line.whole("--dim", options.dim, {1, 1 << 16}, "width, a multiple of --heads");
  line.whole("--heads", options.heads, {1, 1 << 16}, "heads of attention");
  line.whole("--vocabulary", options.vocabulary, {1, 1 << 20}, "ids");
  line.whole("--rounds", options.rounds, {1, 1000}, "how often each takes its turn");
  line.whole("--launches", options.launches, {1, 10000}, "launches in a turn");
  return bench::run_bench(line, argc, argv, [&] { measure_all(options); });
}
