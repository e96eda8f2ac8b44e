// A user's program with a layer of nn: two ranks learn to tell two points apart, built against the installed tree.
#include <tessera/nn/cross_entropy.hpp>
#include <tessera/nn/linear.hpp>
#include <tessera/tessera.hpp>

#include <array>
#include <cstdint>
#include <cstdio>

namespace {

constexpr std::array<float, 4> points = {1.0f, -1.0f, -1.0f, 1.0f};  // [2, 2]
constexpr std::array<std::int32_t, 2> labels = {0, 1};

// One step over both points; returns the loss before it.
float train_step(tessera::FullyShard& model, tessera::nn::Linear& linear, tessera::nn::CrossEntropy& cross_entropy) {
  float loss = 0.0f;
  const tessera::nn::MatrixView logits = model.forward(linear, tessera::nn::ConstMatrixView(points.data(), 2, 2));
  cross_entropy.forward(model.stream(), logits, {.labels = labels, .weights = {}}, &loss);
  const float loss_scale = 1.0f;  // fp32 needs no other
  const tessera::nn::MatrixView dlogits = cross_entropy.backward(model.stream(), &loss_scale);
  model.backward(linear, dlogits);
  model.update();
  model.synchronize();
  return loss;
}

void train(tessera::World& world) {
  tessera::nn::Linear linear(2, 2);
  tessera::nn::CrossEntropy cross_entropy;
  tessera::FullyShard model(world);
  model.add(linear, "linear");
  model.finalize(tessera::Sgd{.learning_rate = 1.0f});
  const float before = train_step(model, linear, cross_entropy);
  float after = before;
  for (int step = 1; step < 10; ++step) after = train_step(model, linear, cross_entropy);
  if (!(after < 0.5f * before)) throw tessera::UsageError("the loss did not fall");
  if (world.rank() == 0) std::printf("loss %f -> %f\n", static_cast<double>(before), static_cast<double>(after));
}

}  // namespace

int main() { return tessera::run(tessera::LaunchOptions{.ranks = 2}, train); }
