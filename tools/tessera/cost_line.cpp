// Options are text for CLI11; quantity.hpp reads the numbers.
#include "cost_line.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include "options.hpp"
#include "plot/plot.hpp"
#include "tessera/base/error.hpp"

namespace tools {

using tessera::UsageError;

namespace {

// CLI11 takes -5us for an option of its own: "--latency -5us" becomes "--latency=-5us", for the reader to refuse.
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

}  // namespace

CostLine::CostLine(const std::string& subcommand, const std::string& description, const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, "tessera cost " + subcommand)) {
  app_->footer(footer);
  app_->set_help_flag("--help", "Prints this page")->group("");
  app_->get_formatter()->column_width(30);
}

CostLine::~CostLine() = default;

template <typename Take>
void CostLine::add(const CostOption& option, Take take) {
  app_->add_option_function<std::string>(option.name, std::move(take), option.what)
      ->type_name(option.type)
      ->required(option.required);
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
      throw UsageError(fmt::format("{} takes numbers each larger than the one before it, not \"{}\"", name, text));
  });
}

void CostLine::dtype(tessera::DType& target) {
  add({"--dtype", "fp32|bf16|fp16", "In which the gradients travel; two bytes halve the size [fp32]"},
      [&target](const std::string& text) {
        try {
          target = tessera::dtype_from_string(text);
        } catch (const UsageError&) {
          throw UsageError(fmt::format("--dtype takes fp32|bf16|fp16, not \"{}\"", text));
        }
      });
}

void CostLine::json(bool& target) {
  app_->add_flag("--json", target, "Prints one JSON object: bytes, seconds and fractions in full precision");
}

void CostLine::plot(std::optional<std::string>& target) {
  add({"--plot", "FILE.svg|FILE.png", "Draws a figure too; needs Python with matplotlib"},
      [&target](const std::string& text) {
        if (!is_figure(text))
          throw UsageError(fmt::format("--plot takes a file name that ends in .svg or .png, not \"{}\"", text));
        target = text;
      });
}

bool CostLine::parse(const std::vector<std::string>& arguments) {
  return parse_each_once(*app_, with_negative_values(arguments));
}

}  // namespace tools
