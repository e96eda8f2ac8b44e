// Types of their own for what travels and what computes: fp32, bf16, and fp16 with a dynamic loss scale, on y = sin(x);
// the second layer stays in fp32. An overflow on one rank skips the step on all. Try: ./mixed_precision --ranks 4
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Initial;
using Values = std::vector<float>;

// y = activation(W x + b) for one sample. Parameters and gradients are T, what lies between is float.
template <typename T>
struct Dense : tessera::Module {
  Dense(std::size_t in, std::size_t out, bool bends)
      : weight({out, in}, Initial::fan_in(in)), bias({out}, Initial::fan_in(in)), bend(bends), y(out), dx(in) {}

  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("bias", bias);
  }
  const Values& forward(tessera::Window& window, const Values& input) {
    x = &input;
    window.stream().submit([this, x = x, w = window.parameter<T>(weight), b = window.parameter<T>(bias)] {
      for (std::size_t o = 0; o < y.size(); ++o) {
        float sum = float(b[o]);
        for (std::size_t i = 0; i < x->size(); ++i) sum += float(w[o * x->size() + i]) * (*x)[i];
        y[o] = bend ? std::tanh(sum) : sum;
      }
    });
    return y;
  }
  const Values& backward(tessera::Window& window, const Values& dy) {
    window.stream().submit([this, x = x, &dy, w = window.parameter<T>(weight), dw = window.gradient<T>(weight),
                            db = window.gradient<T>(bias)] {
      dx.assign(dx.size(), 0.0f);
      for (std::size_t o = 0; o < y.size(); ++o) {
        const float d = bend ? dy[o] * (1.0f - y[o] * y[o]) : dy[o];
        db[o] = T(d);  // rounds; beyond 65504 a fp16 becomes infinite
        for (std::size_t i = 0; i < x->size(); ++i) {
          dw[o * x->size() + i] = T(d * (*x)[i]);
          dx[i] += d * float(w[o * x->size() + i]);
        }
      }
    });
    return dx;
  }

  tessera::Parameter weight, bias;
  bool bend;
  const Values* x = nullptr;
  Values y, dx;
};

constexpr int steps = 1500, overflow_at = 1000, shown = 500;

// The hidden layer in `precision`, whose parameter type is T; the output layer in fp32.
template <typename T>
void train(tessera::World& world, const char* name, tessera::Precision precision) {
  Dense<T> hidden(1, 16, true);
  Dense<float> output(16, 1, false);
  tessera::FullyShard model(world, {.precision = precision});
  model.add(hidden, "hidden");
  model.add(output, {.name = "output", .precision = tessera::fp32_precision});
  model.finalize(tessera::AdamW{.learning_rate = 0.01f});
  if (world.rank() == 0) std::printf("%s\n%s", name, model.types_table().c_str());

  float sum_of_losses = 0.0f;
  for (int step = 1; step <= steps; ++step) {
    const Values input = {3.0f * std::sin(float(step * world.size() + world.rank()))};
    const Values& y = model.forward(output, model.forward(hidden, input));
    const bool overflows = step == overflow_at && world.rank() + 1 == world.size();
    float loss = 0.0f;
    Values dy(1);
    // Whoever seeds the backward pass multiplies with the loss scale; the runtime takes it out again. 1 unless fp16.
    model.stream().submit([&, scale = model.loss_scale()] {
      const float error = y[0] - std::sin(input[0]);
      loss = error * error;
      dy[0] = overflows ? std::numeric_limits<float>::infinity() : 2.0f * error * *scale;
    });
    model.backward(hidden, model.backward(output, dy));
    model.update();
    const tessera::StepReport report = model.last_step();  // waits for the update
    sum_of_losses += loss;

    if (step == overflow_at) {
      const double skipped = world.sum(report.skipped, "skipped");
      if (world.rank() == 0) std::printf("step %d overflowed on one rank, skipped on %.0f\n", step, skipped);
    }
    if (step % shown != 0) continue;
    const float mean = world.average(sum_of_losses / shown, "loss");
    sum_of_losses = 0.0f;
    if (world.rank() == 0) {
      std::printf("step %4d  loss %.6f  scale %g  skipped so far %lld\n", step, mean, report.loss_scale,
                  static_cast<long long>(report.skipped_updates));
    }
  }
}

int main(int argc, char** argv) {
  const char* about = "One network in fp32, bf16 and fp16; an overflow on one rank skips the step on all of them.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    train<float>(world, "fp32", tessera::fp32_precision);
    train<tessera::bf16>(world, "bf16_mixed", tessera::bf16_mixed);
    train<tessera::fp16>(world, "fp16_mixed, dynamic loss scale", tessera::fp16_mixed);
  });
}
