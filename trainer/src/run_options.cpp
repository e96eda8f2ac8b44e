// The shared options, their limits, and what they mean to the library.
#include "tessera/trainer/run_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/nn/muon.hpp"
#include "tessera/optim/adamw.hpp"
#include "tessera/optim/adamw8bit.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/trainer/masters_option.hpp"
#include "tessera/trainer/mesh_option.hpp"
#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "trainer/src/checkpoint_options.hpp"
#include "trainer/src/run_trace.hpp"
#include "trainer/src/simulation.hpp"

namespace tessera::trainer {

using tessera::AccumulationMode;
using tessera::BackendChoice;
using tessera::DeviceChoice;
using tessera::DeviceKind;
using tessera::Resharding;
using tessera::Strategy;
using tessera::SumChoice;

namespace {

constexpr std::size_t most_ranks = 1024;
constexpr std::size_t most_replicas = std::size_t{1} << 20;  // as many as a simulation has ranks
constexpr std::size_t most_samples = std::size_t{1} << 24;   // in one micro-batch of a rank
constexpr std::size_t most_steps = 1'000'000'000;
constexpr std::size_t most_micro_batches = 65536;  // of a step
constexpr float sgd_momentum = 0.9f;

template <typename Value>
Choice choose(std::string name, Value& target, Value value) {
  return {std::move(name), [&target, value] { target = value; }};
}

void add_job_options(CommandLine& line, RunOptions& options) {
  line.group("Ranks");
  line.whole("--ranks", options.ranks, {1, most_ranks},
             "Ranks, each a thread of this process; under mpirun there is one for each process");
  line.whole("--threads", options.threads, {1, most_ranks},
             "Threads that share one rank's layers and optimizer on the CPU [cores / ranks]");
  add_device_options(line, options);
  line.real("--timeout", options.timeout_seconds, {0.001, 604800}, "Seconds that a rank waits for another one");
  line.directory("--log-dir", options.log_dir, "Directory for rank-R.log, one of each rank");
  add_simulation_options(line, options);
}

void add_sharding_options(CommandLine& line, RunOptions& options) {
  line.group("Sharding");
  add_strategy_option(line, options.strategy);
  line.whole("--replicas", options.replicas, {1, most_replicas},
             "R of the mesh of R replicas by N/R of the N ranks, in their order, with any strategy: gradients are "
             "summed inside each replica, then across them. So it sets the order of sums, and changes last bits");
  add_mesh_option(line, options.mesh, options.mesh_axes);
  line.whole(
      "--outer-every", options.outer.every, {1, most_steps},
      "Replicas train each by themselves, and after every so many steps meet: an outer SGD takes them from where "
      "they met last towards the mean of where they are (DiLoCo) [they are summed in every step]");
  line.real("--outer-lr", options.outer_learning_rate, {0, 1000},
            "Learning rate of the outer SGD; the default, with --outer-momentum 0, is plain averaging");
  line.real("--outer-momentum", options.outer_momentum, {0, 0.9999},
            "Nesterov momentum of the outer SGD. DiLoCo has 0.9, with --outer-lr 0.7, for hundreds of meetings from a "
            "model that was trained before; in short runs it ends higher than averaging");
  line.whole("--outer-fragments", options.outer.fragments, {1, most_steps},
             "Parts of the model that take turns in meeting, each once in --outer-every steps");
  line.choice(
      "--precision",
      {choose("fp32", options.precision, tessera::fp32_precision), choose("tf32", options.tf32, true),
       choose("bf16", options.precision, tessera::bf16_mixed), choose("fp16", options.precision, tessera::fp16_mixed)},
      "Of activations, of parameters and gradients in the windows, and of what travels; sums and optimizer are fp32 "
      "in all of them, and masters unless --masters says otherwise [fp32]; tf32: fp32 whose products run on a GPU's "
      "tensor cores, with ten bits "
      "of each operand's mantissa");
  add_masters_option(line, options.masters);
  line.real("--loss-scale", options.loss_scale, {0, 0x1p24},
            "Factor on the loss, for the gradients of fp16; 0: dynamic, from 65536");
  line.whole("--prefetch", options.prefetch, {0, 1024}, "Units gathered ahead of the one that computes");
  line.choice(
      "--reshard-after-forward",
      {choose("yes", options.reshard_after_forward, Resharding(true)),
       choose("no", options.reshard_after_forward, Resharding(false)),
       choose("group", options.reshard_after_forward, Resharding(tessera::Axis::shard))},
      "Gather units again for the backward pass [yes]; no: keep them whole; group, for fsdp on several replicas: "
      "keep a replica's share, and gather them again inside each replica");
  line.whole(
      "--bucket-cap", options.bucket_cap, {0, std::size_t{1} << 40},
      "Gradients of at most so many bytes are reduced in one operation; 0: each unit's alone [1 MiB; fsdp, hsdp, "
      "hfsdp: 0]");
  add_travel_options(line, options.travel);
  add_offload_options(line, options.offload, options.disk);
}

void add_length_options(CommandLine& line, RunOptions& options) {
  line.group("Steps");
  line.whole("--batch", options.batch, {1, most_samples},
             "Samples per rank and micro-batch; with --granules samples of a granule");
  line.whole("--accumulate", options.accumulate, {1, most_micro_batches}, "Micro-batches per step");
  line.whole(
      "--granules", options.granules, {1, most_micro_batches},
      "Same bits on any number of ranks up to this one: a step is so many micro-batches of --batch samples, which the "
      "ranks share and whose gradients add up one after the other. On the CPU --threads is then 1 unless it is given "
      "[a step is ranks x --accumulate micro-batches, and its last bits depend on the ranks]");
  line.choice("--accumulate-mode",
              {choose("local", options.accumulate_mode, AccumulationMode::local),
               choose("reduced", options.accumulate_mode, AccumulationMode::reduced)},
              "Micro-batches add up on the rank and are reduced once, or each is reduced [ddp, zero1: local; "
              "others: reduced]");
  line.choice("--drop-last", {choose("yes", options.drop_last, true), choose("no", options.drop_last, false)},
              "Leave out the samples that do not fill an epoch's last step [no: that step is short, its mean is over "
              "its samples, and ranks without any skip it; with --outer-every: yes]");
  line.whole("--steps", options.steps, {1, most_steps}, "Length of the run in steps");
  line.whole("--epochs", options.epochs, {1, most_steps}, "Length of the run in passes over the data");
  line.whole("--stop-after", options.stop_after, {1, most_steps},
             "End after this step, counted from the first one ever; the schedule stays that of the whole run");
  line.whole("--eval-every", options.eval_every, {0, most_steps},
             fmt::format("Steps between evaluations; 0: at the end only [{}]",
                         options.evaluates_epochs ? "an epoch" : "a tenth of the run"));
  line.whole("--eval-batches", options.eval_batches, {0, most_steps},
             fmt::format("Batches of held-out samples that a rank, or with --granules each granule, evaluates, spread "
                         "evenly; 0: all [{}]",
                         options.evaluates_epochs ? "0" : "30 x --accumulate, which take about as long as ten steps"));
}

void add_optimizer_options(CommandLine& line, RunOptions& options) {
  line.group("Optimizer");
  std::vector<Choice> choices;
  for (const OptimizerKind kind :
       {OptimizerKind::adamw, OptimizerKind::adamw8bit, OptimizerKind::sgd, OptimizerKind::muon}) {
    choices.push_back(choose(std::string(to_string(kind)), options.optimizer, kind));
  }
  line.choice(
      "--optimizer", choices,
      fmt::format("adamw8bit is adamw with moments of 8 bits, a quarter of its memory; sgd has momentum {}; muon "
                  "orthogonalises the momentum of matrices, and leaves embeddings, heads and vectors to adamw [adamw]",
                  sgd_momentum));
  line.real("--lr", options.learning_rate, {0, 1000},
            fmt::format("Learning rate after the warm-up, {} [adamw, adamw8bit, muon: {}, sgd: {}]",
                        options.learning_rate_use, options.adamw_learning_rate, options.sgd_learning_rate));
  line.real("--min-lr", options.min_learning_rate, {0, 1000}, "Learning rate at the end of the cosine");
  line.whole("--warmup", options.warmup, {0, most_steps},
             "Steps of the linear warm-up [a tenth of the run, at most 100]");
  line.real("--weight-decay", options.weight_decay, {0, 1000}, "Of all parameters but biases");
  line.real("--clip", options.clip, {0, 1e30}, "The gradient's global norm is clipped to it; 0: no clipping");
  line.whole("--seed", options.seed, {0, std::numeric_limits<std::uint64_t>::max()},
             "Of the initial values, and of the order of the samples");
}

void add_file_options(CommandLine& line, RunOptions& options) {
  line.group("Files");
  line.path("--metrics", options.metrics,
            "One JSON object per step: step, loss, grad_norm, lr, samples (of the step, over all ranks), step_seconds, "
            "samples_per_second; the bits of loss (fp32) and grad_norm (fp64); accuracy after an evaluation; memory in "
            "the first and the last");
  line.directory("--tensorboard", options.tensorboard,
                 "Directory for a file of the same figures that TensorBoard draws; another run's may stand beside it");
  line.flag("--metrics-per-rank", options.metrics_per_rank,
            "Adds to both, as \"ranks\", the least, the median and the largest over ranks, and whose that is, of loss, "
            "time of a step, and in it of waiting for other ranks and for samples; a rank that is slower than the "
            "others by more than a third is named once");
  line.flag("--hash-weights", options.hash_weights,
            "Adds to the lines of --metrics a hash of the weights after the step, of all (weights_hash) and of each "
            "tensor (tensor_hashes); tessera verify-bits says by them where two runs part");
  line.path("--dump-weights", options.dump_weights, "Writes the trained weights, in safetensors format");
  line.path("--init", options.init, "Starts from the weights of such a file");
  line.path("--init-map", options.init_map,
            "Names in the file of --init where they are others: JSON, {\"name in the model\": \"name in the file\"}");
  line.flag("--show-types", options.show_types,
            "Prints for each unit in which types it computes, travels and adds up, and what the CPU computes with");
  add_trace_options(line, options);
  line.flag("--quiet", options.quiet, "Prints errors only");
}

void add_test_options(CommandLine& line, RunOptions& options) {
  line.group("Test modes (none of them changes a bit of the results)");
  line.whole("--test-delays", options.test_delays, {0, std::numeric_limits<std::uint64_t>::max()},
             "Random delays on every queued stream, by this seed");
  line.flag("--test-poison", options.test_poison, "Fills freed slots with NaN");
  line.flag("--test-touch", options.test_touch, "Touches the ends of every range that an operation declares");
  line.flag("--test-queue", options.test_queue, "Makes the compute stream a queue");
}

// Also where neither is there yet, and two paths lead to one place.
bool are_one_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  if (a == b || std::filesystem::equivalent(a, b, error)) return true;
  const auto place_a = std::filesystem::weakly_canonical(a, error);
  if (error) return false;
  const auto place_b = std::filesystem::weakly_canonical(b, error);
  return !error && place_a == place_b;
}

bool is_in(const std::filesystem::path& file, const std::filesystem::path& folder) {
  std::error_code error;
  const auto relative = std::filesystem::relative(file, folder, error);
  return !error && !relative.empty() && *relative.begin() != "..";
}

// A run's outputs may replace nothing that it reads, nor each other. Weights may replace those that the run began with.
void require_distinct_files(const RunOptions& options) {
  using File = std::pair<const char*, const std::optional<std::filesystem::path>&>;
  const auto same = [](const File& a, const File& b) {
    return a.second && b.second && are_one_file(*a.second, *b.second);
  };
  const File metrics("--metrics", options.metrics);
  const File weights("--dump-weights", options.dump_weights);
  const File trace("--trace", options.trace);
  const File plot("--plot", options.plot);
  const File map("--init-map", options.init_map);
  const File init("--init", options.init);
  for (const auto& [a, b] : {std::pair(metrics, weights), std::pair(metrics, trace), std::pair(weights, trace),
                             std::pair(metrics, plot), std::pair(weights, plot), std::pair(trace, plot)}) {
    if (!same(a, b)) continue;
    throw OptionError(fmt::format("{} and {} are the same file, {}", a.first, b.first, a.second->string()));
  }
  if (options.init_map && !options.init) throw OptionError("--init-map is for the file of --init, which is not given");
  for (const auto& [output, input] :
       {std::pair(metrics, map), std::pair(trace, map), std::pair(weights, map), std::pair(plot, map),
        std::pair(metrics, init), std::pair(trace, init), std::pair(plot, init)}) {
    if (!same(output, input)) continue;
    throw OptionError(
        fmt::format("{} would overwrite the file of {}, {}", output.first, input.first, input.second->string()));
  }
}

void check_metrics_per_rank(const RunOptions& options) {
  if (!options.metrics_per_rank) return;
  if (!options.metrics && !options.tensorboard)
    throw OptionError("--metrics-per-rank needs --metrics or --tensorboard");
  if (options.simulated)
    throw OptionError("--metrics-per-rank does not go with --simulate-world: its other ranks take no time");
}

void check_hash_weights(const RunOptions& options) {
  if (!options.hash_weights) return;
  if (!options.metrics) throw OptionError("--hash-weights needs --metrics, whose lines have the hashes");
  if (options.simulated)
    throw OptionError("--hash-weights does not go with --simulate-world: one rank alone has no whole tensor");
}

// Under mpirun, torchrun and srun each process is a rank, and the launcher says how many there are.
void take_started_ranks(RunOptions& options) {
  const tessera::Start start = tessera::how_started();
  if (start.launcher == tessera::Launcher::alone || options.ranks_given || options.simulated) return;
  if (start.ranks == 0) {
    throw OptionError("the launcher does not say how many processes it has started: mpirun does, and srun for a step");
  }
  options.ranks = static_cast<std::size_t>(start.ranks);
}

// A mesh says how many ranks there are, where nobody else has.
void take_mesh(const CommandLine& line, RunOptions& options) {
  if (!options.mesh) return;
  if (line.given("--replicas")) {
    throw OptionError("--mesh and --replicas exclude each other: a mesh has its replicas along the axis replicate");
  }
  options.replicas = options.mesh->size(tessera::Axis::replicate);
  if (!options.ranks_given && !options.simulated && tessera::how_started().launcher == tessera::Launcher::alone) {
    options.ranks = options.mesh->size();
    options.ranks_given = true;
  }
  if (options.mesh->size() == options.ranks_of_job()) return;
  throw OptionError(fmt::format("--mesh {} is of {} ranks, and there are {}", options.mesh->text(),
                                options.mesh->size(), options.ranks_of_job()));
}

void require_mesh(const RunOptions& options) {
  const std::size_t ranks = options.ranks_of_job();
  if (ranks % options.replicas == 0) return;
  throw OptionError(fmt::format("--replicas {} does not divide the {} rank{}: choose a divisor", options.replicas,
                                ranks, ranks == 1 ? "" : "s"));
}

// Outer steps need replicas: those train by themselves, and have no short step in common.
void check_outer_steps(const CommandLine& line, RunOptions& options) {
  if (options.outer.every == 0) {
    for (const char* name : {"--outer-lr", "--outer-momentum", "--outer-fragments"}) {
      if (line.given(name)) throw OptionError(fmt::format("{} needs --outer-every", name));
    }
    return;
  }
  if (options.replicas == 1) throw OptionError("--outer-every is for several replicas: add --replicas");
  if (line.given("--drop-last") && !options.drop_last) {
    throw OptionError("--drop-last no does not go with --outer-every: replicas that meet rarely take whole steps");
  }
  options.drop_last = true;
  if (options.strategy == Strategy::hfsdp) {
    throw OptionError("--outer-every: hfsdp divides the optimizer's states among replicas that then differ; use hsdp");
  }
  if (!(options.outer_learning_rate > 0)) throw OptionError("--outer-lr must be above 0");
  if (options.outer.fragments > options.outer.every) {
    throw OptionError(fmt::format("--outer-fragments {} is above --outer-every {}: each has a step of its own",
                                  options.outer.fragments, options.outer.every));
  }
}

// Refuses what cannot have the same bits on any number of ranks.
void check_granules(const CommandLine& line, RunOptions& options) {
  if (options.granules == 0) return;
  if (line.given("--accumulate")) {
    throw OptionError(
        "--granules and --accumulate exclude each other: a granule is a micro-batch, so take more granules");
  }
  if (options.accumulate_mode == AccumulationMode::local) {
    throw OptionError(
        "--granules: --accumulate-mode local adds up on each rank first, in an order that depends on their number; "
        "leave it out, or choose reduced");
  }
  if (options.outer.every > 0) {
    throw OptionError(
        "--granules does not go with --outer-every: replicas that train by themselves differ by their number");
  }
  if (options.simulated) {
    throw OptionError(
        "--granules does not go with --simulate-world: a simulated rank takes the samples of the others, too");
  }
  if (options.data_ranks() != options.ranks) {
    const bool has_stages = options.mesh_of_job().size(tessera::Axis::pipeline) > 1;
    throw OptionError(fmt::format("--granules does not go with ranks of --mesh that share samples: {}",
                                  has_stages ? "stages do different work, and granules are of ranks that do the same"
                                             : "slices change last bits, and so do parts of sequences"));
  }
  if (options.ranks > options.granules) {
    throw OptionError(fmt::format(
        "--granules {}: of {} ranks {} would have none to compute; take at most {} rank{}, or more granules",
        options.granules, options.ranks, options.ranks - options.granules, options.granules,
        options.granules == 1 ? "" : "s"));
  }
  // Libraries may cut a product as the threads are, and each rank has its share of the cores by default.
  if (!options.threads && device_kind(options) == DeviceKind::cpu) options.threads = 1;
}

void note_sharding(const CommandLine& line, RunOptions& options) {
  if (is_hybrid(options.strategy) && options.replicas == 1) {
    options.notes.push_back(
        fmt::format("with one replica {} is fsdp: --replicas makes several", to_string(options.strategy)));
  }
  const bool on_each_rank = options.strategy == Strategy::fsdp && options.replicas > 1;
  if (options.reshard_after_forward == tessera::Axis::shard && !on_each_rank && shards_parameters(options)) {
    options.notes.push_back(
        "--reshard-after-forward group is yes here: it is for fsdp on several replicas (--replicas)");
    options.reshard_after_forward = true;
  }
  if (shards_parameters(options)) return;
  for (const char* name : {"--prefetch", "--reshard-after-forward"}) {
    if (!line.given(name)) continue;
    options.notes.push_back(
        fmt::format("{} is without effect: strategy {} keeps every unit whole", name, to_string(options.strategy)));
  }
}

// Notes which options were given that nothing will read.
void note_unread(const CommandLine& line, RunOptions& options) {
  const auto note = [&](const char* name, const char* why) {
    if (line.given(name)) options.notes.push_back(fmt::format("{} is without effect: {}", name, why));
  };
  if (!scales_loss(options)) note("--loss-scale", "only fp16 needs it");
  if (options.accumulate == 1 && options.granules == 0)
    note("--accumulate-mode", "a step has one micro-batch; --accumulate makes several");
  if (!(line.given("--threads") || line.given("--test-queue")) || device_kind(options) == DeviceKind::cpu) return;
  note("--threads", "layers and optimizer run on CUDA devices");
  note("--test-queue", "the compute stream of a CUDA device is a queue anyway");
}

std::size_t default_warmup(std::size_t steps) { return std::min<std::size_t>(steps / 10, 100); }

}  // namespace

