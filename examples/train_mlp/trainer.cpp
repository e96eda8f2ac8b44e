// The loop reads one loss and one norm per step: its only wait for the device. Everything else runs ahead.
#include "train_mlp/trainer.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "common/memory_table.hpp"
#include "common/progress.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/data/loader.hpp"
#include "tessera/nn/threads.hpp"
#include "train_mlp/element.hpp"
#include "train_mlp/evaluation.hpp"
#include "train_mlp/fit.hpp"
#include "train_mlp/model.hpp"
#include "train_mlp/summary.hpp"

namespace examples {

namespace {

using tessera::LabelledBatch;

tessera::DistributedSampler make_sampler(const Job& job, const tessera::World& world) {
  return tessera::DistributedSampler({.samples = job.data.training_samples,
                                      .ranks = static_cast<std::size_t>(world.size()),
                                      .rank = static_cast<std::size_t>(world.rank()),
                                      .batch = job.options.run.samples_per_rank(),
                                      .seed = job.options.run.seed});
}

template <typename T>
class Trainer {
 public:
  Trainer(tessera::World& world, const Job& job, MetricsFile* metrics)
      : world_(world),
        job_(job),
        run_(job.options.run),
        metrics_(world.rank() == 0 ? metrics : nullptr),
        progress_(world.rank() == 0 ? Progress::output_for(run_.quiet) : Progress::Output::none, job.length.last_step),
        schedule_(schedule(run_, job.length)),
        losses_(run_.accumulate),
        mlp_(shape_of(job)),
        evaluation_(job.data.held_out, world, run_.batch),
        loader_(make_sampler(job, world), {.depth = batches_ahead},
                [&job](const tessera::SampleBatch& chosen, LabelledBatch& batch) {
                  job.data.training->read(chosen, batch);
                }),
        model_(world, job.sharding) {}

  void run() {
    mlp_.add_to(model_);
    model_.finalize(make_optimizer(run_));
    mlp_.use(model_.activation_memory());
    if (run_.init) tessera::load_weights(model_, *run_.init);
    progress_.line(headline(job_, model_));
    progress_.start();
    for (std::size_t step = 1; step <= job_.length.last_step; ++step) {
      StepMetrics now = train_step(step);
      progress_.show({step, now.loss, now.samples_per_second()});
      if (evaluates_after(step)) now.accuracy = evaluate(now);
      write_metrics(now);
    }
    progress_.end();
    finish();
  }

 private:
  StepMetrics train_step(std::size_t step) {
    const auto start = std::chrono::steady_clock::now();
    const LabelledBatch& batch = *loader_.next();
    for (std::size_t micro = 0; micro < run_.accumulate; ++micro) train_micro_batch(batch, micro);
    StepMetrics now;
    now.step = step;
    now.learning_rate = schedule_.at(step);
    model_.update(now.learning_rate);
    const tessera::StepReport report = model_.last_step();
    now.loss = average_loss();
    now.gradient_norm = report.gradient_norm;
    now.samples = run_.samples_per_step();
    now.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    require_finite(now);
    return now;
  }

  void train_micro_batch(const LabelledBatch& batch, std::size_t micro) {
    const std::size_t first = micro * run_.batch;
    const tessera::nn::MatrixView<const float> x{batch.features.data() + first * batch.columns, run_.batch,
                                                 batch.columns};
    const std::span<const std::int32_t> labels(batch.labels);
    mlp_.train(model_, x, {.targets = {.labels = labels.subspan(first, run_.batch)}, .loss = &losses_[micro]});
  }

  // Over ranks and micro-batches: fp32 on the rank, in the order of micro-batches, then over ranks in their order.
  float average_loss() {
    const float mine = std::accumulate(losses_.begin(), losses_.end(), 0.0f);
    const double parts = static_cast<double>(run_.ranks) * static_cast<double>(run_.accumulate);
    return static_cast<float>(world_.sum(static_cast<double>(mine), "loss") / parts);
  }

  static void require_finite(const StepMetrics& now) {
    if (std::isfinite(now.loss) && std::isfinite(now.gradient_norm)) return;
    throw tessera::Error(
        fmt::format("step {}: the loss is {} and the gradient's norm {}, so training stops; a smaller --lr, a longer "
                    "--warmup or --clip may help",
                    now.step, now.loss, now.gradient_norm));
  }

  bool evaluates_after(std::size_t step) const {
    const bool due = job_.length.eval_every != 0 && step % job_.length.eval_every == 0;
    return job_.data.held_out.count > 0 && (due || step == job_.length.last_step);
  }

  double evaluate(const StepMetrics& now) {
    const EvaluationResult result = evaluation_.run(mlp_, model_);
    progress_.line(evaluation_line(now, job_.length.last_step, result));
    return result.accuracy();
  }

  // Memory stands in the first object and in the last.
  void write_metrics(const StepMetrics& now) {
    nlohmann::ordered_json memory;
    const bool told = run_.metrics && (now.step == 1 || now.step == job_.length.last_step);
    if (told) memory = tessera::probe::to_json(measure_memory());
    if (metrics_ != nullptr) metrics_->write(to_json(now, memory));
  }

  // Of every rank, on every rank.
  std::vector<tessera::probe::RankMemory> measure_memory() {
    tessera::probe::RankMemory mine = tessera::probe::measure(model_);
    mine.add_unplanned("batches", batch_bytes(job_));
    return tessera::probe::gather(world_, mine);
  }

  void finish() {
    const double seconds = progress_.seconds();
    if (run_.dump_weights) tessera::dump_weights(model_, *run_.dump_weights);
    if (run_.quiet) return;
    const std::vector<tessera::probe::RankMemory> memory = measure_memory();
    progress_.line(closing_line(job_, seconds) + "\n\n" + memory_table(model_, memory));
  }

  tessera::World& world_;
  const Job& job_;
  const RunOptions& run_;
  MetricsFile* metrics_;
  Progress progress_;
  tessera::Schedule schedule_;
  // What the model's queued work writes to or reads from must outlive it: the model comes last.
  std::vector<float> losses_;  // of this step's micro-batches
  Mlp<T> mlp_;
  Evaluation<T> evaluation_;
  tessera::Loader<LabelledBatch> loader_;
  tessera::FullyShard model_;
};

}  // namespace

void train(tessera::World& world, const Job& job, MetricsFile* metrics) {
  // The setting belongs to the process: one rank makes it, before any rank computes.
  if (world.rank() == 0) tessera::nn::set_threads(world.threads());
  world.barrier("set_threads");
  with_element(job.options.run.precision, [&](auto element) { Trainer<decltype(element)>(world, job, metrics).run(); });
}

}  // namespace examples
