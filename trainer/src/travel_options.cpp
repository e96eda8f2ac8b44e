// Two names of types.
#include "tessera/trainer/travel_options.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::trainer {

namespace {

tessera::DType type_of(const char* option, const std::string& text) {
  try {
    return tessera::wire_type_from_string(text);
  } catch (const tessera::UsageError& error) {
    throw OptionError(fmt::format("{}: {}", option, error.what()));
  }
}

}  // namespace

void add_travel_options(CommandLine& line, TravelOptions& options) {
  line.take({"--gather", "int8|bf16|fp16",
             "Parameters travel to the windows in this type, and are rounded to it whatever the strategy; int8: codes "
             "of 8 bits with a scale for each 256, half the bytes of bf16. Masters stay fp32 [as --precision says]"},
            [&options](const std::string& text) { options.gather = type_of("--gather", text); });
  line.take({"--wire", "int8|bf16|fp16|fp32",
             "Gradients travel to their sums in this type, each rank's rounded once; int8: off by a 254th of the "
             "largest of 256 at most. Sums are fp32, and what a rank has added up travels in fp32 [as --precision "
             "says]"},
            [&options](const std::string& text) { options.wire = type_of("--wire", text); });
}

tessera::Precision with_travel(const tessera::Precision& types, const TravelOptions& options) {
  tessera::Precision result = types;
  if (options.wire) result.wire = *options.wire;
  if (!options.gather || *options.gather == types.parameter) return result;
  result.gather = options.gather;
  constexpr std::size_t some = 256;
  if (bytes_of(*options.gather, some) < bytes_of(types.parameter, some)) return result;
  throw OptionError(fmt::format("--gather {}: parameters are {}, which is no larger; take int8, or leave it out",
                                to_string(*options.gather), to_string(types.parameter)));
}

std::string travel_text(const tessera::Precision& types) {
  const bool wires = types.wire != types.gradient;
  if (!types.encodes() && !wires) return "";
  std::string text = types.encodes() ? fmt::format(", parameters travel in {}", to_string(types.gathered())) : "";
  if (wires)
    text +=
        fmt::format("{} {}", types.encodes() ? " and gradients in" : ", gradients travel in", to_string(types.wire));
  return text;
}

}  // namespace tessera::trainer
