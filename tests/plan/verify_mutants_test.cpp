// The verifier's own test: plans broken at every place, of every class in mutants.hpp, on plans of every form.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../extent.hpp"
#include "matrix.hpp"
#include "models.hpp"
#include "mutants.hpp"
#include "plan/verify_roles.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::verify_mutants_test {

// A plan, which may be one role's of several.
struct Subject {
  std::string name;
  Plan plan;
  std::vector<RankRole> roles = {};
  std::size_t role = 0;
};

void add_to(std::vector<Subject>& subjects, const Model& model, const PlanOptions& options) {
  subjects.push_back({fmt::format("{}, {}", model.name, describe(options)), compile(model, options)});
}

// Every value of every option, every program, and the pairs that change the schedule.
std::vector<Subject> subjects() {
  std::vector<Subject> result;
  const auto add = [&](const Model& model, const PlanOptions& options) { add_to(result, model, options); };
  using enum AccumulationMode;
  for (const std::size_t prefetch : {0u, 1u, 2u, 5u}) {
    add(chain_model(3), {.ranks = 3, .prefetch = prefetch});
    add(chain_model(3), {.ranks = 2, .prefetch = prefetch, .reshard_after_forward = false});
    add(tied_model(), {.ranks = 4, .micro_batches = 2, .prefetch = prefetch});
    add(recompute_model(), {.ranks = 2, .prefetch = prefetch});
  }
  for (const std::size_t ranks : {1u, 2u, 7u, 64u}) {
    add(chain_model(3), {.ranks = ranks, .micro_batches = 2});
    add(chain_model(2), {.strategy = Strategy::ddp, .precision = bf16_mixed, .ranks = ranks});
  }
  for (const std::size_t micro_batches : {1u, 2u, 3u, 4u}) {
    for (const AccumulationMode accumulation : {reduced, local}) {
      const bool overlap = (micro_batches % 2 == 0) == (accumulation == local);
      add(chain_model(3), {.precision = bf16_mixed,
                           .ranks = 3,
                           .micro_batches = micro_batches,
                           .accumulation = accumulation,
                           .overlap_reduction = overlap});
      add(tied_model(), {.strategy = Strategy::ddp,
                         .ranks = 2,
                         .micro_batches = micro_batches,
                         .accumulation = accumulation,
                         .overlap_reduction = overlap});
    }
  }
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2}) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      add(chain_model(2), {.strategy = strategy, .precision = precision, .ranks = 3});
      add(tied_model(), {.strategy = strategy, .precision = precision, .ranks = 2, .micro_batches = 2});
    }
  }
  for (const Strategy strategy : flat_strategies) {
    add(varied_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 3, .gradient_hooks = true});
    add(varied_model(), {.strategy = strategy, .ranks = 2, .micro_batches = 2, .activations = Bytes(100)});
  }
  for (const std::size_t cap : {std::size_t{1540}, std::size_t{1} << 30}) {
    for (const Strategy strategy : flat_strategies) {
      add(chain_model(5), {.strategy = strategy, .ranks = 3, .bucket_cap = Bytes(cap)});
      for (const AccumulationMode accumulation : {reduced, local}) {
        add(tied_model(), {.strategy = strategy,
                           .precision = bf16_mixed,
                           .ranks = 2,
                           .micro_batches = 3,
                           .accumulation = accumulation,
                           .overlap_reduction = accumulation == local,
                           .bucket_cap = Bytes(cap),
                           .gradient_hooks = true});
      }
    }
    add(chain_model(3), {.strategy = Strategy::ddp, .ranks = 1, .bucket_cap = Bytes(cap)});
    add(chain_model(5), {.precision = {DType::bf16, DType::bf16, DType::fp32},
                         .ranks = 3,
                         .micro_batches = 2,
                         .bucket_cap = Bytes(cap)});
    add(empty_unit_model(), {.ranks = 3, .overlap_reduction = false, .bucket_cap = Bytes(cap)});
  }
  for (const Strategy strategy : all_strategies) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      add(chain_model(2), {.strategy = strategy, .precision = precision, .ranks = 4, .replicas = 2});
    }
    add(chain_model(2), {.strategy = strategy,
                         .precision = {DType::bf16, DType::bf16, DType::int8, DType::int8},
                         .ranks = 4,
                         .replicas = 2,
                         .reshard_after_forward = Axis::shard});
    add(tied_model(), {.strategy = strategy, .ranks = 6, .replicas = 3, .micro_batches = 2});
    add(block_states_model(), {.strategy = strategy, .ranks = 4, .replicas = 2});
    add(varied_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 6, .replicas = 2, .micro_batches = 3});
    add(chain_model(3), {.strategy = strategy, .ranks = 3, .replicas = 3, .bucket_cap = Bytes(1540)});
    add(collecting_model(), {.strategy = strategy, .ranks = 6, .replicas = 2});
    add(collecting_model(),
        {.strategy = strategy, .ranks = 6, .replicas = 3, .micro_batches = 2, .bucket_cap = Bytes(0)});
    add(experts_model(), {.strategy = strategy, .ranks = 4, .replicas = 2, .gradient_hooks = true});
    add(experts_model(),
        {.strategy = strategy, .precision = bf16_mixed, .ranks = 6, .replicas = 2, .micro_batches = 2});
  }
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::fsdp}) {
    add(offloading_model(), {.strategy = strategy, .ranks = 3});
    add(offloading_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 2, .micro_batches = 2});
  }
  for (const Strategy strategy : all_strategies) {
    add(offloading_masters_model(),
        {.strategy = strategy, .precision = bf16_mixed, .ranks = 4, .replicas = 2, .gradient_hooks = true});
  }
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp}) {
    for (const Model& model : {chain_model(3), recomputing_model()}) {
      add(saving(model),
          {.strategy = strategy, .ranks = 2, .micro_batches = 2, .offload = {.activations = MemorySpace::host}});
    }
  }
  constexpr Offload updated_there{
      .optimizer = MemorySpace::host, .masters = MemorySpace::host, .update = MemorySpace::host, .units = 2};
  for (const Strategy strategy : all_strategies) {
    for (const std::optional<DType> gather : {std::optional<DType>(), std::optional(DType::int8)}) {
      add(chain_model(3),
          {.strategy = strategy,
           .precision = {.parameter = DType::bf16, .gradient = DType::bf16, .wire = DType::bf16, .gather = gather},
           .ranks = 4,
           .replicas = 2,
           .gradient_hooks = true,
           .offload = updated_there});
    }
  }
  add(chain_model(3), {.strategy = Strategy::ddp,
                       .precision = bf16_mixed,
                       .ranks = 4,
                       .replicas = 2,
                       .outer_every = 2,
                       .offload = {.optimizer = MemorySpace::disk, .masters = MemorySpace::host}});
  for (const Strategy strategy : all_strategies) {
    add(whole_model(), {.strategy = strategy, .ranks = 6, .replicas = 2});
    add(whole_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 3, .micro_batches = 2});
  }
  add(whole_model(), {.precision = bf16_mixed, .ranks = 1});
  add(whole_model(), {.strategy = Strategy::hsdp, .ranks = 4, .replicas = 2, .outer_every = 2});
  for (const Strategy strategy : all_strategies) {
    add(chain_model(2), {.strategy = strategy, .ranks = 3, .granules = 7});
    add(tied_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 4, .replicas = 2, .granules = 12});
    add(varied_model(), {.strategy = strategy, .ranks = 6, .replicas = 3, .granules = 11, .gradient_hooks = true});
  }
  for (const MeshShape& mesh : further_meshes()) {
    add(sliced_model(), {.mesh = mesh});
    add(sliced_model(), {.strategy = Strategy::hsdp, .precision = bf16_mixed, .mesh = mesh, .micro_batches = 2});
    add(chain_model(2), {.strategy = Strategy::zero1, .mesh = mesh, .micro_batches = 3});
    add(chain_model(2), {.strategy = Strategy::hfsdp, .mesh = mesh, .bucket_cap = Bytes(1540)});
  }
  for (const std::size_t prefetch : {0u, 1u, 2u}) {
    const Precision& precision = prefetch == 1 ? bf16_mixed : fp32_precision;
    const PlanOptions options{
        .precision = precision, .ranks = 6, .replicas = 2, .prefetch = prefetch, .reshard_after_forward = Axis::shard};
    add(chain_model(3), options);
    add(tied_model(), options);
  }
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::hsdp}) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      add(chain_model(2), {.strategy = strategy, .precision = precision, .ranks = 4, .replicas = 2, .outer_every = 3});
    }
    add(chain_model(3), {.strategy = strategy, .ranks = 6, .replicas = 3, .outer_every = 2, .outer_fragments = 2});
    add(varied_model(), {.strategy = strategy,
                         .precision = bf16_mixed,
                         .ranks = 6,
                         .replicas = 2,
                         .outer_every = 4,
                         .micro_batches = 2,
                         .gradient_hooks = true});
    add(chain_model(2), {.strategy = strategy, .ranks = 3, .replicas = 3, .outer_every = 1});
  }
  for (const Strategy strategy : {Strategy::fsdp, Strategy::zero2}) {
    for (const std::size_t prefetch : {0u, 1u, 3u}) {
      add(nested_model(), {.strategy = strategy, .precision = bf16_mixed, .ranks = 2, .prefetch = prefetch});
      add(recomputing_model(), {.strategy = strategy, .ranks = 3, .prefetch = prefetch});
    }
  }
  for (const Model& model : all_models()) {
    add(model, {.ranks = 3, .micro_batches = 3});
    add(model, {.strategy = Strategy::ddp, .precision = bf16_mixed, .ranks = 3});
  }
  add(chain_model(3), {.precision = bf16_mixed, .ranks = 1});
  return result;
}

