// Activations are a region of their own, so one plan without them answers for every batch.
#include "fit_search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tessera/base/error.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "tessera/trainer/travel_options.hpp"
#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;
using tessera::Strategy;

namespace {

bool keeps_parameters_whole(Strategy strategy) { return strategy.sharding.parameters.empty(); }

constexpr std::size_t most_in_layers = 8;                  // ranks that a layer talks among
constexpr std::size_t least_part = 2048;                   // tokens of a sequence, for which cutting it is tried
constexpr std::size_t most_tokens = std::size_t{1} << 28;  // in one micro-batch of a rank, as in train_gpt

class Search {
 public:
  Search(const FitQuestion& question, const std::vector<plan::StateSpec>& states)
      : question_(question), states_(states) {}

  Fit run() {
    Fit fit;
    const auto add = [&](FitCandidate candidate) {
      (fits(candidate) ? fit.fitting : fit.too_large).push_back(std::move(candidate));
    };
    for (const Setting& setting : variants(strategies())) add(best_batch(setting));
    for (const Strategy strategy : hybrid_strategies()) {
      for (const std::size_t replicas : numbers_of_replicas()) add(best_of(variants({strategy}), replicas));
    }
    for (const plan::MeshShape& mesh : meshes()) {
      for (const Strategy strategy : strategies()) {
        std::string why;
        if (std::optional<FitCandidate> best = best_on(mesh, strategy, why)) {
          add(std::move(*best));
        } else {
          fit.impossible.emplace_back(fmt::format("{}, {}", mesh.text(), to_string(strategy)), why);
        }
      }
    }
    if (fit.fitting.empty() && question_.freedom.offload && !question_.freedom.meshes) {
      fit.offloads = true;
      for (FitCandidate& candidate : std::exchange(fit.too_large, {})) add(moving_what_must(std::move(candidate)));
    }
    std::stable_sort(fit.fitting.begin(), fit.fitting.end(), [](const FitCandidate& a, const FitCandidate& b) {
      return a.moved_per_sample < b.moved_per_sample;
    });
    return fit;
  }

 private:
  // With the replicas that were given, or one.
  std::vector<Strategy> strategies() const {
    const plan::PlanOptions& options = question_.setting.options;
    if (question_.freedom.strategy) {
      const auto all = strategies_on(options);
      return {all.begin(), all.end()};
    }
    if (is_hybrid(options.strategy) && !numbers_of_replicas().empty()) return {};
    return {options.strategy};
  }

  // Those of which the number of replicas is searched.
  std::vector<Strategy> hybrid_strategies() const {
    if (question_.freedom.strategy) return {Strategy::hsdp, Strategy::hfsdp};
    const Strategy given = question_.setting.options.strategy;
    return is_hybrid(given) ? std::vector{given} : std::vector<Strategy>{};
  }

  // One replica makes them fsdp, and replicas of one rank each would shard nothing. Empty where they are given.
  std::vector<std::size_t> numbers_of_replicas() const {
    const std::size_t ranks = question_.setting.options.ranks;
    std::vector<std::size_t> result;
    for (std::size_t replicas = 2; question_.freedom.replicas && replicas <= ranks / 2; ++replicas) {
      if (ranks % replicas == 0) result.push_back(replicas);
    }
    return result;
  }

  // In the order that decides among equals.
  std::vector<Setting> variants(const std::vector<Strategy>& strategies) const {
    const Freedom& free = question_.freedom;
    std::vector<Setting> result = {question_.setting};
    if (free.checkpointing && question_.subject.counts_activations() && question_.subject.recomputes()) {
      vary(result, std::vector{false, true},
           [](Setting& setting, bool value) { setting.activation_checkpointing = value; });
    }
    vary(result, strategies, [](Setting& setting, Strategy value) { setting.options.strategy = value; });
    if (free.prefetch) {
      vary(result, std::vector<std::size_t>{1, 2, 0},
           [](Setting& setting, std::size_t value) { setting.options.prefetch = value; });
    }
    if (free.reshard) {
      vary(result, std::vector{true, false},
           [](Setting& setting, bool value) { setting.options.reshard_after_forward = value; });
    }
    result.erase(std::unique(result.begin(), result.end(), are_one), result.end());
    return result;
  }

