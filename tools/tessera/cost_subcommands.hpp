// The subcommands of `tessera cost`. Each takes what follows its name, and prints text, JSON or its help page.
// They throw tessera::UsageError, which names the option, and print nothing then.
#pragma once

#include <string>
#include <vector>

namespace tools {

void run_cost_allreduce(std::vector<std::string> arguments);
void run_cost_job(std::vector<std::string> arguments);
void run_cost_scaling(std::vector<std::string> arguments);
void run_cost_chart(std::vector<std::string> arguments);

}  // namespace tools
