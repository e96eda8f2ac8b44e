// Lines for people. In the table of bytes the other strategies' figures need no run: their plans are compiled and added
// up.
#include "tessera/trainer/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "trainer/src/memory_table.hpp"

namespace tessera::trainer {

namespace {

struct Counts {
  std::size_t parameters = 0, units = 0, operations = 0, segments = 0;
};

// Where ranks have stages, all of them count, but for the ends of messages between them; and what is tied once.
Counts counts_of(const tessera::FullyShard& model) {
  Counts result;
  for (const tessera::plan::Plan* plan : model.plans()) {
    for (const tessera::plan::UnitSpec& unit : plan->units) {
      if (unit.tied) continue;
      if (!plan->options.role || !unit.parameters.empty()) ++result.units;
      for (const tessera::plan::ParameterSpec& each : unit.parameters)
        result.parameters += tessera::element_count(tessera::plan::whole_shape(each.shape, each.slice));
    }
    result.segments += plan->segments.size();
    for (const tessera::plan::Segment& segment : plan->segments) result.operations += segment.operations.size();
  }
  return result;
}

std::string sharding_text(const RunOptions& options) {
  std::string text;
  if (options.mesh) {
    text = fmt::format("mesh {}; ", options.mesh->text());
  } else if (options.replicas > 1) {
    const std::size_t each = options.ranks_of_job() / options.replicas;
    text = fmt::format("{} replicas of {} rank{}; ", grouped(options.replicas), grouped(each), each == 1 ? "" : "s");
  }
  if (options.outer.every > 0) {
    text += fmt::format("they meet every {} steps, ", grouped(options.outer.every));
    if (options.outer.fragments > 1) text += fmt::format("in {} parts by turns, ", options.outer.fragments);
    text += fmt::format("outer rate {:g}, momentum {:g}; ", options.outer_learning_rate, options.outer_momentum);
  }
  text += fmt::format("strategy {}", to_string(options.strategy));
  if (shards_parameters(options)) {
    text += fmt::format(", prefetch {}", options.prefetch);
    if (options.reshard_after_forward == false) text += ", units stay whole from forward to backward";
    if (options.reshard_after_forward == tessera::Axis::shard) text += ", resharded to each replica until backward";
  }
  return text + travel_text(options.precision) + offload_text(options.offload);
}

// Says what ranks are, and where they compute, also where nobody has chosen.
std::string ranks_text(const tessera::World& world) {
  const bool by_threads = tessera::how_started().launcher == tessera::Launcher::alone;
  const std::string ranks = by_threads ? "threads of this process" : "processes";
  if (world.device().kind() == tessera::DeviceKind::cuda) return fmt::format("{}, on CUDA devices", ranks);
  if (world.threads() == 1) return fmt::format("{}, on the CPU", ranks);
  return fmt::format("{}, on the CPU with {} threads each", ranks, world.threads());
}

std::string notes(const RunOptions& options) {
  std::string text;
  for (const std::string& note : options.notes) text += fmt::format("note     {}\n", note);
  return text;
}

std::string batch_text(const RunOptions& options) {
  if (options.granules > 0) return fmt::format("{} granules x {}", options.granules, options.batch);
  std::string text = options.simulated ? fmt::format("of this rank alone, {}", options.batch)
                                       : fmt::format("{} ranks x {}", options.data_ranks(), options.batch);
  if (options.accumulate > 1) text += fmt::format(" x {} micro-batches", options.accumulate);
  return text;
}

}  // namespace

std::string ranks_line(const RunOptions& options, tessera::FullyShard& model) {
  if (options.simulated) {
    return fmt::format("ranks    SIMULATED: rank {} of {}, with {} threads; {}, {}\n", grouped(options.simulated->rank),
                       grouped(options.simulated->ranks), model.world().threads(), sharding_text(options),
                       precision_text(options));
  }
  return fmt::format("ranks    {}, {}; {}, {}\n", options.ranks, ranks_text(model.world()), sharding_text(options),
                     precision_text(options));
}

std::string model_lines(const std::string& what, const tessera::FullyShard& model) {
  const Counts counts = counts_of(model);
  const std::size_t stages = model.plans().size();
  return fmt::format(
      "model    {}: {} parameters in {} units\n"
      "plan     {} operations in {} segments{}, verified; hash{} {:016x}\n",
      what, grouped(counts.parameters), counts.units, grouped(counts.operations), counts.segments,
      stages > 1 ? fmt::format(" of {} stages", stages) : "", stages > 1 ? " of the first" : "",
      hash(*model.plans().front()));
}

std::string run_lines(const RunOptions& options, const RunLength& length, std::size_t training_samples) {
  const double epochs =
      static_cast<double>(length.steps) / static_cast<double>(steps_per_epoch(options, training_samples));
  std::string text = fmt::format("run      {} steps of {} samples ({}), {:.1f} epochs; {}, learning rate {}",
                                 grouped(length.steps), grouped(options.samples_per_step()), batch_text(options),
                                 epochs, to_string(options.optimizer), learning_rate(options));
  if (length.last_step < length.steps) text += fmt::format(", ends after step {}", length.last_step);
  return text + "\n" + notes(options);
}

std::string step_text(const StepMetrics& now, const RunLength& length) {
  return fmt::format("step {:>{}}/{}   loss {:.4f}", now.step, fmt::formatted_size("{}", length.last_step),
                     length.last_step, now.loss);
}

std::string nothing_left(const RunLength& length, std::size_t done) {
  return fmt::format("resume   {} steps are done, and this run ends after step {}: nothing is left to train",
                     grouped(done), grouped(length.last_step));
}

std::string closing_line(const RunOptions& options, const RunResult& result) {
  const std::size_t units = result.samples * result.unit.per_sample;
  const double speed = static_cast<double>(units) / result.seconds;
  std::string text =
      fmt::format("\n{} steps in {}, {} {}/s with evaluations", grouped(result.steps), shown_seconds(result.seconds),
                  grouped(static_cast<std::uint64_t>(std::llround(speed))), result.unit.name);
  if (options.simulated) text += "; simulated, so losses and speed are not a training's";
  if (result.skipped > 0) text += fmt::format("; steps skipped for overflow in fp16: {}", grouped(result.skipped));
  return text;
}

namespace {

namespace plan = tessera::plan;
namespace probe = tessera::probe;
using tessera::Bytes;
using tessera::Strategy;

plan::MemoryReport plan_of(const tessera::FullyShard& model, Strategy strategy) {
  const plan::Plan& ran = model.plan();
  if (strategy == ran.options.strategy) return plan::memory(ran);
  plan::CompileInput input{
      .units = ran.units, .programs = ran.programs, .options = ran.options, .optimizer_states = ran.optimizer_states};
  input.options.strategy = strategy;
  // These two are passed as they were asked for: a default is the strategy's own.
  input.options.accumulation = model.options().accumulation;
  input.options.bucket_cap = model.options().bucket_cap;
  return plan::memory(plan::compile(input));
}

// Returns the strategies that differ on the model's mesh.
std::span<const Strategy> compared(const tessera::FullyShard& model) {
  const bool by_themselves = model.options().outer.every > 0;  // each as a job of its own: hsdp is fsdp
  if (model.options().replicas == 1 || by_themselves) return tessera::flat_strategies;
  return tessera::all_strategies;
}

struct Row {
  std::string_view name;
  std::vector<Bytes> planned;
  std::optional<Bytes> measured = std::nullopt;  // of the strategy that ran
};

std::string shown(std::optional<Bytes> bytes) { return bytes ? to_string(*bytes) : "-"; }

class Table {
 public:
  Table(std::span<const Strategy> strategies, Strategy ran) : strategies_(strategies.size()) {
    text_ = fmt::format("{:<18}", "Bytes per rank");
    for (const Strategy strategy : strategies) text_ += fmt::format("{:>12}", to_string(strategy));
    text_ += fmt::format("{:>18}\n", fmt::format("{} measured", to_string(ran)));
  }

