// Options are text for CLI11. Every number passes through from_chars, which takes no signs, blanks, octal or
// hexadecimal numbers by surprise.
#include "tessera/trainer/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <set>

#include "tessera/comm/start.hpp"
#include "tessera/trainer/start.hpp"

namespace tessera::trainer {

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole_text = error == std::errc() && end == text.data() + text.size();
  return whole_text ? std::optional(value) : std::nullopt;
}
template std::optional<std::uint64_t> number_in(std::string_view);
template std::optional<double> number_in(std::string_view);

std::vector<std::string> split(const std::string& text, char between) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(between, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

namespace {

double real_number(const std::string& name, const std::string& text, RealLimits limits) {
  const std::optional<double> value = number_in<double>(text);
  // Written so that NaN is rejected too.
  const bool within = value && *value >= limits.least && *value <= limits.most;
  // The value is used in fp32, where 0 would mean something else.
  if (within && *value != 0.0 && static_cast<float>(*value) == 0.0f) {
    throw OptionError(fmt::format("{} {} is so small that it would be 0 in fp32: give 0, or a larger one", name, text));
  }
  if (within) return *value;
  throw OptionError(fmt::format("{} takes a number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

std::string joined(const std::vector<Choice>& choices, const char* between) {
  std::vector<std::string_view> names;
  for (const Choice& choice : choices) names.push_back(choice.name);
  return fmt::format("{}", fmt::join(names, between));
}

const Choice* find(const std::vector<Choice>& choices, const std::string& text) {
  const auto found =
      std::find_if(choices.begin(), choices.end(), [&](const Choice& each) { return each.name == text; });
  return found == choices.end() ? nullptr : &*found;
}

constexpr std::size_t page_columns = 110;
constexpr std::size_t option_columns = 34;

std::string wrapped(const std::string& text, std::size_t columns) {
  std::string result;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t end = std::min(text.find('\n', begin), text.size());
    const bool is_kept = text[begin] == ' ' || end - begin <= columns;
    const std::size_t blank = is_kept ? std::string::npos : text.rfind(' ', begin + columns);
    if (blank != std::string::npos && blank > begin) end = blank;
    result.append(text, begin, end - begin);
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  return result;
}

void require_each_once(const std::vector<std::string>& arguments) {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (!seen.insert(name).second) throw OptionError(fmt::format("{} is given twice", name));
  }
}

}  // namespace

std::size_t whole_number(const std::string& name, std::string_view text, WholeLimits limits) {
  const std::optional<std::uint64_t> value = number_in<std::uint64_t>(text);
  if (value && *value >= limits.least && *value <= limits.most) return static_cast<std::size_t>(*value);
  throw OptionError(
      fmt::format("{} takes a whole number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

CommandLine::CommandLine(const std::string& description, const std::string& footer, const std::string& program)
    : app_(std::make_unique<CLI::App>(wrapped(description, page_columns), program)), named_by_caller_(program.empty()) {
  app_->footer(wrapped(footer, page_columns));
  app_->set_help_flag("--help", "Prints this page")->group("");
  app_->get_formatter()->column_width(option_columns);
}

CommandLine::~CommandLine() = default;

void CommandLine::take(const Option& option, std::function<void(const std::string&)> take) {
  CLI::Option* const added = app_->add_option_function<std::string>(
      option.name, std::move(take), wrapped(option.what, page_columns - option_columns));
  added->group(group_)->type_name(option.type)->required(option.required);
  if (!option.present_value.empty()) added->default_str(option.present_value);
}

void CommandLine::whole(const std::string& name, std::size_t& target, WholeLimits limits, const std::string& what) {
  take({.name = name, .type = "N", .what = what, .present_value = fmt::to_string(target)},
       [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void CommandLine::whole(const std::string& name, std::optional<std::size_t>& target, WholeLimits limits,
                        const std::string& what) {
  take({.name = name, .type = "N", .what = what},
       [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void CommandLine::real(const std::string& name, double& target, RealLimits limits, const std::string& what) {
  take({.name = name, .type = "X", .what = what, .present_value = fmt::to_string(target)},
       [=, &target](const std::string& text) { target = real_number(name, text, limits); });
}

void CommandLine::real(const std::string& name, std::optional<double>& target, RealLimits limits,
                       const std::string& what) {
  take({.name = name, .type = "X", .what = what},
       [=, &target](const std::string& text) { target = real_number(name, text, limits); });
}

void CommandLine::choice(const std::string& name, const std::vector<Choice>& choices, const std::string& what) {
  const std::string names = joined(choices, "|");
  take({.name = name, .type = names, .what = what}, [=](const std::string& text) {
    const Choice* const chosen = find(choices, text);
    if (chosen == nullptr) throw OptionError(fmt::format("{} takes {}, not \"{}\"", name, names, text));
    chosen->choose();
  });
}

void CommandLine::yes_or_no(const std::string& name, bool& target, const std::string& what) {
  choice<bool>(name, target, {{"yes", true}, {"no", false}}, fmt::format("{} [{}]", what, target ? "yes" : "no"));
}

void CommandLine::path(const std::string& name, std::optional<std::filesystem::path>& target, const std::string& what) {
  add_path({.name = name, .type = "FILE", .what = what}, target, "file");
}

void CommandLine::directory(const std::string& name, std::optional<std::filesystem::path>& target,
                            const std::string& what) {
  add_path({.name = name, .type = "DIR", .what = what}, target, "directory");
}

void CommandLine::add_path(const Option& option, std::optional<std::filesystem::path>& target,
                           const std::string& thing) {
  take(option, [name = option.name, thing, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes the path of a {}, not an empty text", name, thing));
    target = text;
  });
}

void CommandLine::place(const std::string& name, std::filesystem::path& target, const std::string& what) {
  take({.name = name, .type = {}, .what = what, .required = true}, [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} is empty", name));
    target = text;
  });
}

void CommandLine::text(const std::string& name, std::string& target, const std::string& what) {
  take({.name = name, .type = "NAME", .what = what, .present_value = target}, [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a name, not an empty text", name));
    target = text;
  });
}

void CommandLine::text(const std::string& name, std::optional<std::string>& target, const std::string& type,
                       const std::string& what) {
  take({.name = name, .type = type, .what = what}, [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a text that is not empty", name));
    target = text;
  });
}

void CommandLine::flag(const std::string& name, bool& target, const std::string& what) {
  app_->add_flag(name, target, wrapped(what, page_columns - option_columns))->group(group_);
}

void CommandLine::flag(const std::string& name, bool& target, const std::vector<Choice>& values,
                       const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    target = true;
    if (text == "true") return;  // CLI11's word for a flag that stands alone
    const Choice* const chosen = find(values, text);
    if (chosen == nullptr) {
      throw OptionError(
          fmt::format("{} stands alone or is {}={}, not {}={}", name, name, joined(values, "|"), name, text));
    }
    chosen->choose();
  };
  const std::string shown = wrapped(what, page_columns - option_columns);
  app_->add_flag(name, shown)->group(group_)->each(take);
}

bool CommandLine::given(const std::string& name) const { return app_->count(name) > 0; }

// CLI11 takes -5us for an option of its own: "--latency -5us" becomes "--latency=-5us", for the reader to refuse.
std::vector<std::string> CommandLine::with_negative_values(const std::vector<std::string>& arguments) const {
  std::vector<std::string> result;
  for (const std::string& argument : arguments) {
    const bool is_negative = argument.size() > 1 && argument[0] == '-' && argument[1] != '-';
    const CLI::Option* const before =
        is_negative && !result.empty() ? app_->get_option_no_throw(result.back()) : nullptr;
    if (before != nullptr && before->get_items_expected_max() > 0) {
      result.back() += "=" + argument;
    } else {
      result.push_back(argument);
    }
  }
  return result;
}

bool CommandLine::parse(std::vector<std::string> arguments) {
  require_each_once(arguments);
  arguments = with_negative_values(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app_->parse(std::move(arguments));
    return true;
  } catch (const CLI::CallForHelp&) {
    if (is_first_process()) print(app_->help());
    return false;
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> unknown = app_->remaining();
    if (unknown.empty()) throw OptionError(error.what());
    throw OptionError(fmt::format("unknown argument \"{}\"; --help lists the options", unknown.front()));
  } catch (const CLI::ParseError& error) {
    throw OptionError(error.what());
  }
}

bool CommandLine::parse(int argc, char** argv) {
  if (named_by_caller_ && argc > 0) app_->name(argv[0]);
  return parse({argv + std::min(argc, 1), argv + argc});
}

}  // namespace tessera::trainer
