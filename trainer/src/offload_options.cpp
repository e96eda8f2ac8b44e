// A list of two words, in any order.
#include "tessera/trainer/offload_options.hpp"

#include <fmt/format.h>

#include <string_view>

namespace tessera::trainer {

namespace {

constexpr std::size_t most_units = 1'000'000;

tessera::Offload offload_of(const std::string& text) {
  tessera::Offload offload;
  if (text == "none") return offload;
  for (std::string_view rest = text;;) {
    const std::size_t end = rest.find(',');
    const std::string_view word = rest.substr(0, end);
    const bool states = word == "optimizer";
    if (!states && word != "masters") {
      throw OptionError(
          fmt::format("--offload takes none, optimizer, masters, or both with a comma between them, not \"{}\"", text));
    }
    (states ? offload.optimizer : offload.masters) = tessera::MemorySpace::host;
    if (end == std::string_view::npos) return offload;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace

void add_offload_options(CommandLine& line, tessera::Offload& offload) {
  line.take({"--offload", "none|optimizer,masters",
             "Keep these in the host's memory between updates: the optimizer's states, and the fp32 masters beside "
             "parameters of 16 bits. Each update brings them to the device unit by unit and takes them back, which "
             "changes no bit [none]"},
            [&offload](const std::string& text) {
              const std::size_t units = offload.units;
              offload = offload_of(text);
              offload.units = units;
            });
  line.take({"--offload-units", "N", "Of the first N units alone; the others stay on the device [all]"},
            [&offload](const std::string& text) {
              offload.units = whole_number("--offload-units", text, {1, most_units});
            });
}

void check_offload_options(const CommandLine& line, const tessera::Offload& offload,
                           const tessera::Precision& precision) {
  if (line.given("--offload-units") && !line.given("--offload")) {
    throw OptionError("--offload-units needs --offload: it says of how many units");
  }
  if (offload.masters == tessera::MemorySpace::device || precision.parameter != tessera::DType::fp32) return;
  throw OptionError(
      "--offload masters: windows read masters themselves where parameters are fp32; take --precision bf16, or "
      "--offload optimizer alone");
}

std::string offload_text(const tessera::Offload& offload) {
  if (offload == tessera::Offload{} || offload.units == 0) return "";
  const bool states = offload.optimizer == tessera::MemorySpace::host;
  const bool masters = offload.masters == tessera::MemorySpace::host;
  std::string text = states ? ", the optimizer's states" : "";
  if (masters) text += states ? " and masters" : ", masters";
  if (offload.units != tessera::Offload{}.units) {
    text += fmt::format(" of the first {}", offload.units == 1 ? "unit" : fmt::format("{} units", offload.units));
  }
  return text + " in the host's memory";
}

}  // namespace tessera::trainer