  template <typename Value, typename Set>
  static void vary(std::vector<Setting>& settings, const std::vector<Value>& values, const Set& set) {
    std::vector<Setting> result;
    for (const Setting& setting : settings) {
      for (const Value value : values) set(result.emplace_back(setting), value);
    }
    settings = std::move(result);
  }

  // Where parameters stay whole nothing is gathered ahead, or again.
  static bool are_one(const Setting& a, const Setting& b) {
    return a.options.strategy == b.options.strategy && keeps_parameters_whole(a.options.strategy) &&
           a.activation_checkpointing == b.activation_checkpointing;
  }

  // Returns the best of the settings with so many replicas: of those that fit the one that sends the fewest bytes, else
  // the smallest.
  FitCandidate best_of(std::vector<Setting> settings, std::size_t replicas) {
    std::optional<FitCandidate> best;
    for (Setting& setting : settings) {
      setting.options.replicas = replicas;
      FitCandidate candidate = best_batch(setting);
      if (!best || is_better(candidate, *best)) best = std::move(candidate);
    }
    return *best;
  }

  // Those with slices, parts of sequences or stages. The first two talk in every layer, so they are tried among as many
  // ranks as a host may have, and stages up to the micro-batches, with which half of a step would be bubble.
  std::vector<plan::MeshShape> meshes() const {
    if (!question_.freedom.meshes) return {};
    using enum tessera::Axis;
    const Setting& given = question_.setting;
    const Subject& subject = question_.subject;
    const std::size_t most = std::min(subject.layers(), given.options.micro_batches);
    std::vector<plan::MeshShape> result;
    for (const auto& [slices, contexts] : cuts_of_layers()) {
      for (std::size_t stages = 1; stages <= most; ++stages) {
        const std::size_t together = slices * contexts * stages;
        if (given.options.ranks % together != 0 || together == 1) continue;
        std::vector<plan::MeshShape::Extent> axes = {{shard, given.options.ranks / together}};
        if (stages > 1) axes.insert(axes.begin(), {pipeline, stages});
        if (contexts > 1) axes.push_back({context, contexts});
        if (slices > 1) axes.push_back({tensor, slices});
        result.emplace_back(axes);
      }
    }
    return result;
  }

  // {slices, parts of sequences}, each a power of two that the heads and the sequence can be divided by. What a short
  // sequence's activations take is little beside what stands around them, and a search with its parts takes half as
  // long again or more.
  std::vector<std::pair<std::size_t, std::size_t>> cuts_of_layers() const {
    const Subject& subject = question_.subject;
    std::vector<std::pair<std::size_t, std::size_t>> result;
    for (std::size_t slices = 1; slices <= most_in_layers; slices *= 2) {
      for (std::size_t contexts = 1; slices * contexts <= most_in_layers; contexts *= 2) {
        const bool is_whole = subject.heads() % (slices * contexts) == 0 && subject.seq() % contexts == 0;
        const bool is_long = contexts == 1 || subject.seq() / contexts >= least_part;
        if (is_whole && is_long) result.emplace_back(slices, contexts);
      }
    }
    return result;
  }

  // None where nothing on this mesh can be planned, and then says why.
  std::optional<FitCandidate> best_on(const plan::MeshShape& mesh, Strategy strategy, std::string& why) {
    std::optional<FitCandidate> best;
    for (Setting& setting : variants({strategy})) {
      setting.options.mesh = mesh;
      std::optional<FitCandidate> candidate = best_batch_on_mesh(setting, why);
      if (candidate && (!best || is_better(*candidate, *best))) best = std::move(candidate);
    }
    return best;
  }

