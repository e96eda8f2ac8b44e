// `tessera checkpoint verify`: every byte against the checksums.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "checkpoint_command.hpp"
#include "options.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "text.hpp"

namespace tools {

namespace {

// One line on a terminal, rewritten at each per cent; nothing elsewhere.
class PerCent {
 public:
  ~PerCent() {
    if (shown_ >= 0) fmt::print(stderr, "\r{:20}\r", "");
  }
  void show(tessera::Bytes done, tessera::Bytes total) {
    const int now = static_cast<int>(100.0 * static_cast<double>(done.count()) / static_cast<double>(total.count()));
    if (!terminal_ || now == shown_) return;
    shown_ = now;
    fmt::print(stderr, "\rverifying: {:3} %", now);
    std::fflush(stderr);
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  int shown_ = -1;
};

struct Verdict {
  std::filesystem::path checkpoint;
  tessera::Bytes bytes;
  std::vector<std::string> faults;
};

Verdict verify(const std::filesystem::path& checkpoint) {
  Verdict verdict{.checkpoint = checkpoint, .bytes = tessera::Bytes(0), .faults = {}};
  PerCent per_cent;
  verdict.faults = tessera::verify_checkpoint(checkpoint, [&](tessera::Bytes done, tessera::Bytes total) {
    verdict.bytes = done;
    per_cent.show(done, total);
  });
  return verdict;
}

std::string text_of(const Verdict& verdict) {
  if (verdict.faults.empty()) {
    return fmt::format("{}: sound, {}\n", verdict.checkpoint.string(),
                       decimal_size(static_cast<double>(verdict.bytes.count())));
  }
  std::string text;
  for (const std::string& fault : verdict.faults) text += fault + "\n";
  return fmt::format("{}{}: DAMAGED, {}\n", text, verdict.checkpoint.string(),
                     counted(verdict.faults.size(), "fault", "faults"));
}

Json json_of(const Verdict& verdict) {
  return {{"checkpoint", verdict.checkpoint.string()},
          {"sound", verdict.faults.empty()},
          {"bytes", verdict.bytes.count()},
          {"faults", verdict.faults}};
}

}  // namespace

bool run_checkpoint_verify(std::vector<std::string> arguments) {
  std::filesystem::path path;
  bool json = false;
  CommandLine options(
      "Reads a checkpoint against its checksums, and names each fault.",
      "Exit code: 1 when there is one. Each stands on a line of its own, with the file, the bytes and the\n"
      "tensors in them.",
      "tessera checkpoint verify");
  options.place("CHECKPOINT", path, "The checkpoint, or a folder of them for the latest");
  options.flag("--json", json, "Prints JSON");
  if (!options.parse(std::move(arguments))) return true;
  const Verdict verdict = verify(tessera::find_checkpoint(path));
  fmt::print("{}", json ? object_text(json_of(verdict)) : text_of(verdict));
  return verdict.faults.empty();
}

}  // namespace tools
