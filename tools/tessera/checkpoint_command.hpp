// `tessera checkpoint`: lists, shows, verifies, exports and compares checkpoints.
#pragma once

#include <string>
#include <vector>

namespace tools {

// `arguments`: what follows `tessera checkpoint`. Prints what was asked for. False where the answer is no: a checkpoint
// is damaged, or two differ. Throws OptionError for bad options, and tessera::Error for what cannot be read or written.
bool run_checkpoint(const std::vector<std::string>& arguments);

}  // namespace tools
