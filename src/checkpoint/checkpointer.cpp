// A Checkpointer's parts are kept between saves by one rank, with the thread of a save in the background.
#include "tessera/checkpoint/checkpointer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/load.hpp"
#include "checkpoint/save.hpp"
#include "comm/introduction.hpp"
#include "shard/loss_scaling.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using namespace checkpoint;

void require_memory(const FullyShard& model) {
  model.plan();  // finalized
  if (model.options().checkpointing != Checkpointing::none) return;
  throw UsageError(
      "a Checkpointer needs memory in the model's plan: set FullyShardOptions::checkpointing to blocking or "
      "background");
}

StepCounts counts_of(const kernels::StepScalars& scalars) {
  return {.updates = static_cast<std::uint64_t>(scalars.step),
          .skipped_updates = static_cast<std::uint64_t>(scalars.skipped_steps),
          .loss_scale = scalars.loss_scale,
          .good_steps = scalars.good_steps,
          .decay_power = {scalars.decay_power[0], scalars.decay_power[1]}};
}

// Returns the counts of every replica, from the first rank of each.
std::vector<StepCounts> replica_counts(FullyShard& model, Channel& channel) {
  const kernels::StepScalars mine = model.step_scalars();
  const auto all = comm::values_of<kernels::StepScalars>(
      channel.gather(std::as_bytes(std::span(&mine, 1)), "checkpoint: counts of the replicas"));
  std::vector<StepCounts> result;
  const plan::MeshShape& mesh = model.plan().mesh;
  const AxisSet apart = model.plan().diverging();
  for (std::size_t replica = 0; replica < mesh.size(apart); ++replica) {
    result.push_back(counts_of(all[mesh.rank_at(mesh.place_at(apart, replica))]));
  }
  return result;
}

std::vector<ProgramCounts> program_counts(FullyShard& model) {
  const std::vector<plan::Program>& programs = model.plan().programs;
  std::vector<ProgramCounts> result;
  for (std::size_t program = 0; program < programs.size(); ++program) {
    result.push_back({counts_of(model.step_scalars(program)), programs[program].name});
  }
  return result;
}

// Calls visit(unit, parameter, count of updates of its program) for each that is trained.
void for_each_trained(FullyShard& model,
                      const std::function<void(std::size_t unit, std::size_t parameter, std::int64_t updates)>& visit) {
  const plan::Plan& plan = model.plan();
  std::vector<std::int64_t> updates;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    updates.push_back(model.step_scalars(program).step);
  }
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    for (std::size_t p = 0; plan.trains(unit) && p < plan.layouts[unit].parameters(); ++p) {
      if (plan.layouts[unit].part(p) == plan::Part::trained) visit(unit, p, updates[plan.trainers[unit]]);
    }
  }
}

// Returns what all roles count, each of its own parameters.
std::map<std::string, std::uint64_t> states_updates(FullyShard& model, Channel& channel) {
  std::vector<std::string> names;           // of all roles' parameters
  std::vector<std::size_t> first_of_units;  // this role's
  for (const plan::Plan* plan : model.plans()) {
    for (const plan::UnitSpec& unit : plan->units) {
      if (plan->options.role == model.plan().options.role) first_of_units.push_back(names.size());
      for (const plan::ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
    }
  }
  std::vector<std::uint64_t> counts(names.size());  // and 1; 0: as many as the program has, or another role's
  const std::vector<std::vector<std::int64_t>> begun = model.states_begun();
  for_each_trained(model, [&](std::size_t unit, std::size_t parameter, std::int64_t updates) {
    const std::int64_t since = begun[unit][parameter];
    if (since != 0) counts[first_of_units[unit] + parameter] = static_cast<std::uint64_t>(updates - since) + 1;
  });
  if (model.plans().size() > 1) {
    counts = comm::values_of<std::uint64_t>(
        channel.gather(std::as_bytes(std::span(counts)), "checkpoint: counts of all roles"));
  }
  std::map<std::string, std::uint64_t> result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) result[names[i % names.size()]] = counts[i] - 1;
  }
  return result;
}

// But for the user's values: the states of any parameter may become younger than its program.
CheckpointState longest_state(FullyShard& model) {
  CheckpointState state;
  if (model.plan().programs.size() > 1) state.programs = program_counts(model);
  for (const plan::Plan* plan : model.plans()) {
    for (const plan::UnitSpec& unit : plan->units) {
      for (const plan::ParameterSpec& parameter : unit.parameters)
        state.states_updates[parameter.name] = std::numeric_limits<std::uint64_t>::max();
    }
  }
  return state;
}

