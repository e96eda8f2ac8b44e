// A user's program with a layer of nn: two ranks learn to tell two points apart, built against the installed tree.
#include <tessera/device/arena.hpp>
#include <tessera/nn/counting_model.hpp>
#include <tessera/nn/cross_entropy.hpp>
#include <tessera/nn/linear.hpp>
#include <tessera/tessera.hpp>

#include <array>
#include <cstdint>
#include <cstdio>

namespace {

constexpr std::array<float, 4> points = {1.0f, -1.0f, -1.0f, 1.0f};  // [2, 2]
constexpr std::array<std::int32_t, 2> labels = {0, 1};

// A linear layer with its loss, as one unit.
struct Classifier : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("linear", linear); }

  struct Saved {
    tessera::nn::Linear<float>::Saved linear;
    tessera::nn::CrossEntropy<float>::Saved loss;
    tessera::nn::MatrixView<float> logits;
  };
  Saved forward(tessera::Window& window, tessera::nn::ActivationStack& stack, float* loss) {
    const tessera::nn::MatrixView<const float> x{points.data(), 2, 2};
    const tessera::nn::MatrixView<float> logits = stack.push<float>(2, 2);
    return {.linear = linear.forward(window, stack, x, logits),
            .loss = cross_entropy.forward(window, stack, logits, {.labels = labels}, loss),
            .logits = logits};
  }
  void backward(tessera::Window& window, tessera::nn::ActivationStack& stack, const Saved& saved) {
    cross_entropy.backward(window, stack, saved.loss, saved.logits);
    linear.backward(window, stack, saved.linear, saved.logits, {});
  }

  tessera::nn::Linear<float> linear{2, 2};
  tessera::nn::CrossEntropy<float> cross_entropy;
};

// One pass over both points.
template <typename Model>
void pass(Model& model, Classifier& classifier, tessera::nn::ActivationStack& stack, float* loss) {
  const tessera::nn::ScratchScope scope(stack);
  const Classifier::Saved saved = model.forward(classifier, stack, loss);
  model.backward(classifier, stack, saved);
}

void train(tessera::World& world) {
  Classifier classifier;
  tessera::nn::ActivationStack counting;
  tessera::nn::CountingModel no_windows;
  pass(no_windows, classifier, counting, nullptr);
  tessera::Arena memory(world.device(), counting.peak());
  tessera::nn::ActivationStack stack({memory.data(), memory.size().count()});

  tessera::FullyShard model(world);
  model.add(classifier, "classifier");
  model.finalize(tessera::Sgd{.learning_rate = 1.0f});
  float before = 0.0f;
  float after = 0.0f;
  for (int step = 0; step < 10; ++step) {
    pass(model, classifier, stack, step == 0 ? &before : &after);
    model.update();
  }
  model.synchronize();
  if (!(after < 0.5f * before)) throw tessera::UsageError("the loss did not fall");
  if (world.rank() == 0) std::printf("loss %f -> %f\n", static_cast<double>(before), static_cast<double>(after));
}

}  // namespace

int main() { return tessera::run(tessera::LaunchOptions{.ranks = 2}, train); }
