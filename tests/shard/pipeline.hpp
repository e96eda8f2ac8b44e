// Layers y = tanh(W x), cut into parts that stand on different ranks: a Pipeline passes what goes from one to the next.
// Ranks along tensor have the same weights, and each brings its part of a sum that is y.
// Values are computed on the host, whatever the device.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/shard/pipeline.hpp"

namespace pipeline {

using namespace tessera;
using plan::ScheduleKind;
using Values = std::vector<float>;
constexpr std::size_t width = 5, size = width * width;

struct Cut {
  plan::Schedule own = {};  // in place of the kind's
  plan::ScheduleShape shape{2, 2};
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::size_t layers = 2;
  std::size_t slices = 1;
  Strategy strategy = Strategy::fsdp;
  std::size_t steps = 4;
  std::size_t buffers = 2;
  DType type = DType::fp32;                            // of what passes
  bool tied = false;                                   // the last layer has the weight of the first
  std::optional<std::size_t> lost = std::nullopt;      // this layer is tied, too, to none
  bool same_names = false;                             // of the parts' first layers
  std::optional<std::size_t> buffered = std::nullopt;  // this layer has a buffer
  bool recompute = false;
  float momentum = 0;
  std::size_t first_step = 0;
  std::function<void()> at_pass = nullptr;  // called in each of this rank's
  GradientHook hook = nullptr;

  std::size_t ranks(std::size_t data) const { return shape.stages * data * slices; }
  plan::Schedule schedule() const { return own.empty() ? plan::schedule(kind, shape) : own; }
};

inline void copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  kernels::copy(stream, static_cast<std::byte*>(to), static_cast<const std::byte*>(from), Bytes(bytes));
  stream.synchronize();
}
inline Values read(Stream& stream, const void* from, std::size_t count) {
  Values result(count);
  copy(stream, result.data(), from, count * sizeof(float));
  return result;
}

struct Layer final : Module {
  void slice(std::size_t count, bool in_two) {
    slices = static_cast<float>(count);
    weight.emplace(Shape{width, width}, Initial::normal(0.0f, 0.7f), ParameterOptions{.slice = plan::Slice{}});
    const CollectiveOptions options{.kind = plan::CollectiveKind::all_reduce,
                                    .type = DType::fp32,
                                    .backward = !in_two,
                                    .backward_input = in_two,
                                    .evaluate = true,
                                    .axes = Axis::tensor};
    sum.emplace(width, options);
  }
  void visit(ModuleVisitor& visitor) override {
    visitor("weight", *weight);
    if (sum) visitor("sum", *sum);
    if (seen) visitor("seen", *seen);
  }
  Values summed(Window& window, Values parts) {
    if (!sum) return parts;
    for (float& part : parts) part /= slices;
    copy(window.stream(), window.contribution<float>(*sum).data(), parts.data(), width * sizeof(float));
    return read(window.stream(), window.collect<float>(*sum).first, width);
  }

  Values forward(Window& window, const Values& x) {
    const Values w = read(window.stream(), window.parameter(*weight).data(), size);
    Values y(width);
    for (std::size_t i = 0; i < size; ++i) y[i / width] += w[i] * x[i % width];
    y = summed(window, y);
    for (float& each : y) each = std::tanh(each);
    latest_x = x, latest_y = y;
    return y;
  }
  Values backward_input(Window& window, const Values& y, const Values& dy) {
    const Values w = read(window.stream(), window.parameter(*weight).data(), size);
    Values dx(width);
    for (std::size_t i = 0; i < size; ++i) dx[i % width] += dy[i / width] * (1 - y[i / width] * y[i / width]) * w[i];
    return summed(window, dx);
  }
  // Goes back through the latest call of forward.
  Values backward(Window& window, const Values& dy) { return backward(window, latest_x, latest_y, dy); }
  Values backward(Window& window, const Values& x, const Values& y, const Values& dy) {
    Values dw(size);
    for (std::size_t i = 0; i < size; ++i) dw[i] = dy[i / width] * (1 - y[i / width] * y[i / width]) * x[i % width];
    if (window.trains(*weight)) copy(window.stream(), window.gradient(*weight).data(), dw.data(), size * sizeof(float));
    const bool is_rest = sum && sum->spec().backward_input;
    return is_rest ? Values() : backward_input(window, y, dy);
  }

  std::optional<Parameter> weight{std::in_place, Shape{width, width}, Initial::normal(0.0f, 0.7f)};
  std::optional<Collective> sum;
  std::optional<Buffer> seen;
  float slices = 1;
  Values latest_x, latest_y;
};

