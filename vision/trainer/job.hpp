// The job of train_vision: this reads its options and images, and keeps what all ranks of a run have in common.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "models/vision/shape.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/trainer/mesh_option.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/training.hpp"
#include "tessera/vision/image_batches.hpp"

namespace train_vision {

using namespace models;
using namespace tessera::trainer;

struct VisionOptions {
  RunOptions run;
  ScheduleOptions schedule;  // of a transformer in stages
  VisionModelKind model = VisionModelKind::cnn;
  std::optional<std::size_t> width;       // default: usual_width()
  std::string data = "fashion-mnist";     // "cifar10:DIR" and so on
  std::optional<std::size_t> image_size;  // of a folder's images; default: 224
  std::size_t samples = 0;                // to train on, the first so many; 0: all
  std::optional<std::size_t> shift;       // of Augmentation; default: as the data's results are published
  std::optional<bool> flip;
  std::size_t cutout = 0;
  double label_smoothing = 0.0;
  bool synchronised_norms = false;
  bool scale_learning_rate = false;
  std::size_t loader_threads = 1;
  bool confusion = false;
  bool check_data = false;
};

// Nothing when only the help page was asked for. Throws OptionError.
std::optional<VisionOptions> parse_options(int argc, char** argv);

// Read once, and shared by the ranks of the process.
struct ImageData {
  std::string name;  // "fashion-mnist"
  std::shared_ptr<const tessera::vision::ImageBatches> training;
  std::size_t training_images = 0;  // the first of `training`
  std::shared_ptr<const tessera::vision::ImageBatches> held_out;
  std::string fingerprint;  // of a run with checkpoints

  tessera::vision::ImageExtents extents() const { return training->source().extents(); }
  const std::vector<std::string>& classes() const { return training->source().classes(); }
};

// Throws OptionError for --data that is nothing, DataError for files that are not what they must be.
ImageData load_images(const VisionOptions& options);

// A Job is what all ranks of a run have in common. It is made, and checked, before they start.
struct Job {
  VisionOptions options;
  ImageData data;
  RunLength length = {};
  tessera::FullyShardOptions sharding = {};  // with activations, and a limit: what the machine has for a rank
};

// Throws OptionError, DataError or MemoryError for what cannot run.
Job make_job(const VisionOptions& options);

VisionShape shape_of(const Job& job);

// Returns the text of --check-data: how an epoch's images are dealt to the ranks.
std::string dealt_images(const Job& job);

// Runs the job on this rank. Rank 0 prints, and writes `metrics` where there is one. Collective.
void train(tessera::World& world, const Job& job, RunMetrics* metrics);

}  // namespace train_vision
