// A program's options, parsed strictly: a number is a number within its limits, nothing is given twice, and whatever is
// wrong is one line that names the option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line/parser.hpp"

namespace examples {

// An OptionError is a mistake on the command line. The text names the option.
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int exit_bad_options = 2;

struct WholeLimits {
  std::uint64_t least;
  std::uint64_t most;
};
struct RealLimits {
  double least;
  double most;
};

struct Choice {
  std::string name;
  std::function<void()> choose;
};

class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& footer);

  void group(const std::string& title) { group_ = title; }  // of the options that follow

  // An option's present value is its default; an empty one has the default that `what` tells.
  void whole(const std::string& name, std::size_t& target, WholeLimits limits, const std::string& what);
  void whole(const std::string& name, std::optional<std::size_t>& target, WholeLimits limits, const std::string& what);
  void real(const std::string& name, double& target, RealLimits limits, const std::string& what);
  void real(const std::string& name, std::optional<double>& target, RealLimits limits, const std::string& what);
  void choice(const std::string& name, const std::vector<Choice>& choices, const std::string& what);
  void path(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what);
  void directory(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what);
  void text(const std::string& name, std::string& target, const std::string& what);
  void text(const std::string& name, std::optional<std::string>& target, const std::string& type,
            const std::string& what);
  void flag(const std::string& name, bool& target, const std::string& what);
  // One that may have a value: --name or --name=VALUE.
  void flag(const std::string& name, bool& target, const std::vector<Choice>& values, const std::string& what);

  bool given(const std::string& name) const;

  // Sets the targets. False when only the help page was asked for, and printed. Throws OptionError.
  bool parse(int argc, char** argv);

 private:
  void add_path(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what,
                const std::string& type);
  struct Shown {
    std::string name;
    std::string what;
    std::string type;
    std::string present_value = {};
  };
  void add(const Shown& option, const std::function<void(const std::string&)>& take);

  tools::CommandParser parser_;
  std::string group_ = "Options";  // CLI11 hides what has none
};

}  // namespace examples
