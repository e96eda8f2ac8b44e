// Activations are a region of their own, so one plan without them answers for every batch.
#include "fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "json/json.hpp"
#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;
using tessera::Strategy;

namespace {

constexpr std::size_t most_tokens = std::size_t{1} << 28;  // in one micro-batch of a rank, as in train_gpt

class Search {
 public:
  Search(const FitQuestion& question, const std::vector<std::string>& states) : question_(question), states_(states) {}

  Fit run() {
    Fit fit;
    for (const Setting& setting : settings()) {
      FitCandidate candidate = best_batch(setting);
      (candidate.memory.peak <= question_.limit ? fit.fitting : fit.too_large).push_back(std::move(candidate));
    }
    std::stable_sort(fit.fitting.begin(), fit.fitting.end(), [](const FitCandidate& a, const FitCandidate& b) {
      return a.moved_per_sample < b.moved_per_sample;
    });
    return fit;
  }

 private:
  // In the order that decides among equals.
  std::vector<Setting> settings() const {
    const Freedom& free = question_.freedom;
    std::vector<Setting> result = {question_.setting};
    if (free.checkpointing && question_.subject.counts_activations()) {
      vary(result, {false, true}, [](Setting& setting, bool value) { setting.activation_checkpointing = value; });
    }
    if (free.strategy) {
      vary(result, {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp},
           [](Setting& setting, Strategy value) { setting.options.strategy = value; });
    }
    if (free.prefetch) {
      vary(result, {std::size_t{1}, std::size_t{2}, std::size_t{0}},
           [](Setting& setting, std::size_t value) { setting.options.prefetch = value; });
    }
    if (free.reshard) {
      vary(result, {true, false}, [](Setting& setting, bool value) { setting.options.reshard_after_forward = value; });
    }
    result.erase(std::unique(result.begin(), result.end(), are_one), result.end());
    return result;
  }

  template <typename Value, typename Set>
  static void vary(std::vector<Setting>& settings, std::initializer_list<Value> values, const Set& set) {
    std::vector<Setting> result;
    for (const Setting& setting : settings) {
      for (const Value& value : values) set(result.emplace_back(setting), value);
    }
    settings = std::move(result);
  }

  // Where parameters stay whole nothing is gathered ahead, or again.
  static bool are_one(const Setting& a, const Setting& b) {
    return a.options.strategy == b.options.strategy && a.options.strategy != Strategy::fsdp &&
           a.activation_checkpointing == b.activation_checkpointing;
  }

  std::vector<std::size_t> batches() const {
    if (!question_.freedom.batch || !question_.subject.counts_activations()) return {question_.setting.batch};
    std::vector<std::size_t> result;
    const std::size_t most = std::min(most_batch, most_tokens / question_.subject.seq());
    for (std::size_t batch = 1; batch <= most; batch *= 2) result.push_back(batch);
    return result;
  }

  FitCandidate best_batch(const Setting& setting) {
    plan::CompileInput input = compile_input(setting);
    const plan::Plan planned = compile(input);
    const plan::MemoryReport without = plan::memory(planned);
    FitCandidate best;
    for (const std::size_t batch : batches()) {
      FitCandidate candidate{.setting = setting, .memory = without, .moved = traffic(planned).moved};
      candidate.setting.batch = batch;
      add_activations(candidate);
      const double samples = static_cast<double>(batch * planned.options.micro_batches);
      candidate.moved_per_sample = static_cast<double>(candidate.moved.count()) / samples;
      const bool is_first = best.memory.peak == Bytes(0);
      if (!is_first && candidate.memory.peak > question_.limit) break;
      best = candidate;
    }
    return best;
  }

  // Of a plan without activations.
  plan::CompileInput compile_input(const Setting& setting) const {
    models::Model model = question_.subject.model(setting.activation_checkpointing);
    return {std::move(model.units), std::move(model.program), setting.options, states_};
  }

  void add_activations(FitCandidate& candidate) {
    const auto key = std::pair(candidate.setting.activation_checkpointing, candidate.setting.batch);
    auto known = activations_.find(key);
    if (known == activations_.end()) {
      known = activations_.emplace(key, question_.subject.activations(candidate.setting)).first;
    }
    const Bytes region = round_up(known->second, plan::region_alignment);
    candidate.memory.categories[static_cast<std::size_t>(plan::Category::activations)].size = region;
    candidate.memory.peak += region;
    candidate.memory.live += known->second;
  }

  const FitQuestion& question_;
  const std::vector<std::string>& states_;
  std::map<std::pair<bool, std::size_t>, Bytes> activations_;
};

}  // namespace

Fit find_fit(const FitQuestion& question, const std::vector<std::string>& optimizer_states) {
  return Search(question, optimizer_states).run();
}

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

Json candidate_json(const FitCandidate& candidate) {
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

Json json_of(const FitQuestion& question, const Fit& fit) {
  Json fitting = Json::array();
  for (const FitCandidate& candidate : fit.fitting) fitting.push_back(candidate_json(candidate));
  Json too_large = Json::array();
  for (const FitCandidate& candidate : fit.too_large) {
    Json entry = candidate_json(candidate);
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
