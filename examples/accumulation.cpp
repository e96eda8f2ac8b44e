// Gradient accumulation: four micro-batches of three samples against one batch of twelve. Try: ./accumulation --ranks 4
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::AccumulationMode;
using tessera::Initial;
using Values = std::vector<float>;

// y = activation(W x + b) for several samples, row by row.
struct Dense : tessera::Module {
  Dense(std::size_t inputs, std::size_t outputs, bool bends)
      : weight({outputs, inputs}, Initial::fan_in(inputs)), bias({outputs}, Initial::fan_in(inputs)), bend(bends) {}

  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("bias", bias);
  }
  const Values& forward(tessera::Window& window, const Values& input) {
    x = &input;
    window.stream().submit([this, x = x, w = window.parameter(weight), b = window.parameter(bias)] {
      const std::size_t in = w.size() / b.size(), out = b.size();
      y.resize(x->size() / in * out);
      for (std::size_t k = 0; k < y.size(); ++k) {  // k = row * out + o
        const float* row = x->data() + k / out * in;
        float sum = b[k % out];
        for (std::size_t i = 0; i < in; ++i) sum += w[k % out * in + i] * row[i];
        y[k] = bend ? std::tanh(sum) : sum;
      }
    });
    return y;
  }
  const Values& backward(tessera::Window& window, const Values& dy) {
    using enum tessera::GradientMode;  // `accumulate` starts from zero in each window: for loops that add row by row
    window.stream().submit([this, x = x, &dy, w = window.parameter(weight), dw = window.gradient(weight, accumulate),
                            db = window.gradient(bias, accumulate)] {
      const std::size_t in = w.size() / db.size(), out = db.size();
      dx.assign(x->size(), 0.0f);
      for (std::size_t k = 0; k < y.size(); ++k) {
        const float d = bend ? dy[k] * (1.0f - y[k] * y[k]) : dy[k];
        db[k % out] += d;
        for (std::size_t i = 0; i < in; ++i) {
          dw[k % out * in + i] += d * (*x)[k / out * in + i];
          dx[k / out * in + i] += d * w[k % out * in + i];
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

constexpr int steps = 200, rows_per_step = 12;

// The mean loss of every step over ranks × rows_per_step samples, taken `micro_batches` parts at a time.
Values train(tessera::World& world, std::size_t micro_batches, AccumulationMode mode) {
  Dense hidden(1, 64, true), output(64, 1, false);
  tessera::FullyShard model(world, {.micro_batches = micro_batches, .accumulation = mode});
  model.add(hidden, "hidden");
  model.add(output, "output");
  model.finalize(tessera::Sgd{.learning_rate = 0.05f, .momentum = 0.9f});

  const std::size_t rows = rows_per_step / micro_batches;
  Values losses, input(rows), dy(rows);
  for (int step = 0; step < steps; ++step) {
    float loss = 0.0f;
    for (std::size_t micro = 0; micro < micro_batches; ++micro) {
      const std::size_t first = std::size_t(step * world.size() + world.rank()) * rows_per_step + micro * rows;
      for (std::size_t r = 0; r < rows; ++r) input[r] = 3.0f * std::sin(float(first + r));
      const Values& y = model.forward(output, model.forward(hidden, input));
      model.synchronize();
      for (std::size_t r = 0; r < rows; ++r) {
        const float error = y[r] - std::sin(input[r]);
        loss += error * error / rows_per_step;
        dy[r] = 2.0f * error / float(rows);  // the mean over this micro-batch; the runtime takes the mean over them
      }
      model.backward(hidden, model.backward(output, dy));
      model.synchronize();  // `input` and `dy` are written again
    }
    model.update();  // once per step, whatever micro_batches is
    losses.push_back(world.average(loss, "loss"));
  }
  const auto held = tessera::plan::memory(model.plan()).categories[std::size_t(tessera::plan::Category::accumulation)];
  if (world.rank() == 0) {
    std::printf("%2zu x %2zu rows, %-9s  loss %.6f to %.6f  bytes for sums on the rank %llu\n", micro_batches, rows,
                std::string(to_string(mode)).c_str(), losses.front(), losses.back(),
                static_cast<unsigned long long>(held.size.count()));
  }
  return losses;
}

int main(int argc, char** argv) {
  const char* about = "Four micro-batches of three samples give the losses of one batch of twelve, in both modes.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    const Values reference = train(world, 1, AccumulationMode::automatic);
    for (const AccumulationMode mode : {AccumulationMode::reduced, AccumulationMode::local}) {
      const Values losses = train(world, 4, mode);
      float largest = 0.0f;
      for (std::size_t i = 0; i < losses.size(); ++i) largest = std::fmax(largest, std::abs(losses[i] - reference[i]));
      if (world.rank() == 0) std::printf("largest difference of a loss %.1e\n", largest);
    }
  });
}