  // Messages and windows' collectives grow with the batch, so each one has plans of its own, up to their largest size.
  std::optional<FitCandidate> best_batch_on_mesh(Setting setting, std::string& why) const {
    std::optional<FitCandidate> best;
    for (const std::size_t batch : batches()) {
      setting.batch = batch;
      try {
        FitCandidate candidate = setting.stages() > 1 ? of_stages(setting) : of_slices(setting);
        if (best && !fits(candidate)) break;
        best = std::move(candidate);
      } catch (const tessera::UsageError& error) {
        if (why.empty()) why = error.what();
        break;
      }
    }
    return best;
  }

  FitCandidate of_slices(const Setting& setting) const {
    const plan::Plan planned = compile(tools::compile_input(question_.subject, setting, states_));
    const Traffic sent = traffic(planned);
    FitCandidate candidate{.setting = setting,
                           .memory = plan::memory(planned),
                           .moved = sent.moved,
                           .moved_in_replica = sent.moved_in_replica};
    candidate.moved_per_sample = moved_per_sample(candidate, planned);
    return candidate;
  }

  // Every stage has to fit; a rank sends what those of its stage do, in the mean.
  FitCandidate of_stages(const Setting& setting) const {
    FitCandidate candidate{.setting = setting, .memory = {}, .moved = {}, .moved_in_replica = {}};
    const std::vector<plan::RankRole> roles = question_.subject.stages(setting);
    for (const plan::RankRole& role : roles) {
      const plan::MemoryReport memory = plan::memory(role.plan);
      if (memory.device() > candidate.memory.device()) candidate.memory = memory;
      candidate.moved += traffic(role.plan).moved;
    }
    candidate.moved = Bytes(candidate.moved.count() / roles.size());
    candidate.moved_in_replica = candidate.moved;
    candidate.moved_per_sample = moved_per_sample(candidate, roles.front().plan) * static_cast<double>(roles.size()) /
                                 static_cast<double>(setting.options.micro_batches);
    return candidate;
  }

  // Returns what a rank sends and transfers for each of its own samples.
  static double moved_per_sample(const FitCandidate& candidate, const plan::Plan& planned) {
    // Ranks along context have a part of each sequence.
    const std::size_t sharing =
        planned.training_ranks() * planned.mesh.size(tessera::same_samples) * candidate.setting.contexts();
    const double samples =
        static_cast<double>(candidate.setting.batch * planned.gradient_divisor(0)) / static_cast<double>(sharing);
    return static_cast<double>((candidate.moved + candidate.transferred).count()) / samples;
  }

  bool is_better(const FitCandidate& a, const FitCandidate& b) const {
    if (fits(a) != fits(b)) return fits(a);
    return fits(a) ? a.moved_per_sample < b.moved_per_sample : a.memory.device() < b.memory.device();
  }

  bool fits_device(const FitCandidate& candidate) const { return candidate.memory.device() <= question_.limit; }
  bool fits(const FitCandidate& candidate) const {
    return fits_device(candidate) && candidate.memory.host <= question_.host_limit.value_or(candidate.memory.host);
  }

  // The host's memory is faster, so a disk that is offered takes what has no place there. Where nobody says how much
  // there is, whoever offers a disk means it.
  std::vector<tessera::MemorySpace> spaces() const {
    using enum tessera::MemorySpace;
    if (!question_.disk) return {host};
    return question_.host_limit ? std::vector{host, disk} : std::vector{disk};
  }

  // Where an optimizer sees a unit's tensors whole, its masters stay.
  bool moves_masters(const Setting& setting) const {
    if (setting.options.precision.parameter == setting.options.precision.masters) return false;
    const std::vector<plan::UnitSpec> units = compile_input(setting).units;
    return std::any_of(units.begin(), units.end(), [](const plan::UnitSpec& unit) {
      return std::none_of(unit.parameters.begin(), unit.parameters.end(),
                          [](const plan::ParameterSpec& each) { return each.whole && !each.frozen; });
    });
  }

