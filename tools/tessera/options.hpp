// A command's options, read strictly: a number is digits within its limits, nothing is given twice, and whatever is
// wrong is one line that names the option. Options for counts and names, CostLine for numbers with units.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_line/parser.hpp"
#include "cost/quantity.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/base/error.hpp"

namespace tools {

// A command line that cannot be followed. The text names the option.
class OptionError : public tessera::UsageError {
 public:
  using UsageError::UsageError;
};

struct Limits {
  std::size_t least;
  std::size_t most;
};
std::size_t whole_number(const std::string& name, std::string_view text, Limits limits);

// "80GB" (decimal), "80GiB" (binary), "512 MiB", "1.5TB", or bytes without a unit; from 1 byte to 1 EiB.
tessera::Bytes size_in_bytes(const std::string& name, std::string_view text);

class Options {
 public:
  // command: "tessera plan".
  Options(const std::string& command, const std::string& description, const std::string& footer);

  void group(const std::string& title) { group_ = title; }  // of the options that follow

  void take(const std::string& name, const std::string& type, const std::string& what,
            std::function<void(const std::string&)> take);
  void whole(const std::string& name, std::size_t& target, Limits limits, const std::string& what);
  void whole(const std::string& name, std::optional<std::size_t>& target, Limits limits, const std::string& what);

  template <typename Value>
  using Choices = std::vector<std::pair<std::string, Value>>;

  template <typename Value>
  void choice(const std::string& name, Value& target, const Choices<Value>& choices, const std::string& what) {
    std::string names;
    for (const auto& [choice, value] : choices) names += (names.empty() ? "" : "|") + choice;
    take(name, names, what, [=, &target](const std::string& text) {
      const auto is_it = [&](const auto& choice) { return choice.first == text; };
      const auto chosen = std::find_if(choices.begin(), choices.end(), is_it);
      if (chosen == choices.end()) refuse_choice(name, names, text);
      target = chosen->second;
    });
  }
  void yes_or_no(const std::string& name, bool& target, const std::string& what);
  // Declares a file or a folder that must stand on the command line without a name.
  void place(const std::string& name, std::filesystem::path& target, const std::string& what);
  void flag(const std::string& name, bool& target, const std::string& what);

  bool given(const std::string& name) const;

  // `arguments`: what follows the command. Sets the targets. False when only the help page was asked for, and printed.
  // Throws OptionError.
  bool parse(std::vector<std::string> arguments);

 private:
  [[noreturn]] static void refuse_choice(const std::string& name, const std::string& names, const std::string& text);

  CommandParser parser_;
  std::string group_ = "Options";
};

struct CostOption {
  std::string name;  // "--bytes"
  std::string type;  // in the help page: "SIZE"
  std::string what;  // and there too, with the default
  bool required = false;
};

// The command line of a subcommand of `tessera cost`. Targets must outlive parse(), and keep their value where an
// option is not given. Every refusal is a tessera::UsageError that names the option.
class CostLine {
 public:
  CostLine(const std::string& subcommand, const std::string& description, const std::string& footer);

  void number(const CostOption& option, double& target, const cost::Quantity& quantity);
  void number(const CostOption& option, std::optional<double>& target, const cost::Quantity& quantity);
  void whole(const CostOption& option, std::uint64_t& target, const cost::Quantity& quantity);
  void list(const CostOption& option, std::vector<double>& target, const cost::Quantity& quantity);
  // Each number larger than the one before it.
  void rising(const CostOption& option, std::vector<std::uint64_t>& target, const cost::Quantity& quantity);

  void dtype(tessera::DType& target);
  void json(bool& target);
  void plot(std::optional<std::string>& target);

  // False when only the help page was asked for, and printed.
  bool parse(const std::vector<std::string>& arguments);

 private:
  void add(const CostOption& option, std::function<void(const std::string&)> take);

  CommandParser parser_;
};

}  // namespace tools
