// Takes one step of a model whose layers compute nothing, and prints what each rank then holds, planned and measured,
// as JSON (probe/memory_report.hpp). bench/memory_per_gpu.py runs it for each row of its table.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "json/json.hpp"
#include "measure/program.hpp"
#include "models/gpt.hpp"
#include "models/model.hpp"
#include "models/units_file.hpp"
#include "probe/hollow_model.hpp"
#include "probe/memory_report.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/simulate.hpp"

namespace {

using namespace tessera;

struct Options {
  std::string model = "gpt2-124m";
  std::optional<std::filesystem::path> units;
  std::size_t ranks = 1;
  bool one_is_real = false;
  std::size_t activations = 0;
  FullyShardOptions sharding;
};

models::Model model_of(const Options& options) {
  if (options.units) return models::read_units(*options.units);
  if (const models::Preset* preset = models::find_gpt(options.model)) return models::gpt(models::shape_of(*preset));
  if (const models::LlamaShape* shape = models::find_llama(options.model)) return models::llama(*shape, false);
  throw tessera::trainer::OptionError(
      fmt::format("--model takes a GPT-2 or a Llama by name, not \"{}\"", options.model));
}

void run(Options options) {
  const models::Model model = model_of(options);
  options.sharding.program = model.program;
  options.sharding.activations = Bytes(options.activations);
  std::vector<probe::RankMemory> all;
  const auto body = [&](World& world) {
    probe::HollowModel hollow(world, model.units, options.sharding);
    hollow.step();
    hollow.model().synchronize();
    const probe::RankMemory mine = probe::measure(hollow.model());
    const auto gathered = options.one_is_real ? std::vector{mine} : probe::gather(world, mine);
    if (world.rank() == 0) all = gathered;
  };
  const int ranks = static_cast<int>(options.ranks);
  if (options.one_is_real) {
    simulate({.ranks = ranks}, body);
  } else {
    launch({.ranks = ranks}, body);
  }
  fmt::print("{}\n", probe::to_json(all).dump());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  tessera::trainer::CommandLine line("What the ranks of a job hold after a step, planned and measured.", "");
  line.text("--model", options.model, "A GPT-2 or a Llama by name");
  line.path("--units", options.units, "A model of your own, as tessera plan takes it");
  bench::add_strategy(line, options.sharding.strategy, all_strategies);
  line.choice<Precision>("--precision", options.sharding.precision,
                         {{"fp32", fp32_precision}, {"bf16", bf16_mixed}, {"fp16", fp16_mixed}},
                         "of parameters and gradients");
  line.whole("--world", options.ranks, {1, std::size_t{1} << 20}, "ranks");
  line.flag("--one-is-real", options.one_is_real, "runs one rank; the others are imagined");
  line.whole("--replicas", options.sharding.replicas, {1, std::size_t{1} << 20}, "of ranks / replicas each");
  line.whole("--prefetch", options.sharding.prefetch, {0, 1024}, "units gathered ahead");
  line.whole("--micro-batches", options.sharding.micro_batches, {1, 65536}, "per step");
  line.whole("--activations", options.activations, {0, std::size_t{1} << 50}, "bytes of the block for activations");
  return bench::run_bench(line, argc, argv, [&] { run(options); });
}