// Messages that a unit of one of two stages passes to the other.
std::vector<CollectiveSpec> messages_of(std::size_t stage) {
  using enum CollectiveKind;
  const bool first = stage == 0;
  return {{.name = "x",
           .kind = first ? send : receive,
           .type = DType::bf16,
           .elements = 6,
           .backward = false,
           .buffers = 2},
          {.name = "dx",
           .kind = first ? receive : send,
           .type = DType::bf16,
           .elements = 6,
           .forward = false,
           .buffers = 2}};
}

// Stages that go back in two passes. The unit that passes messages goes back in one.
void add_halved_stages(std::vector<Subject>& subjects) {
  using enum WindowKind;
  const Schedule lists = schedule(ScheduleKind::zb_h1, {2, 2});
  std::vector<RankRole> roles;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    Model model = chain_model(2);
    const std::size_t linked = 1 - stage, halved = stage;
    model.units[linked].collectives = messages_of(stage);
    model.units[halved].collectives = {{.name = "both", .elements = 3, .forward = false, .backward_input = true},
                                       {.name = "half",
                                        .kind = CollectiveKind::all_reduce,
                                        .type = DType::bf16,
                                        .elements = 5,
                                        .forward = false,
                                        .backward = false,
                                        .backward_input = true,
                                        .overlaps = true}};
    for (UnitSpec& unit : model.units) unit.name += fmt::format(" of {}", stage);
    model.program = {};
    std::vector<WindowUse>& windows = model.program.micro_batch;
    for (const ScheduledPass& pass : lists[stage]) {
      if (pass.kind == forward) windows.insert(windows.end(), {{0, forward}, {1, forward}});
      if (pass.kind == backward) windows.push_back({halved, backward});
      if (pass.kind != backward_input) continue;
      const WindowUse link{linked, backward}, half{halved, backward_input};
      windows.insert(windows.end(), {stage == 0 ? link : half, stage == 0 ? half : link});
    }
    const PlanOptions options{.precision = bf16_mixed,
                              .mesh = MeshShape{{Axis::pipeline, 2}, {Axis::shard, 2}},
                              .role = stage,
                              .role_units = 2};
    roles.push_back({fmt::format("stage {}", stage), compile(model, options)});
  }
  for (std::size_t role = 0; role < roles.size(); ++role)
    subjects.push_back({fmt::format("{} in halves", roles[role].name), roles[role].plan, roles, role});
}

