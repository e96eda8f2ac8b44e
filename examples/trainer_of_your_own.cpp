// A trainer of your own in 70 lines: logistic regression with options, epochs, checkpoints, metrics and progress.
// Try: ./trainer_of_your_own --ranks 4 --metrics run.jsonl --checkpoint-dir run
#include <cmath>
#include <numeric>

#include "tessera/tessera.hpp"
#include "tessera/trainer/trainer.hpp"

using namespace tessera::trainer;

const tessera::SyntheticData data({.samples = 4096, .columns = 16, .classes = 2});

// The chance of class 1 is 1 / (1 + e^-(w · x)).
struct Regression : tessera::Module {
  void visit(tessera::ModuleVisitor& visitor) override { visitor("weight", weight); }
  void forward(tessera::Window& window, const LabelledRows& rows, float* loss) {
    window.stream().submit([this, x = rows.features, of = rows.targets, loss, w = window.parameter(weight)] {
      errors.resize(x.rows);
      *loss = 0.0f;
      for (std::size_t row = 0; row < x.rows; ++row) {
        const float share = (of.weights.empty() ? 1.0f : of.weights[row]) / float(x.rows);  // rows that fill up have 0
        const float score = std::inner_product(w.begin(), w.end(), x.data + row * x.columns, 0.0f);
        *loss += share * std::log1p(std::exp(of.labels[row] == 1 ? -score : score));
        errors[row] = share * (1.0f / (1.0f + std::exp(-score)) - float(of.labels[row]));
      }
    });
  }
  void backward(tessera::Window& window, const LabelledRows& rows) {
    window.stream().submit([this, x = rows.features, dw = window.gradient(weight, tessera::GradientMode::accumulate)] {
      for (std::size_t k = 0; k < x.elements(); ++k) dw[k % x.columns] += errors[k / x.columns] * x.data[k];
    });
  }
  tessera::Parameter weight{{data.columns()}, tessera::Initial::zeros()};
  std::vector<float> errors;  // of each row
};

struct Mine final : Training {
  Mine(tessera::World& world, const RunOptions& options)
      : batches(data, data.size(), world, options), sharded(world, sharding_options(options)) {
    sharded.add(regression, "regression");
  }
  tessera::FullyShard& model() override { return sharded; }
  void ready(const std::optional<tessera::SamplerState>& from) override { batches.start(sharded.stream(), from); }
  tessera::SamplerState sampler() const override { return batches.state(); }
  std::string headline() override { return "logistic regression on samples drawn by seed"; }
  std::size_t begin_step(std::size_t) override { return batches.next(); }
  void train_micro_batch(const MicroBatch& micro) override {
    const LabelledRows rows = batches.rows(sharded.stream(), micro);
    sharded.forward(regression, rows, micro.loss);
    sharded.backward(regression, rows);
  }
  LabelledBatches batches;
  Regression regression;
  tessera::FullyShard sharded;  // last: it ends before what its work reads
};

int main(int argc, char** argv) {
  const Program program{.description = "Logistic regression on samples that are drawn by seed.",
                        .data = "the drawn samples",
                        .samples = data.size(),
                        .epochs = 4,
                        .add_options =
                            [](CommandLine&, RunOptions& options) {
                              options.device = tessera::DeviceChoice::cpu;
                              options.adamw_learning_rate = 0.02;
                            },
                        .training = [](auto& world, auto& options) { return std::make_unique<Mine>(world, options); }};
  return run(argc, argv, program);
}
