// The smallest honest use of Tessera: a layer of your own, fully sharded. Try: ./wrap_your_module --ranks 4
#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/tessera.hpp"

using tessera::Initial;
using Values = std::vector<float>;

// y = activation(W x + b) for one sample, in plain loops. It owns no parameter bytes, only their shapes and names.
struct Dense : tessera::Module {
  Dense(std::size_t in, std::size_t out, bool bends)
      : weight({out, in}, Initial::fan_in(in)), bias({out}, Initial::fan_in(in)), bend(bends), y(out), dx(in) {}

  void visit(tessera::ModuleVisitor& visitor) override {
    visitor("weight", weight);
    visitor("bias", bias);
  }

  // Inside the window the parameters are whole. Work goes to the window's stream; buffers are the layer's own.
  const Values& forward(tessera::Window& window, const Values& input) {
    x = &input;
    window.stream().submit([this, x = x, w = window.parameter(weight), b = window.parameter(bias)] {
      for (std::size_t o = 0; o < y.size(); ++o) {
        float sum = b[o];
        for (std::size_t i = 0; i < x->size(); ++i) sum += w[o * x->size() + i] * (*x)[i];
        y[o] = bend ? std::tanh(sum) : sum;
      }
    });
    return y;
  }

  // Every gradient is written whole; the runtime adds them up over ranks and divides. You divide by nothing.
  const Values& backward(tessera::Window& window, const Values& dy) {
    window.stream().submit(
        [this, x = x, &dy, w = window.parameter(weight), dw = window.gradient(weight), db = window.gradient(bias)] {
          dx.assign(dx.size(), 0.0f);
          for (std::size_t o = 0; o < y.size(); ++o) {
            db[o] = bend ? dy[o] * (1.0f - y[o] * y[o]) : dy[o];
            for (std::size_t i = 0; i < x->size(); ++i) {
              dw[o * x->size() + i] = db[o] * (*x)[i];
              dx[i] += db[o] * w[o * x->size() + i];
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

int main(int argc, char** argv) {
  const char* about = "Two layers of your own, fully sharded, learn y = sin(x), each rank from its own samples.";
  return tessera::run(argc, argv, about, [](tessera::World& world) {
    Dense hidden(1, 16, true), output(16, 1, false);
    tessera::FullyShard model(world, {.strategy = tessera::Strategy::fsdp});
    model.add(hidden, "hidden");
    model.add(output, "output");
    model.finalize(tessera::AdamW{.learning_rate = 0.02f});

    for (int step = 0; step <= 2000; ++step) {
      const Values input = {3.0f * std::sin(float(step * world.size() + world.rank()))};  // this rank's sample
      const Values& y = model.forward(output, model.forward(hidden, input));
      model.synchronize();
      const float error = y[0] - std::sin(input[0]);
      const Values dy = {2.0f * error};
      model.backward(hidden, model.backward(output, dy));
      model.update();
      const float loss = world.average(error * error, "loss");
      const double norm = model.last_step().gradient_norm;  // waits for the update, so that `input` and `dy` may go
      if (world.rank() == 0 && step % 500 == 0) std::printf("step %4d  loss %.6f  norm %.4f\n", step, loss, norm);
    }
  });
}
