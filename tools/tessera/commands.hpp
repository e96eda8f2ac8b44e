// The commands of the tool `tessera`.
#pragma once

#include <string>
#include <vector>

namespace tools {

// The commands of the tool `tessera`. Each takes what follows its name, and prints its answer or a help page. False
// where the answer is no. They throw OptionError for bad options, and tessera::Error for what cannot be read, written,
// drawn or planned.

bool run_plan(std::vector<std::string> arguments);         // no: a plan that was asked for is not sound
bool run_calibrate(std::vector<std::string> arguments);    // measures, and writes the machine's file
bool run_trace(std::vector<std::string> arguments);        // DataError for what is no trace
bool run_checkpoint(std::vector<std::string> arguments);   // no: a checkpoint is damaged, or two differ
bool run_verify_bits(std::vector<std::string> arguments);  // no: two runs part
bool run_cost(std::vector<std::string> arguments);

// The subcommands of `tessera cost`. They print nothing where they throw.
bool run_cost_allreduce(std::vector<std::string> arguments);
bool run_cost_job(std::vector<std::string> arguments);
bool run_cost_scaling(std::vector<std::string> arguments);
bool run_cost_chart(std::vector<std::string> arguments);

}  // namespace tools
