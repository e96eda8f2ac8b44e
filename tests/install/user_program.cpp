// A user's program: a layer of its own, trained for one step on three ranks, built against the installed tree.
#include <tessera/tessera.hpp>

#include <cstdio>
#include <span>

namespace {

// y = weight · x for one number; the gradient of the weight is x, once per rank.
class Line : public tessera::Module {
 public:
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight_); }

  float forward(tessera::Window& window, float x) {
    float y = 0.0f;
    const std::span<const float> weight = window.parameter(weight_);
    window.stream().submit([weight, x, &y] { y = weight[0] * x; });
    window.stream().synchronize();
    return y;
  }

  void backward(tessera::Window& window, float x) {
    const std::span<float> gradient = window.gradient(weight_);
    window.stream().submit([gradient, x] { gradient[0] = x; });
  }

 private:
  tessera::Parameter weight_{{1}, tessera::Initial::ones()};
};

void train_one_step(tessera::World& world) {
  Line line;
  tessera::FullyShard model(world);
  model.add(line, "line");
  model.finalize(tessera::Sgd{.learning_rate = 0.25f});
  const float x = static_cast<float>(world.rank() + 1);  // 1, 2, 3: on average 2
  model.forward(line, x);
  model.backward(line, x);
  model.update();
  const float y = model.forward(line, x);
  if (y != 0.5f * x) throw tessera::UsageError("the weight did not go from 1 to 1 - 0.25 * 2");
}

}  // namespace

int main() {
  std::printf("Tessera %s\n", tessera::version.data());
  return tessera::run(tessera::LaunchOptions{.ranks = 3}, train_one_step);
}
