// Saves and loads all that training needs to go on: weights, the optimizer's states, untrained state, step count, loss
// scale, the sampler's position. Every rank writes and reads its own parts of ordinary safetensors files, so a
// checkpoint knows neither strategy nor ranks, and nobody ever holds the model (docs/checkpoint_format.md).
//
//   tessera::Checkpointer checkpoints(model, {.directory = "runs/7", .keep = 3});
//   if (const auto found = checkpoints.latest()) step = checkpoints.load(found->path).step;
//   …
//   checkpoints.save({.step = step, .sampler = loader.state()});
//
// A checkpoint is a directory step-00000100 in `directory`. It appears under that name in one step, when everything in
// it is on the device, and is never changed afterwards. Only one job at a time may save to a directory.
//
// Thread safety: none; all functions are called by the rank's own thread, between steps, on all ranks alike
// (collective). Destroy it before its model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/bytes.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/state.hpp"
#include "tessera/checkpoint/tensor_index.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/shard/fully_shard.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The same on every rank: aliases, metadata and split that differ are a CommunicationError; directory and keep are rank
// 0's.
struct CheckpointerOptions {
  std::filesystem::path directory;
  std::size_t keep = 0;  // checkpoints; older ones are removed once a new one stands. 0: all stay
  // Other names of tied parameters: each is written down in the metadata as one of the stored tensor of that name.
  std::map<std::string, std::string> aliases = {};
  // The metadata of the files of weights has these, too: LoadWeightsOptions::metadata may ask for them.
  std::map<std::string, std::string> metadata = {};
  Bytes split = split_limit;  // tensors of a file; what is more goes to further files, with an index
};

// The training loop tells a save this; the save takes the rest from the model. The step is the same on every rank; what
// else is written is rank 0's.
struct TrainingProgress {
  std::uint64_t step = 0;  // steps done; names the checkpoint
  std::optional<SamplerState> sampler = std::nullopt;
  std::map<std::string, std::string> values = {};  // the user's own
};

struct LatestOptions {
  // Goes on to older ones where it must, and warns of each that is skipped (World::warn). Where none is valid, that is
  // still a DataError.
  bool skip_damaged = false;
  std::uint64_t below = std::numeric_limits<std::uint64_t>::max();  // only those of lower steps; default: all
};

struct LoadOptions {
  // Only the tensors that the model and the checkpoint have in common, in the same shape; the rest of the model stays
  // as it is, and so do counts and loss scale of a program where no states of its optimizer are among them.
  bool partial = false;
};

class Checkpointer {
 public:
  // The model is finalized, with FullyShardOptions::checkpointing other than none. Makes the directory, locks it, and
  // removes what jobs that died left unfinished; warns where the file system has no locks. Throws UsageError, also for
  // an alias of what the model does not have and for names that no reader would take (not UTF-8, too long together), or
  // DataError naming the path.
  Checkpointer(FullyShard& model, CheckpointerOptions options);
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;
  // Waits for a save in the background. Its error is lost: call wait() before.
  ~Checkpointer();

  // Writes a checkpoint; it stands when this returns. A sound one of that step which stands there already stays as it
  // is: with the same contents that is fine, with others a DataError. What is not sound is set aside, with a warning.
  // When a rank fails (the device is full, say), all ranks get a DataError that names the path, what stood before
  // stands, and training may go on. Synchronises.
  void save(const TrainingProgress& progress);

  // Copies this rank's shards and returns; threads write them while training goes on. Where ranks meet over NCCL,
  // blocks of elements that several ranks have are brought together over the devices and written before it returns,
  // because NCCL's collectives need one order on all ranks. Needs FullyShardOptions::checkpointing = background. One at
  // a time: waits for the save before, and throws its error, after which this one was not begun; its own is wait()'s.
  // Synchronises.
  void save_async(const TrainingProgress& progress);
  // Until the save in the background, if any, has ended. Throws its error, once.
  void wait();
  bool saving() const;  // a save in the background has not been waited for

  // The newest checkpoint in the directory, the same on every rank; nothing where there is none. Throws DataError where
  // it is there and not valid (damaged, unreadable, of a later version), unless it is to be skipped. Waits for the save
  // in the background.
  std::optional<FoundCheckpoint> latest(const LatestOptions& options = {});

  // Puts a checkpoint into the model, whatever ranks, strategy and precision either has; every byte that is read is
  // checked. One that was written between outer steps needs a model of as many replicas, with outer steps; any other
  // model gets what they had in common last where a part is enough. From one that was written without outer steps all
  // replicas set out, with an outer optimizer at rest. A fixed loss scale stays the model's own; a dynamic one goes on,
  // or begins anew after a run that scaled nothing. States that wait for a frozen parameter (waiting()) begin at zero
  // when it is thawed. Returns what the training loop needs to go on. Tensors that are missing, unknown or of another
  // shape are one DataError that names them all, before anything is replaced, as is a UsageError where ranks load
  // different ones; after any other error the model's values are undefined. Synchronises.
  CheckpointState load(const std::filesystem::path& checkpoint, LoadOptions options = {});

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera

#pragma GCC visibility pop
