// A command's options, read strictly: a number is digits within its limits, nothing is given twice, and whatever is
// wrong is one line that names the option. A thin layer over CLI11, which does the help page.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/error.hpp"

// CLI11 itself stays in the sources: its header takes ten seconds to compile.
namespace CLI {
class App;
}  // namespace CLI

namespace tools {

// A command line that cannot be followed. The text names the option.
class OptionError : public tessera::UsageError {
 public:
  using UsageError::UsageError;
};

// `arguments`: what follows the command. False when only the help page was asked for, and printed. Throws OptionError,
// also when an option is given twice.
bool parse_each_once(CLI::App& app, std::vector<std::string> arguments);

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
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

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
  // What must stand on the command line without a name: a file or a folder.
  void place(const std::string& name, std::filesystem::path& target, const std::string& what);
  void flag(const std::string& name, bool& target, const std::string& what);

  bool given(const std::string& name) const;

  // `arguments`: what follows the command. Sets the targets. False when only the help page was asked for, and printed.
  // Throws OptionError.
  bool parse(std::vector<std::string> arguments);

 private:
  [[noreturn]] static void refuse_choice(const std::string& name, const std::string& names, const std::string& text);

  std::unique_ptr<CLI::App> app_;
  std::string group_ = "Options";
};

}  // namespace tools
