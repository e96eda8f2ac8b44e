// The options that all trainers share: ranks, sharding, batches, schedule, optimizer, files and test modes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/optim/schedule.hpp"
#include "tessera/plan/granules.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/travel_options.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

enum class OptimizerKind { adamw, adamw8bit, sgd, muon };

// The command line's options of a simulation stand here.
struct Simulation {
  std::optional<std::size_t> ranks;
  std::optional<std::size_t> rank;
  std::string backend = "local";
  // These two are of its collectives (tessera::CollectiveTime).
  double latency_microseconds = 0;
  double gigabytes_per_second = 0;
};

// One real rank of an imagined job.
struct SimulatedRank {
  std::size_t rank;
  std::size_t ranks;
};

// Where checkpoints go, and when.
struct CheckpointOptions {
  std::optional<std::filesystem::path> directory;
  std::optional<std::size_t> every;  // steps; and after the last one
  std::optional<std::size_t> keep;
  bool in_background = false;
  bool resume = false;
  bool skip_damaged = false;  // --resume=skip-damaged
};

// Steps that are traced, both included.
struct TracedSteps {
  std::size_t first;
  std::size_t last;
};

struct RunOptions {
  std::size_t ranks = 1;  // threads of this process or processes of its job: 1 in a simulation
  bool ranks_given = false;
  std::optional<std::filesystem::path> log_dir;
  double timeout_seconds = 60.0;
  std::optional<std::size_t> threads;
  tessera::DeviceChoice device = tessera::DeviceChoice::automatic;
  tessera::BackendChoice backend = tessera::BackendChoice::automatic;
  tessera::SumChoice sums = tessera::SumChoice::ranked;
  Simulation simulation;                   // as given
  std::optional<SimulatedRank> simulated;  // instead of real ranks; set by check_run_options()

  tessera::Strategy strategy = tessera::Strategy::fsdp;
  std::size_t replicas = 1;                      // of the mesh; divides the ranks, real or imagined
  std::optional<tessera::plan::MeshShape> mesh;  // of as many ranks; none: replicas by ranks of each
  tessera::AxisSet mesh_axes =
      tessera::Axis::replicate | tessera::Axis::shard;  // that --mesh takes; the program's choice
  tessera::OuterOptions outer;                          // every and fragments; the others are
  double outer_learning_rate = 1.0;
  double outer_momentum = 0.0;
  tessera::Precision precision = tessera::fp32_precision;
  TravelOptions travel;                           // is in `precision` when options are read
  tessera::DType masters = tessera::DType::fp32;  // given; check_run_options() makes them the precision's
  bool tf32 = false;                              // products of fp32 on CUDA devices
  double loss_scale = 0.0;                        // 0: dynamic; only fp16 reads it
  std::size_t prefetch = 1;
  tessera::Resharding reshard_after_forward = true;
  tessera::Offload offload;
  std::filesystem::path disk;             // the folder of what is offloaded there
  std::optional<std::size_t> bucket_cap;  // bytes; none: the strategy's default
  std::vector<std::string> notes;         // on options that were given, and that nothing reads

  std::size_t batch = 16;  // samples per rank and micro-batch, or per granule
  std::size_t accumulate = 1;
  std::size_t granules = 0;  // of a step, over all ranks; 0: none
  bool drop_last = false;    // samples that do not fill an epoch's last step; with outer steps always
  tessera::AccumulationMode accumulate_mode = tessera::AccumulationMode::automatic;
  std::optional<std::size_t> steps;
  std::optional<std::size_t> epochs;
  std::optional<std::size_t> stop_after;
  std::optional<std::size_t> eval_every;
  std::optional<std::size_t> eval_batches;  // as given; 0: all (held_out.hpp)
  // Where neither is given: after each epoch, all held-out samples; not some, ten times a run. The program's choice.
  bool evaluates_epochs = false;

  OptimizerKind optimizer = OptimizerKind::adamw;
  std::optional<double> learning_rate;
  double adamw_learning_rate = 0.002;  // where none is given; the program's choice
  double sgd_learning_rate = 0.05;
  std::string learning_rate_use = "as it is used: nothing scales it";  // of --help; the program's choice
  double min_learning_rate = 0.0;
  std::optional<std::size_t> warmup;
  double weight_decay = 0.01;
  std::vector<std::string> undecayed;  // patterns over names of parameters: "*bias"; the program's choice
  double clip = 1.0;
  std::size_t seed = 0;