void add_run_options(CommandLine& line, RunOptions& options) {
  add_job_options(line, options);
  add_sharding_options(line, options);
  add_length_options(line, options);
  add_optimizer_options(line, options);
  add_file_options(line, options);
  add_checkpoint_options(line, options);
  add_test_options(line, options);
}

// An update that is not taken back supposes something of every step.
void check_updates_for_good(const CommandLine& line, const RunOptions& options) {
  if (options.offload.ahead != tessera::Ahead::final) return;
  const auto refuse = [](std::string_view why) {
    throw OptionError(fmt::format("--offload ahead-for-good: {}, which would end the run; or take ahead", why));
  };
  if (!options.drop_last) refuse("take --drop-last yes, because an epoch's last step may have fewer samples");
  if (!line.given("--clip")) refuse("say --clip 0, because steps whose norm is above 1 are clipped by default");
  if (scales_loss(options) && options.loss_scale == 0.0) {
    refuse("say --loss-scale, because a dynamic one skips a step now and then");
  }
}

void check_run_options(const CommandLine& line, RunOptions& options) {
  options.ranks_given = line.given("--ranks");
  check_simulation_options(line, options);
  check_checkpoint_options(line, options);
  check_trace_options(line, options);
  take_started_ranks(options);
  take_mesh(line, options);
  check_device_options(line, options);
  if (options.steps && options.epochs) throw OptionError("--steps and --epochs exclude each other");
  if (options.min_learning_rate > learning_rate(options)) {
    throw OptionError(fmt::format("--min-lr {} is above --lr {}", options.min_learning_rate, learning_rate(options)));
  }
  require_distinct_files(options);
  check_metrics_per_rank(options);
  check_hash_weights(options);
  note_unread(line, options);
  require_mesh(options);
  check_outer_steps(line, options);
  check_granules(line, options);
  options.precision = with_masters(with_travel(options.precision, options.travel), options.masters);
  check_offload_options(line, options.offload, options.disk, options.precision);
  check_updates_for_good(line, options);
  note_sharding(line, options);
}