  void add(const Row& row) {
    text_ += fmt::format("{:<18}", row.name);
    for (const Bytes planned : row.planned) text_ += fmt::format("{:>12}", to_string(planned));
    text_ += fmt::format("{:>18}\n", shown(row.measured));
  }
  void add_unplanned(std::string_view name, Bytes size) {
    text_ += fmt::format("{:<18}{:>{}}\n", name, to_string(size), 12 * strategies_ + 18);
  }

  const std::string& text() const { return text_; }

 private:
  std::size_t strategies_;
  std::string text_;
};

std::optional<Bytes> largest_measured(std::span<const probe::RankMemory> ranks,
                                      const probe::Figure& (*figure)(const probe::RankMemory&, std::size_t),
                                      std::size_t index) {
  Bytes largest;
  for (const probe::RankMemory& rank : ranks) {
    if (!rank.measurable) return std::nullopt;
    largest = std::max(largest, figure(rank, index).measured);
  }
  return largest;
}

const probe::Figure& category_figure(const probe::RankMemory& rank, std::size_t index) {
  return rank.categories[index];
}
const probe::Figure& peak_figure(const probe::RankMemory& rank, std::size_t) { return rank.peak; }

}  // namespace

std::string memory_table(const tessera::FullyShard& model, std::span<const probe::RankMemory> ranks) {
  std::vector<Strategy> strategies;
  std::vector<plan::MemoryReport> reports;
  for (const Strategy strategy : compared(model)) {
    try {
      reports.push_back(plan_of(model, strategy));
      strategies.push_back(strategy);
    } catch (const tessera::UsageError&) {
      // One that the order of the mesh's axes rules out is left out: this run has trained by another.
    }
  }
  const auto of_all = [&](auto figure) {
    std::vector<Bytes> sizes;
    std::transform(reports.begin(), reports.end(), std::back_inserter(sizes), figure);
    return sizes;
  };
  Table table(strategies, model.plan().options.strategy);
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    const auto sizes = of_all([&](const plan::MemoryReport& report) { return report.categories[index].size; });
    if (std::all_of(sizes.begin(), sizes.end(), [](Bytes size) { return size == Bytes(0); })) continue;
    table.add({.name = to_string(static_cast<plan::Category>(index)),
               .planned = sizes,
               .measured = largest_measured(ranks, category_figure, index)});
  }
  table.add({.name = "all of the above",
             .planned = of_all([](const plan::MemoryReport& report) { return report.peak; }),
             .measured = largest_measured(ranks, peak_figure, 0)});
  table.add(
      {.name = "in use at once", .planned = of_all([](const plan::MemoryReport& report) { return report.live; })});
  const probe::RankMemory& first = ranks.front();
  for (std::size_t index = 0; index < first.unplanned_count; ++index) {
    table.add_unplanned(first.unplanned[index].name.data(), first.unplanned[index].size);
  }
  return table.text();
}

}  // namespace tessera::trainer
