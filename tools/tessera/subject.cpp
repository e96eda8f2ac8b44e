// One variant per source of shapes.
#include "subject.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/perceptron.hpp"
#include "models/units_file.hpp"

namespace tools {

using tessera::Bytes;

Subject Subject::gpt(std::string name, const examples::GptShape& shape) { return {std::move(name), shape}; }

Subject Subject::llama(const models::LlamaShape& shape) { return {std::string(shape.name), shape}; }

Subject Subject::perceptron(const std::vector<std::size_t>& widths) {
  return {fmt::format("mlp {}", fmt::join(widths, "x")), models::perceptron(widths)};
}

Subject Subject::file(const std::filesystem::path& path) {
  return {path.filename().string(), models::read_units(path)};
}

std::size_t Subject::seq() const { return counts_activations() ? std::get<examples::GptShape>(shape_).seq : 0; }

examples::GptShape Subject::gpt_shape(bool activation_checkpointing) const {
  examples::GptShape shape = std::get<examples::GptShape>(shape_);
  shape.activation_checkpointing = activation_checkpointing;
  return shape;
}

models::Model Subject::model(bool activation_checkpointing) const {
  if (counts_activations()) return models::gpt(gpt_shape(activation_checkpointing));
  if (const auto* shape = std::get_if<models::LlamaShape>(&shape_)) {
    return models::llama(*shape, activation_checkpointing);
  }
  return std::get<models::Model>(shape_);
}

Bytes Subject::activations(const Setting& setting) const {
  if (!counts_activations()) return Bytes(0);
  return models::gpt_activations(gpt_shape(setting.activation_checkpointing), setting.options.precision, setting.batch);
}

tessera::plan::CompileInput compile_input(const Subject& subject, const Setting& setting,
                                          const std::vector<std::string>& optimizer_states) {
  models::Model model = subject.model(setting.activation_checkpointing);
  tessera::plan::CompileInput input{std::move(model.units), std::move(model.program), setting.options,
                                    optimizer_states};
  input.options.activations = subject.activations(setting);
  return input;
}

}  // namespace tools
