// A program's options, parsed strictly: a number is a number within its limits, nothing is given twice, and whatever is
// wrong is one line that names the option. A layer over CLI11, whose header takes ten seconds to compile and stands in
// command_line.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace CLI {
class App;
}

#pragma GCC visibility push(default)

namespace tessera::trainer {

// An OptionError is a mistake on the command line. The text names the option.
class OptionError : public UsageError {
 public:
  using UsageError::UsageError;
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

// The number that the whole text is: a std::uint64_t or a double.
template <typename Number>
std::optional<Number> number_in(std::string_view text);

// The parts between commas, or between other characters: one more than there are of these; parts may be empty.
std::vector<std::string> split(const std::string& text, char between = ',');

// Digits alone, within the limits. Throws OptionError otherwise.
std::size_t whole_number(const std::string& name, std::string_view text, WholeLimits limits);

struct Choice {
  std::string name;
  std::function<void()> choose;
};

class CommandLine {
 public:
  // program: as the page names it; empty: as it was called. Lines of all texts are broken where they are too long, but
  // not those that begin with a blank.
  CommandLine(const std::string& description, const std::string& footer, const std::string& program = {});
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
  ~CommandLine();

  void group(const std::string& title) { group_ = title; }  // of the options that follow

  struct Option {
    std::string name;  // "--batch"
    std::string type;  // "N"
    std::string what;
    bool required = false;
    std::string present_value = {};  // empty: `what` tells the default
  };
  // An option of any kind: `take` is called with its text, and throws OptionError where that is wrong.
  void take(const Option& option, std::function<void(const std::string&)> take);

  // An option's present value is its default; an empty one has the default that `what` tells.
  void whole(const std::string& name, std::size_t& target, WholeLimits limits, const std::string& what);
  void whole(const std::string& name, std::optional<std::size_t>& target, WholeLimits limits, const std::string& what);
  void real(const std::string& name, double& target, RealLimits limits, const std::string& what);
  void real(const std::string& name, std::optional<double>& target, RealLimits limits, const std::string& what);
  void choice(const std::string& name, const std::vector<Choice>& choices, const std::string& what);
  template <typename Value>
  void choice(const std::string& name, Value& target, const std::vector<std::pair<std::string, Value>>& values,
              const std::string& what) {
    std::vector<Choice> choices;
    for (const auto& [word, value] : values) choices.push_back({word, [&target, value = value] { target = value; }});
    choice(name, choices, what);
  }
  void yes_or_no(const std::string& name, bool& target, const std::string& what);
  void path(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what);
  void directory(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what);
  // Declares a file or a folder that must stand on the command line without a name.
  void place(const std::string& name, std::filesystem::path& target, const std::string& what);
  void text(const std::string& name, std::string& target, const std::string& what);
  void text(const std::string& name, std::optional<std::string>& target, const std::string& type,
            const std::string& what);
  void flag(const std::string& name, bool& target, const std::string& what);
  // One that may have a value: --name or --name=VALUE.
  void flag(const std::string& name, bool& target, const std::vector<Choice>& values, const std::string& what);

  bool given(const std::string& name) const;

  // Sets the targets. False when only the help page was asked for, and printed (by the first process of a job alone).
  // Throws OptionError.
  bool parse(int argc, char** argv);
  bool parse(std::vector<std::string> arguments);  // without the program's name

 private:
  void add_path(const Option& option, std::optional<std::filesystem::path>& target, const std::string& thing);
  std::vector<std::string> with_negative_values(const std::vector<std::string>& arguments) const;

  std::unique_ptr<CLI::App> app_;
  bool named_by_caller_;
  std::string group_ = "Options";  // CLI11 hides what has none
};

}  // namespace tessera::trainer

#pragma GCC visibility pop
