// What is planned for: a model by name, by its widths or from a file, and what is known of its activations.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "models/gpt.hpp"
#include "models/llama.hpp"
#include "tessera/plan/compile.hpp"

namespace tools {

// One way to train it.
struct Setting {
  tessera::plan::PlanOptions options;  // activations: filled in from the rest
  bool activation_checkpointing = false;
  std::size_t batch = 1;  // sequences of a rank and micro-batch
};

class Subject {
 public:
  static Subject gpt(std::string name, const examples::GptShape& shape);
  static Subject llama(const models::LlamaShape& shape);
  static Subject perceptron(const std::vector<std::size_t>& widths);
  static Subject file(const std::filesystem::path& path);  // throws DataError

  const std::string& name() const { return name_; }
  bool counts_activations() const { return std::holds_alternative<examples::GptShape>(shape_); }
  bool recomputes() const { return !std::holds_alternative<models::Model>(shape_); }  // has a form with recomputation
  std::size_t seq() const;  // tokens of a sequence; 0 where activations are not counted

  models::Model model(bool activation_checkpointing) const;
  // 0 where they are not counted.
  tessera::Bytes activations(const Setting& setting) const;

 private:
  using Shape = std::variant<examples::GptShape, models::LlamaShape, models::Model>;
  Subject(std::string name, Shape shape) : name_(std::move(name)), shape_(std::move(shape)) {}
  examples::GptShape gpt_shape(bool activation_checkpointing) const;

  std::string name_;
  Shape shape_;
};

// With the subject's activations.
tessera::plan::CompileInput compile_input(const Subject& subject, const Setting& setting,
                                          const std::vector<std::string>& optimizer_states);

}  // namespace tools
