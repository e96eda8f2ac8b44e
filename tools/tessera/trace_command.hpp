// `tessera trace summary`: what the file of --trace says.
#pragma once

#include <string>
#include <vector>

namespace tools {

// Prints the answer or a help page. Throws OptionError; DataError for what is no trace.
void run_trace(const std::vector<std::string>& arguments);

}  // namespace tools
