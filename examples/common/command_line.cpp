// Every value passes through from_chars, which takes no signs, blanks, octal or hexadecimal numbers by surprise.
#include "common/command_line.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <utility>

namespace examples {

namespace {

template <typename Number>
std::optional<Number> number_in(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole_text = error == std::errc() && end == text.data() + text.size();
  return whole_text ? std::optional(value) : std::nullopt;
}

std::size_t whole_number(const std::string& name, const std::string& text, WholeLimits limits) {
  const std::optional<std::uint64_t> value = number_in<std::uint64_t>(text);
  if (value && *value >= limits.least && *value <= limits.most) return static_cast<std::size_t>(*value);
  throw OptionError(
      fmt::format("{} takes a whole number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

double real_number(const std::string& name, const std::string& text, RealLimits limits) {
  const std::optional<double> value = number_in<double>(text);
  // Written so that NaN is rejected too.
  if (value && *value >= limits.least && *value <= limits.most) return *value;
  throw OptionError(fmt::format("{} takes a number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

std::string joined(const std::vector<Choice>& choices, const char* between) {
  std::string text;
  for (const Choice& choice : choices) text += (text.empty() ? "" : between) + choice.name;
  return text;
}

void require_each_once(const std::vector<std::string>& arguments) {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (!seen.insert(name).second) throw OptionError(fmt::format("{} is given twice", name));
  }
}

constexpr std::size_t page_columns = 110;
constexpr std::size_t option_columns = 34;

// Breaks lines that are longer than `columns` at a blank.
std::string wrapped(const std::string& text, std::size_t columns) {
  std::string result;
  std::size_t used = 0;  // of the present line
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    if (used > 0 && used + 1 + end - begin > columns) {
      result += '\n';
      used = 0;
    } else if (used > 0) {
      result += ' ';
      ++used;
    }
    result.append(text, begin, end - begin);
    used += end - begin;
    for (begin = end; begin < text.size() && text[begin] == '\n'; ++begin, used = 0) result += '\n';
    if (begin < text.size() && text[begin] == ' ') ++begin;
  }
  return result;
}

}  // namespace

CommandLine::CommandLine(const std::string& description, const std::string& footer)
    : app_(std::make_unique<CLI::App>(wrapped(description, page_columns))) {
  app_->footer(wrapped(footer, page_columns));
  app_->set_help_flag("--help", "Prints this page")->group("");
  app_->get_formatter()->column_width(option_columns);
}

CommandLine::~CommandLine() = default;

CLI::Option* CommandLine::add(const std::string& name, const std::function<void(const std::string&)>& take,
                              const std::string& what, const std::string& type) {
  return app_->add_option_function<std::string>(name, take, wrapped(what, page_columns - option_columns))
      ->group(group_)
      ->type_name(type);
}

void CommandLine::whole(const std::string& name, std::size_t& target, WholeLimits limits, const std::string& what) {
  add(
      name, [=, &target](const std::string& text) { target = whole_number(name, text, limits); }, what, "N")
      ->default_str(fmt::to_string(target));
}

void CommandLine::whole(const std::string& name, std::optional<std::size_t>& target, WholeLimits limits,
                        const std::string& what) {
  add(
      name, [=, &target](const std::string& text) { target = whole_number(name, text, limits); }, what, "N");
}

void CommandLine::real(const std::string& name, double& target, RealLimits limits, const std::string& what) {
  add(
      name, [=, &target](const std::string& text) { target = real_number(name, text, limits); }, what, "X")
      ->default_str(fmt::to_string(target));
}

void CommandLine::real(const std::string& name, std::optional<double>& target, RealLimits limits,
                       const std::string& what) {
  add(
      name, [=, &target](const std::string& text) { target = real_number(name, text, limits); }, what, "X");
}

void CommandLine::choice(const std::string& name, const std::vector<Choice>& choices, const std::string& what) {
  const auto take = [=](const std::string& text) {
    const auto chosen =
        std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) { return choice.name == text; });
    if (chosen == choices.end()) {
      throw OptionError(fmt::format("{} takes {}, not \"{}\"", name, joined(choices, " or "), text));
    }
    chosen->choose();
  };
  add(name, take, what, "{" + joined(choices, ",") + "}");
}

void CommandLine::path(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what) {
  add_path(name, target, what, "FILE");
}

void CommandLine::directory(const std::string& name, std::optional<std::filesystem::path>& target,
                            const std::string& what) {
  add_path(name, target, what, "DIR");
}

void CommandLine::add_path(const std::string& name, std::optional<std::filesystem::path>& target,
                           const std::string& what, const std::string& type) {
  const std::string thing = type == "DIR" ? "directory" : "file";
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes the path of a {}, not an empty text", name, thing));
    target = text;
  };
  add(name, take, what, type);
}

void CommandLine::text(const std::string& name, std::string& target, const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a name, not an empty text", name));
    target = text;
  };
  add(name, take, what, "NAME")->default_str(target);
}

void CommandLine::text(const std::string& name, std::optional<std::string>& target, const std::string& type,
                       const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a text that is not empty", name));
    target = text;
  };
  add(name, take, what, type);
}

void CommandLine::flag(const std::string& name, bool& target, const std::string& what) {
  app_->add_flag(name, target, wrapped(what, page_columns - option_columns))->group(group_);
}

bool CommandLine::given(const std::string& name) const { return app_->count(name) > 0; }

bool CommandLine::parse(int argc, char** argv) {
  require_each_once({argv + std::min(argc, 1), argv + argc});
  try {
    app_->parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_->help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw OptionError(error.what());
  }
}

}  // namespace examples