void require_data_is_no_output(const RunOptions& options, const std::filesystem::path& data) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(data, error);
  for (const auto& [name, path] :
       {std::pair("--metrics", options.metrics), std::pair("--dump-weights", options.dump_weights),
        std::pair("--trace", options.trace), std::pair("--plot", options.plot)}) {
    if (!path) continue;
    if (are_one_file(*path, data)) {
      throw OptionError(fmt::format("{} would overwrite the file of --data, {}", name, data.string()));
    }
    if (is_folder && is_in(*path, data)) {
      throw OptionError(fmt::format("{} would stand among the files of --data, in {}", name, data.string()));
    }
  }
}

std::size_t steps_per_epoch(const RunOptions& options, std::size_t samples) {
  const std::size_t step = options.samples_per_step();
  return samples / step + (samples % step != 0 && !options.drop_last ? 1 : 0);
}

RunLength run_length(const RunOptions& options, std::size_t steps_per_epoch, std::size_t default_epochs) {
  const std::size_t epochs = options.epochs.value_or(default_epochs);
  if (!options.steps && epochs > most_steps / steps_per_epoch) {
    throw OptionError(fmt::format("--epochs {} of {} steps each is more than {} steps", epochs,
                                  grouped(steps_per_epoch), grouped(most_steps)));
  }
  const std::size_t steps = options.steps.value_or(epochs * steps_per_epoch);
  if (options.stop_after.value_or(0) > steps) {
    throw OptionError(fmt::format("--stop-after {} is beyond the {} steps of this run", *options.stop_after, steps));
  }
  if (options.warmup && *options.warmup >= steps) {
    throw OptionError(fmt::format("--warmup {} leaves nothing of the {} steps of this run", *options.warmup, steps));
  }
  const RunLength length = {.steps = steps,
                            .last_step = options.stop_after.value_or(steps),
                            .warmup = options.warmup.value_or(default_warmup(steps)),
                            .eval_every = options.eval_every.value_or(
                                options.evaluates_epochs ? steps_per_epoch : std::max<std::size_t>(1, steps / 10))};
  require_traced_steps(options, length);
  return length;
}