// Each rank of two stages has slices of their layers, one of which is tied to the other stage's.
void add_sliced_stages(std::vector<Subject>& subjects) {
  std::vector<RankRole> roles;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    Model model = sliced_model();
    const std::size_t linked = stage == 0 ? 3 : 0;
    model.units[linked].collectives = messages_of(stage);
    model.units[1].is_tied_to = stage == 0;
    model.units[1].tied = stage == 1;
    model.units[2].recompute = true;
    for (const std::size_t unit : {0u, 2u, 3u}) model.units[unit].name += fmt::format(" of {}", stage);
    // The last stage goes back at once, the first one when it has sent all.
    const std::vector<WindowUse> once = std::exchange(model.program.micro_batch, {});
    const auto turn = once.begin() + static_cast<std::ptrdiff_t>(model.units.size());
    for (const bool back : stage == 0 ? std::array{false, false, true, true} : std::array{false, true, false, true}) {
      std::vector<WindowUse>& windows = model.program.micro_batch;
      windows.insert(windows.end(), back ? turn : once.begin(), back ? once.end() : turn);
    }
    roles.push_back({fmt::format("stage {}", stage),
                     compile(model, {.precision = bf16_mixed,
                                     .mesh = MeshShape{{Axis::pipeline, 2}, {Axis::shard, 2}, {Axis::tensor, 2}},
                                     .role = stage,
                                     .role_units = 4})});
  }
  for (std::size_t role = 0; role < roles.size(); ++role)
    subjects.push_back({fmt::format("{} of slices", roles[role].name), roles[role].plan, roles, role});
}

