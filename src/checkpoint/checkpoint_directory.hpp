// The directory of a job's checkpoints, as the one rank that arranges it sees it: who may write there, how a checkpoint
// comes to stand there in one step, and how old ones go. What is not under its final name is nobody's checkpoint.
// Errors: DataError; the text begins with the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/file.hpp"
#include "checkpoint/file_layout.hpp"
#include "tessera/checkpoint/manifest.hpp"

namespace tessera::checkpoint {

class CheckpointDirectory {
 public:
  // Makes the directory where it is missing, locks it against other jobs for as long as this lives, and removes what
  // jobs that died left unfinished.
  explicit CheckpointDirectory(std::filesystem::path path);

  std::filesystem::path finished(std::uint64_t step) const;  // …/step-00000100
  std::filesystem::path growing(std::uint64_t step) const;   // …/step-00000100.tmp

  // The manifest of a checkpoint that stands there already. Throws where something else stands under its name.
  std::optional<Manifest> existing(std::uint64_t step) const;

  void begin(std::uint64_t step, const CheckpointFiles& files);  // the growing folder, its tensor files in full size
  // Writes the last file, and gives the folder its name: from then on it is a checkpoint, also after a power failure.
  void commit(const Manifest& manifest);
  void abandon(std::uint64_t step) noexcept;  // the growing folder goes
  void prune(std::size_t keep);               // all but the newest; 0: none goes

 private:
  std::filesystem::path path_;
  File lock_;
};

}  // namespace tessera::checkpoint
