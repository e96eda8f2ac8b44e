// A headline, the verdict, the bytes of a rank by category, and its traffic.
#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/persistent.hpp"
#include "tessera/trainer/offload_options.hpp"
#include "tessera/trainer/travel_options.hpp"
#include "text.hpp"

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;

// Says what a category is for, in the reader's terms.
std::string_view purpose(plan::Category category) {
  switch (category) {
    case plan::Category::parameters: return "fp32 masters, and whole copies";
    case plan::Category::gradients: return "reduced, fp32";
    case plan::Category::optimizer: return "the optimizer's states";
    case plan::Category::accumulation: return "whole fp32 gradients that add up on the rank";
    case plan::Category::parameter_slots: return "gathered units";
    case plan::Category::gradient_slots: return "unreduced gradients";
    case plan::Category::staging: return "a gradient in the type in which it travels; what an update has of the host's";
    case plan::Category::buffers: return "state that is not trained, fp32";
    case plan::Category::activations: return "the layers' own block, and what windows save";
    case plan::Category::offloaded: return "in the host's memory: states and masters, what travels, what windows save";
    case plan::Category::on_disk: return "in a file: states and masters";
    case plan::Category::checkpoints: return "staging of checkpoints, and the copy that is written";
    case plan::Category::scalars: return "norms and flags";
    case plan::Category::collectives: return "what collectives receive before they sum it";
  }
  return "";
}

namespace {

// A unit that says nothing of its own holds this between windows.
std::string held_text(const plan::Plan& plan) {
  const tessera::AxisSet parameters = plan.sharding().parameters;
  const tessera::AxisSet held = plan.held_between_windows(plan.options.reshard_after_forward, parameters);
  return held == parameters ? "" : resharding_text(held);
}

std::string precision_text(const plan::PlanOptions& options) {
  const bool own = options.precision.masters != tessera::DType::fp32;
  return fmt::format("{}{}", to_string(options.precision.parameter), own ? ", masters too" : "");
}

std::string headline(const PlanReport& report) {
  const plan::PlanOptions& options = report.plan.options;
  std::string text = fmt::format("{}; {} on {}, {}", model_text(report.subject, report.plan),
                                 to_string(options.strategy), mesh_text(options), precision_text(options));
  if (!report.plan.parameters_stay_whole()) {
    text += fmt::format(", prefetch {}{}", options.prefetch, held_text(report.plan));
  }
  if (options.outer_every > 0) text += fmt::format(", an outer step every {}", grouped(options.outer_every));
  const std::size_t micro_batches = report.plan.micro_batches(0);
  text += fmt::format(", {}", counted(micro_batches, "micro-batch", "micro-batches"));
  if (options.granules > 0) text += fmt::format(" of {}", counted(options.granules, "granule", "granules"));
  if (micro_batches > 1 && options.granules == 0) text += fmt::format(" ({})", to_string(options.accumulation));
  if (report.setting.activation_checkpointing) text += ", activations recomputed";
  text += tessera::trainer::travel_text(options.precision);
  text += tessera::trainer::offload_text(options.offload);
  std::vector<std::string> states;
  for (const plan::StateSpec& state : report.plan.optimizer_states) states.push_back(plan::describe(state));
  return text + fmt::format(", states of the optimizer: {}\n", fmt::join(states, ", "));
}

std::string row(std::string_view name, Bytes size, std::string_view what) {
  return fmt::format("{:<16} {:>16} {:>10}  {}\n", name, size.count(), to_string(size), what);
}

std::string memory_text(const PlanReport& report) {
  std::string text = fmt::format("\n{:<16} {:>16}\n", "on each rank", "bytes");
  for (const plan::CategoryBytes& category : report.memory.categories) {
    text += row(to_string(category.category), category.size, purpose(category.category));
  }
  text += row("peak", report.memory.peak, "the arena: the sum of these regions, each of whole pages");
  if (report.memory.device() < report.memory.peak) {
    text += row("on the device", report.memory.device(), "of the peak");
    if (report.memory.host > Bytes(0)) text += row("on the host", report.memory.host, "of it, pinned");
    if (report.memory.disk > Bytes(0)) text += row("on disk", report.memory.disk, "of it, in a file for each rank");
  }
  text += row("live", report.memory.live, "the most that is in use at once");
  text += row("persists", report.persistent, "parameters, gradients, states and sums: what stays from step to step");
  return text + activations_note(report);
}

// Between the device's memory and the host's or the disk.
std::string transfers_text(const Traffic& traffic) {
  std::string text;
  const auto add = [&](std::string_view place, Bytes fetched, Bytes evicted) {
    if (fetched == Bytes(0)) return;
    text += fmt::format("from the {} to the device {} in each step, and back {}\n", place, to_string(fetched),
                        to_string(evicted));
  };
  add("host", traffic.fetched - traffic.from_disk, traffic.evicted - traffic.to_disk);
  add("disk", traffic.from_disk, traffic.to_disk);
  return text;
}

std::string traffic_text(const PlanReport& report) {
  if (report.traffic.kinds.empty()) return "\ntraffic: none on one rank\n" + transfers_text(report.traffic);
  std::vector<std::vector<std::string>> rows = {
      {"in each step", "count", "smallest", "median", "largest", "sent by a rank", "in bytes"}};
  for (const CollectiveSizes& kind : report.traffic.kinds) {
    rows.push_back({name_of(kind), grouped(kind.count), to_string(kind.smallest), to_string(kind.median),
                    to_string(kind.largest), to_string(kind.moved), fmt::to_string(kind.moved.count())});
  }
  rows.push_back(
      {"all", "", "", "", "", to_string(report.traffic.moved), fmt::to_string(report.traffic.moved.count())});
  return fmt::format("\n{}{}", table(rows), transfers_text(report.traffic));
}

Json traffic_json(const Traffic& traffic, std::size_t replicas) {
  Json kinds = Json::object();
  for (const CollectiveSizes& kind : traffic.kinds) {
    Json& entry = kinds[name_of(kind)];
    entry = {{"count", kind.count},
             {"smallest", kind.smallest.count()},
             {"median", kind.median.count()},
             {"largest", kind.largest.count()},
             {"moved", kind.moved.count()}};
    if (replicas == 1) continue;
    entry["kind"] = to_string(kind.kind);
    entry["group"] = to_string(kind.group);
    entry["ranks"] = kind.ranks;
  }
  Json result = {{"moved", traffic.moved.count()}, {"collectives", kinds}};
  if (traffic.fetched > Bytes(0)) {
    result["fetched"] = traffic.fetched.count();
    result["evicted"] = traffic.evicted.count();
    result["from_disk"] = traffic.from_disk.count();
    result["to_disk"] = traffic.to_disk.count();
  }
  if (replicas > 1) result["moved_in_replica"] = traffic.moved_in_replica.count();
  return result;
}

Json verification_json(const plan::Verification& verification) {
  Json violations = Json::array();
  for (const plan::Violation& violation : verification.violations) violations.push_back(violation.text);
  return {{"sound", verification.ok()},
          {"states", verification.states},
          {"operations", verification.operations},
          {"violations", violations}};
}

PlanReport report_of(const Subject& subject, const Setting& setting, plan::Plan planned) {
  PlanReport report{.subject = subject, .setting = setting, .plan = std::move(planned)};
  report.title = to_string(report.plan.options.strategy);
  report.memory = plan::memory(report.plan);
  report.traffic = traffic(report.plan);
  const models::ParameterCounts counts = models::count_parameters(report.plan.units);
  report.persistent = models::persistent(report.memory);
  const plan::PlanOptions& options = report.plan.options;
  const std::size_t slices = report.plan.mesh.size(tessera::Axis::tensor);  // of which each has a job of its own
  report.zero_paper = static_cast<double>(counts.all()) / static_cast<double>(slices) *
                      models::zero_paper_per_parameter(options.strategy, options.ranks / slices, options.replicas);
  return report;
}

}  // namespace

