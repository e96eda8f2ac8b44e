// Layers y = tanh(W x), cut into stages that ranks with a role each have: what goes from one stage to the next are
// messages in their windows, and several micro-batches are on their way at once. Values are computed on the host,
// whatever the device.
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
#include "tessera/shard/fully_shard.hpp"

namespace pipeline {

using namespace tessera;
using Values = std::vector<float>;
using Kind = plan::CollectiveKind;
constexpr std::size_t width = 5, size = width * width, steps = 4;

struct Cut {
  std::size_t stages = 2, layers = 2, micro_batches = 2;
  Strategy strategy = Strategy::fsdp;
  std::function<void(Window&, const Collective&)> at_message = {};  // called before each
};

struct Stage final : Module {
  Stage(const Cut& the_cut, std::size_t s)
      : cut(the_cut), begin(s * cut.layers / cut.stages), end((s + 1) * cut.layers / cut.stages) {
    for (std::size_t l = begin; l < end; ++l)
      weights[l] = std::make_unique<Parameter>(Shape{width, width}, Initial::fan_in(width));
  }
  void visit(ModuleVisitor& visitor) override {
    for (std::size_t l = begin; l < end; ++l) visitor("weight" + std::to_string(l), *weights[l]);
    if (begin > 0) visitor("in.x", x_in), visitor("in.dx", dx_in);
    if (end < cut.layers) visitor("out.x", x_out), visitor("out.dx", dx_out);
  }
  Values forward(Window& window, const Values& sample, std::size_t m) {
    std::vector<Values>& x = inputs[m];
    x.assign(cut.layers + 1, Values(width));
    x[begin] = begin == 0 ? sample : pass(window, x_in);
    for (std::size_t l = begin; l < end; ++l) {
      const Values w = read(window, window.parameter(*weights[l]).data(), size);
      for (std::size_t i = 0; i < size; ++i) x[l + 1][i / width] += w[i] * x[l][i % width];
      for (float& y : x[l + 1]) y = std::tanh(y);
    }
    return end == cut.layers ? x[end] : pass(window, x_out, x[end]);
  }
  Values backward(Window& window, const Values& given, std::size_t m) {
    const std::vector<Values>& x = inputs[m];
    Values dy = end == cut.layers ? given : pass(window, dx_out);
    for (std::size_t l = end; l-- > begin;) {
      const Values w = read(window, window.parameter(*weights[l]).data(), size);
      Values dx(width), dw(size);
      for (std::size_t i = 0; i < size; ++i) {
        const float y = x[l + 1][i / width], dh = dy[i / width] * (1 - y * y);
        dw[i] = dh * x[l][i % width];
        dx[i % width] += dh * w[i];
      }
      copy(window, window.gradient(*weights[l]).data(), dw.data(), size);
      dy = dx;
    }
    return begin == 0 ? dy : pass(window, dx_in, dy);
  }

  // Returns what was received, or sent.
  Values pass(Window& window, const Collective& message, const Values& sent = {}) {
    if (cut.at_message) cut.at_message(window, message);
    if (!sent.empty()) copy(window, window.contribution<float>(message).data(), sent.data(), width);
    return read(window, window.collect<float>(message).first, width);
  }
  static Values read(Window& window, const float* from, std::size_t count) {
    Values result(count);
    copy(window, result.data(), from, count);
    return result;
  }
  static void copy(Window& window, float* to, const float* from, std::size_t count) {
    kernels::copy(window.stream(), to, from, Bytes(count * sizeof(float)));
    window.stream().synchronize();
  }
  static CollectiveOptions message(Kind kind, bool forward) { return {kind, DType::fp32, forward, !forward}; }

  Cut cut;
  std::size_t begin, end;  // its layers
  std::vector<std::unique_ptr<Parameter>> weights{cut.layers};
  Collective x_in{width, message(Kind::receive, true)}, x_out{width, message(Kind::send, true)};
  Collective dx_in{width, message(Kind::send, false)}, dx_out{width, message(Kind::receive, false)};
  std::vector<std::vector<Values>> inputs{cut.micro_batches};  // of the layers, and the last one's output
};

// Every rank makes the models of all stages, and trains that of its own.
struct Pipeline {
  Pipeline(World& its_world, const Cut& cut)
      : world(its_world), data(static_cast<std::size_t>(world.size()) / cut.stages) {
    std::vector<ModelRole> roles;
    for (std::size_t s = 0; s < cut.stages; ++s) {
      stages.push_back(std::make_unique<Stage>(cut, s));
      FullyShardOptions options{.strategy = cut.strategy, .diagnostics = {.poison = true, .touch = true}};
      options.mesh.emplace(plan::MeshShape{{Axis::pipeline, cut.stages}, {Axis::shard, data}});
      FullyShard& model = *models.emplace_back(std::make_unique<FullyShard>(world, options));
      const Unit* const unit = &model.add(*stages[s], "net");
      std::vector<UnitWindow> windows(cut.micro_batches, {unit, plan::WindowKind::forward});
      windows.resize(2 * cut.micro_batches, {unit, plan::WindowKind::backward});
      model.add_program({.windows = windows});
      roles.push_back({"stage" + std::to_string(s), &model, Sgd{.learning_rate = 0.3f}});
    }
    mine = finalize_roles(roles);
  }

  // Returns the weights of all layers, on every rank.
  Values train() {
    Stage& stage = *stages[mine];
    FullyShard& model = *models[mine];
    const std::size_t count = stage.cut.micro_batches, begin = static_cast<std::size_t>(world.rank()) % data * count;
    for (std::size_t step = 0; step < steps; ++step) {
      std::vector<Values> samples(count, Values(width));
      for (std::size_t m = 0; m < count; ++m) {
        for (std::size_t i = 0; i < width; ++i)
          samples[m][i] = std::cos(static_cast<float>(3 * step + i * (begin + m + 2)));
        model.forward(stage, samples[m], m);
      }
      for (std::size_t m = count; m-- > 0;) {
        Values dy = stage.inputs[m].back();
        for (std::size_t i = 0; i < width; ++i) dy[i] -= samples[m][(i + 1) % width] / 2;
        model.backward(stage, dy, m);
      }
      model.update({.weight = static_cast<double>(count)});
    }
    Values own(size * stage.cut.layers), sum(own.size());
    for (const ParameterPiece& piece : model.pieces(model.unit(0)))
      for (std::size_t l = stage.begin; l < stage.end; ++l)
        if (piece.parameter == stage.weights[l].get()) std::ranges::copy(piece.values, &own[l * size + piece.first]);
    const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(own)), "weights");
    for (std::size_t i = 0; i < own.size() * static_cast<std::size_t>(world.size()); ++i)
      sum[i % sum.size()] += reinterpret_cast<const float*>(all.data())[i];
    return sum;
  }

  World& world;
  std::size_t data, mine = 0;
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<std::unique_ptr<FullyShard>> models;
};

}  // namespace pipeline
