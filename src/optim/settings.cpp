// Range checks that all optimizers' settings share.
#include "optim/settings.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tessera/base/error.hpp"

namespace tessera::optim {

namespace {

void require(bool holds, const Setting& setting, std::string_view range) {
  if (!holds) {
    throw UsageError(
        fmt::format("{}: {} must be {}, but is {}", setting.optimizer, setting.name, range, setting.value));
  }
}

}  // namespace

void require_not_negative(const Setting& setting) {
  require(std::isfinite(setting.value) && setting.value >= 0.0f, setting, "at least 0 and finite");
}

void require_positive(const Setting& setting) {
  require(std::isfinite(setting.value) && setting.value > 0.0f, setting, "above 0 and finite");
}

void require_fraction(const Setting& setting) {
  require(setting.value >= 0.0f && setting.value < 1.0f, setting, "at least 0 and below 1");
}

void check_groups(std::string_view optimizer, const std::vector<ParameterGroup>& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string group = fmt::format("groups[{}]", i);
    if (groups[i].patterns.empty()) {
      throw UsageError(
          fmt::format("{}: {}.patterns must not be empty: the group matches no parameter", optimizer, group));
    }
    require_not_negative({optimizer, group + ".learning_rate_scale", groups[i].learning_rate_scale});
    if (groups[i].weight_decay) require_not_negative({optimizer, group + ".weight_decay", *groups[i].weight_decay});
  }
}

void refuse_adams_settings(std::string_view optimizer, const std::vector<ParameterGroup>& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    if (!group.beta1 && !group.beta2 && !group.epsilon) continue;
    throw UsageError(
        fmt::format("{}: groups[{}] sets beta1, beta2 or epsilon, which are Adam's and AdamW's", optimizer, i));
  }
}

}  // namespace tessera::optim