CheckpointState state_of(FullyShard& model, Channel& channel, const TrainingProgress& progress) {
  CheckpointState state;
  if (model.plan().diverges()) state.replicas = replica_counts(model, channel);
  if (model.plan().programs.size() > 1) state.programs = program_counts(model);
  state.states_updates = states_updates(model, channel);
  const StepCounts first = state.replicas.empty() ? counts_of(model.step_scalars(0)) : state.replicas.front();
  state.step = progress.step;
  state.updates = first.updates;
  state.skipped_updates = first.skipped_updates;
  state.loss_scale = first.loss_scale;
  state.good_steps = first.good_steps;
  state.decay_power = first.decay_power;
  state.sampler = progress.sampler;
  state.values = progress.values;
  return state;
}

// A fixed loss scale is a setting of the model, and no state. A dynamic one goes on, unless the run that saved scaled
// nothing, as one of bf16: its scale stood at 1, to which so few skipped steps cannot have brought the initial one.
template <typename Counts>
bool scale_goes_on(const Counts& saved, const kernels::LossScaling& scaling) {
  if (!scaling.dynamic) return false;
  if (saved.loss_scale != 1.0f || saved.good_steps != 0) return true;
  const double lowest = std::pow(static_cast<double>(scaling.backoff), static_cast<double>(saved.skipped_updates)) *
                        static_cast<double>(scaling.initial);
  return lowest <= 1.0;
}

template <typename Counts>
void put_counts(FullyShard& model, std::size_t program, const Counts& counts) {
  const kernels::LossScaling scaling = resolved(model.options().loss_scaling, model.plan());
  const bool goes_on = scale_goes_on(counts, scaling);
  kernels::StepScalars scalars = model.step_scalars(program);
  scalars.step = static_cast<std::int64_t>(counts.updates);
  scalars.skipped_steps = static_cast<std::int64_t>(counts.skipped_updates);
  scalars.loss_scale = goes_on ? std::clamp(counts.loss_scale, scaling.smallest, scaling.largest) : scaling.initial;
  scalars.good_steps = goes_on ? counts.good_steps : 0;
  scalars.decay_power[0] = counts.decay_power[0];
  scalars.decay_power[1] = counts.decay_power[1];
  model.set_step_scalars(scalars, program);
}

// Ages by unit and parameter: the updates that the states of what is trained have seen.
using Ages = std::vector<std::vector<std::int64_t>>;
Ages ages_of(FullyShard& model) {
  Ages ages = model.states_begun();
  for_each_trained(model, [&](std::size_t unit, std::size_t parameter, std::int64_t updates) {
    ages[unit][parameter] = updates - ages[unit][parameter];
  });
  return ages;
}

// Parameters whose states were loaded have the age that the checkpoint tells, or that of its program; all else has the
// one that it had.
void put_ages(FullyShard& model, const Loaded& loaded, const Ages& before) {
  Ages begun = before;
  for_each_trained(model, [&](std::size_t unit, std::size_t parameter, std::int64_t updates) {
    std::int64_t& target = begun[unit][parameter];
    const bool goes_on = loaded.counts_go_on[model.plan().trainers[unit]];
    if (!goes_on || !loaded.states_found[unit][parameter]) {
      target = updates - target;
      return;
    }
    const auto& told = loaded.state.states_updates;
    const auto age = told.find(model.unit(unit).parameters()[parameter]->name());
    target = age == told.end() ? 0 : updates - static_cast<std::int64_t>(age->second);
  });
  model.set_states_begun(begun);
}

void put_scalars(FullyShard& model, const Loaded& loaded) {
  const CheckpointState& state = loaded.state;
  const plan::MeshShape& mesh = model.plan().mesh;
  const AxisSet apart = model.plan().diverging();
  const std::size_t replica = mesh.index_of(apart, mesh.place_of(static_cast<std::size_t>(model.world().rank())));
  const bool has_mine = model.plan().diverges() && state.replicas.size() == mesh.size(apart);
  if (state.programs.empty()) {
    if (!loaded.counts_go_on[0]) return;
    return has_mine ? put_counts(model, 0, state.replicas[replica]) : put_counts(model, 0, state);
  }
  for (std::size_t program = 0; program < model.plan().programs.size(); ++program) {
    const auto stored = std::find_if(state.programs.begin(), state.programs.end(), [&](const ProgramCounts& counts) {
      return counts.program == model.plan().programs[program].name;
    });
    if (stored != state.programs.end() && loaded.counts_go_on[program]) put_counts(model, program, *stored);
  }
}