PlanReport make_report(const Subject& subject, const Setting& setting,
                       const std::vector<plan::StateSpec>& optimizer_states) {
  PlanReport report = report_of(subject, setting, compile(compile_input(subject, setting, optimizer_states)));
  report.verification = verify(report.plan);
  return report;
}

std::vector<PlanReport> stage_reports(const Subject& subject, const Setting& setting) {
  const std::vector<plan::RankRole> roles = subject.stages(setting);
  std::vector<PlanReport> reports;
  for (const plan::RankRole& role : roles) {
    reports.push_back(report_of(subject, setting, role.plan));
    reports.back().title = role.name;
  }
  reports.front().verification = verify(roles);
  for (PlanReport& report : reports) report.verification = reports.front().verification;
  return reports;
}

std::string model_text(const Subject& subject, const plan::Plan& planned) {
  return fmt::format("{}: {} parameters in {}", subject.name(), grouped(models::count_parameters(planned.units).all()),
                     counted(planned.units.size(), "unit", "units"));
}

std::string activations_note(const PlanReport& report) {
  if (!report.subject.counts_activations()) {
    return fmt::format("activations of {} are not counted\n", report.subject.name());
  }
  if (report.subject.sees_images()) {
    return fmt::format("activations are those of {} on a CPU, scratch memory of its convolutions included\n",
                       counted(report.setting.batch, "image", "images"));
  }
  const std::size_t contexts = report.setting.contexts();
  const std::string part =
      contexts == 1 ? "" : fmt::format(", {} of them on each rank", report.subject.seq() / contexts);
  return fmt::format("activations are those of {} of {} tokens{}\n",
                     counted(report.setting.batch, "sequence", "sequences"), report.subject.seq(), part);
}

