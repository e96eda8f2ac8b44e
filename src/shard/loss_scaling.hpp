// Which loss scaling a model trains with, and what is said when one step after another is skipped.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/comm/world.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera {

// Returns what was asked for; else dynamic where gradients of any unit are fp16, and none elsewhere. Throws UsageError
// naming a setting that is out of range.
kernels::LossScaling resolved(const std::optional<kernels::LossScaling>& asked, const plan::Plan& plan);

// Warns, on rank 0, when so many steps in a row were skipped, and again each time that the row has doubled. A dynamic
// scale may skip some twenty while it falls from 65536.
class SkippedSteps {
 public:
  static constexpr std::int64_t many = 32;
  explicit SkippedSteps(const World& world) : world_(world) {}
  // The scalars after an update, by the one thread that looks.
  void look(const kernels::StepScalars& now);

 private:
  const World& world_;
  std::int64_t applied_ = 0;         // updates, when the row began
  std::int64_t skipped_before_ = 0;  // the row
  std::int64_t next_ = many;
};

}  // namespace tessera
