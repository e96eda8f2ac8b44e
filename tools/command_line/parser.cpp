// Options are text for CLI11: what a number or a size is, its users know.
#include "command_line/parser.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "command_line/streams.hpp"

namespace tools {

namespace {

void require_each_once(const std::vector<std::string>& arguments) {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (!seen.insert(name).second) throw CommandLineError(fmt::format("{} is given twice", name));
  }
}

}  // namespace

CommandParser::CommandParser(const Page& page)
    : app_(std::make_unique<CLI::App>(page.description, page.program)),
      named_by_caller_(page.program.empty()),
      silent_(page.silent) {
  app_->footer(page.footer);
  app_->set_help_flag("--help", "Prints this page")->group("");
  app_->get_formatter()->column_width(page.option_columns);
}

CommandParser::~CommandParser() = default;

void CommandParser::option(const OptionText& text, std::function<void(const std::string&)> take) {
  CLI::Option* const option = app_->add_option_function<std::string>(text.name, std::move(take), text.what);
  option->group(text.group)->type_name(text.type)->required(text.required);
  if (!text.present_value.empty()) option->default_str(text.present_value);
}

void CommandParser::flag(const OptionText& text, bool& target) {
  app_->add_flag(text.name, target, text.what)->group(text.group);
}

void CommandParser::flag(const OptionText& text, std::function<void(const std::string&)> take) {
  app_->add_flag(text.name, text.what)->group(text.group)->each([take = std::move(take)](const std::string& value) {
    take(value == "true" ? "" : value);  // CLI11's word for a flag that stands alone
  });
}

bool CommandParser::given(const std::string& name) const { return app_->count(name) > 0; }

bool CommandParser::parse(std::vector<std::string> arguments) {
  require_each_once(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app_->parse(std::move(arguments));
    return true;
  } catch (const CLI::CallForHelp&) {
    if (!silent_) print(app_->help());
    return false;
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> unknown = app_->remaining();
    if (unknown.empty()) throw CommandLineError(error.what());
    throw CommandLineError(fmt::format("unknown argument \"{}\"; --help lists the options", unknown.front()));
  } catch (const CLI::ParseError& error) {
    throw CommandLineError(error.what());
  }
}

bool CommandParser::parse(int argc, char** argv) {
  if (named_by_caller_ && argc > 0) app_->name(argv[0]);
  return parse({argv + std::min(argc, 1), argv + argc});
}

}  // namespace tools