// Its activations are the output of each layer, and behind them its gradient.
struct Part final : PipelinePart {
  Part(const Cut& its_cut, std::size_t part)
      : cut(its_cut),
        parts(cut.shape.stages * cut.shape.chunks),
        begin(part * cut.layers / parts),
        layers((part + 1) * cut.layers / parts - begin) {
    for (Layer& each : layers)
      if (cut.slices > 1) each.slice(cut.slices, cut.kind == ScheduleKind::zb_h1);
    if (cut.buffered && *cut.buffered >= begin && *cut.buffered < begin + layers.size())
      layers[*cut.buffered - begin].seen.emplace(Shape{2}, Initial::zeros());
  }

  void add_to(FullyShard& model) override {
    if (cut.hook) model.on_reduced_gradient(cut.hook);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const bool ends = cut.tied && begin + l + 1 == cut.layers;
      if (ends && parts == 1) continue;
      model.add(layers[l], {.name = "layer" + std::to_string(ends             ? 0
                                                             : cut.same_names ? l
                                                                              : begin + l),
                            .recompute = cut.recompute,
                            .tied = ends || cut.lost == begin + l});
    }
  }
  std::vector<UnitWindow> windows(plan::WindowKind kind, std::span<const Unit* const> units) const override {
    std::vector<UnitWindow> result = PipelinePart::windows(kind, units);
    const bool back = kind == plan::WindowKind::backward;
    if (cut.tied && parts == 1) result.insert(back ? result.begin() : result.end(), {units.front(), kind});
    return result;
  }
  // One rank uses one weight twice.
  Layer& layer(std::size_t l) { return layers[cut.tied && parts == 1 && l + 1 == layers.size() ? 0 : l]; }
  Bytes activations() const override { return Bytes(2 * layers.size() * width * sizeof(float)); }

  void forward(FullyShard& model, const PartMemory& memory) override {
    if (cut.at_pass) cut.at_pass();
    const auto kind = evaluates ? plan::WindowKind::evaluate : plan::WindowKind::forward;
    Values x = input(model, memory);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      x = model.pass(kind, layer(l), Values(x));
      copy(model.stream(), at(memory, l), x.data(), width * sizeof(float));
    }
    if (!is_last()) return write(model, memory.output, x);
    for (std::size_t i = 0; i < width; ++i) {
      const float error = x[i] - target(memory, i);
      loss += error * error / 2;
    }
  }
  void evaluate(FullyShard& model, const PartMemory& memory) override {
    evaluates = true;
    forward(model, memory);
    evaluates = false;
  }
  void backward_input(FullyShard& model, const PartMemory& memory) override { go_back(model, memory, false); }
  void backward(FullyShard& model, const PartMemory& memory) override {
    if (cut.at_pass) cut.at_pass();
    const bool is_rest = cut.kind == ScheduleKind::zb_h1;
    if (!is_rest) go_back(model, memory, true);
    for (std::size_t l = layers.size(); is_rest && l-- > 0;)
      model.backward(layers[l], x_of(model, memory, l), read(model.stream(), at(memory, l), width),
                     read(model.stream(), at(memory, layers.size() + l), width));
  }

  void go_back(FullyShard& model, const PartMemory& memory, bool whole) {
    Values dy = is_last() ? read(model.stream(), at(memory, layers.size() - 1), width)
                          : received(model, memory.output_gradient);
    for (std::size_t i = 0; is_last() && i < width; ++i) dy[i] -= target(memory, i);
    for (std::size_t l = layers.size(); l-- > 0;) {
      const Values y = read(model.stream(), at(memory, l), width);
      Values dx;
      if (whole && cut.recompute) {
        dx = model.backward(layer(l), dy);
      } else if (whole) {
        dx = model.backward(layer(l), x_of(model, memory, l), y, dy);
      } else {
        dx = model.backward_input(layers[l], y, dy);
        copy(model.stream(), at(memory, layers.size() + l), dy.data(), width * sizeof(float));
      }
      dy = dx;
    }
    if (begin > 0) write(model, memory.input_gradient, dy);
  }

  bool is_last() const { return begin + layers.size() == cut.layers; }
  float target(const PartMemory& memory, std::size_t i) const {
    return samples[memory.micro_batch][(i + 1) % width] / 2;
  }
  static std::byte* at(const PartMemory& memory, std::size_t layer) {
    return memory.activations.data() + layer * width * sizeof(float);
  }
  Values input(FullyShard& model, const PartMemory& memory) const {
    return begin == 0 ? samples[memory.micro_batch] : received(model, memory.input);
  }
  Values x_of(FullyShard& model, const PartMemory& memory, std::size_t l) const {
    return l == 0 ? input(model, memory) : read(model.stream(), at(memory, l - 1), width);
  }
  Values received(FullyShard& model, std::span<const std::byte> memory) const {
    if (cut.type == DType::fp32) return read(model.stream(), memory.data(), width);
    std::vector<bf16> narrow(width);
    copy(model.stream(), narrow.data(), memory.data(), memory.size());
    return {narrow.begin(), narrow.end()};
  }
  void write(FullyShard& model, std::span<std::byte> memory, const Values& values) const {
    if (cut.type == DType::fp32) return copy(model.stream(), memory.data(), values.data(), memory.size());
    std::vector<bf16> narrow;
    for (const float value : values) narrow.emplace_back(value);
    copy(model.stream(), memory.data(), narrow.data(), memory.size());
  }

  Cut cut;
  std::size_t parts, begin;
  std::vector<Layer> layers;
  std::vector<Values> samples;  // of the step's micro-batches
  double loss = 0;
  bool evaluates = false;
};