double learning_rate(const RunOptions& options) {
  return options.learning_rate.value_or(options.optimizer == OptimizerKind::sgd ? options.sgd_learning_rate
                                                                                : options.adamw_learning_rate);
}

bool shards_parameters(const RunOptions& options) { return !options.strategy.sharding.parameters.empty(); }

bool scales_loss(const RunOptions& options) { return options.precision.gradient == tessera::DType::fp16; }

tessera::LaunchOptions launch_options(const RunOptions& options) {
  tessera::LaunchOptions launch;
  if (options.ranks_given) launch.ranks = static_cast<int>(options.ranks);
  launch.timeout = std::chrono::milliseconds(std::llround(options.timeout_seconds * 1000));
  launch.device = options.device;
  launch.backend = options.backend;
  launch.sums = options.sums;
  if (options.threads) launch.threads = static_cast<int>(*options.threads);
  if (options.log_dir) launch.log_dir = *options.log_dir;
  return launch;
}

tessera::SimulateOptions simulate_options(const RunOptions& options) {
  const tessera::LaunchOptions launch = launch_options(options);
  return {
      .ranks = static_cast<int>(options.simulated->ranks),
      .rank = static_cast<int>(options.simulated->rank),
      .collectives = {.latency = std::chrono::nanoseconds(std::llround(1e3 * options.simulation.latency_microseconds)),
                      .bytes_per_second = 1e9 * options.simulation.gigabytes_per_second},
      .timeout = launch.timeout,
      .threads = launch.threads};
}

