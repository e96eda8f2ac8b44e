// Where samples come from.
#include "train_mlp/dataset.hpp"

#include <filesystem>
#include <utility>

#include "tessera/data/labelled_data.hpp"
#include "tessera/data/synthetic.hpp"

namespace examples {

namespace {

constexpr std::size_t synthetic_samples = 65536;
constexpr std::size_t synthetic_held_out = 512;
constexpr std::size_t file_epochs = 30;
constexpr std::uint64_t split_seed = 0;

// A fifth is held out.
Dataset split_in_two(std::string name, const tessera::LabelledData& data) {
  tessera::Split parts = tessera::split(data, data.size() / 5, split_seed);
  Dataset result;
  result.name = std::move(name);
  result.training_samples = parts.training.size();
  result.training = std::make_shared<tessera::LabelledData>(std::move(parts.training));
  const std::size_t held_out = parts.held_out.size();
  result.held_out = {std::make_shared<tessera::LabelledData>(std::move(parts.held_out)), 0, held_out};
  result.default_epochs = file_epochs;
  return result;
}

// Pixels are 0 to 16.
Dataset digits() {
  const std::filesystem::path path = std::filesystem::path(EXAMPLES_DATA_DIRECTORY) / "digits.csv";
  return split_in_two("digits", tessera::read_labelled_csv(path, {.columns = 64, .classes = 10, .scale = 1.0f / 16}));
}

Dataset synthetic(std::uint64_t seed) {
  tessera::SyntheticOptions options;
  options.samples = synthetic_samples + synthetic_held_out;
  options.seed = seed;
  Dataset result;
  result.name = "synthetic";
  result.training = std::make_shared<tessera::SyntheticData>(options);
  result.training_samples = synthetic_samples;
  result.held_out = {result.training, synthetic_samples, synthetic_held_out};
  return result;
}

}  // namespace

Dataset load_dataset(const std::string& name, std::uint64_t seed) {
  if (name == "digits") return digits();
  if (name == "synthetic") return synthetic(seed);
  return split_in_two(std::filesystem::path(name).filename().string(), tessera::read_labelled_csv(name));
}

}  // namespace examples