std::string verdict(const plan::Verification& verification) {
  if (verification.ok()) {
    return fmt::format("verified: sound in all {} states, {} operations run in the abstract\n", verification.states,
                       verification.operations);
  }
  std::string text = fmt::format("NOT SOUND: {} violations\n", verification.violations.size());
  for (const plan::Violation& violation : verification.violations) {
    text += fmt::format("  {}: {}\n", to_string(violation.kind), violation.text);
  }
  return text;
}

namespace {

std::string mesh_note(const plan::PlanOptions& options) {
  if (!is_hybrid(options.strategy) || options.replicas > 1) return "";
  return fmt::format("note: with one replica {} is fsdp; --replicas makes several\n", to_string(options.strategy));
}

}  // namespace

std::string text_of(const PlanReport& report) {
  return headline(report) + mesh_note(report.plan.options) + verdict(report.verification) + memory_text(report) +
         traffic_text(report);
}

Json json_of(const PlanReport& report) {
  const plan::PlanOptions& options = report.plan.options;
  Json categories;
  for (const plan::CategoryBytes& category : report.memory.categories) {
    categories[std::string(to_string(category.category))] = category.size.count();
  }
  return {{"model", report.subject.name()},
          {"parameters", models::count_parameters(report.plan.units).all()},
          {"units", report.plan.units.size()},
          {"ranks", options.ranks},
          {"replicas", options.replicas},
          {"mesh", report.plan.mesh.text()},
          {"outer_every", options.outer_every},
          {"strategy", to_string(options.strategy)},
          {"precision", to_string(options.precision.parameter)},
          {"gather", to_string(options.precision.gathered())},
          {"wire", to_string(options.precision.wire)},
          {"masters", to_string(options.precision.masters)},
          {"prefetch", options.prefetch},
          {"reshard_after_forward", resharding_json(options.reshard_after_forward)},
          {"overlap_reduction", options.overlap_reduction},
          {"bucket_cap", options.bucket_cap->count()},
          {"micro_batches", report.plan.micro_batches(0)},
          {"granules", options.granules},
          {"accumulate_mode", to_string(options.accumulation)},
          {"activation_checkpointing", report.setting.activation_checkpointing},
          {"activations_counted", report.subject.counts_activations()},
          {"batch", report.setting.batch},
          {"optimizer_states", plan::names_of(report.plan.optimizer_states)},
          {"hash", fmt::format("{:016x}", hash(report.plan))},
          {"categories", categories},
          {"peak", report.memory.peak.count()},
          {"host", report.memory.host.count()},
          {"disk", report.memory.disk.count()},
          {"live", report.memory.live.count()},
          {"persistent", report.persistent.count()},
          {"zero_paper", report.zero_paper},
          {"traffic", traffic_json(report.traffic, options.replicas)},
          {"verified", verification_json(report.verification)}};
}

std::vector<PlanReport> compare(const Subject& subject, Setting setting,
                                const std::vector<plan::StateSpec>& optimizer_states) {
  std::vector<PlanReport> reports;
  for (const tessera::Strategy strategy : strategies_on(setting.options)) {
    setting.options.strategy = strategy;
    reports.push_back(make_report(subject, setting, optimizer_states));
  }
  return reports;
}

