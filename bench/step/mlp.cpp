// The multilayer perceptron of models/mlp: `layers` layers of width × width, and one to the classes. The batch
// is a formula that compare_torch repeats.
#include <cstdint>
#include <span>
#include <vector>

#include "models/mlp/model.hpp"
#include "step/loop.hpp"

namespace bench {

namespace {

constexpr std::size_t classes = 10;

template <typename T>
class MlpSubject {
 public:
  MlpSubject(const StepOptions& options, int rank)
      : shape_{options.width, options.width, options.layers - 1, classes},
        rows_(options.batch),
        features_(rows_ * options.width),
        labels_(rows_),
        mlp_(shape_) {
    const std::size_t first = static_cast<std::size_t>(rank) * rows_;
    for (std::size_t i = 0; i < rows_; ++i) {
      labels_[i] = static_cast<std::int32_t>((first + i) % classes);
      for (std::size_t j = 0; j < options.width; ++j) {
        features_[i * options.width + j] = static_cast<float>(((first + i) * 131 + j * 31) % 257) / 128.0f - 1.0f;
      }
    }
  }

  tessera::Bytes activations() const { return models::Mlp<T>::planned_activation_bytes(shape_, rows_); }
  std::optional<tessera::plan::Program> program() const { return std::nullopt; }
  void add_to(tessera::FullyShard& model) { mlp_.add_to(model, rows_); }
  void use(std::span<std::byte> memory) { mlp_.use(memory); }
  void train(tessera::FullyShard& model, float* loss) {
    mlp_.train(model, {features_.data(), rows_, shape_.in}, {.targets = {.labels = labels_}, .loss = loss});
  }

 private:
  models::MlpShape shape_;
  std::size_t rows_;
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
  models::Mlp<T> mlp_;
};

}  // namespace

const char* const model_name = "mlp";

StepOptions default_options() { return {.batch = 64, .width = 2048, .layers = 8}; }

StepTimes train(tessera::World& world, const StepOptions& options) { return train_in<MlpSubject>(world, options); }

Products products(const StepOptions& options) {
  Products result{.linear = {options.layers, {options.batch, options.width, options.width}}};
  result.linear.front().wants_dx = false;
  result.linear.push_back({options.batch, options.width, classes});
  return result;
}

}  // namespace bench
