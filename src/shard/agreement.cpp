// Texts travel only when hashes differ, and then only those of the first line that does.
#include "shard/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/hash.hpp"
#include "comm/collective_errors.hpp"
#include "shard/gathered.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

// ---- lines ----

std::string types(const Precision& precision) {
  const std::string gathers = precision.encodes() ? fmt::format(", gathers {}", to_string(precision.gathered())) : "";
  return fmt::format("parameters {}, gradients {}, wire {}, masters {}{}", to_string(precision.parameter),
                     to_string(precision.gradient), to_string(precision.wire), to_string(precision.masters), gathers);
}

std::string text(const std::optional<float>& setting) { return setting ? fmt::format("{}", *setting) : "inherited"; }
std::string text(const std::optional<Bytes>& setting) { return setting ? to_string(*setting) : "automatic"; }

class Lines {
 public:
  template <typename Value>
  void add(std::string_view name, const Value& value) {
    lines_.push_back(fmt::format("{} = {}", name, value));
  }
  void add(std::string line) { lines_.push_back(std::move(line)); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void add_options(Lines& lines, const plan::PlanOptions& options) {
  lines.add("strategy", to_string(options.strategy, options.sharding));
  lines.add("replicas", options.replicas);
  lines.add("outer.every", options.outer_every);
  lines.add("outer.fragments", options.outer_fragments);
  lines.add("precision", types(options.precision));
  lines.add("micro_batches", options.micro_batches);
  if (options.granules > 0) lines.add("granules", options.granules);
  lines.add("accumulation", to_string(options.accumulation));
  lines.add("prefetch", options.prefetch);
  lines.add("reshard_after_forward", to_string(options.reshard_after_forward));
  lines.add("overlap_reduction", options.overlap_reduction);
  lines.add("bucket_cap", text(options.bucket_cap));
  if (options.offload != Offload{}) {
    lines.add(
        "offload",
        fmt::format("optimizer to the {}, masters to the {}, update on the {}{}, activations to the {}, of {} units",
                    to_string(options.offload.optimizer), to_string(options.offload.masters),
                    to_string(options.offload.update),
                    options.offload.ahead == Ahead::no      ? ""
                    : options.offload.ahead == Ahead::final ? " ahead of the norm for good"
                                                            : " ahead of the norm",
                    to_string(options.offload.activations), options.offload.units));
  }
  lines.add("activations", to_string(options.activations));
  lines.add("checkpointing", to_string(options.checkpointing));
  lines.add("threads of a rank", options.threaded_compute ? "several" : "one");
  lines.add(fmt::format("on_reduced_gradient() was {}called", options.gradient_hooks ? "" : "not "));
}

// `of`: whose it is, in what each line names, where there are several.
void add_optimizer(Lines& lines, const Optimizer& optimizer, const std::string& of = {}) {
  const kernels::StepSettings step = optimizer.step_settings();
  lines.add("optimizer" + of, optimizer.name());
  lines.add("learning_rate" + of, optimizer.learning_rate());
  lines.add("weight_decay" + of, optimizer.weight_decay());
  lines.add("clip_norm" + of, step.clip_norm);
  for (const OptimizerSetting& setting : optimizer.settings()) lines.add(setting.name + of, setting.value);
  lines.add("decays of the optimizer" + of, fmt::format("{}, {}", step.decay[0], step.decay[1]));
  const std::vector<ParameterGroup> groups = optimizer.groups();
  lines.add("groups" + of, groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    lines.add(
        fmt::format("groups[{}]{} = \"{}\", learning_rate_scale {}, weight_decay {}, beta1 {}, beta2 {}, epsilon {}", i,
                    of, fmt::join(group.patterns, "\" \""), group.learning_rate_scale, text(group.weight_decay),
                    text(group.beta1), text(group.beta2), text(group.epsilon)));
  }
}

void add_loss_scaling(Lines& lines, const kernels::LossScaling& scaling) {
  lines.add("loss_scaling", fmt::format("initial {}, dynamic {}, growth {}, backoff {}, growth_interval {}, {} to {}",
                                        scaling.initial, scaling.dynamic, scaling.growth, scaling.backoff,
                                        scaling.growth_interval, scaling.smallest, scaling.largest));
}

void add_outer(Lines& lines, const kernels::OuterSettings& outer) {
  lines.add("outer.learning_rate", outer.learning_rate);
  lines.add("outer.momentum", outer.momentum);
}

void add_units(Lines& lines, const std::vector<plan::UnitSpec>& units) {
  lines.add("units", units.size());
  for (const plan::UnitSpec& unit : units) {
    lines.add(fmt::format("unit {} with {} parameters and {} buffers, {}", unit.name, unit.parameters.size(),
                          unit.buffers.size(), unit.precision ? types(*unit.precision) : "the model's precision"));
    if (unit.prefetch) lines.add("prefetch of unit " + unit.name, *unit.prefetch);
    if (unit.reshard_after_forward)
      lines.add("reshard_after_forward of unit " + unit.name, to_string(*unit.reshard_after_forward));
    if (unit.recompute) lines.add("recompute of unit " + unit.name, "yes");
    if (unit.states_in) lines.add("states of unit " + unit.name + " in", to_string(*unit.states_in));
    if (unit.saved > Bytes(0)) {
      lines.add("saved of unit " + unit.name, fmt::format("{}, {}", to_string(unit.saved),
                                                          unit.saved_in ? to_string(*unit.saved_in) : "as the model"));
    }
    if (unit.masters_in) lines.add("masters of unit " + unit.name + " in", to_string(*unit.masters_in));
    if (!unit.apart.empty()) {
      lines.add("unit " + unit.name + " apart", to_string(unit.apart) + ", with tensors under " + unit.prefix);
    }
    for (const plan::ParameterSpec& parameter : unit.parameters) {
      lines.add(
          fmt::format("parameter {} of shape {}{}{}{} in unit {}", parameter.name, to_string(parameter.shape),
                      parameter.slice ? " in " + to_string(plan::whole_shape(parameter.shape, parameter.slice)) : "",
                      parameter.optional ? ", optional" : "", parameter.frozen ? ", frozen" : "", unit.name));
    }
    for (const plan::BufferSpec& buffer : unit.buffers) {
      lines.add(fmt::format("buffer {} of shape {} in unit {}", buffer.name, to_string(buffer.shape), unit.name));
    }
  }
}

void add_windows(Lines& lines, const std::string& name, const std::vector<plan::WindowUse>& uses,
                 const std::vector<plan::UnitSpec>& units) {
  lines.add(fmt::format("windows of {}", name), uses.size());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    lines.add(fmt::format("window {} of {} = {} of unit {}{}", i, name, to_string(uses[i].kind),
                          units[uses[i].unit].name, uses[i].resumes ? ", resumed" : ""));
  }
}

void add_programs(Lines& lines, const AgreedSettings& settings) {
  const std::vector<plan::Program>& programs = settings.input.programs;
  lines.add("programs", programs.size());
  for (std::size_t index = 0; index < programs.size(); ++index) {
    const plan::Program& program = programs[index];
    const std::string of = programs.size() == 1 ? "" : " of program " + program.name;
    add_optimizer(lines, *settings.optimizers[index], of);
    if (program.micro_batches) lines.add("micro_batches of program " + program.name, *program.micro_batches);
    add_windows(lines, "a micro-batch" + of, program.micro_batch, settings.input.units);
    add_windows(lines, "an evaluation" + of, program.evaluation, settings.input.units);
    if (programs.size() > 1) lines.add("trains" + of, program.trains ? "what it names" : "what it comes back to");
    for (const std::size_t unit : program.trains.value_or(std::vector<std::size_t>{})) {
      lines.add("trained" + of, settings.input.units.at(unit).name);
    }
  }
}

// ---- comparing ----

// The first line in which any rank differs from rank 0. Hashes of some lines travel at a time.
std::size_t first_difference(World& world, std::span<const std::string> lines) {
  constexpr std::size_t at_once = 256;
  for (std::size_t begin = 0;; begin += at_once) {
    std::array<std::uint64_t, at_once> mine{};
    for (std::size_t i = 0; i < at_once && begin + i < lines.size(); ++i) mine[i] = fnv1a(lines[begin + i]);
    const auto all = gather_values(world, mine, "settings that differ");
    for (std::size_t i = 0; i < at_once; ++i) {
      if (std::any_of(all.begin(), all.end(), [&](const auto& other) { return other[i] != all[0][i]; }))
        return begin + i;
    }
  }
}

}  // namespace

