// The options of `tessera`: sizes of memory, and numbers with units, on the command lines that all programs have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cost/quantity.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/trainer/command_line.hpp"

namespace tools {

using tessera::trainer::CommandLine;
using tessera::trainer::OptionError;
using tessera::trainer::whole_number;

// "80GB" (decimal), "80GiB" (binary), "512 MiB", "1.5TB", or bytes without a unit.
tessera::Bytes size_in_bytes(const std::string& name, const std::string& text);

using Command = bool (*)(std::vector<std::string> arguments);

// A command that has others below it.
struct Subcommands {
  std::string_view command;  // "tessera cost"
  std::string_view names;    // "allreduce, job, scaling or chart"
  std::string_view usage;    // the page of --help
  std::map<std::string_view, Command> commands;
};
// Runs the one that the arguments begin with. Throws OptionError where that is none.
bool run_subcommand(const Subcommands& of, const std::vector<std::string>& arguments);

// The command line of a subcommand of `tessera cost`. Targets must outlive parse(), and keep their value where an
// option is not given.
class CostLine : public CommandLine {
 public:
  CostLine(const std::string& subcommand, const std::string& description, const std::string& footer)
      : CommandLine(description, footer, "tessera cost " + subcommand) {}

  template <typename Number>  // double, or an optional one
  void number(const Option& option, Number& target, const cost::Quantity& quantity) {
    take(option, [name = option.name, &target, &quantity](const std::string& text) {
      target = cost::number(name, text, quantity);
    });
  }
  void whole(const Option& option, std::uint64_t& target, const cost::Quantity& quantity);
  void list(const Option& option, std::vector<double>& target, const cost::Quantity& quantity);
  // Each number larger than the one before it.
  void rising(const Option& option, std::vector<std::uint64_t>& target, const cost::Quantity& quantity);

  void dtype(tessera::DType& target);
  void json(bool& target);
  void plot(std::optional<std::string>& target);
};

}  // namespace tools