  // Kinds of what may move there, each beginning with the least: states, then masters too, which the host then updates
  // without slots on the device; or these and what windows save. The disk takes neither of the last two.
  std::vector<std::vector<tessera::Offload>> what_may_move(const Setting& setting, tessera::MemorySpace space) const {
    const bool on_disk = space == tessera::MemorySpace::disk;
    std::vector<tessera::Offload> states = {{.optimizer = space}};
    if (moves_masters(setting)) {
      states.push_back({.optimizer = space, .masters = space});
      if (!on_disk) states.push_back({.optimizer = space, .masters = space, .update = space});
    }
    if (!question_.subject.saves(setting) || on_disk) return {states};
    std::vector<tessera::Offload> inputs = {{.activations = space}};
    for (tessera::Offload both : states) {
      both.activations = space;
      inputs.push_back(both);
    }
    return {states, inputs};
  }

  // Moves what as few units have as will do, else what all have. Where tokens come in, the first one, the embedding,
  // leaves no activations.
  FitCandidate moving_few(const Setting& before, const tessera::Offload& offload) {
    const std::size_t units = question_.subject.model(before).units.size();
    const auto of_units = [&](std::size_t count) {
      Setting setting = before;
      setting.options.offload = offload;
      if (count < units) setting.options.offload.units = count;
      FitCandidate moved = best_batch(setting);
      moved.offloaded_units = count;
      return moved;
    };
    const bool of_blocks = offload.activations != tessera::MemorySpace::device && question_.subject.has_tokens();
    std::size_t too_few = of_blocks ? 1 : 0, enough = units;
    FitCandidate result = of_units(units);
    while (fits_device(result) && enough - too_few > 1) {
      const std::size_t middle = too_few + (enough - too_few) / 2;
      FitCandidate some = of_units(middle);
      (fits_device(some) ? enough : too_few) = middle;
      if (fits_device(some)) result = std::move(some);
    }
    return result;
  }

  // Returns the setting with what has to move, and no more. Where nothing is enough, the smallest of them.
  FitCandidate moving_what_must(FitCandidate candidate) {
    const Setting before = candidate.setting;
    for (const tessera::MemorySpace space : spaces()) {
      for (const std::vector<tessera::Offload>& kind : what_may_move(before, space)) {
        for (const tessera::Offload& offload : kind) {
          FitCandidate moved = moving_few(before, offload);
          const bool is_enough = fits(moved);
          if (is_nearer(moved, candidate)) candidate = std::move(moved);
          if (is_enough) break;
        }
      }
      if (fits(candidate)) break;
    }
    return candidate;
  }

  bool is_nearer(const FitCandidate& a, const FitCandidate& b) const {
    if (fits_device(a) != fits_device(b)) return fits_device(a);
    if (!fits_device(a)) return a.memory.device() < b.memory.device();
    if (fits(a) != fits(b)) return fits(a);
    return fits(a) ? a.moved_per_sample < b.moved_per_sample : a.memory.host < b.memory.host;
  }

  std::vector<std::size_t> batches() const {
    if (!question_.freedom.batch || !question_.subject.counts_activations()) return {question_.setting.batch};
    std::vector<std::size_t> result;
    const std::size_t most = std::min(most_batch, most_tokens / std::max<std::size_t>(1, question_.subject.seq()));
    for (std::size_t batch = 1; batch <= most; batch *= 2) result.push_back(batch);
    return result;
  }

