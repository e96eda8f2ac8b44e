// Which of several ways computes something: what the build and the machine have decides, or an environment variable, or
// a test, and never a timing, so that a run can be repeated on the same machine bit by bit.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::nn {

// Set: an enum with a to_string().
template <typename Set>
struct Ways {
  const char* variable;         // of the environment
  std::string_view what;        // for messages: "products"
  std::string_view verb;        // "are"
  std::vector<Set> available;   // at least one
  Set best = available.back();  // of them
  std::string remark = {};      // behind their names
};

template <typename Set>
class Choice {
 public:
  // Takes what the variable names, else the best. Throws UsageError when it names none that is available.
  explicit Choice(Ways<Set> ways) : ways_(std::move(ways)), active_(first()) {}

  Set active() const { return active_.load(std::memory_order_relaxed); }

  // For the whole process. Throws UsageError when it is not available.
  void select(Set set) {
    if (std::find(ways_.available.begin(), ways_.available.end(), set) == ways_.available.end()) {
      throw UsageError(
          fmt::format("{} of {} {} not {}", ways_.what, to_string(set), ways_.verb, in_this_build_and_machine()));
    }
    active_ = set;
  }

 private:
  Set first() const {
    const char* const wish = std::getenv(ways_.variable);
    if (wish == nullptr) return ways_.best;
    for (const Set set : ways_.available) {
      if (to_string(set) == wish) return set;
    }
    throw UsageError(
        fmt::format("{}=\"{}\": no such {} {}", ways_.variable, wish, ways_.what, in_this_build_and_machine()));
  }

  std::string in_this_build_and_machine() const {
    std::vector<std::string_view> names;
    for (const Set set : ways_.available) names.push_back(to_string(set));
    return fmt::format("in this build and on this machine; available: {}{}", fmt::join(names, ", "), ways_.remark);
  }

  Ways<Set> ways_;
  std::atomic<Set> active_;
};

}  // namespace tessera::nn