// Whatever the selection, some plans update ahead of the norm.
void add_updates_ahead(std::vector<Subject>& subjects) {
  const Offload ahead{.optimizer = MemorySpace::host,
                      .masters = MemorySpace::host,
                      .update = MemorySpace::host,
                      .ahead = Ahead::revocable,
                      .units = 2};
  for (const Strategy strategy : {Strategy::ddp, Strategy::zero2, Strategy::hfsdp}) {
    const bool codes = strategy == Strategy::zero2;
    add_to(subjects, chain_model(3),
           {.strategy = strategy,
            .precision = codes ? Precision{DType::bf16, DType::bf16, DType::int8, DType::int8} : bf16_mixed,
            .ranks = 4,
            .replicas = 2,
            .micro_batches = codes ? 2u : 1u,
            .offload = ahead});
  }
  Offload for_good = ahead;
  for_good.ahead = Ahead::final;
  add_to(subjects, chain_model(3), {.precision = bf16_mixed, .ranks = 2, .offload = for_good});
}

// Damage to ranges is judged without the schedule, so that fewer plans show as much: those of few operations.
std::vector<Subject> small_subjects(const std::vector<Subject>& all) {
  std::vector<Subject> result;
  for (const Subject& subject : all) {
    std::size_t operations = 0;
    for (const Segment& segment : subject.plan.segments) operations += segment.operations.size();
    if (operations < 60) result.push_back(subject);
  }
  return result;
}

struct Tally {
  std::size_t mutants = 0;
  std::size_t caught = 0;
  std::size_t excluded = 0;
};

struct Score {
  std::vector<std::pair<std::string_view, Tally>> classes;

  std::string table() const {
    std::string text = fmt::format("{:<44} {:>8} {:>8} {:>9}\n", "class", "mutants", "caught", "excluded");
    Tally total;
    for (const auto& [name, tally] : classes) {
      text += fmt::format("{:<44} {:>8} {:>8} {:>9}\n", name, tally.mutants, tally.caught, tally.excluded);
      total.mutants += tally.mutants;
      total.caught += tally.caught;
    }
    return text + fmt::format("{:<44} {:>8} {:>8}", "all", total.mutants, total.caught);
  }
};

bool is_sound(const Subject& subject, const Plan& mutant, bool on_one_rank) {
  if (subject.roles.empty()) return (on_one_rank ? verify(subject.plan, mutant) : verify(mutant)).ok();
  if (on_one_rank) return verify(subject.roles, subject.role, mutant).ok();
  std::vector<RankRole> roles = subject.roles;
  roles[subject.role].plan = mutant;
  try {
    return verify(roles).ok();
  } catch (const UsageError&) {  // a message has no other side
    return false;
  }
}

// In a selection, every third of a class; under a sanitizer, where a mutant takes ten times as long, 30 are enough.
Tally judge(const MutantClass& mutants, const std::vector<Subject>& plans) {
  const std::size_t most = tests::sanitized ? 30 : std::numeric_limits<std::size_t>::max();
  const std::size_t stride = tests::reduced() ? 3 : 1;
  std::size_t index = 0;
  Tally tally;
  for (const Subject& subject : plans) {
    if (tally.mutants >= most) break;
    const auto take = [&](const Plan& mutant, const std::string& place) {
      if (tally.mutants >= most || index++ % stride != 0) return;
      ++tally.mutants;
      const bool sound = is_sound(subject, mutant, mutants.on_one_rank);
      tally.caught += sound ? 0 : 1;
      CHECK_MESSAGE(!sound, mutants.name << ": " << place << " in " << subject.name);
    };
    mutants.make(subject.plan, {.take = take, .exclude = [&] { ++tally.excluded; }});
  }
  return tally;
}

std::vector<Subject> selection(const std::vector<Subject>& all) {
  std::vector<Subject> result;
  for (std::size_t index = 0; index < all.size(); index += 7) result.push_back(all[index]);
  return result;
}

TEST_CASE("verify_objects_to_every_mutant_of_every_class") {
  std::vector<Subject> plans = tests::reduced() ? selection(subjects()) : subjects();
  add_sliced_stages(plans);
  add_halved_stages(plans);
  add_updates_ahead(plans);
  for (const Subject& subject : plans) REQUIRE_MESSAGE(is_sound(subject, subject.plan, false), subject.name);
  Score score;
  const auto judge_all = [&](const std::vector<MutantClass>& group, const std::vector<Subject>& on) {
    for (const MutantClass& mutants : group) {
      score.classes.emplace_back(mutants.name, judge(mutants, on));
      CHECK_MESSAGE(score.classes.back().second.mutants > 0, mutants.name);
    }
  };
  judge_all(wait_mutants(), plans);
  judge_all(range_mutants(), small_subjects(plans));
  judge_all(state_mutants(), plans);
  judge_all(slot_mutants(), plans);
  judge_all(collective_mutants(), plans);
  judge_all(group_mutants(), plans);
  judge_all(whole_mutants(), plans);
  judge_all(ahead_mutants(), plans);
  MESSAGE(fmt::format("{} plans, ranges on {}\n{}", plans.size(), small_subjects(plans).size(), score.table()));
}

}  // namespace tessera::plan::verify_mutants_test
