// What fits as a table, and what does not with its reason.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "fit.hpp"
#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using nlohmann::ordered_json;
using tessera::Bytes;

namespace {

const plan::CategoryBytes& largest_term(const FitCandidate& candidate) {
  const auto& categories = candidate.memory.categories;
  return *std::max_element(categories.begin(), categories.end(),
                           [](const auto& a, const auto& b) { return a.size < b.size; });
}

bool is_sharded(const Setting& setting) { return setting.options.strategy == tessera::Strategy::fsdp; }

std::string yes_no(bool value) { return value ? "yes" : "no"; }

std::vector<std::string> row(const FitQuestion& question, const FitCandidate& candidate) {
  const Setting& setting = candidate.setting;
  const bool sharded = is_sharded(setting);
  std::vector<std::string> cells = {std::string(to_string(setting.options.strategy)),
                                    sharded ? fmt::to_string(setting.options.prefetch) : "-",
                                    sharded ? yes_no(setting.options.reshard_after_forward) : "-"};
  if (question.subject.counts_activations()) {
    cells.insert(cells.end(), {yes_no(setting.activation_checkpointing), fmt::to_string(setting.batch)});
  }
  cells.insert(cells.end(), {to_string(candidate.memory.peak), to_string(candidate.moved)});
  if (question.subject.counts_activations()) {
    cells.push_back(to_string(Bytes(static_cast<std::uint64_t>(candidate.moved_per_sample))));
  }
  return cells;
}

std::vector<std::string> head(const FitQuestion& question) {
  if (!question.subject.counts_activations()) return {"strategy", "prefetch", "reshard", "peak", "sent in a step"};
  return {"strategy", "prefetch", "reshard", "recompute", "batch", "peak", "sent in a step", "per sequence"};
}

ordered_json candidate_json(const FitCandidate& candidate) {
  const plan::PlanOptions& options = candidate.setting.options;
  return {{"strategy", to_string(options.strategy)},
          {"prefetch", options.prefetch},
          {"reshard_after_forward", options.reshard_after_forward},
          {"activation_checkpointing", candidate.setting.activation_checkpointing},
          {"batch", candidate.setting.batch},
          {"peak", candidate.memory.peak.count()},
          {"moved", candidate.moved.count()},
          {"moved_per_sample", candidate.moved_per_sample}};
}

}  // namespace

std::string setting_text(const Subject& subject, const Setting& setting) {
  std::string text(to_string(setting.options.strategy));
  if (is_sharded(setting)) {
    text += fmt::format(", prefetch {}", setting.options.prefetch);
    if (!setting.options.reshard_after_forward) text += ", kept whole until backward";
  }
  if (setting.activation_checkpointing) text += ", recomputed";
  if (subject.counts_activations()) text += fmt::format(", batch {}", setting.batch);
  return text;
}

std::string reason(const FitCandidate& candidate, Bytes limit) {
  const plan::CategoryBytes& term = largest_term(candidate);
  const std::string size = to_string(term.size);
  const std::string what = term.size > limit ? fmt::format("{} alone takes {}", to_string(term.category), size)
                                             : fmt::format("{} takes most of it, {}", to_string(term.category), size);
  return fmt::format("needs {}; {}", to_string(candidate.memory.peak), what);
}

std::string text_of(const FitQuestion& question, const Fit& fit) {
  std::vector<std::vector<std::string>> fitting = {head(question)};
  for (const FitCandidate& candidate : fit.fitting) fitting.push_back(row(question, candidate));
  std::string text =
      fmt::format("{} on {}, {} ({}) each: what fits, the fewest bytes sent {} first\n\n{}", question.subject.name(),
                  counted(question.setting.options.ranks, "rank", "ranks"),
                  decimal_size(static_cast<double>(question.limit.count())), to_string(question.limit),
                  question.subject.counts_activations() ? "for each sequence" : "in a step", table(fitting));
  if (fit.too_large.empty()) return text + "\nEverything fits.\n";
  text += "\nWhat does not fit:\n";
  for (const FitCandidate& candidate : fit.too_large) {
    text +=
        fmt::format("  {}: {}\n", setting_text(question.subject, candidate.setting), reason(candidate, question.limit));
  }
  return text;
}

ordered_json json_of(const FitQuestion& question, const Fit& fit) {
  ordered_json fitting = ordered_json::array();
  for (const FitCandidate& candidate : fit.fitting) fitting.push_back(candidate_json(candidate));
  ordered_json too_large = ordered_json::array();
  for (const FitCandidate& candidate : fit.too_large) {
    ordered_json entry = candidate_json(candidate);
    const plan::CategoryBytes& term = largest_term(candidate);
    entry["largest_term"] = to_string(term.category);
    entry["largest_term_bytes"] = term.size.count();
    too_large.push_back(std::move(entry));
  }
  return {{"model", question.subject.name()},
          {"limit", question.limit.count()},
          {"fits", fitting},
          {"does_not_fit", too_large}};
}

}  // namespace tools