namespace {

template <typename Text>
std::vector<std::string> row(std::string name, const std::vector<PlanReport>& reports, const Text& text) {
  std::vector<std::string> cells = {std::move(name)};
  for (const PlanReport& report : reports) cells.push_back(text(report));
  return cells;
}

bool has_any(const std::vector<PlanReport>& reports, std::size_t category) {
  return std::any_of(reports.begin(), reports.end(),
                     [&](const PlanReport& report) { return report.memory.categories[category].size > Bytes(0); });
}

// The share of a step in which a stage stands still.
double bubble(const Setting& setting) {
  const plan::ScheduleShape shape = setting.schedule_shape();
  const plan::ScheduleTimes times = plan::times(plan::schedule(setting.schedule.kind, shape), shape);
  return times.idle.front() / times.step;
}

std::string verdicts(const std::vector<PlanReport>& reports) {
  std::string text;
  for (const PlanReport& report : reports) {
    if (report.verification.ok()) continue;
    text += fmt::format("{}: {}", report.title, verdict(report.verification));
  }
  if (!text.empty()) return text;
  return fmt::format("verified: all {} are sound\n",
                     reports.size() == std::size(tessera::flat_strategies) ? "four" : "six");
}

std::string side_by_side(const std::vector<PlanReport>& reports) {
  const plan::PlanOptions& options = reports.front().plan.options;
  std::vector<std::vector<std::string>> rows = {
      row("on each rank", reports, [](const PlanReport& report) { return report.title; })};
  for (std::size_t category = 0; category < plan::category_count; ++category) {
    if (!has_any(reports, category)) continue;
    rows.push_back(row(std::string(to_string(static_cast<plan::Category>(category))), reports,
                       [&](const PlanReport& report) { return to_string(report.memory.categories[category].size); }));
  }
  rows.push_back(row("peak", reports, [](const PlanReport& report) { return to_string(report.memory.peak); }));
  const bool offloads = std::any_of(reports.begin(), reports.end(),
                                    [](const PlanReport& report) { return report.traffic.fetched > Bytes(0); });
  if (offloads) {
    rows.push_back(
        row("on the device", reports, [](const PlanReport& report) { return to_string(report.memory.device()); }));
    rows.push_back(row("to the device and back", reports, [](const PlanReport& report) {
      return to_string(report.traffic.fetched + report.traffic.evicted);
    }));
  }
  rows.push_back(row("live", reports, [](const PlanReport& report) { return to_string(report.memory.live); }));
  rows.push_back(
      row("sent in a step", reports, [](const PlanReport& report) { return to_string(report.traffic.moved); }));
  if (options.replicas > 1) {
    rows.push_back(row("beyond its replica", reports, [](const PlanReport& report) {
      return to_string(report.traffic.moved - report.traffic.moved_in_replica);
    }));
  }
  const auto bytes = [](double size) { return to_string(Bytes(static_cast<std::uint64_t>(size))); };
  rows.push_back(row("persists", reports, [](const PlanReport& report) { return to_string(report.persistent); }));
  rows.push_back(row("the ZeRO paper's", reports, [&](const PlanReport& report) { return bytes(report.zero_paper); }));
  return table(rows) + activations_note(reports.front());
}

}  // namespace

std::string text_of(const std::vector<PlanReport>& reports) {
  const PlanReport& first = reports.front();
  const plan::PlanOptions& options = first.plan.options;
  return fmt::format("{}; {}, {}, {}\n{}\n{}", model_text(first.subject, first.plan), mesh_text(options),
                     precision_text(options), counted(first.plan.micro_batches(0), "micro-batch", "micro-batches"),
                     verdicts(reports), side_by_side(reports));
}

// A unit that is tied counts as the one to which it is.
std::string text_of_stages(const std::vector<PlanReport>& stages) {
  const PlanReport& first = stages.front();
  const Setting& setting = first.setting;
  std::size_t parameters = 0;
  for (const PlanReport& stage : stages) {
    std::vector<plan::UnitSpec> units = stage.plan.units;
    std::erase_if(units, [](const plan::UnitSpec& unit) { return unit.tied; });
    parameters += models::count_parameters(units).all();
  }
  const plan::ScheduleShape shape = setting.schedule_shape();
  std::string sent;
  for (const PlanReport& stage : stages) sent += "\n" + stage.title + traffic_text(stage);
  return fmt::format(
      "{}: {} parameters; {} on {}, {}, {} by {}{}\n{}\n{}{}\nbubble: {:.1f} % of a step, where parts "
      "take equal time and go back in twice that of a forward pass\n",
      first.subject.name(), grouped(parameters), to_string(setting.options.strategy), setting.options.mesh->text(),
      precision_text(setting.options), counted(shape.micro_batches, "micro-batch", "micro-batches"),
      to_string(setting.schedule.kind), shape.chunks > 1 ? fmt::format(" of {} chunks", shape.chunks) : "",
      verdict(first.verification), side_by_side(stages), sent, 100 * bubble(setting));
}

Json json_of_stages(const std::vector<PlanReport>& stages) {
  const Setting& setting = stages.front().setting;
  Json list = Json::array();
  for (const PlanReport& stage : stages) list.push_back(json_of(stage));
  return {{"model", stages.front().subject.name()},
          {"mesh", setting.options.mesh->text()},
          {"schedule", to_string(setting.schedule.kind)},
          {"chunks", setting.schedule.chunks},
          {"micro_batches", setting.options.micro_batches},
          {"bubble", bubble(setting)},
          {"verified", verification_json(stages.front().verification)},
          {"stages", list}};
}

Json json_of(const std::vector<PlanReport>& reports) {
  Json strategies;
  for (const PlanReport& report : reports) {
    strategies[std::string(to_string(report.plan.options.strategy))] = json_of(report);
  }
  return {{"model", reports.front().subject.name()}, {"strategies", strategies}};
}

}  // namespace tools
