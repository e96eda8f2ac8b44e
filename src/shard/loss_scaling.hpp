// Which loss scaling a model trains with.
#pragma once

#include <optional>

#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera {

// What was asked for; else dynamic where gradients of any unit are fp16, and none elsewhere. Throws UsageError naming a
// setting that is out of range.
kernels::LossScaling resolved(const std::optional<kernels::LossScaling>& asked, const plan::Plan& plan);

}  // namespace tessera