  std::optional<std::filesystem::path> metrics;
  std::optional<std::filesystem::path> tensorboard;
  bool metrics_per_rank = false;
  bool hash_weights = false;
  std::optional<std::filesystem::path> dump_weights;
  std::optional<std::filesystem::path> init;
  std::optional<std::filesystem::path> init_map;
  std::optional<std::filesystem::path> trace;
  std::optional<std::filesystem::path> plot;    // of a trainer that draws one
  std::optional<std::string> trace_steps_text;  // as given
  std::optional<TracedSteps> trace_steps;       // set by check_run_options()
  CheckpointOptions checkpoints;
  // A run that is resumed must have the same, and so must all ranks; empty: not known. The program's.
  std::string data_fingerprint;
  bool quiet = false;
  bool show_types = false;
  bool draw_plan = false;

  std::optional<std::size_t> test_delays;
  bool test_poison = false;
  bool test_touch = false;
  bool test_queue = false;

  std::size_t ranks_of_job() const { return simulated ? simulated->ranks : ranks; }
  tessera::plan::MeshShape mesh_of_job() const {
    return mesh.value_or(tessera::plan::MeshShape{{tessera::Axis::replicate, replicas},
                                                  {tessera::Axis::shard, ranks_of_job() / replicas}});
  }
  // Samples are dealt to so many of the ranks that compute. Others have the same ones as the rank that is first among
  // those with this place: they have slices of its layers, other positions, or other layers.
  std::size_t data_ranks() const;
  std::size_t data_rank(std::size_t rank) const;
  std::size_t samples_per_rank() const {  // in a step; with granules of the rank with the most
    return batch * (granules > 0 ? tessera::Granules{.total = granules, .ranks = ranks}.rounds() : accumulate);
  }
  std::size_t samples_per_step() const { return granules > 0 ? batch * granules : samples_per_rank() * data_ranks(); }
};

// Adds the options to the command line, in groups. Present values are the defaults. `options` must stay.
void add_run_options(CommandLine& line, RunOptions& options);

// Which granules a rank computes in a step, as FullyShard::granules() says once there is a model; `total` is 0 without
// --granules.
tessera::Granules granules_of(const RunOptions& options, std::size_t rank);

// The rank that prints and writes metrics: 0, or the only one there is.
bool speaks_for_all(const RunOptions& options, const tessera::World& world);

// Refuses contradictions, and options without effect, which no single option can tell. Call it after parse(). Throws
// OptionError.
void check_run_options(const CommandLine& line, RunOptions& options);

// Throws OptionError where an output would replace the file of --data, whose path that is, or stand in its folder, all
// of which is data.
void require_data_is_no_output(const RunOptions& options, const std::filesystem::path& data);

// Batches that a loader fills ahead of the step.
inline constexpr std::size_t batches_ahead = 2;

// How long a run is: decided once the size of an epoch is known. Throws OptionError naming the option that does not
// fit.
struct RunLength {
  std::size_t steps;       // of the whole schedule
  std::size_t last_step;   // where this run ends: --stop-after, or steps
  std::size_t warmup;      // steps
  std::size_t eval_every;  // steps; 0: at the end only
};
// The last one of an epoch may be short, unless it is dropped.
std::size_t steps_per_epoch(const RunOptions& options, std::size_t samples);
RunLength run_length(const RunOptions& options, std::size_t steps_per_epoch, std::size_t default_epochs);

double learning_rate(const RunOptions& options);
bool shards_parameters(const RunOptions& options);  // gathers units for their windows
bool scales_loss(const RunOptions& options);        // in fp16
tessera::LaunchOptions launch_options(const RunOptions& options);
tessera::SimulateOptions simulate_options(const RunOptions& options);  // of a simulated rank
tessera::FullyShardOptions sharding_options(const RunOptions& options);
// A simulated rank takes all samples in turn: its peers take none.
tessera::SamplerOptions sampler_options(const RunOptions& options, std::size_t samples, const tessera::World& world);
tessera::SamplerOptions sampler_options(const RunOptions& options, std::size_t samples, std::size_t rank);
tessera::Schedule schedule(const RunOptions& options, const RunLength& length);
std::unique_ptr<tessera::Optimizer> make_optimizer(const RunOptions& options);

std::string_view to_string(OptimizerKind kind);

// --device, --backend, --sums and --precision tf32: where ranks compute, and how they exchange data there.
void add_device_options(CommandLine& line, RunOptions& options);

// Refuses what these options cannot mean together. Throws OptionError.
void check_device_options(const CommandLine& line, const RunOptions& options);

// Where the ranks will compute: on the CPU in processes that mpirun started, and in a simulation. Throws
// UnavailableError as tessera::resolve() does.
tessera::DeviceKind device_kind(const RunOptions& options);

// "fp32", "bf16", "fp32, products in tf32"
std::string precision_text(const RunOptions& options);

}  // namespace tessera::trainer

#pragma GCC visibility pop
