// A headline, the verdict, and the bytes of a rank by category.
#include "report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;

namespace {

std::size_t parameters_of(const plan::Plan& planned) {
  std::size_t count = 0;
  for (const plan::UnitLayout& layout : planned.layouts) {
    for (std::size_t p = 0; p < layout.parameters(); ++p) count += layout.elements(p);
  }
  return count;
}

// What a category is for, in the reader's terms.
std::string_view purpose(plan::Category category) {
  switch (category) {
    case plan::Category::parameters: return "fp32 masters, and whole copies";
    case plan::Category::gradients: return "reduced, fp32";
    case plan::Category::optimizer: return "states, fp32";
    case plan::Category::accumulation: return "whole fp32 gradients of several micro-batches";
    case plan::Category::parameter_slots: return "gathered units";
    case plan::Category::gradient_slots: return "unreduced gradients";
    case plan::Category::staging: return "a gradient in the type in which it travels";
    case plan::Category::buffers: return "state that is not trained, fp32";
    case plan::Category::activations: return "the layers' own block";
    case plan::Category::scalars: return "norms and flags";
  }
  return "";
}

std::string headline(const plan::Plan& planned) {
  const plan::PlanOptions& options = planned.options;
  return fmt::format(
      "{} parameters in {} units; {} on {} ranks, {}, prefetch {}, {} micro-batches ({}), states of the "
      "optimizer: {}\n",
      parameters_of(planned), planned.units.size(), to_string(options.strategy), options.ranks,
      to_string(options.precision.parameter), options.prefetch, options.micro_batches, to_string(options.accumulation),
      fmt::join(planned.optimizer_states, ", "));
}

std::string verdict(const plan::Verification& verification) {
  if (verification.ok()) {
    return fmt::format("verified: sound in all {} states, {} operations run in the abstract\n", verification.states,
                       verification.operations);
  }
  std::string text = fmt::format("NOT SOUND: {} violations\n", verification.violations.size());
  for (const plan::Violation& violation : verification.violations) {
    text += fmt::format("  {}: {}\n", to_string(violation.kind), violation.text);
  }
  return text;
}

std::string row(std::string_view name, Bytes size, std::string_view what) {
  return fmt::format("{:<16} {:>16} {:>10}  {}\n", name, size.count(), to_string(size), what);
}

}  // namespace

std::string text_of(const PlanReport& report) {
  std::string text = headline(report.plan) + verdict(report.verification);
  text += fmt::format("\n{:<16} {:>16}\n", "on each rank", "bytes");
  for (const plan::CategoryBytes& category : report.memory.categories) {
    text += row(to_string(category.category), category.size, purpose(category.category));
  }
  text += row("peak", report.memory.peak, "the arena: the sum of these regions, each of whole pages");
  return text + row("live", report.memory.live, "the most that is in use at once");
}

std::string json_of(const PlanReport& report) {
  const plan::PlanOptions& options = report.plan.options;
  nlohmann::ordered_json categories;
  for (const plan::CategoryBytes& category : report.memory.categories) {
    categories[std::string(to_string(category.category))] = category.size.count();
  }
  nlohmann::ordered_json violations = nlohmann::ordered_json::array();
  for (const plan::Violation& violation : report.verification.violations) violations.push_back(violation.text);
  const nlohmann::ordered_json object = {{"parameters", parameters_of(report.plan)},
                                         {"units", report.plan.units.size()},
                                         {"ranks", options.ranks},
                                         {"strategy", to_string(options.strategy)},
                                         {"precision", to_string(options.precision.parameter)},
                                         {"prefetch", options.prefetch},
                                         {"reshard_after_forward", options.reshard_after_forward},
                                         {"overlap_reduction", options.overlap_reduction},
                                         {"bucket_cap", options.bucket_cap->count()},
                                         {"micro_batches", options.micro_batches},
                                         {"accumulate_mode", to_string(options.accumulation)},
                                         {"optimizer_states", report.plan.optimizer_states},
                                         {"hash", fmt::format("{:016x}", hash(report.plan))},
                                         {"categories", categories},
                                         {"peak", report.memory.peak.count()},
                                         {"live", report.memory.live.count()},
                                         {"verified",
                                          {{"sound", report.verification.ok()},
                                           {"states", report.verification.states},
                                           {"operations", report.verification.operations},
                                           {"violations", violations}}}};
  return object.dump(2) + "\n";
}

}  // namespace tools
