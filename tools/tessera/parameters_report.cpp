// A row for each strategy, each formula a column.
#include "parameters_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "accounting.hpp"
#include "text.hpp"

namespace tools {

using nlohmann::ordered_json;
using tessera::Strategy;

namespace {

struct Column {
  const char* name;
  const char* key;
  tessera::Precision precision;
  std::size_t micro_batches;
};
constexpr Column columns[] = {{"fp32", "fp32", tessera::fp32_precision, 1},
                              {"mixed", "mixed", tessera::bf16_mixed, 1},
                              {"fp32, accumulating", "fp32_accumulating", tessera::fp32_precision, 2},
                              {"mixed, accumulating", "mixed_accumulating", tessera::bf16_mixed, 2}};

double persistent(const ParametersQuestion& question, Strategy strategy, const Column& column) {
  tessera::plan::PlanOptions options;
  options.strategy = strategy;
  options.precision = column.precision;
  options.ranks = question.ranks;
  options.micro_batches = column.micro_batches;
  return persistent_bytes({question.parameters}, options, question.optimizer_states);
}

}  // namespace

std::string text_of(const ParametersQuestion& question) {
  std::vector<std::vector<std::string>> rows = {{"on each rank", "the ZeRO paper"}};
  for (const Column& column : columns) rows.front().emplace_back(column.name);
  for (const Strategy strategy : tessera::all_strategies) {
    auto& cells = rows.emplace_back();
    cells.emplace_back(to_string(strategy));
    cells.push_back(decimal_size(zero_paper_bytes(strategy, question.parameters, question.ranks)));
    for (const Column& column : columns) cells.push_back(decimal_size(persistent(question, strategy, column)));
  }
  return fmt::format(
      "{:g} parameters on {}, {} fp32 states each\n\n{}\n"
      "The paper: 2 bytes for a parameter, 2 for its gradient, 12 for Adam. The others are what Tessera keeps: fp32\n"
      "masters and reduced gradients, with bf16 or fp16 copies where it is mixed, for one micro-batch and for "
      "several.\n"
      "Gathered units, gradients on their way, padding and activations come on top: plan a model (--model) for "
      "those.\n",
      question.parameters, counted(question.ranks, "rank", "ranks"), question.optimizer_states, table(rows));
}

ordered_json json_of(const ParametersQuestion& question) {
  ordered_json strategies;
  for (const Strategy strategy : tessera::all_strategies) {
    ordered_json bytes = {{"zero_paper", zero_paper_bytes(strategy, question.parameters, question.ranks)}};
    for (const Column& column : columns) bytes[column.key] = persistent(question, strategy, column);
    strategies[std::string(to_string(strategy))] = bytes;
  }
  return {{"parameters", question.parameters}, {"ranks", question.ranks}, {"bytes", strategies}};
}

}  // namespace tools
