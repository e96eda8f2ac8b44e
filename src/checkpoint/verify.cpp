// verify_checkpoint(): all faults of a checkpoint, not only the first.
#include <optional>

#include "checkpoint/checked_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/checkpoints.hpp"

namespace tessera {

namespace {

using checkpoint::CheckedFile;

// Where `work` throws a DataError, its text is a fault.
template <typename Work>
void collect(std::vector<std::string>& faults, const Work& work) {
  try {
    work();
  } catch (const DataError& error) {
    faults.emplace_back(error.what());
  }
}

class Verification {
 public:
  Verification(const std::filesystem::path& folder, const VerifyProgress& progress)
      : folder_(folder), progress_(progress), staging_(checkpoint_block.count()) {}

  std::vector<std::string> run() {
    collect(faults_, [&] { read_checkpoint_manifest(folder_); });
    std::optional<Manifest> manifest;  // of another step it is still one
    try {
      manifest = read_manifest(folder_);
    } catch (const DataError&) {
      return std::move(faults_);
    }
    for (const ManifestFile& file : manifest->files) total_ += file.size;
    for (const ManifestFile& file : manifest->files) check_file(file);
    if (faults_.empty()) collect(faults_, [&] { CheckpointReader{folder_}; });
    return std::move(faults_);
  }

 private:
  void check_file(const ManifestFile& expected) {
    std::optional<CheckedFile> file;
    collect(faults_, [&] { file.emplace(folder_, expected); });
    std::string size_fault = file ? file->size_fault() : "";
    const bool whole = size_fault.empty();
    if (!whole) faults_.push_back(std::move(size_fault));
    for (std::uint64_t block = 0; block < expected.blocks.size(); ++block) {
      const Bytes size = std::min(checkpoint_block, expected.size - block * checkpoint_block);
      // Of a file that is cut off, its size is the fault.
      if (file && whole && block + 1 < expected.blocks.size()) file->expect(block + 1);
      if (file && whole) collect(faults_, [&] { file->read_block(block, {}, staging_); });
      done_ += size;
      if (progress_) progress_(done_, total_);
    }
  }

  const std::filesystem::path& folder_;
  const VerifyProgress& progress_;
  std::vector<std::byte> staging_;
  std::vector<std::string> faults_;
  Bytes done_;
  Bytes total_;
};

}  // namespace

std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, const VerifyProgress& progress) {
  return Verification(folder, progress).run();
}

}  // namespace tessera
