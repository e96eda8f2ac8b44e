// Finds options on a command line and prints its help page: what every program here reads its options with, each in
// the terms of its own. A thin layer over CLI11, whose header takes ten seconds to compile and stands in parser.cpp
// alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tools {

// A command line that cannot be followed. The text names the option.
class CommandLineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An option as the help page shows it.
struct OptionText {
  std::string name;  // "--ranks"; without the dashes it is a place: what stands there has no name before it
  std::string type;  // "N"
  std::string what;
  std::string group = "Options";   // its heading
  std::string present_value = {};  // where the page tells it apart from `what`
  bool required = false;
};

class CommandParser {
 public:
  struct Page {
    std::string program;  // "tessera plan"; empty: as the program was called
    std::string description;
    std::string footer;
    std::size_t option_columns;
    bool silent = false;  // --help prints nothing: of several processes another one does
  };
  explicit CommandParser(const Page& page);
  ~CommandParser();
  CommandParser(const CommandParser&) = delete;
  CommandParser& operator=(const CommandParser&) = delete;

  // take: is given the text, and may throw what parse() then throws.
  void option(const OptionText& text, std::function<void(const std::string&)> take);
  void flag(const OptionText& text, bool& target);
  // One that may stand alone or as --name=VALUE: take is given the value, which may throw, or an empty text.
  void flag(const OptionText& text, std::function<void(const std::string&)> take);

  bool given(const std::string& name) const;

  // `arguments`: what follows the program's name. False when only the help page was asked for, and printed. Throws
  // CommandLineError, also when an option is given twice.
  bool parse(std::vector<std::string> arguments);
  bool parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  bool named_by_caller_;
  bool silent_;
};

}  // namespace tools
