// One table as embedding and as output head, a unit in two windows. Try: ./tied_and_frozen --ranks 4
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Window;
using Values = std::vector<float>;
constexpr std::size_t tokens = 29, width = 64;

// y = W x. While it is frozen it only passes the gradient of its input on.
struct Linear : tessera::Module {
  Linear(std::size_t outputs, tessera::Initial initial) : weight({outputs, width}, initial), y(outputs), dx(width) {}
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }

  const Values& forward(Window& window, const Values& x) {
    window.stream().submit([this, &x, w = window.parameter(weight)] {
      y.assign(y.size(), 0.0f);
      for (std::size_t k = 0; k < w.size(); ++k) y[k / width] += w[k] * x[k % width];
    });
    return y;
  }
  const Values& backward(Window& window, const Values& x, const Values& dy) {
    const std::span<float> dw = window.trains(weight) ? window.gradient(weight) : std::span<float>();
    window.stream().submit([this, &x, &dy, dw, w = window.parameter(weight)] {
      dx.assign(width, 0.0f);
      for (std::size_t k = 0; k < w.size(); ++k) dx[k % width] += dy[k / width] * w[k];
      for (std::size_t k = 0; k < dw.size(); ++k) dw[k] = dy[k / width] * x[k % width];
    });
    return dx;
  }

  tessera::Parameter weight;
  Values y, dx;
};

// The table is a Linear that gives one logit per token; before that, in a window of its own, it looks a token up. Each
// backward window writes a gradient of its own; the runtime adds them up on the rank and reduces them once.
struct Table : Linear {
  Table() : Linear(tokens, tessera::Initial::normal(0.0f, 0.1f)), row(width) {}
  using Linear::backward, Linear::forward;

  const Values& forward(Window& window, std::size_t token) {
    window.stream().submit([this, token, w = window.parameter(weight)] {
      for (std::size_t i = 0; i < width; ++i) row[i] = w[token * width + i];
    });
    return row;
  }
  void backward(Window& window, std::size_t token, const Values& drow) {  // one row: `accumulate` starts from zero
    window.stream().submit([token, &drow, dw = window.gradient(weight, tessera::GradientMode::accumulate)] {
      for (std::size_t i = 0; i < width; ++i) dw[token * width + i] += drow[i];
    });
  }

  Values row;
};

void print_bytes(tessera::FullyShard& model, const char* when) {
  std::string line = when;
  for (const auto& [category, memory, space] : model.regions())
    line.append("  ").append(to_string(category)).append(" ").append(std::to_string(memory.size()));
  if (model.world().rank() == 0) std::printf("bytes per rank, %s\n", line.c_str());
}

// Cross entropy of one sample; `dlogits` becomes its gradient.
float loss_of(const Values& logits, std::size_t target, Values& dlogits) {
  float sum = 0.0f;
  for (const float logit : logits) sum += std::exp(logit);
  for (std::size_t t = 0; t < tokens; ++t) dlogits[t] = std::exp(logits[t]) / sum - (t == target ? 1.0f : 0.0f);
  return std::log(sum) - logits[target];
}

int main(int argc, char** argv) {
  const char* about = "One table is embedding and output head; what lies between is frozen for half of the training.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    Table table;
    Linear stage(width, tessera::Initial::fan_in(width));
    stage.weight.set_frozen(true);  // no gradient, no optimizer state, nothing of it is reduced
    using enum tessera::plan::WindowKind;
    const tessera::plan::Program program = {
        {{0, forward}, {1, forward}, {0, forward}, {0, backward}, {1, backward}, {0, backward}}, {}};
    tessera::FullyShard model(world, {.program = program});
    model.add(table, "table");
    model.add(stage, "stage");
    model.finalize(tessera::AdamW{.learning_rate = 0.003f});
    print_bytes(model, "frozen: ");
    for (int step = 0; step <= 800; ++step) {
      if (step == 400) {
        stage.weight.set_frozen(false);
        model.recompile();
        print_bytes(model, "trained:");
      }
      const std::size_t token = std::size_t(step * world.size() + world.rank()) % tokens;  // the next is 5 token + 3
      const Values& row = model.forward(table, token);
      const Values& h = model.forward(stage, row);
      const Values& logits = model.forward(table, h);
      model.synchronize();
      Values dlogits(tokens);
      const float mine = loss_of(logits, (5 * token + 3) % tokens, dlogits);
      const Values& dh = model.backward(table, h, dlogits);
      model.backward(table, token, model.backward(stage, row, dh));
      model.update();
      const float loss = world.average(mine, "loss");
      const double norm = model.last_step().gradient_norm;
      if (world.rank() == 0 && step % 200 == 0) std::printf("step %3d  loss %.4f  norm %.4f\n", step, loss, norm);
    }
  });
}