// Places are in the order in which ranks own shards.
tessera::Granules granules_of(const RunOptions& options, std::size_t rank) {
  if (options.granules == 0) return {};
  const tessera::plan::MeshShape mesh = options.mesh_of_job();
  return {.total = options.granules,
          .ranks = options.ranks,
          .rank = mesh.index_of(tessera::AxisSet::all(), mesh.place_of(rank))};
}

namespace {

// Those along context have other positions of the same samples.
constexpr tessera::AxisSet without_samples = tessera::same_samples | tessera::Axis::context | tessera::Axis::pipeline;

}  // namespace

std::size_t RunOptions::data_ranks() const {
  return simulated ? ranks : mesh_of_job().size(tessera::AxisSet::all() - without_samples);
}
std::size_t RunOptions::data_rank(std::size_t rank) const {
  if (simulated) return 0;
  const tessera::plan::MeshShape of_job = mesh_of_job();
  tessera::plan::MeshShape of_samples = of_job;
  of_job.outwards_in([&](tessera::Axis axis) {
    if (without_samples.contains(axis)) of_samples = of_samples.without(axis);
  });
  return of_samples.rank_at(of_job.place_of(rank));
}

bool speaks_for_all(const RunOptions& options, const tessera::World& world) {
  return world.rank() == 0 || options.simulated.has_value();
}

