// Every value passes through from_chars, which takes no signs, blanks or exponents by surprise.
#include "options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <set>

namespace tools {

namespace {

void require_each_once(const std::vector<std::string>& arguments) {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (!seen.insert(name).second) throw OptionError(fmt::format("{} is given twice", name));
  }
}

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

}  // namespace

bool parse_each_once(CLI::App& app, std::vector<std::string> arguments) {
  require_each_once(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw OptionError(error.what());
  }
}

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
    : app_(std::make_unique<CLI::App>(description, command)) {
  app_->footer(footer);
  app_->set_help_flag("--help", "Prints this page")->group("");
  app_->get_formatter()->column_width(34);
}

Options::~Options() = default;

void Options::take(const std::string& name, const std::string& type, const std::string& what,
                   std::function<void(const std::string&)> take) {
  app_->add_option_function<std::string>(name, std::move(take), what)->group(group_)->type_name(type);
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
  app_->add_option_function<std::string>(name, take, what)->group(group_)->type_name("")->required();
}

void Options::flag(const std::string& name, bool& target, const std::string& what) {
  app_->add_flag(name, target, what)->group(group_);
}

bool Options::given(const std::string& name) const { return app_->count(name) > 0; }

bool Options::parse(std::vector<std::string> arguments) { return parse_each_once(*app_, std::move(arguments)); }

void Options::refuse_choice(const std::string& name, const std::string& names, const std::string& text) {
  throw OptionError(fmt::format("{} takes {}, not \"{}\"", name, names, text));
}

}  // namespace tools
