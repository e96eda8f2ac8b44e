// Range checks that all optimizers' settings share. Each throws UsageError naming the setting and its value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/shard/optimizer.hpp"

namespace tessera::optim {

struct Setting {
  std::string_view optimizer;
  std::string name;
  float value;
};

void require_not_negative(const Setting& setting);  // finite and >= 0
void require_positive(const Setting& setting);      // finite and > 0
void require_fraction(const Setting& setting);      // in [0, 1)

// Each group has a pattern, and its settings are in range.
void check_groups(std::string_view optimizer, const std::vector<ParameterGroup>& groups);
// None has settings that this optimizer would not read.
void refuse_adams_settings(std::string_view optimizer, const std::vector<ParameterGroup>& groups);

}  // namespace tessera::optim