  FitCandidate best_batch(const Setting& setting) {
    plan::CompileInput input = compile_input(setting);
    const plan::Plan planned = compile(input);
    const plan::MemoryReport without = plan::memory(planned);
    const Traffic sent = traffic(planned);
    FitCandidate best;
    for (const std::size_t batch : batches()) {
      FitCandidate candidate{.setting = setting,
                             .memory = without,
                             .moved = sent.moved,
                             .moved_in_replica = sent.moved_in_replica,
                             .transferred = sent.fetched + sent.evicted};
      candidate.setting.batch = batch;
      if (setting.options.offload.activations != tessera::MemorySpace::device) {
        const plan::Plan with = compile(tools::compile_input(question_.subject, candidate.setting, states_));
        candidate.memory = plan::memory(with);
        const Traffic more = traffic(with);
        candidate.transferred = more.fetched + more.evicted;
      } else {
        add_activations(candidate);
      }
      candidate.moved_per_sample = moved_per_sample(candidate, planned);
      const bool is_first = best.memory.peak == Bytes(0);
      if (!is_first && !fits(candidate)) break;
      best = candidate;
    }
    return best;
  }

  // The plan is one without activations.
  plan::CompileInput compile_input(const Setting& setting) const {
    models::Model model = question_.subject.model(setting);
    note_whole_tensors(model.units, setting);
    return {std::move(model.units), {std::move(model.program)}, setting.options, states_};
  }

  void add_activations(FitCandidate& candidate) {
    const std::optional<plan::MeshShape>& mesh = candidate.setting.options.mesh;
    const std::tuple key(candidate.setting.activation_checkpointing, candidate.setting.batch,
                         mesh ? mesh->size(tessera::Axis::tensor) : 1);
    auto known = activations_.find(key);
    if (known == activations_.end()) {
      known = activations_.emplace(key, question_.subject.activations(candidate.setting)).first;
    }
    const Bytes region = round_up(known->second, plan::region_alignment);
    candidate.memory.categories[static_cast<std::size_t>(plan::Category::activations)].size = region;
    candidate.memory.peak += region;
    candidate.memory.live += known->second;
  }

  const FitQuestion& question_;
  const std::vector<plan::StateSpec>& states_;
  std::map<std::tuple<bool, std::size_t, std::size_t>, Bytes> activations_;  // with how many slices
};

}  // namespace

Fit find_fit(const FitQuestion& question, const std::vector<plan::StateSpec>& optimizer_states) {
  return Search(question, optimizer_states).run();
}

