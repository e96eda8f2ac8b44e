// The best that a plan allows: every operation starts as soon as its stream is free and what it waits for is done.
#pragma once

#include <functional>

#include "tessera/plan/plan.hpp"

namespace bench {

// Seconds of one step (the segment `only`, then `update`), of many one after the other. `seconds_of` says how long an
// operation takes. Waits on the host are those of streams that run at once: the compute stream's.
double best_step(const tessera::plan::Plan& plan,
                 const std::function<double(const tessera::plan::Operation&)>& seconds_of);

}  // namespace bench