// Ranks that lay out files differently would write over each other.
std::uint64_t hash_of(const CheckpointFiles& files) {
  std::uint64_t hash = fnv1a_basis;
  for (const LaidFile& file : files.tensors) hash = fnv1a(file.head, fnv1a(file.name, hash));
  return hash;
}

}  // namespace

class Checkpointer::Implementation {
 public:
  Implementation(FullyShard& model, CheckpointerOptions options)
      : model_(model), options_(std::move(options)), channel_((require_memory(model), model.world())) {
    if (options_.directory.empty()) throw UsageError("CheckpointerOptions::directory is empty");
    // Here it is an error what cannot be laid out, or said in a state, and not at the first save.
    const CheckpointFiles laid = files();
    compose(longest_state(model_));
    channel_.require_equal(hash_of(laid), "CheckpointerOptions: what files are to have (aliases, metadata, split)");
    channel_.together("checkpoint: directory", [&](const Pause& pause) {
      if (channel_.rank() == 0) directory_.emplace(options_.directory, pause);
    });
    if (!directory_ || directory_->locked()) return;
    model_.world().warn(fmt::format(
        "{}: its file system has no locks (flock), so nothing keeps a second job from saving there at the same time",
        options_.directory.string()));
  }

  ~Implementation() {
    if (writing_.valid()) writing_.wait();
  }

  void save(const TrainingProgress& progress) {
    model_.require_between_steps("save()");
    wait();
    const ShardValues values = on_host() ? ShardValues(model_) : copied();
    require_equal_buffers(values);
    const std::unique_ptr<checkpoint::Save> saved = prepared(values, progress, false);
    saved->share();
    saved->finish();
  }

  void save_async(const TrainingProgress& progress) {
    if (model_.options().checkpointing != Checkpointing::background) {
      throw UsageError("save_async() needs FullyShardOptions::checkpointing = background");
    }
    model_.require_between_steps("save_async()");
    wait();
    const ShardValues values = copied();
    require_equal_buffers(values);
    auto held = model_.hold_plan(fmt::format("step {} is being saved: call Checkpointer::wait() first", progress.step));
    // NCCL's collectives have one order on all ranks, training's, so those of a save come before it goes on.
    const bool over_channel = model_.world().backend_name() != "nccl";
    std::shared_ptr<checkpoint::Save> saved = prepared(values, progress, over_channel);
    std::exception_ptr failure;
    if (!over_channel) {
      try {
        saved->share();
      } catch (const DataError&) {
        failure = std::current_exception();  // wait() says so
      }
    }
    writing_ =
        std::async(std::launch::async, [saved = std::move(saved), failure, over_channel, held = std::move(held)] {
          if (failure) std::rethrow_exception(failure);
          if (over_channel) saved->share();
          saved->finish();
        });
  }

  void wait() {
    if (writing_.valid()) writing_.get();
  }
  bool saving() const { return writing_.valid(); }

  std::optional<FoundCheckpoint> latest(const LatestOptions& options) {
    wait();
    return checkpoint::latest({model_.world(), channel_, options_.directory, options});
  }

  CheckpointState load(const std::filesystem::path& path, const LoadOptions& options) {
    model_.require_between_steps("load()");
    wait();
    const ShardValues mine(model_);
    const ShardValues values = on_host() ? mine : copied();
    Loaded loaded = checkpoint::load({.plan = model_.plan(),
                                      .plans = model_.plans(),
                                      .values = values,
                                      .path = path,
                                      .partial = options.partial,
                                      .channel = channel_,
                                      .block = staging().block});
    if (!on_host()) mine.copy_from(values);
    if (loaded.outer_steps_begin) mine.begin_outer_steps();
    const Ages ages = ages_of(model_);
    put_scalars(model_, loaded);
    put_ages(model_, loaded, ages);
    model_.drop_waiting();
    model_.shards_changed();
    return std::move(loaded.state);
  }

 private:
  // Whether files can be written from, and read into, the shards themselves.
  bool on_host() const { return model_.world().device().kind() == DeviceKind::cpu; }
  ShardValues copied() { return ShardValues(model_).copied_to(model_.checkpoint_memory().copy); }
  Staging staging() { return {model_.checkpoint_memory().staging, channel_.size()}; }

  std::string composed(const TrainingProgress& progress) { return compose(state_of(model_, channel_, progress)); }

  CheckpointFiles files() const {
    return lay_out(model_.plans(),
                   {.aliases = options_.aliases, .metadata = options_.metadata, .split = options_.split});
  }

