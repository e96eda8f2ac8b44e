// Every value passes through from_chars, which takes no signs, blanks, octal or hexadecimal numbers by surprise.
#include "common/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "tessera/comm/start.hpp"

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
  const bool within = value && *value >= limits.least && *value <= limits.most;
  // The value is used in fp32, where 0 would mean something else.
  if (within && *value != 0.0 && static_cast<float>(*value) == 0.0f) {
    throw OptionError(fmt::format("{} {} is so small that it would be 0 in fp32: give 0, or a larger one", name, text));
  }
  if (within) return *value;
  throw OptionError(fmt::format("{} takes a number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

std::string joined(const std::vector<Choice>& choices, const char* between) {
  std::string text;
  for (const Choice& choice : choices) text += (text.empty() ? "" : between) + choice.name;
  return text;
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
    : parser_({.program = {},
               .description = wrapped(description, page_columns),
               .footer = wrapped(footer, page_columns),
               .option_columns = option_columns,
               .silent = !tessera::is_first_process()}) {}

void CommandLine::add(const Shown& option, const std::function<void(const std::string&)>& take) {
  parser_.option({.name = option.name,
                  .type = option.type,
                  .what = wrapped(option.what, page_columns - option_columns),
                  .group = group_,
                  .present_value = option.present_value},
                 take);
}

void CommandLine::whole(const std::string& name, std::size_t& target, WholeLimits limits, const std::string& what) {
  add({name, what, "N", fmt::to_string(target)},
      [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void CommandLine::whole(const std::string& name, std::optional<std::size_t>& target, WholeLimits limits,
                        const std::string& what) {
  add({name, what, "N"}, [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void CommandLine::real(const std::string& name, double& target, RealLimits limits, const std::string& what) {
  add({name, what, "X", fmt::to_string(target)},
      [=, &target](const std::string& text) { target = real_number(name, text, limits); });
}

void CommandLine::real(const std::string& name, std::optional<double>& target, RealLimits limits,
                       const std::string& what) {
  add({name, what, "X"}, [=, &target](const std::string& text) { target = real_number(name, text, limits); });
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
  add({name, what, fmt::format("{{{}}}", joined(choices, ","))}, take);
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
  add({name, what, type}, take);
}

void CommandLine::text(const std::string& name, std::string& target, const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a name, not an empty text", name));
    target = text;
  };
  add({name, what, "NAME", target}, take);
}

void CommandLine::text(const std::string& name, std::optional<std::string>& target, const std::string& type,
                       const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} takes a text that is not empty", name));
    target = text;
  };
  add({name, what, type}, take);
}

void CommandLine::flag(const std::string& name, bool& target, const std::string& what) {
  parser_.flag({.name = name, .type = {}, .what = wrapped(what, page_columns - option_columns), .group = group_},
               target);
}

void CommandLine::flag(const std::string& name, bool& target, const std::vector<Choice>& values,
                       const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    target = true;
    if (text.empty()) return;
    const auto chosen =
        std::find_if(values.begin(), values.end(), [&](const Choice& choice) { return choice.name == text; });
    if (chosen == values.end()) {
      throw OptionError(
          fmt::format("{} stands alone or is {}={}, not {}={}", name, name, joined(values, " or "), name, text));
    }
    chosen->choose();
  };
  parser_.flag({.name = name, .type = {}, .what = wrapped(what, page_columns - option_columns), .group = group_}, take);
}

bool CommandLine::given(const std::string& name) const { return parser_.given(name); }

bool CommandLine::parse(int argc, char** argv) {
  try {
    return parser_.parse(argc, argv);
  } catch (const tools::CommandLineError& error) {
    throw OptionError(error.what());
  }
}

}  // namespace examples
