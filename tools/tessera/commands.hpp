// The commands of the tool `tessera`.
#pragma once

#include <string>
#include <vector>

namespace tools {

// `arguments`: what follows `tessera plan`. Prints; true when every plan that was asked for is sound. Throws
// OptionError for bad options, and tessera::Error for what cannot be planned or fits nowhere.
bool run_plan(std::vector<std::string> arguments);

// `arguments`: what follows `tessera calibrate`. Measures, and writes the machine's file. Throws OptionError, and
// tessera::Error for files that cannot be read or written.
void run_calibrate(std::vector<std::string> arguments);

// `arguments`: what follows `tessera trace`. Prints the answer or a help page. Throws OptionError; DataError for what
// is no trace.
void run_trace(const std::vector<std::string>& arguments);

// `arguments`: what follows `tessera checkpoint`. Prints what was asked for. False where the answer is no: a checkpoint
// is damaged, or two differ. Throws OptionError for bad options, and tessera::Error for what cannot be read or written.
bool run_checkpoint(const std::vector<std::string>& arguments);

// `arguments`: what follows `tessera verify-bits`. Prints where two runs part; true where they have the same bits.
// Throws OptionError for bad options and for files that cannot be compared.
bool run_verify_bits(std::vector<std::string> arguments);

// `arguments`: what follows `tessera cost`. Prints what was asked for. Throws OptionError for bad options, and
// tessera::Error where a figure cannot be drawn.
void run_cost(const std::vector<std::string>& arguments);

// The subcommands of `tessera cost`. Each takes what follows its name, and prints text, JSON or its help page.
// They throw tessera::UsageError, which names the option, and print nothing then.
void run_cost_allreduce(std::vector<std::string> arguments);
void run_cost_job(std::vector<std::string> arguments);
void run_cost_scaling(std::vector<std::string> arguments);
void run_cost_chart(std::vector<std::string> arguments);

}  // namespace tools