struct Trained {
  Values weights;  // of all layers, on every rank
  std::vector<double> losses;
  std::vector<double> norms;        // of all parts' gradients
  std::vector<double> layer_norms;  // of the last step; 0: the layer is tied
  bool operator==(const Trained&) const = default;
};

struct Job {
  Job(World& its_world, const Cut& its_cut)
      : world(its_world), cut(its_cut), data(static_cast<std::size_t>(world.size()) / cut.shape.stages / cut.slices) {
    FullyShardOptions options{.strategy = cut.strategy,
                              .checkpointing = Checkpointing::blocking,
                              .diagnostics = {.poison = true, .touch = true}};
    options.mesh.emplace(
        plan::MeshShape{{Axis::pipeline, cut.shape.stages}, {Axis::shard, data}, {Axis::tensor, cut.slices}});
    std::vector<std::unique_ptr<PipelinePart>> parts;
    for (std::size_t part = 0; part < cut.shape.stages * cut.shape.chunks; ++part)
      parts.push_back(std::make_unique<Part>(cut, part));
    pipeline = std::make_unique<Pipeline>(world, options,
                                          PipelineOptions{.schedule = cut.schedule(),
                                                          .shape = cut.shape,
                                                          .elements = width,
                                                          .type = cut.type,
                                                          .buffers = cut.buffers},
                                          std::move(parts));
    pipeline->finalize([this]() -> std::unique_ptr<Optimizer> {
      return Sgd{.learning_rate = 0.3f, .momentum = cut.momentum, .clip_norm = 0.1f};
    });
  }

  Part& part(std::size_t index) { return static_cast<Part&>(pipeline->part(index)); }
  std::size_t parts() const { return cut.shape.stages * cut.shape.chunks; }

  void bring(std::size_t step) {
    const std::size_t count = cut.shape.micro_batches,
                      first = static_cast<std::size_t>(world.rank()) / cut.slices % data * count;
    for (std::size_t p = 0; p < parts(); ++p) {
      part(p).loss = 0;
      part(p).samples.assign(count, Values(width));
      for (std::size_t m = 0; m < count; ++m) {
        for (std::size_t i = 0; i < width; ++i)
          part(p).samples[m][i] = std::cos(static_cast<float>(3 * step + i * (first + m + 2)));
      }
    }
  }
  // The mean of what the last part has seen, on every rank.
  double loss(std::size_t micro_batches) {
    const bool knows = pipeline->is_last();
    return world.mean(knows ? part(parts() - 1).loss : 0, knows ? static_cast<double>(micro_batches) : 0, "loss");
  }

  // In their order in the whole model.
  std::vector<const Layer*> all_layers() {
    std::vector<const Layer*> result;
    for (std::size_t p = 0; p < parts(); ++p) {
      for (const Layer& layer : part(p).layers) result.push_back(&layer);
    }
    return result;
  }
  std::vector<double> layer_norms() {
    std::vector<double> result;
    const std::vector<GradientNorm> norms = pipeline->model().gradient_norms();
    for (const Layer* layer : all_layers()) {
      const auto found = std::ranges::find(norms, &*layer->weight, &GradientNorm::parameter);
      result.push_back(found == norms.end() ? 0 : found->norm);
    }
    return result;
  }

  Trained train() {
    Trained result;
    for (std::size_t step = cut.first_step; step < cut.steps; ++step) {
      bring(step);
      pipeline->train();
      pipeline->update();
      result.norms.push_back(pipeline->model().last_step().gradient_norm);
      result.losses.push_back(loss(cut.shape.micro_batches));
    }
    result.layer_norms = layer_norms();
    bring(cut.steps);
    pipeline->evaluate();
    result.losses.push_back(loss(1));
    for (const Layer* layer : all_layers()) {
      const bool is_trained = layer->weight->unit() != nullptr;
      const Values whole = is_trained ? pipeline->model().whole(*layer->weight) : Values(size);
      result.weights.insert(result.weights.end(), whole.begin(), whole.end());
    }
    return result;
  }

  World& world;
  Cut cut;
  std::size_t data;
  std::unique_ptr<Pipeline> pipeline;
};

}  // namespace pipeline
