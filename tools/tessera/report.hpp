// What `tessera plan` found out, as text for people and as JSON for programs.
#pragma once

#include <string>

#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tools {

struct PlanReport {
  const tessera::plan::Plan& plan;
  const tessera::plan::MemoryReport& memory;
  const tessera::plan::Verification& verification;
};

std::string text_of(const PlanReport& report);
std::string json_of(const PlanReport& report);

}  // namespace tools