namespace {

const plan::CategoryBytes& largest_term(const FitCandidate& candidate) {
  const auto& categories = candidate.memory.categories;
  const auto on_device = [&](const plan::CategoryBytes& category) {
    using enum plan::Category;
    const auto kind = category.category;
    return kind == offloaded || kind == checkpoints || kind == on_disk ? Bytes(0) : category.size;
  };
  return *std::max_element(categories.begin(), categories.end(),
                           [&](const auto& a, const auto& b) { return on_device(a) < on_device(b); });
}

std::string yes_no(bool value) { return value ? "yes" : "no"; }

std::string beyond_replica(const FitCandidate& candidate) {
  if (candidate.setting.options.replicas == 1) return "-";
  return to_string(candidate.moved - candidate.moved_in_replica);
}

bool moves_masters(const FitCandidate& candidate) {
  return candidate.setting.options.offload.masters != tessera::MemorySpace::device;
}
bool updates_there(const FitCandidate& candidate) {
  return candidate.setting.options.offload.update != tessera::MemorySpace::device;
}
bool moves_inputs(const FitCandidate& candidate) {
  return candidate.setting.options.offload.activations != tessera::MemorySpace::device;
}
std::string_view place_of_moved(const FitCandidate& candidate) {
  return candidate.setting.options.offload.optimizer == tessera::MemorySpace::disk ? "disk" : "host";
}

// "states, activations of 3 units: host"
std::string what_moves(const FitCandidate& candidate) {
  std::vector<std::string_view> kinds;
  if (candidate.setting.options.offload.optimizer != tessera::MemorySpace::device) kinds.push_back("states");
  if (moves_masters(candidate)) kinds.push_back("masters");
  if (moves_inputs(candidate)) kinds.push_back("activations");
  return fmt::format("{} of {}: {}{}", fmt::join(kinds, ", "), counted(candidate.offloaded_units, "unit", "units"),
                     place_of_moved(candidate), updates_there(candidate) ? ", updated there" : "");
}

std::string mesh_name(const Setting& setting) {
  const auto& mesh = setting.options.mesh;
  return mesh ? mesh->text() : fmt::format("shard {}", setting.options.ranks / setting.options.replicas);
}

std::vector<std::string> row(const FitQuestion& question, const FitCandidate& candidate, bool offloads) {
  const Setting& setting = candidate.setting;
  const bool sharded = !keeps_parameters_whole(setting.options.strategy);
  std::vector<std::string> cells;
  if (question.freedom.meshes) cells.push_back(mesh_name(setting));
  cells.insert(cells.end(), {std::string(to_string(setting.options.strategy)), fmt::to_string(setting.options.replicas),
                             sharded ? fmt::to_string(setting.options.prefetch) : "-",
                             sharded ? resharding_name(setting.options.reshard_after_forward) : "-"});
  if (question.subject.counts_activations()) {
    cells.insert(cells.end(), {yes_no(setting.activation_checkpointing), fmt::to_string(setting.batch)});
  }
  if (offloads) cells.push_back(what_moves(candidate));
  cells.insert(cells.end(),
               {to_string(candidate.memory.device()), to_string(candidate.moved), beyond_replica(candidate)});
  if (offloads) cells.push_back(to_string(candidate.transferred));
  if (question.subject.counts_activations()) {
    cells.push_back(to_string(Bytes(static_cast<std::uint64_t>(candidate.moved_per_sample))));
  }
  return cells;
}

std::vector<std::string> head(const FitQuestion& question, bool offloads) {
  std::vector<std::string> names = {"strategy", "replicas", "prefetch", "reshard"};
  if (question.freedom.meshes) names.insert(names.begin(), "mesh");
  if (question.subject.counts_activations()) names.insert(names.end(), {"recompute", "batch"});
  if (offloads) names.emplace_back("moved");
  names.insert(names.end(), {offloads ? "on the device" : "peak", "sent in a step", "beyond its replica"});
  if (offloads) names.emplace_back("from there and back");
  if (question.subject.counts_activations())
    names.emplace_back(question.subject.sees_images() ? "per image" : "per sequence");
  return names;
}

Json candidate_json(const FitCandidate& candidate) {
  const plan::PlanOptions& options = candidate.setting.options;
  Json json = {{"strategy", to_string(options.strategy)},
               {"replicas", options.replicas},
               {"prefetch", options.prefetch},
               {"reshard_after_forward", resharding_json(options.reshard_after_forward)},
               {"activation_checkpointing", candidate.setting.activation_checkpointing},
               {"batch", candidate.setting.batch},
               {"peak", candidate.memory.peak.count()},
               {"moved", candidate.moved.count()},
               {"moved_in_replica", candidate.moved_in_replica.count()},
               {"moved_per_sample", candidate.moved_per_sample}};
  if (options.mesh) json["mesh"] = options.mesh->text();
  if (options.offload == tessera::Offload{}) return json;
  json["offload"] = {{"masters", moves_masters(candidate)},
                     {"update", updates_there(candidate)},
                     {"activations", moves_inputs(candidate)},
                     {"units", candidate.offloaded_units},
                     {"to", place_of_moved(candidate)}};
  json["host"] = candidate.memory.host.count();
  json["disk"] = candidate.memory.disk.count();
  json["transferred"] = candidate.transferred.count();
  return json;
}

}  // namespace

