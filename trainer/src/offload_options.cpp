// A list of words, in any order, and where to.
#include "tessera/trainer/offload_options.hpp"

#include <fmt/format.h>

#include <string_view>

namespace tessera::trainer {

namespace {

constexpr std::size_t most_units = 1'000'000;

using tessera::Ahead;
using tessera::MemorySpace;

// "host", or "disk:" and a folder.
std::filesystem::path folder_of(const std::string& text) {
  constexpr std::string_view disk = "disk:";
  if (text == "host") return {};
  if (text.starts_with(disk) && text.size() > disk.size()) return text.substr(disk.size());
  throw OptionError(fmt::format("--offload-to takes host, or disk: and a folder, not \"{}\"", text));
}

// The options come in any order.
void go_to(tessera::Offload& offload, const std::filesystem::path& disk) {
  for (MemorySpace* space : {&offload.optimizer, &offload.masters}) {
    if (*space != MemorySpace::device) *space = disk.empty() ? MemorySpace::host : MemorySpace::disk;
  }
}

tessera::Offload offload_of(const std::string& text) {
  tessera::Offload offload;
  if (text == "none") return offload;
  for (const std::string& word : split(text)) {
    MemorySpace* const space = word == "optimizer"     ? &offload.optimizer
                               : word == "masters"     ? &offload.masters
                               : word == "update"      ? &offload.update
                               : word == "activations" ? &offload.activations
                                                       : nullptr;
    if (space != nullptr) {
      if (*space == MemorySpace::host) throw OptionError(fmt::format("--offload names {} twice", word));
      *space = MemorySpace::host;
    } else if (word == "ahead" || word == "ahead-for-good") {
      if (offload.ahead != Ahead::no) {
        throw OptionError("--offload takes ahead or ahead-for-good once: the one keeps what the other does not");
      }
      offload.ahead = word == "ahead" ? Ahead::revocable : Ahead::final;
    } else {
      throw OptionError(
          fmt::format("--offload takes none, or optimizer, masters, update, ahead, ahead-for-good and activations with "
                      "commas between them, not "
                      "\"{}\"",
                      text));
    }
  }
  return offload;
}

}  // namespace

void add_offload_options(CommandLine& line, tessera::Offload& offload, std::filesystem::path& disk) {
  line.take(
      {"--offload", "none|optimizer,masters,update,ahead|ahead-for-good,activations",
       "Keep these off the device between updates: the optimizer's states, and the fp32 masters beside "
       "parameters of 16 bits. Each update brings them to the device unit by unit and takes them back, or, with "
       "`update`, the host's processors do it where they stand: gradients go there and parameters come back; with "
       "`ahead` as soon as a gradient is there, for which states and masters stand there twice, or with "
       "`ahead-for-good` once, where a step that is clipped, skipped or short ends the run: with --clip 0 and "
       "--drop-last yes, and "
       "without stages. "
       "Activations: what forward windows leave to backward ones, of a GPT what blocks are recomputed from. No bit "
       "changes [none]"},
      [&offload, &disk](const std::string& text) {
        const std::size_t units = offload.units;
        offload = offload_of(text);
        offload.units = units;
        go_to(offload, disk);
      });
  line.take({"--offload-to", "host|disk:FOLDER",
             "Where to: the host's memory, or a file for each rank in a folder, which has no name and ends with the "
             "rank [host]"},
            [&offload, &disk](const std::string& text) {
              disk = folder_of(text);
              go_to(offload, disk);
            });
  line.take({"--offload-units", "N", "Of the first N units alone; the others stay on the device [all]"},
            [&offload](const std::string& text) {
              offload.units = whole_number("--offload-units", text, {1, most_units});
            });
}

void check_offload_options(const CommandLine& line, const tessera::Offload& offload, const std::filesystem::path& disk,
                           const tessera::Precision& precision, bool is_searched) {
  const bool updates = offload.optimizer != MemorySpace::device || offload.masters != MemorySpace::device;
  const bool any = updates || offload.activations != MemorySpace::device;
  const auto needs_offload = [&](const char* name, const char* why) {
    if (!line.given(name) || any) return;
    throw OptionError(fmt::format("{} needs --offload: it says {}", name, why));
  };
  needs_offload("--offload-units", "of how many units");
  if (!is_searched || line.given("--offload")) needs_offload("--offload-to", "where that goes");
  if (offload.activations != MemorySpace::device && !updates && !disk.empty()) {
    throw OptionError(
        "--offload-to disk: activations go to the host's memory; move the optimizer's states too, or leave "
        "--offload-to out");
  }
  const bool all_on_host = offload.optimizer == MemorySpace::host && offload.masters == MemorySpace::host;
  if (offload.update == MemorySpace::host && !all_on_host) {
    throw OptionError(
        "--offload update: the host's processors update what is all in the host's memory; write "
        "optimizer,masters,update, and leave --offload-to at host");
  }
  if (offload.ahead != Ahead::no && offload.update == MemorySpace::device) {
    throw OptionError(
        "--offload ahead: what begins ahead of the norm are updates by the host's processors; write "
        "optimizer,masters,update,ahead");
  }
  if (offload.masters == tessera::MemorySpace::device || precision.parameter != precision.masters) return;
  throw OptionError(fmt::format(
      "--offload masters: windows read masters themselves where parameters are {0}, and masters too; take {1}, or "
      "--offload optimizer alone",
      to_string(precision.masters), precision.masters == tessera::DType::fp32 ? "--precision bf16" : "--masters fp32"));
}

void check_offloaded_activations(const tessera::Offload& offload, bool saves) {
  if (offload.activations == MemorySpace::device || saves) return;
  throw OptionError(
      "--offload activations: no unit says how much its forward windows leave: take a GPT with "
      "--activation-checkpointing yes or a network on images, or leave activations on the device");
}

std::string offload_text(const tessera::Offload& offload) {
  if (offload == tessera::Offload{} || offload.units == 0) return "";
  const bool states = offload.optimizer != MemorySpace::device;
  const bool masters = offload.masters != MemorySpace::device;
  const bool saved = offload.activations != MemorySpace::device;
  std::string text = states ? ", the optimizer's states" : "";
  if (masters) text += states ? " and masters" : ", masters";
  if (saved) text += text.empty() ? ", activations" : " and activations";
  if (offload.units != tessera::Offload{}.units) {
    text += fmt::format(" of the first {}", offload.units == 1 ? "unit" : fmt::format("{} units", offload.units));
  }
  const bool on_disk = offload.optimizer == MemorySpace::disk || offload.masters == MemorySpace::disk;
  text += on_disk ? " on disk" : " in the host's memory";
  return text + (offload.update == MemorySpace::host ? ", updated there" : "") +
         (offload.ahead == Ahead::no ? "" : " ahead of the norm") + (offload.ahead == Ahead::final ? ", for good" : "");
}

}  // namespace tessera::trainer