  // A checkpoint has one value of each buffer, that of the first rank of its role or replica: where another rank's
  // differs, it would be lost.
  void require_equal_buffers(const ShardValues& values) {
    std::vector<std::uint32_t> mine;
    for (std::size_t unit = 0; unit < model_.unit_count(); ++unit) {
      for (const Buffer* buffer : model_.unit(unit).buffers()) {
        const TensorSource source{.kind = TensorSource::Kind::buffer,
                                  .unit = unit,
                                  .place = model_.unit(unit).index_of(*buffer),
                                  .role = model_.plan().options.role.value_or(0)};
        mine.push_back(crc32c(values.share(source).bytes));
      }
    }
    for (const plan::Plan* role : model_.plans()) mine.resize(std::max(mine.size(), buffers_of(*role)));
    if (mine.empty()) return;
    const auto sums =
        comm::values_of<std::uint32_t>(channel_.gather(std::as_bytes(std::span(mine)), "checkpoint: buffers"));
    for (const plan::Plan* role : model_.plans()) require_equal_buffers(*role, sums, mine.size());
  }

  // Every rank judges all roles, so that all throw, or none.
  void require_equal_buffers(const plan::Plan& plan, std::span<const std::uint32_t> sums, std::size_t of_rank) const {
    for (std::size_t rank = 0; rank < channel_.size(); ++rank) {
      if (plan.options.role && plan.job_rank(plan.rank_of(rank)) != rank) continue;  // of another role
      std::size_t i = 0;
      for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
        const AxisSet apart = plan.units[unit].apart;
        const std::size_t variant = plan.variant_of(unit, plan.rank_of(rank));
        const std::size_t first = plan.job_rank(plan.mesh.rank_at(plan.mesh.place_at(apart, variant)));
        for (const plan::BufferSpec& buffer : plan.units[unit].buffers) {
          if (const std::size_t at = i++; sums[first * of_rank + at] == sums[rank * of_rank + at]) continue;
          throw UsageError(fmt::format(
              "buffer {} has other values on rank {} than on rank {}, and a checkpoint has one for all{}: before "
              "saving, call FullyShard::synchronize_buffers(), which gives everybody rank {}'s, or make them equal "
              "otherwise",
              buffer.name, rank, first, apart.empty() ? " ranks" : " that have the unit in common", first));
        }
      }
    }
  }

  static std::size_t buffers_of(const plan::Plan& plan) {
    std::size_t count = 0;
    for (const plan::UnitSpec& unit : plan.units) count += unit.buffers.size();
    return count;
  }

  // The save uses the plan and the staging of the model, which hold_plan() keeps.
  std::unique_ptr<checkpoint::Save> prepared(const ShardValues& values, const TrainingProgress& progress,
                                             bool over_channel) {
    warn_of_waiting();
    return std::make_unique<checkpoint::Save>(model_.plans(),
                                              checkpoint::SaveInput{.step = progress.step,
                                                                    .files = files(),
                                                                    .values = values,
                                                                    .state = composed(progress),
                                                                    .staging = staging(),
                                                                    .channel = channel_,
                                                                    .directory = directory_ ? &*directory_ : nullptr,
                                                                    .path = options_.directory,
                                                                    .keep = options_.keep,
                                                                    .world = model_.world(),
                                                                    .over_channel = over_channel});
  }

  void warn_of_waiting() {
    const std::vector<const Parameter*> waiting = model_.waiting();
    if (waiting.empty() || channel_.rank() != 0 || std::exchange(said_, true)) return;
    model_.world().warn(fmt::format(
        "parameter {} was frozen when it had been trained, and its optimizer's states are not in checkpoints "
        "that are saved before it is thawed: a run that goes on from one, and thaws it, begins them at zero",
        waiting.front()->name()));
  }

  FullyShard& model_;
  CheckpointerOptions options_;
  Channel channel_;
  bool said_ = false;                             // that states wait
  std::optional<CheckpointDirectory> directory_;  // on rank 0
  std::future<void> writing_;                     // last: its thread uses all of the above
};

Checkpointer::Checkpointer(FullyShard& model, CheckpointerOptions options)
    : implementation_(std::make_unique<Implementation>(model, std::move(options))) {}
Checkpointer::~Checkpointer() = default;

void Checkpointer::save(const TrainingProgress& progress) { implementation_->save(progress); }
void Checkpointer::save_async(const TrainingProgress& progress) { implementation_->save_async(progress); }
void Checkpointer::wait() { implementation_->wait(); }
bool Checkpointer::saving() const { return implementation_->saving(); }
std::optional<FoundCheckpoint> Checkpointer::latest(const LatestOptions& options) {
  return implementation_->latest(options);
}
CheckpointState Checkpointer::load(const std::filesystem::path& checkpoint, LoadOptions options) {
  return implementation_->load(checkpoint, options);
}

}  // namespace tessera
