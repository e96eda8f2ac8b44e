// The job of train_gpt: this reads its options and tokens, and keeps what all ranks of a run have in common.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt/shape.hpp"
#include "tessera/base/bytes.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/tokens.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/trainer/mesh_option.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/training.hpp"

namespace train_gpt {

using namespace models;
using namespace tessera::trainer;

inline constexpr const char* usual_prompt = "\n";

struct GptOptions {
  RunOptions run;

  std::size_t layers = 4;
  std::size_t dim = 128;  // a multiple of heads
  std::size_t heads = 4;
  std::size_t seq = 128;  // tokens of a sequence
  double dropout = 0.0;
  bool activation_checkpointing = false;
  std::vector<std::string> fp32_units;  // shell patterns over names of units

  std::string data = "shakespeare";       // that, or the path of a text or of a .bin file
  std::optional<std::size_t> vocabulary;  // as given
  std::size_t least_vocabulary = 1;       // a preset's

  std::optional<std::size_t> sample;  // bytes of generated text; default: a few for text, none for .bin files
  std::optional<std::string> prompt;  // default: usual_prompt
  double temperature = 0.8;
  bool temperature_given = false;

  ScheduleOptions schedule;  // of a pipeline
};

// Nothing when only the help page was asked for. Throws OptionError.
std::optional<GptOptions> parse_options(int argc, char** argv);

// The tokens of a run: those that it trains on, and those held out to measure what it learned. Mapped once, and shared
// by the ranks of the process.
struct TokenData {
  std::string name;  // "shakespeare", "train.bin"
  tessera::TokenSplit parts;
  std::size_t vocabulary;  // of the model; the file's ids are below parts.training.file().vocabulary()

  const tessera::TokenFile& file() const { return parts.training.file(); }
  bool is_text() const { return file().format() == tessera::TokenFormat::bytes; }
};

// Throws DataError naming the file.
TokenData load_tokens(const GptOptions& options);

// A Job is what all ranks of a run have in common. It is made, and checked, before they start.
struct Job {
  GptOptions options;
  TokenData data;
  GptShape shape = {};
  RunLength length = {};
  std::size_t sample = 0;                    // bytes of generated text
  tessera::FullyShardOptions sharding = {};  // with activations, and a limit: what the machine has for a rank
};

// Throws OptionError, DataError or MemoryError for what cannot run.
Job make_job(const GptOptions& options);

// The shape of a rank's slices, and of its part of sequences.
GptShape shape_on(const tessera::World& world, const Job& job);

// Memory of batches that are loaded ahead.
tessera::Bytes batch_bytes(const Job& job);

// The training of a job whose mesh has several stages.
std::unique_ptr<Training> make_pipeline(tessera::World& world, const Job& job);

// Training::aliases() and settings().
std::map<std::string, std::string> aliases_of_weights();
std::map<std::string, std::string> settings_of_weights(const Job& job);

std::string headline(const Job& job, tessera::FullyShard& model);

// Runs the job on this rank. Rank 0 prints, and writes `metrics` where there is one. Collective.
void train(tessera::World& world, const Job& job, RunMetrics* metrics);

}  // namespace train_gpt
