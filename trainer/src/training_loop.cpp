// The loop reads one loss and one norm per step: its only wait for the device. Everything else runs ahead.
#include "trainer/src/training_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "json/json.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/processor.hpp"
#include "tessera/nn/tf32.hpp"
#include "tessera/nn/threads.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/run_summary.hpp"
#include "tessera/trainer/start.hpp"
#include "trainer/src/fingerprint.hpp"
#include "trainer/src/memory_table.hpp"
#include "trainer/src/stop.hpp"
#include "trainer/src/weights_hash.hpp"

namespace tessera::trainer {

namespace {

// Below this a dynamic loss scale has not found one under which gradients are finite: there is none.
constexpr float hopeless_loss_scale = 0x1p-10f;
// So many steps in a row, or all of a shorter run, are skipped under a fixed one: none of them trains.
constexpr std::size_t hopeless_skips = 20;

// Weights are of a model, on whatever data it was trained.
std::map<std::string, std::string> metadata_of_weights(const Training& training) {
  std::map<std::string, std::string> settings = training.settings();
  settings.erase("--data");
  return settings;
}

// Granules are what bits rest on. Threads are among them where libraries cut products as the threads are.
std::map<std::string, std::string> settings_of_run(const Training& training, const RunOptions& options) {
  std::map<std::string, std::string> settings = training.settings();
  if (options.granules == 0) return settings;
  settings["--granules"] = std::to_string(options.granules);
  settings["--batch"] = std::to_string(options.batch);
  if (options.threads) settings["--threads"] = std::to_string(*options.threads);
  return settings;
}

void load_initial_weights(Training& training, const RunOptions& options) {
  tessera::LoadWeightsOptions loading{.metadata = metadata_of_weights(training)};
  if (options.init_map) loading.names = tessera::read_name_map(*options.init_map);
  tessera::load_weights(training.model(), *options.init, loading);
}

// This rank's share of the masters.
std::size_t values_not_finite(tessera::FullyShard& model) {
  std::size_t count = 0;
  std::vector<float> values;
  for (std::size_t unit = 0; unit < model.unit_count(); ++unit) {
    for (const tessera::ParameterPiece& piece : model.pieces(model.unit(unit))) {
      values.resize(piece.values.size());
      tessera::kernels::copy(model.stream(), values.data(), piece.values.data(),
                             tessera::Bytes(piece.values.size_bytes()));
      model.synchronize();
      count += static_cast<std::size_t>(
          std::count_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); }));
    }
  }
  return count;
}

// The plan and the optimizer's settings do not tell this. Each rank reads files of its own host.
void require_equal_data(tessera::World& world, const RunOptions& options, const Training& training) {
  Fingerprint settings;
  for (const auto& [name, value] : training.settings()) settings.add(fmt::format("{}={}\n", name, value));
  world.require_equal(settings.number(), "what ranks train, by the hash of the options that shape it,");
  Fingerprint data;
  data.add(options.data_fingerprint);
  world.require_equal(data.number(), "the data that ranks train on (--data), by the hash of what each reads,");
}

// Takes the masters that a rank trains aside, and puts in their place what all replicas had in common last, of which
// each rank keeps a smaller part than of its masters. Making one and giving back are collective, and synchronise.
class CommonWeights {
 public:
  explicit CommonWeights(tessera::FullyShard& model) : model_(model) {
    for_each_trained([&](const tessera::ParameterPiece* mine, const tessera::Parameter& parameter) {
      const std::vector<float> common = model_.whole(parameter, "anchor");
      if (mine == nullptr) return;
      own_.emplace_back(mine->values.size());
      copy(own_.back().data(), mine->values.data(), mine->values.size());
      copy(mine->values.data(), common.data() + mine->first, mine->values.size());
    });
    model_.shards_changed();
  }

  void give_back() {
    auto own = own_.begin();
    for_each_trained([&](const tessera::ParameterPiece* mine, const tessera::Parameter&) {
      if (mine != nullptr) copy(mine->values.data(), (own++)->data(), mine->values.size());
    });
    model_.shards_changed();
  }