std::vector<std::string> lines_of(const AgreedSettings& settings) {
  Lines lines;
  lines.add("seed", settings.seed);
  add_options(lines, settings.input.options);
  add_outer(lines, settings.outer);
  add_loss_scaling(lines, settings.loss_scaling);
  add_units(lines, settings.input.units);
  add_programs(lines, settings);
  for (const auto& unit : settings.units) {
    for (const Parameter* parameter : unit->parameters()) {
      lines.add("initial values of " + parameter->name(), parameter->initial().describe());
    }
    for (const Buffer* buffer : unit->buffers()) {
      lines.add("initial values of " + buffer->name(), buffer->initial().describe());
    }
    if (unit->options().optimizer) add_optimizer(lines, *unit->options().optimizer, " of unit " + unit->name());
  }
  lines.add("plan", fmt::format("{:016x}", settings.plan_hash));
  return lines.take();
}

void require_agreement(World& world, std::span<const std::string> lines, std::string_view call) {
  std::uint64_t hash = fnv1a_basis;
  for (const std::string& line : lines) hash = fnv1a(line, fnv1a("\n", hash));
  const std::vector<std::uint64_t> hashes = gather_values(world, hash, "options, units and the optimizer's settings");
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::uint64_t other) { return other == hash; })) return;
  const std::size_t line = first_difference(world, lines);
  const std::string mine = line < lines.size() ? lines[line] : "";
  const auto has = [](const std::string& theirs) { return fmt::format("with {}", theirs); };
  throw CommunicationError(
      fmt::format("{}: options, units and the optimizer's settings must be the same on every rank, but there is {}",
                  call, comm::ranks_by_value(gather_texts(world, mine, "settings that differ"), has)));
}

}  // namespace tessera
