// The job of train_mlp: this reads its options and samples, and keeps what all ranks of a run have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/mlp/model.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/labelled_source.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/training.hpp"

namespace train_mlp {

using namespace models;
using namespace tessera::trainer;

struct MlpOptions {
  RunOptions run;
  std::size_t hidden = 256;
  std::size_t depth = 6;        // hidden × hidden layers between input and output
  std::string data = "digits";  // "digits", "synthetic", or the path of a CSV file
};

// Nothing when only the help page was asked for. Throws OptionError.
std::optional<MlpOptions> parse_options(int argc, char** argv);

// The samples of a run: those that it trains on, and those held out to measure what it learned. Read once, and shared
// by the ranks of the process.
struct HeldOut {
  std::shared_ptr<const tessera::LabelledSource> source;
  std::size_t first = 0;  // samples [first, first + count) of the source
  std::size_t count = 0;
};

struct Dataset {
  std::string name;  // "digits", "samples.csv"
  std::shared_ptr<const tessera::LabelledSource> training;
  std::size_t training_samples = 0;  // the first of `training`
  HeldOut held_out;
  std::size_t default_epochs = 1;

  std::size_t columns() const { return training->columns(); }
  std::size_t classes() const { return training->classes(); }
};

// name: as --data takes it. The split of files is the same for every seed, so that runs can be compared.
Dataset load_dataset(const std::string& name, std::uint64_t seed);

// A Job is what all ranks of a run have in common. It is made, and checked, before they start.
struct Job {
  MlpOptions options;
  Dataset data;
  RunLength length = {};
  tessera::FullyShardOptions sharding = {};  // with activations, and a limit: what the machine has for a rank
};

// Throws OptionError, DataError or MemoryError for what cannot run.
Job make_job(const MlpOptions& options);

MlpShape shape_of(const Job& job);

// Runs the job on this rank. Rank 0 prints, and writes `metrics` where there is one. Collective.
void train(tessera::World& world, const Job& job, RunMetrics* metrics);

}  // namespace train_mlp
