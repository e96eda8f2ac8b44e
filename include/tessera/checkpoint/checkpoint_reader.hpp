// Reads one finished checkpoint: its state, and byte ranges of its tensors. Nothing is returned that was not held
// against the manifest's checksums, block by block; nothing of a file's size is allocated, but for headers and indices.
// Errors: DataError; the text begins with the path and names the tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/manifest.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/state.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// One file each, or several with an index (tensor_index.hpp).
enum class TensorKind {
  // model.safetensors: the fp32 masters, under the parameters' names; between outer steps those that replicas had in
  // common last.
  model,
  // optimizer.safetensors: the optimizer's states, "state/parameter": "m/blocks.0.weight"; of replicas that train apart
  // each one's, with its masters, and the outer momentum: "replica.1/m/blocks.0.weight".
  optimizer,
  buffers,  // buffers.safetensors: untrained state
};
inline constexpr TensorKind tensor_kinds[] = {TensorKind::model, TensorKind::optimizer, TensorKind::buffers};
std::string_view to_string(TensorKind kind);  // "model": also the stem of its files' names

struct CheckpointTensor : StoredTensor {
  std::size_t file = 0;  // its place in Manifest::files
};

// Bytes [first, first + to.size()) of a tensor, and where they go.
struct TensorRange {
  const CheckpointTensor* tensor;
  Bytes first;
  std::span<std::byte> to;
};

// Bytes [first, first + to.size()) of a block, and where they go.
struct BlockPart {
  Bytes first;
  std::span<std::byte> to;
};

// Thread safety: const functions may run at the same time, each with a staging of its own. Blocks on the file system.
class CheckpointReader {
 public:
  // Opens all files, checks their sizes, and reads and checks manifest, state, headers and indices. Throws DataError:
  // see check_checkpoint(); also files that are damaged, that do not belong together, or that no checkpoint has.
  // `staging`, as large as a block, is used for headers while this runs; without it (empty), memory is taken for them.
  explicit CheckpointReader(std::filesystem::path folder, std::span<std::byte> staging = {});
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::filesystem::path& folder() const;
  const Manifest& manifest() const;
  const CheckpointState& state() const;

  const std::vector<CheckpointTensor>& tensors(TensorKind kind) const;  // in the order of files and headers
  // Null when there is none. A tensor of the model is found by an alias, too.
  const CheckpointTensor* find(TensorKind kind, std::string_view name) const;
  // Names that share a stored tensor, as tied parameters do: alias → name of the tensor.
  const std::map<std::string, std::string>& aliases() const;
  const std::map<std::string, std::string>& metadata() const;  // of the model's files, aliases among it

  // Reads each block that is needed once, in the order of the files. Parts of a block that no range wants go to
  // `staging`, which has the size of a block; without it (empty), every block must be wanted whole. Throws UsageError
  // when a range is outside its tensor, or two overlap. Calls `between` after each block.
  void read(std::span<const TensorRange> ranges, std::span<std::byte> staging,
            const std::function<void()>& between = {}) const;
  void read(const CheckpointTensor& tensor, Bytes first, std::span<std::byte> to, std::span<std::byte> staging) const;

  // One block of a file (its place in Manifest::files), straight into its parts, which ascend. What lies between them
  // goes to its place in `staging`, as above.
  void read_block(std::size_t file, std::uint64_t block, std::span<const BlockPart> parts,
                  std::span<std::byte> staging) const;

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Reads everything against the checksums, and then as CheckpointReader does. All faults, each beginning with a path and
// naming the tensors; empty when the checkpoint is sound. `progress`: bytes read, and how many there are. Throws
// DataError where the folder goes while it is read, as an old checkpoint does when a run saves.
using VerifyProgress = std::function<void(Bytes done, Bytes total)>;
std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, const VerifyProgress& progress = {});

}  // namespace tessera

#pragma GCC visibility pop
