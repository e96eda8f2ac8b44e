// --device, --backend, --sums and --precision tf32: where ranks compute, and how they exchange data there.
#pragma once

#include "common/run_options.hpp"

namespace examples {

void add_device_options(CommandLine& line, RunOptions& options);

// What these options cannot mean together. Throws OptionError.
void check_device_options(const CommandLine& line, const RunOptions& options);

// Where the ranks will compute: on the CPU in processes that mpirun started, and in a simulation. Throws
// UnavailableError as tessera::resolve() does.
tessera::DeviceKind device_kind(const RunOptions& options);

// "fp32", "bf16", "fp32, products in tf32"
std::string precision_text(const RunOptions& options);

}  // namespace examples
