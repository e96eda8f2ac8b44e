// Every value passes through from_chars, which takes no signs, blanks or exponents by surprise.
#include "options.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "plot/plot.hpp"

namespace tools {

namespace {

struct SizeUnit {
  std::string_view name;
  double bytes;
};
constexpr std::array size_units = {
    SizeUnit{"", 1},         SizeUnit{"B", 1},        SizeUnit{"KB", 1e3},     SizeUnit{"MB", 1e6},
    SizeUnit{"GB", 1e9},     SizeUnit{"TB", 1e12},    SizeUnit{"PB", 1e15},    SizeUnit{"KiB", 0x1p10},
    SizeUnit{"MiB", 0x1p20}, SizeUnit{"GiB", 0x1p30}, SizeUnit{"TiB", 0x1p40}, SizeUnit{"PiB", 0x1p50},
};
constexpr double most_bytes = 0x1p60;

// The parser takes -5us for an option of its own: "--latency -5us" becomes "--latency=-5us", for the reader to refuse.
std::vector<std::string> with_negative_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> joined;
  for (const std::string& argument : arguments) {
    const bool is_negative = argument.size() > 1 && argument[0] == '-' && argument[1] != '-';
    const bool follows_name =
        !joined.empty() && joined.back().rfind("--", 0) == 0 && joined.back().find('=') == std::string::npos;
    if (is_negative && follows_name) {
      joined.back() += "=" + argument;
    } else {
      joined.push_back(argument);
    }
  }
  return joined;
}

bool parse_with(CommandParser& parser, std::vector<std::string> arguments) {
  try {
    return parser.parse(std::move(arguments));
  } catch (const CommandLineError& error) {
    throw OptionError(error.what());
  }
}

}  // namespace

std::size_t whole_number(const std::string& name, std::string_view text, Limits limits) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (is_number && value >= limits.least && value <= limits.most) return value;
  throw OptionError(
      fmt::format("{} takes a whole number from {} to {}, not \"{}\"", name, limits.least, limits.most, text));
}

tessera::Bytes size_in_bytes(const std::string& name, std::string_view text) {
  double number = 0.0;
  const char* const text_end = text.data() + text.size();
  const auto [number_end, error] = std::from_chars(text.data(), text_end, number, std::chars_format::fixed);
  std::string_view unit(number_end, static_cast<std::size_t>(text_end - number_end));
  if (unit.starts_with(' ') && unit.size() > 1) unit.remove_prefix(1);
  const auto known =
      std::find_if(size_units.begin(), size_units.end(), [&](const SizeUnit& each) { return each.name == unit; });
  if (error == std::errc() && known != size_units.end()) {
    const double bytes = std::floor(number * known->bytes);
    // Written so that NaN is refused too.
    if (bytes >= 1.0 && bytes <= most_bytes) return tessera::Bytes(static_cast<std::uint64_t>(bytes));
  }
  throw OptionError(fmt::format("{} takes a size such as 80GB, 80GiB or 512MiB, not \"{}\"", name, text));
}

Options::Options(const std::string& command, const std::string& description, const std::string& footer)
    : parser_({.program = command, .description = description, .footer = footer, .option_columns = 34}) {}

void Options::take(const std::string& name, const std::string& type, const std::string& what,
                   std::function<void(const std::string&)> take) {
  parser_.option({.name = name, .type = type, .what = what, .group = group_}, std::move(take));
}

void Options::whole(const std::string& name, std::size_t& target, Limits limits, const std::string& what) {
  take(name, "N", fmt::format("{} [{}]", what, target),
       [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void Options::whole(const std::string& name, std::optional<std::size_t>& target, Limits limits,
                    const std::string& what) {
  take(name, "N", what, [=, &target](const std::string& text) { target = whole_number(name, text, limits); });
}

void Options::yes_or_no(const std::string& name, bool& target, const std::string& what) {
  choice<bool>(name, target, {{"yes", true}, {"no", false}}, fmt::format("{} [{}]", what, target ? "yes" : "no"));
}

void Options::place(const std::string& name, std::filesystem::path& target, const std::string& what) {
  const auto take = [=, &target](const std::string& text) {
    if (text.empty()) throw OptionError(fmt::format("{} is empty", name));
    target = text;
  };
  parser_.option({.name = name, .type = {}, .what = what, .group = group_, .required = true}, take);
}

void Options::flag(const std::string& name, bool& target, const std::string& what) {
  parser_.flag({.name = name, .type = {}, .what = what, .group = group_}, target);
}

bool Options::given(const std::string& name) const { return parser_.given(name); }

bool Options::parse(std::vector<std::string> arguments) { return parse_with(parser_, std::move(arguments)); }

void Options::refuse_choice(const std::string& name, const std::string& names, const std::string& text) {
  throw OptionError(fmt::format("{} takes {}, not \"{}\"", name, names, text));
}

CostLine::CostLine(const std::string& subcommand, const std::string& description, const std::string& footer)
    : parser_({.program = "tessera cost " + subcommand,
               .description = description,
               .footer = footer,
               .option_columns = 30}) {}

void CostLine::add(const CostOption& option, std::function<void(const std::string&)> take) {
  parser_.option({.name = option.name, .type = option.type, .what = option.what, .required = option.required},
                 std::move(take));
}

void CostLine::number(const CostOption& option, double& target, const cost::Quantity& quantity) {
  add(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::number(name, text, quantity);
  });
}

void CostLine::number(const CostOption& option, std::optional<double>& target, const cost::Quantity& quantity) {
  add(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::number(name, text, quantity);
  });
}

void CostLine::whole(const CostOption& option, std::uint64_t& target, const cost::Quantity& quantity) {
  add(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::whole_number(name, text, quantity);
  });
}

void CostLine::list(const CostOption& option, std::vector<double>& target, const cost::Quantity& quantity) {
  add(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::numbers(name, text, quantity);
  });
}

void CostLine::rising(const CostOption& option, std::vector<std::uint64_t>& target, const cost::Quantity& quantity) {
  add(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::whole_numbers(name, text, quantity);
    if (std::adjacent_find(target.begin(), target.end(), std::greater_equal<>()) != target.end())
      throw tessera::UsageError(
          fmt::format("{} takes numbers each larger than the one before it, not \"{}\"", name, text));
  });
}

void CostLine::dtype(tessera::DType& target) {
  add({"--dtype", "fp32|bf16|fp16", "In which the gradients travel; two bytes halve the size [fp32]"},
      [&target](const std::string& text) {
        try {
          target = tessera::dtype_from_string(text);
        } catch (const tessera::UsageError&) {
          throw tessera::UsageError(fmt::format("--dtype takes fp32|bf16|fp16, not \"{}\"", text));
        }
      });
}

void CostLine::json(bool& target) {
  parser_.flag(
      {.name = "--json", .type = {}, .what = "Prints one JSON object: bytes, seconds and fractions in full precision"},
      target);
}

void CostLine::plot(std::optional<std::string>& target) {
  add({"--plot", "FILE.svg|FILE.png", "Draws a figure too; needs Python with matplotlib"},
      [&target](const std::string& text) {
        if (!is_figure(text))
          throw tessera::UsageError(
              fmt::format("--plot takes a file name that ends in .svg or .png, not \"{}\"", text));
        target = text;
      });
}

bool CostLine::parse(const std::vector<std::string>& arguments) {
  return parse_with(parser_, with_negative_values(arguments));
}

}  // namespace tools
