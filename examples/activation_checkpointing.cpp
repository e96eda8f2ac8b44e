// Activation checkpointing: a block keeps its input alone, and by one setting of its unit the rest is computed again
// right before its backward window. Try: ./activation_checkpointing --ranks 4
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Initial;
using Span = std::span<float>;

constexpr std::size_t rows = 16, width = 24, inner = 4 * width, blocks = 8;

// y = x + Aᵀ tanh(A x) for every row. `hidden`, the tanh, is what backward needs beside the input.
struct Block : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("a", weight); }
  void forward(tessera::Window& window, Span x, Span hidden, Span y) {
    window.stream().submit([x, hidden, y, a = window.parameter(weight)] {
      for (std::size_t r = 0; r < rows; ++r) {
        const float* in = &x[r * width];
        float* out = std::copy_n(in, width, &y[r * width]) - width;
        for (std::size_t h = 0; h < inner; ++h) {
          const float t = hidden[r * inner + h] = std::tanh(std::inner_product(in, in + width, &a[h * width], 0.0f));
          for (std::size_t i = 0; i < width; ++i) out[i] += t * a[h * width + i];
        }
      }
    });
  }
  // The gradient of the output becomes that of the input, in place.
  void backward(tessera::Window& window, Span x, Span hidden, Span gradient) {
    window.stream().submit([x, hidden, gradient, a = window.parameter(weight),
                            da = window.gradient(weight, tessera::GradientMode::accumulate)] {
      for (std::size_t r = 0; r < rows; ++r) {
        float* dy = &gradient[r * width];
        float dx[width] = {};
        for (std::size_t h = 0; h < inner; ++h) {
          const float t = hidden[r * inner + h];
          const float d = (1.0f - t * t) * std::inner_product(dy, dy + width, &a[h * width], 0.0f);
          for (std::size_t i = 0; i < width; ++i) {
            da[h * width + i] += t * dy[i] + d * x[r * width + i];
            dx[i] += d * a[h * width + i];
          }
        }
        for (std::size_t i = 0; i < width; ++i) dy[i] += dx[i];
      }
    });
  }
  tessera::Parameter weight{{inner, width}, Initial::normal(0.0f, 0.02f)};
};

// The loss of every step, and the first block's weights at the end.
std::vector<float> train(tessera::World& world, bool checkpointing) {
  // Every block's input and the last one's output; the tanh of every block, or one that the blocks take turns in.
  const std::size_t inputs = (blocks + 1) * rows * width, hiddens = (checkpointing ? 1 : blocks) * rows * inner;
  std::vector<Block> layers(blocks);
  tessera::FullyShard model(world, {.activations = tessera::Bytes(4 * (inputs + hiddens))});
  for (Block& layer : layers) model.add(layer, tessera::UnitOptions{.recompute = checkpointing});
  model.finalize(tessera::AdamW{.learning_rate = 0.003f});

  float* const memory = reinterpret_cast<float*>(model.activation_memory().data());  // in the arena, and in the plan
  const auto x = [&](std::size_t k) { return Span(memory + k * rows * width, rows * width); };
  const auto hidden = [&](std::size_t k) {
    return Span(memory + inputs + (checkpointing ? 0 : k * rows * inner), rows * inner);
  };
  std::vector<float> result;
  for (int step = 0; step < 40; ++step) {
    Initial::uniform(-1, 1).fill(x(0), 1, "x", std::uint64_t(step * world.size() + world.rank()) * rows * width);
    for (std::size_t k = 0; k < blocks; ++k) model.forward(layers[k], x(k), hidden(k), x(k + 1));
    model.synchronize();
    float loss = 0.0f;
    std::vector<float> dy(rows * width);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const float error = x(blocks)[i] - 2.0f * x(0)[i];  // the blocks learn to double
      loss += error * error / float(dy.size());
      dy[i] = 2.0f * error / float(dy.size());
    }
    for (std::size_t k = blocks; k-- > 0;) model.backward(layers[k], x(k), hidden(k), dy);
    model.update();
    model.synchronize();  // `dy` goes
    result.push_back(world.average(loss, "loss"));
  }
  if (world.rank() == 0) {
    std::printf("%-13s  activations %6zu bytes  windows per step %zu  loss %.4f to %.4f\n",
                checkpointing ? "checkpointing" : "keeping all", model.activation_memory().size(),
                model.plan().programs[0].micro_batch.size(), result.front(), result.back());
  }
  for (const float value : model.whole(layers.front().weight)) result.push_back(value);
  return result;
}

int main(int argc, char** argv) {
  const char* about = "A third of the activations by computing each block again before backward, and the same bits.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    const std::vector<float> kept = train(world, false), computed_again = train(world, true);
    const bool same = std::memcmp(kept.data(), computed_again.data(), kept.size() * sizeof(float)) == 0;
    if (world.rank() == 0) std::printf("losses and weights have the same bits: %s\n", same ? "yes" : "no");
  });
}