 private:
  // Calls visit(this rank's piece, or null where it has none, the parameter).
  template <typename Visit>
  void for_each_trained(const Visit& visit) {
    const tessera::plan::Plan& plan = model_.plan();
    for (std::size_t u = 0; u < model_.unit_count(); ++u) {
      const tessera::Unit& unit = model_.unit(u);
      if (!plan.trains(u)) continue;
      for (const tessera::Parameter* parameter : unit.parameters()) {
        if (plan.layouts[u].part(unit.index_of(*parameter)) != tessera::plan::Part::trained) continue;
        const std::vector<tessera::ParameterPiece> pieces = model_.pieces(unit);
        const auto mine =
            std::find_if(pieces.begin(), pieces.end(), [&](const auto& piece) { return piece.parameter == parameter; });
        visit(mine == pieces.end() ? nullptr : &*mine, *parameter);
      }
    }
  }

  void copy(float* to, const float* from, std::size_t elements) {
    tessera::kernels::copy(model_.stream(), to, from, tessera::Bytes(elements * sizeof(float)));
    model_.synchronize();
  }

  tessera::FullyShard& model_;
  std::vector<std::vector<float>> own_;  // by trained parameter of which this rank has a piece
};

// A skipped step is how a dynamic loss scale finds its way down. A fixed one has none, and may be skipped now and then.
void require_finite(const StepMetrics& now, bool overflows_always) {
  const bool finds_its_way = now.skipped && now.loss_scale.value_or(0.0f) > hopeless_loss_scale && !overflows_always;
  if (std::isfinite(now.loss) && (std::isfinite(now.gradient_norm) || finds_its_way)) return;
  throw tessera::Error(
      fmt::format("step {}: the loss is {} and the gradient's norm {}, so training stops; a smaller --lr, a longer "
                  "--warmup or --clip may help{}",
                  now.step, now.loss, now.gradient_norm, now.loss_scale ? ", or --loss-scale 0, which finds one" : ""));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// For communication and other ranks, so far; NaN where the host does not see it.
double waited(tessera::FullyShard& model) {
  const auto time = model.stream().waited();
  return time ? std::chrono::duration<double>(*time).count() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

TrainingLoop::TrainingLoop(tessera::World& world, const RunOptions& options, const RunLength& length,
                           RunMetrics* metrics, const WorkUnit& unit)
    : world_(world),
      options_(options),
      length_(length),
      metrics_(speaks_for_all(options, world) ? metrics : nullptr),
      unit_(unit),
      progress_(speaks_for_all(options, world) ? Progress::output_for(options.quiet) : Progress::Output::none,
                length.last_step, unit.name),
      schedule_(schedule(options, length)),
      granules_(granules_of(options, static_cast<std::size_t>(world.rank()))),
      losses_(options.granules > 0 ? granules_.rounds() : options.accumulate) {
  // The setting belongs to the process: one of its ranks makes it, before any computes.
  const bool one_rank_per_process = tessera::how_started().launcher != tessera::Launcher::alone;
  if (world.rank() == 0 || one_rank_per_process) {
    tessera::nn::set_threads(world.threads());
    tessera::nn::allow_tf32(options.tf32);
  }
  world.barrier("set_threads");
}

std::string Training::computed_with() {
  const bool on_cpu = model().world().device().kind() == tessera::DeviceKind::cpu;
  return on_cpu ? tessera::nn::computed_with() : tessera::nn::computed_with_on_cuda();
}

std::string Training::evaluate(StepMetrics&, const PassDone&) { return {}; }

void train(tessera::World& world, const Run& run, const std::function<std::unique_ptr<Training>()>& make) {
  TrainingLoop loop(world, run.options, run.length, run.metrics, run.unit);  // the training writes losses into it
  loop.run(*make());
}

void TrainingLoop::run(Training& training) {
  start(training);
  for (std::size_t step = done_before_ + 1; step <= length_.last_step; ++step) {
    StepMetrics now = train_step(training, step);
    trace_->after(step, [this](const std::string& text) { progress_.line(text); });
    progress_.show({step, now.loss, now.units_per_second(unit_)});
    const bool stops = stops_after(step);
    const bool evaluates = !stops && evaluates_after(training, step);
    const bool saves = stops || checkpoints_->due(step, length_.last_step);
    if (evaluates || saves) training.settle();
    if (evaluates) evaluate(training, now);
    if (options_.hash_weights) now.weights = hash_weights(training.model());
    write_metrics(training, now);
    if (saves) checkpoints_->save(step, training.sampler());
    if (stops) return stop(step);
  }
  progress_.end();
  checkpoints_->finish();
  finish(training);
}

// The last step ends the run anyway.
bool TrainingLoop::stops_after(std::size_t step) {
  if (!options_.checkpoints.directory || step == length_.last_step) return false;
  stop_signal_ = agreed_stop_signal(world_);
  return stop_signal_ != 0;
}

void TrainingLoop::stop(std::size_t step) {
  progress_.end();
  checkpoints_->finish();
  set_stopped_by(stop_signal_);
  if (world_.rank() != 0) return;
  tell(fmt::format("stopped by {} after step {} of {}, which is saved in {}; --resume goes on from there",
                   signal_name(stop_signal_), step, length_.last_step,
                   (*options_.checkpoints.directory / tessera::checkpoint_name(step)).string()));
}

void TrainingLoop::start(Training& training) {
  training.finalize([this] { return make_optimizer(options_); });
  tessera::FullyShard& model = training.model();
  require_granules(model);
  if (!options_.simulated) require_equal_data(world_, options_, training);
  checkpoints_.emplace(
      model, options_,
      RunIdentity{training.aliases(), settings_of_run(training, options_), metadata_of_weights(training)},
      [this](const std::string& text) { progress_.line(text); });
  const std::optional<ResumedRun> resumed = checkpoints_->resume();
  if (options_.init && !resumed) {
    load_initial_weights(training, options_);
    require_finite_weights(model);
  }
  training.ready(resumed ? resumed->sampler : std::nullopt);
  if (resumed) done_before_ = resumed->step;
  trace_.emplace(model, options_, length_, done_before_);
  // After all that may refuse the run: what a run before has written stays until then.
  if (metrics_ != nullptr) options_.checkpoints.resume ? metrics_->keep_first(done_before_) : metrics_->begin();
  progress_.line(training.headline());
  if (options_.show_types) {
    progress_.line(model.types_table());
    progress_.line(training.computed_with());
  }
  if (options_.draw_plan) progress_.line(draw(model.plan()));
  if (done_before_ >= length_.last_step) progress_.line(nothing_left(length_, done_before_));
  progress_.start(done_before_);
  // Ranks that share a device take their memory there before any of them has a collective run on it.
  losses_.at(model.stream());
  world_.barrier("begin");
}

// Samples were dealt by the options, and gradients are summed by the model.
void TrainingLoop::require_granules(const tessera::FullyShard& model) const {
  const tessera::Granules of_model = model.granules();
  if (of_model.total != granules_.total) {
    throw tessera::UsageError(
        fmt::format("--granules {}: the model was made with FullyShardOptions::granules = {}: make it with the options "
                    "that sharding_options() gives",
                    granules_.total, of_model.total));
  }
  if (granules_.total == 0 || (of_model.ranks == granules_.ranks && of_model.rank == granules_.rank)) return;
  throw tessera::InternalError(
      fmt::format("rank {} has place {} of {} in a step's granules, and its samples are of {} of {}", world_.rank(),
                  of_model.rank, of_model.ranks, granules_.rank, granules_.ranks));
}

// Every rank looks at its share: of a simulated job only that is known.
void TrainingLoop::require_finite_weights(tessera::FullyShard& model) {
  const auto mine = static_cast<double>(values_not_finite(model));
  const double all = options_.simulated ? mine : world_.sum(mine, "weights that are not finite");
  if (all == 0.0) return;
  throw tessera::DataError(fmt::format("--init {}: {} of its values are not finite, so nothing can be trained from it",
                                       options_.init->string(), grouped(static_cast<std::uint64_t>(all))));
}

StepMetrics TrainingLoop::train_step(Training& training, std::size_t step) {
  const auto start = std::chrono::steady_clock::now();
  tessera::FullyShard& model = training.model();
  const double waited_before = waited(model);
  StepMetrics now;
  now.step = step;
  // The schedule counts from 0, so the last step still trains; warm-up counts from 1, so the first one does.
  now.learning_rate = schedule_.at(step > length_.warmup ? step - 1 : step);
  now.samples = training.begin_step(step);
  const double loading = seconds_since(start);
  if (options_.offload.ahead != tessera::Ahead::no) model.expect(now.learning_rate);
  take_micro_batches(training, now.samples);
  update(model, now.learning_rate);
  losses_.fetch(model.stream());
  const tessera::StepReport report = model.last_step();
  const bool has_losses = training.has_losses();
  note_loss(now, {.loss = has_losses ? summed_loss() : 0.0,
                  .weight = has_losses ? weight_of_rank() : 0.0,
                  .seconds = seconds_since(start),
                  .waiting = waited(model) - waited_before,
                  .loading = loading});
  samples_ += now.samples;
  now.gradient_norm = report.gradient_norm;
  now.skipped = report.skipped;
  if (report.skipped) ++skipped_;
  skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  if (scales_loss(options_)) now.loss_scale = report.loss_scale;
  now.seconds = seconds_since(start);
  const bool is_fixed = options_.loss_scale > 0.0;
  require_finite(now, is_fixed && skipped_in_a_row_ >= std::min(hopeless_skips, length_.last_step - done_before_));
  return now;
}

// Micro-batches without samples are the last ones of a rank, and are left out.
void TrainingLoop::take_micro_batches(Training& training, std::size_t of_step) {
  const bool granular = granules_.total > 0;
  const std::size_t mine = samples_of_rank(of_step);
  const std::size_t before = options_.data_rank(static_cast<std::size_t>(world_.rank())) * options_.samples_per_rank();
  micro_samples_.clear();
  micro_batches_.clear();
  for (std::size_t micro = 0; micro < losses_.values().size(); ++micro) {
    const std::size_t done = micro * options_.batch;
    const std::size_t granule = granules_.number(micro);
    const std::size_t samples =
        granular ? samples_of_granule(granule, of_step) : std::min(options_.batch, mine - std::min(done, mine));
    if (samples == 0) break;
    micro_batches_.push_back({.index = micro,
                              .samples = samples,
                              .first_sample = granular ? granule * options_.batch : before + done,
                              .loss = losses_.at(training.model().stream(), micro)});
    micro_samples_.push_back(samples);
  }
  if (!micro_batches_.empty()) training.train_micro_batches(micro_batches_);
}

std::size_t TrainingLoop::samples_of_granule(std::size_t granule, std::size_t of_step) const {
  return std::min(options_.batch, of_step - std::min(granule * options_.batch, of_step));
}

// The sampler fills the first ranks' parts of a step.
std::size_t TrainingLoop::samples_of_rank(std::size_t of_step) const {
  const std::size_t before =
      std::min(options_.data_rank(static_cast<std::size_t>(world_.rank())) * options_.samples_per_rank(), of_step);
  return std::min(options_.samples_per_rank(), of_step - before);
}

// A weight of 1 is a full micro-batch, whose gradient is a mean; that of a short one is its sum over as many.
void TrainingLoop::update(tessera::FullyShard& model, float learning_rate) {
  if (micro_samples_.empty()) return model.skip_step(learning_rate);
  if (options_.outer.every > 0) return model.update(learning_rate);
  if (granules_.total == 0) return model.update({.learning_rate = learning_rate, .weight = weight_of_rank()});
  granule_weights_.clear();
  for (const std::size_t samples : micro_samples_) granule_weights_.push_back(weight_of(samples));
  model.update({.learning_rate = learning_rate, .granule_weights = granule_weights_});
}

double TrainingLoop::weight_of(std::size_t samples) const {
  return static_cast<double>(samples) / static_cast<double>(options_.batch);
}

double TrainingLoop::weight_of_rank() const {
  return weight_of(std::accumulate(micro_samples_.begin(), micro_samples_.end(), std::size_t{0}));
}

// Adds the step's loss, and where asked for the figures of all ranks.
void TrainingLoop::note_loss(StepMetrics& now, const RankFigures& mine) {
  if (options_.metrics_per_rank) {
    now.ranks = gather(world_, mine);
    if (const std::optional<std::string> words = slow_rank_.after(now.ranks)) progress_.line(*words);
  }
  if (granules_.total > 0) {
    now.loss = static_cast<float>(mean_over_granules(now.samples));
  } else if (options_.metrics_per_rank) {
    now.loss = static_cast<float>(mean_loss(now.ranks));
  } else {
    now.loss = static_cast<float>(world_.mean(mine.loss, mine.weight, "loss"));
  }
}

// fp32 on the rank, in the order of micro-batches; then ranks follow in their order, over samples.
double TrainingLoop::summed_loss() const {
  const std::span<const float> losses = std::span(losses_.values()).first(micro_samples_.size());
  return static_cast<double>(std::accumulate(losses.begin(), losses.end(), 0.0f));
}

// fp64, in the order of granules, whichever ranks have computed them.
double TrainingLoop::mean_over_granules(std::size_t of_step) {
  std::vector<GranuleLoss> mine(granules_.rounds(), {.granule = granules_.total});
  for (std::size_t i = 0; i < micro_samples_.size(); ++i) {
    mine[i] = {.granule = granules_.number(i), .loss = static_cast<double>(losses_.values()[i])};
  }
  const std::vector<double> losses = losses_by_granule(world_, mine, granules_.total);
  double loss = 0.0, weight = 0.0;
  for (std::size_t granule = 0; granule < granules_.total; ++granule) {
    const std::size_t samples = samples_of_granule(granule, of_step);
    if (samples == 0) break;
    loss += losses[granule];
    weight += weight_of(samples);
  }
  return loss / weight;
}

bool TrainingLoop::evaluates_after(const Training& training, std::size_t step) const {
  const bool due = length_.eval_every != 0 && step % length_.eval_every == 0;
  return !options_.simulated && training.has_held_out() && (due || step == length_.last_step);
}

// Replicas that train apart are evaluated as what is saved of them: what they had in common last. Their own weights
// take its place meanwhile.
void TrainingLoop::evaluate(Training& training, StepMetrics& now) {
  std::optional<CommonWeights> common;
  if (training.model().plan().diverges()) common.emplace(training.model());
  const std::string text =
      training.evaluate(now, [this](std::size_t done, std::size_t passes) { progress_.evaluating(done, passes); });
  if (common) common->give_back();
  progress_.line(text);
  if (std::isfinite(now.held_out_loss.value_or(0.0))) return;
  throw tessera::Error(fmt::format(
      "step {}: the held-out loss is {} where the loss of training is {}: held-out samples take the model beyond what "
      "{} can hold",
      now.step, *now.held_out_loss, now.loss, precision_text(options_)));
}

// Memory stands in the first object and in the last.
void TrainingLoop::write_metrics(Training& training, const StepMetrics& now) {
  tools::Json memory;
  const bool told = options_.metrics && (now.step == done_before_ + 1 || now.step == length_.last_step);
  if (told) memory = tessera::probe::to_json(measure_memory(training));
  if (metrics_ == nullptr) return;
  tools::Json object = to_json(now, unit_, memory);
  if (options_.simulated) {
    object["simulated"] = {{"rank", options_.simulated->rank}, {"ranks", options_.simulated->ranks}};
  }
  metrics_->write(object);
}

// Returns the memory of every rank, on every rank; in a simulation that of the one there is.
std::vector<tessera::probe::RankMemory> TrainingLoop::measure_memory(Training& training) {
  tessera::probe::RankMemory mine = tessera::probe::measure(training.model());
  if (training.batch_bytes() > tessera::Bytes(0)) mine.add_unplanned("batches", training.batch_bytes());
  if (trace_->size() > tessera::Bytes(0)) mine.add_unplanned("trace", trace_->size());
  if (options_.simulated) return {mine};
  return tessera::probe::gather(world_, mine);
}

void TrainingLoop::finish(Training& training) {
  const double seconds = progress_.seconds();
  if (options_.dump_weights) {
    tessera::dump_weights(training.model(), *options_.dump_weights, metadata_of_weights(training));
  }
  if (options_.quiet) return;
  const std::string words = options_.simulated ? std::string() : training.last_words();
  if (!words.empty()) progress_.line(words);
  const std::vector<tessera::probe::RankMemory> memory = measure_memory(training);
  progress_.line(closing_line(options_, {.unit = unit_,
                                         .steps = length_.last_step - std::min(done_before_, length_.last_step),
                                         .samples = samples_,
                                         .seconds = seconds,
                                         .skipped = skipped_}) +
                 "\n\n" + memory_table(training.model(), memory));
}

}  // namespace tessera::trainer