std::string setting_text(const Subject& subject, const Setting& setting) {
  std::string text;
  if (setting.options.mesh) text = setting.options.mesh->text() + ", ";
  text += to_string(setting.options.strategy);
  if (setting.options.replicas > 1) text += fmt::format(", {} replicas", setting.options.replicas);
  if (!keeps_parameters_whole(setting.options.strategy)) {
    text += fmt::format(", prefetch {}", setting.options.prefetch);
    if (setting.options.reshard_after_forward == false) text += ", kept whole until backward";
    if (setting.options.reshard_after_forward == tessera::Axis::shard) text += ", resharded to each replica";
  }
  if (setting.activation_checkpointing) text += ", recomputed";
  text += tessera::trainer::travel_text(setting.options.precision);
  text += tessera::trainer::offload_text(setting.options.offload);
  if (subject.counts_activations()) text += fmt::format(", batch {}", setting.batch);
  return text;
}

std::string reason(const FitQuestion& question, const FitCandidate& candidate) {
  if (candidate.memory.device() <= question.limit) {
    return fmt::format("needs {} of the host's memory, and has {}: say where a disk is (--offload-to disk:FOLDER)",
                       to_string(candidate.memory.host), to_string(*question.host_limit));
  }
  const plan::CategoryBytes& term = largest_term(candidate);
  const std::string size = to_string(term.size);
  const std::string what = term.size > question.limit
                               ? fmt::format("{} alone takes {}", to_string(term.category), size)
                               : fmt::format("{} takes most of it, {}", to_string(term.category), size);
  return fmt::format("needs {}; {}", to_string(candidate.memory.device()), what);
}

std::string text_of(const FitQuestion& question, const Fit& fit) {
  std::vector<std::vector<std::string>> fitting = {head(question, fit.offloads)};
  for (const FitCandidate& candidate : fit.fitting) fitting.push_back(row(question, candidate, fit.offloads));
  std::string text = fmt::format("{} on {}, {} ({}) each: what fits, the fewest bytes sent {} first\n\n{}",
                                 question.subject.name(), counted(question.setting.options.ranks, "rank", "ranks"),
                                 decimal_size(static_cast<double>(question.limit.count())), to_string(question.limit),
                                 question.subject.sees_images()          ? "for each image"
                                 : question.subject.counts_activations() ? "for each sequence"
                                                                         : "in a step",
                                 table(fitting));
  if (fit.offloads) {
    const char* const place = !question.disk         ? "the host's memory"
                              : !question.host_limit ? "the disk"
                                                     : "the host's memory, or where that is too small to the disk";
    text += fmt::format("\nNothing fits with everything on the device, so as little as will do moves to {}.\n", place);
  }
  if (!fit.impossible.empty()) text += "\nWhat cannot be planned:\n";
  for (const auto& [name, why] : fit.impossible) text += fmt::format("  {}: {}\n", name, why);
  if (fit.too_large.empty())
    return text + (fit.impossible.empty() ? "\nEverything fits.\n" : "\nEverything else fits.\n");
  text += "\nWhat does not fit:\n";
  for (const FitCandidate& candidate : fit.too_large) {
    text += fmt::format("  {}: {}\n", setting_text(question.subject, candidate.setting), reason(question, candidate));
  }
  return text;
}

Json json_of(const FitQuestion& question, const Fit& fit) {
  Json fitting = Json::array();
  for (const FitCandidate& candidate : fit.fitting) fitting.push_back(candidate_json(candidate));
  Json too_large = Json::array();
  for (const FitCandidate& candidate : fit.too_large) {
    Json entry = candidate_json(candidate);
    const plan::CategoryBytes& term = largest_term(candidate);
    entry["largest_term"] = to_string(term.category);
    entry["largest_term_bytes"] = term.size.count();
    too_large.push_back(std::move(entry));
  }
  Json json = {{"model", question.subject.name()},
               {"limit", question.limit.count()},
               {"fits", fitting},
               {"does_not_fit", too_large}};
  if (!question.freedom.meshes) return json;
  json["impossible"] = Json::array();
  for (const auto& [name, why] : fit.impossible) json["impossible"].push_back({{"setting", name}, {"why", why}});
  return json;
}

}  // namespace tools
