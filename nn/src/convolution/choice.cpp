// As products/choice.cpp chooses products.
#include "src/convolution/choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "src/convolution/onednn.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::convolutions {

namespace {

constexpr const char* variable = "TESSERA_CONVOLUTIONS";

std::string available_names() {
  std::vector<std::string_view> names;
  for (const Set set : available()) names.push_back(to_string(set));
  return fmt::format("{}", fmt::join(names, ", "));
}

Set initial_set() {
  const std::vector<Set> sets = available();
  const char* const wish = std::getenv(variable);
  if (wish == nullptr) return sets.back();
  const auto found = std::find_if(sets.begin(), sets.end(), [&](Set set) { return to_string(set) == wish; });
  if (found != sets.end()) return *found;
  throw UsageError(fmt::format("{}=\"{}\": no such convolutions in this build and on this machine; available: {}",
                               variable, wish, available_names()));
}

std::atomic<Set>& active_set() {
  static std::atomic<Set> set = initial_set();
  return set;
}

}  // namespace

std::string_view to_string(Set set) { return set == Set::onednn ? "onednn" : "products"; }

std::vector<Set> available() {
  std::vector<Set> sets{Set::products};
  if (by_onednn::convolves<float>()) sets.push_back(Set::onednn);
  return sets;
}

Set active() { return active_set().load(std::memory_order_relaxed); }

void select(Set set) {
  const std::vector<Set> sets = available();
  if (std::find(sets.begin(), sets.end(), set) == sets.end()) {
    throw UsageError(fmt::format("convolutions of {} are not in this build and on this machine; available: {}",
                                 to_string(set), available_names()));
  }
  active_set() = set;
}

}  // namespace tessera::nn::convolutions
