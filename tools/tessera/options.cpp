// Numbers with units are read by cost/quantity.hpp.
#include "options.hpp"

#include <fmt/format.h>

#include <cmath>

#include "plot/plot.hpp"

namespace tools {

tessera::Bytes size_in_bytes(const std::string& name, const std::string& text) {
  return tessera::Bytes(static_cast<std::uint64_t>(std::floor(cost::number(name, text, cost::byte_size))));
}

bool run_subcommand(const Subcommands& of, const std::vector<std::string>& arguments) {
  const std::string remedy = fmt::format("{} takes {}; see {} --help", of.command, of.names, of.command);
  if (arguments.empty()) throw OptionError(fmt::format("a subcommand is missing: {}", remedy));
  const auto found = of.commands.find(arguments.front());
  if (found != of.commands.end()) return found->second({arguments.begin() + 1, arguments.end()});
  if (arguments.size() != 1 || arguments.front() != "--help")
    throw OptionError(fmt::format("unknown subcommand \"{}\": {}", arguments.front(), remedy));
  fmt::print("{}", of.usage);
  return true;
}

void CostLine::whole(const Option& option, std::uint64_t& target, const cost::Quantity& quantity) {
  take(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::whole_number(name, text, quantity);
  });
}

void CostLine::list(const Option& option, std::vector<double>& target, const cost::Quantity& quantity) {
  take(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::numbers(name, text, quantity);
  });
}

void CostLine::rising(const Option& option, std::vector<std::uint64_t>& target, const cost::Quantity& quantity) {
  take(option, [name = option.name, &target, &quantity](const std::string& text) {
    target = cost::whole_numbers(name, text, quantity);
    if (std::adjacent_find(target.begin(), target.end(), std::greater_equal<>()) != target.end())
      throw OptionError(fmt::format("{} takes numbers each larger than the one before it, not \"{}\"", name, text));
  });
}

void CostLine::dtype(tessera::DType& target) {
  using tessera::DType;
  choice<DType>("--dtype", target, {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}},
                "In which the gradients travel; two bytes halve the size [fp32]");
}

void CostLine::json(bool& target) {
  flag("--json", target, "Prints one JSON object: bytes, seconds and fractions in full precision");
}

void CostLine::plot(std::optional<std::string>& target) {
  take({"--plot", "FILE.svg|FILE.png", "Draws a figure too; needs Python with matplotlib"},
       [&target](const std::string& text) {
         if (!is_figure(text))
           throw OptionError(fmt::format("--plot takes a file name that ends in .svg or .png, not \"{}\"", text));
         target = text;
       });
}

}  // namespace tools
