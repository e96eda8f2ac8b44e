// `tessera plan`: the bytes, the traffic and the schedule of a training step.
#pragma once

#include <string>
#include <vector>

namespace tools {

// `arguments`: what follows `tessera plan`. Prints; true when every plan that was asked for is sound. Throws
// OptionError for bad options, and tessera::Error for what cannot be planned or fits nowhere.
bool run_plan(std::vector<std::string> arguments);

}  // namespace tools
