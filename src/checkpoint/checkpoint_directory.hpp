// The directory of a job's checkpoints, as the one rank that arranges it sees it: who may write there, how a checkpoint
// comes to stand there in one step, and how old ones go. What is not under its final name is nobody's checkpoint.
// Errors: DataError; the text begins with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/channel.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/file_layout.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/manifest.hpp"

namespace tessera::checkpoint {

// The name of a checkpoint while it is written, or removed: "step-00000100.tmp".
inline constexpr std::string_view unfinished_suffix = ".tmp";

inline std::filesystem::path unfinished_folder(const std::filesystem::path& directory, std::uint64_t step) {
  return (directory / checkpoint_name(step)) += unfinished_suffix;
}

// Does what newest_checkpoint() does, among checkpoints of steps below `below`.
std::optional<FoundCheckpoint> newest_below(const std::filesystem::path& folder, std::uint64_t below);

class CheckpointDirectory {
 public:
  // Makes the directory where it is missing, locks it against other jobs for as long as this lives, and removes what
  // jobs that died left unfinished.
  CheckpointDirectory(std::filesystem::path path, const Pause& pause);

  std::filesystem::path finished(std::uint64_t step) const;  // …/step-00000100
  std::filesystem::path growing(std::uint64_t step) const;   // …/step-00000100.tmp

  bool locked() const { return lock_.locked(); }  // false where the file system has no locks

  // A Standing is what has the name of a step: the manifest of a sound checkpoint, of which every byte is read; or why
  // it is none; or neither.
  struct Standing {
    std::optional<Manifest> manifest = std::nullopt;
    std::string fault = {};
  };
  Standing standing(std::uint64_t step, const Pause& pause) const;
  // Gives what stands there, and is no sound checkpoint, another name, which is returned: step-00000100.aside.
  std::filesystem::path set_aside(std::uint64_t step) const;

  // The growing folder, its tensor files in full size. Where the directory was moved or removed since, another is made
  // and locked in its place.
  void begin(std::uint64_t step, const CheckpointFiles& files, const Pause& pause);
  // Writes the last file, and gives the folder its name: from then on it is a checkpoint, also after a power failure.
  void commit(const Manifest& manifest);
  void abandon(std::uint64_t step) noexcept;  // the growing folder goes
  // Removes those of lower steps than `step` but for the newest, so that with `step` there are `keep`; 0: none goes.
  // An invalid one is not counted, and stays: it may be that only this program cannot read it.
  void prune(std::uint64_t step, std::size_t keep, const Pause& pause);

 private:
  std::filesystem::path path_;
  File lock_;
};

}  // namespace tessera::checkpoint