tessera::FullyShardOptions sharding_options(const RunOptions& options) {
  tessera::FullyShardOptions sharding;
  sharding.strategy = options.strategy;
  sharding.replicas = options.replicas;
  sharding.mesh = options.mesh;
  sharding.outer = options.outer;
  sharding.outer.learning_rate = static_cast<float>(options.outer_learning_rate);
  sharding.outer.momentum = static_cast<float>(options.outer_momentum);
  sharding.precision = options.precision;
  sharding.micro_batches = options.accumulate;
  sharding.accumulation = options.accumulate_mode;
  sharding.granules = options.granules;
  sharding.seed = options.seed;
  if (scales_loss(options) && options.loss_scale > 0.0) {
    sharding.loss_scaling = {.initial = static_cast<float>(options.loss_scale)};
  }
  sharding.prefetch = options.prefetch;
  sharding.reshard_after_forward = options.reshard_after_forward;
  sharding.offload = options.offload;
  sharding.disk = options.disk;
  if (options.bucket_cap) sharding.bucket_cap = tessera::Bytes(*options.bucket_cap);
  if (options.checkpoints.directory) {
    sharding.checkpointing =
        options.checkpoints.in_background ? tessera::Checkpointing::background : tessera::Checkpointing::blocking;
  }
  sharding.diagnostics = {.delay_seed = options.test_delays,
                          .poison = options.test_poison,
                          .touch = options.test_touch,
                          .queue_compute = options.test_queue};
  return sharding;
}

