// Activations are a region of their own, so one plan without them answers for every batch.
#include "fit.hpp"

#include <algorithm>
#include <map>
#include <utility>

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

}  // namespace tools
