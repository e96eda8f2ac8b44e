// The GPT of models/gpt over 256 tokens. The batch is a formula that compare_torch repeats.
#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt/model.hpp"
#include "step/loop.hpp"

namespace bench {

namespace {

constexpr std::size_t vocabulary = 256;

template <typename T>
class GptSubject {
 public:
  GptSubject(const StepOptions& options, int rank)
      : shape_{.layers = options.layers,
               .dim = options.width,
               .heads = options.heads,
               .seq = options.sequence,
               .vocabulary = vocabulary},
        batch_(options.batch),
        ids_(batch_ * shape_.seq),
        targets_(ids_.size()),
        gpt_(shape_) {
    const std::size_t first = static_cast<std::size_t>(rank) * ids_.size();
    const auto token = [](std::size_t i) { return static_cast<std::int32_t>((i * i + 7 * i) / 3 % vocabulary); };
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      ids_[i] = token(first + i);
      targets_[i] = token(first + i + 1);
    }
  }

  tessera::Bytes activations() const { return models::Gpt<T>::planned_activation_bytes(shape_, batch_); }
  std::optional<tessera::plan::Program> program() const { return models::Gpt<T>::program(shape_); }
  void add_to(tessera::FullyShard& model) { gpt_.add_to(model); }
  void use(std::span<std::byte> memory) { gpt_.use(memory); }
  void train(tessera::FullyShard& model, float* loss) {
    gpt_.train(model, {.ids = ids_, .sequence = shape_.seq}, {.targets = targets_, .loss = loss}, {});
  }

 private:
  models::GptShape shape_;
  std::size_t batch_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int32_t> targets_;
  models::Gpt<T> gpt_;
};

}  // namespace

const char* const model_name = "gpt";

StepOptions default_options() { return {.batch = 8, .width = 256, .layers = 4}; }

StepTimes train(tessera::World& world, const StepOptions& options) { return train_in<GptSubject>(world, options); }

Products products(const StepOptions& options) {
  const std::size_t rows = options.batch * options.sequence;
  const std::size_t width = options.width;
  Products result{.attention = {.sequences = options.batch,
                                .sequence = options.sequence,
                                .heads = options.heads,
                                .head_dim = width / options.heads},
                  .attentions = options.layers};
  for (std::size_t i = 0; i < options.layers; ++i) {
    for (const auto& [in, out] :
         {std::pair{width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}}) {
      result.linear.push_back({rows, in, out});
    }
  }
  result.linear.push_back({rows, width, vocabulary});
  return result;
}

}  // namespace bench