tessera::SamplerOptions sampler_options(const RunOptions& options, std::size_t samples, const tessera::World& world) {
  return sampler_options(options, samples, static_cast<std::size_t>(world.rank()));
}

tessera::SamplerOptions sampler_options(const RunOptions& options, std::size_t samples, std::size_t rank) {
  return {.samples = samples,
          .ranks = options.data_ranks(),
          .rank = options.granules > 0 ? granules_of(options, rank).rank : options.data_rank(rank),
          .batch = options.granules > 0 ? options.batch : options.samples_per_rank(),
          .granules = options.granules,
          .seed = options.seed,
          .tail = options.drop_last ? tessera::Tail::drop : tessera::Tail::pad};
}

tessera::Schedule schedule(const RunOptions& options, const RunLength& length) {
  return tessera::Schedule({.learning_rate = static_cast<float>(learning_rate(options)),
                            .min_learning_rate = static_cast<float>(options.min_learning_rate),
                            .warmup_steps = length.warmup,
                            .total_steps = length.steps,
                            .decay = tessera::Decay::cosine});
}

std::unique_ptr<tessera::Optimizer> make_optimizer(const RunOptions& options) {
  std::vector<tessera::ParameterGroup> groups;
  if (!options.undecayed.empty()) groups.push_back({.patterns = options.undecayed, .weight_decay = 0.0f});
  const auto rate = static_cast<float>(learning_rate(options));
  const auto decay = static_cast<float>(options.weight_decay);
  const auto clip = static_cast<float>(options.clip);
  switch (options.optimizer) {
    case OptimizerKind::adamw:
      return tessera::AdamW{.learning_rate = rate, .weight_decay = decay, .clip_norm = clip, .groups = groups};
    case OptimizerKind::adamw8bit:
      return tessera::AdamW8bit{.learning_rate = rate, .weight_decay = decay, .clip_norm = clip, .groups = groups};
    case OptimizerKind::muon:
      return tessera::nn::Muon{.learning_rate = rate, .weight_decay = decay, .clip_norm = clip, .groups = groups};
    case OptimizerKind::sgd:
      return tessera::Sgd{
          .learning_rate = rate, .momentum = sgd_momentum, .weight_decay = decay, .clip_norm = clip, .groups = groups};
  }
  throw InternalError("an optimizer of no kind");
}

std::string_view to_string(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw: return "adamw";
    case OptimizerKind::adamw8bit: return "adamw8bit";
    case OptimizerKind::sgd: return "sgd";
    case OptimizerKind::muon: return "muon";
  }
  throw InternalError("an optimizer without a name");
}

void add_device_options(CommandLine& line, RunOptions& options) {
  line.choice<DeviceChoice>(
      "--device", options.device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "Where ranks compute; several may share a CUDA device [auto: on CUDA devices where there are any]");
  line.choice<BackendChoice>(
      "--backend", options.backend, {{"auto", BackendChoice::automatic}, {"nccl", BackendChoice::nccl}},
      "How ranks that are threads exchange data [auto: they read each other's memory]; nccl: by NVIDIA's "
      "library, which TESSERA_NCCL names in the environment");
  line.choice<SumChoice>(
      "--sums", options.sums, {{"ranked", SumChoice::ranked}, {"fast", SumChoice::fast}},
      "With NCCL: gradients are summed in fp32 in rank order [ranked], or by NCCL in the type in which they "
      "travel and in an order of its own");
}

void check_device_options(const CommandLine& line, const RunOptions& options) {
  if (options.simulated) {
    for (const char* name : {"--backend", "--sums"}) {
      if (!line.given(name)) continue;
      throw OptionError(fmt::format("{} and --simulate-world exclude each other: a simulated rank has no peers", name));
    }
    if (options.device == DeviceChoice::cuda) {
      throw OptionError("--device cuda and --simulate-world exclude each other: a simulated rank computes on the CPU");
    }
  }
  if (options.tf32 && device_kind(options) == DeviceKind::cpu) {
    throw OptionError("--precision tf32: the CPU's products have no such type; use --device cuda, or --precision fp32");
  }
}

DeviceKind device_kind(const RunOptions& options) {
  return options.simulated ? DeviceKind::cpu : tessera::resolve(options.device);
}

std::string precision_text(const RunOptions& options) {
  if (options.tf32) return "fp32, products in tf32";
  const bool own = options.precision.masters != tessera::DType::fp32;
  return fmt::format("{}{}", to_string(options.precision.parameter), own ? ", masters too" : "");
}

}  // namespace tessera::trainer
