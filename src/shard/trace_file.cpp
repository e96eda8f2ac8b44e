// Stamps become slices, waits and arrows. Which ranks share a host is told by the kernel's boot id, which is as old as
// the steady clock.
#include "shard/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "shard/gathered.hpp"

namespace tessera {
namespace {

// ---- clocks ----

constexpr int barriers = 9;
using BootId = std::array<char, 40>;

BootId boot_id() {
  BootId id{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), static_cast<std::streamsize>(id.size()));
  return id;
}

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns for each rank the first rank of its host.
std::vector<std::size_t> hosts_of(const std::vector<BootId>& ids) {
  std::vector<std::size_t> hosts;
  for (const BootId& id : ids) {
    hosts.push_back(static_cast<std::size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin()));
  }
  return hosts;
}

// ---- events ----

using nlohmann::ordered_json;
using plan::EventPoint;
using plan::Operation;

// Threads of a rank's process: the host first, then the streams in the order of StreamId.
constexpr std::size_t host_thread = 0;
std::size_t thread_of(plan::StreamId stream) { return 1 + static_cast<std::size_t>(stream); }

std::string_view category_of(const Operation& operation) {
  if (operation.kind == plan::OperationKind::window) return "window";
  return is_collective(operation.kind) ? "communication" : "computation";
}

std::string unit_name(const plan::Plan& plan, std::size_t unit) {
  return unit == plan::no_unit ? std::string() : plan.units[unit].name;
}

// Where micro-batches flow through stages, the windows of a step are of all, and each passes every message once.
std::size_t micro_batches_of_step(const plan::Plan& plan, std::size_t program) {
  const std::vector<plan::WindowUse>& windows = plan.programs[program].micro_batch;
  std::size_t flow = 1;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (std::ranges::none_of(plan.units[unit].collectives, plan::is_message, &plan::CollectiveSpec::kind)) continue;
    const plan::WindowUse forward{unit, plan::WindowKind::forward};
    flow = std::max(flow, static_cast<std::size_t>(std::ranges::count(windows, forward)));
  }
  return flow * plan.micro_batches(program);
}

std::string_view call_name(HostSection::Call call) {
  switch (call) {
    case HostSection::Call::open: return "open";
    case HostSection::Call::collect: return "collect";
    case HostSection::Call::close: return "close";
    case HostSection::Call::update: return "update";
    case HostSection::Call::outer: break;
  }
  return "outer";
}

// Names are the user's: what in one is no UTF-8 is replaced.
std::string text_of(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

class Writer {
 public:
  explicit Writer(const TraceContent& content)
      : content_(content), traced_(&content.recorder.mine()), steps_(content.recorder.steps()) {
    for (const RankTimes& rank : content_.ranks) {
      for (const std::int64_t time : rank.nanoseconds) origin_ = std::min(origin_, time);
    }
  }

  std::string text() {
    for (const RankTimes& rank : content_.ranks) {
      traced_ = &content_.recorder.of_rank(rank.rank);
      add_names(rank.rank);
      rank_ = &rank;
      last_end_.clear();
      host_stamps_end_ = rank.nanoseconds.data();
      for (std::size_t step = steps_.first; step <= steps_.last; ++step) add_step(step);
    }
    traced_ = &content_.recorder.mine();
    return fmt::format("{{\"displayTimeUnit\": \"ms\",\n\"otherData\": {},\n\"traceEvents\": [\n{}\n]}}\n",
                       text_of(description()), events_);
  }

 private:
  const plan::Plan& plan() const { return traced_->plan(); }

  ordered_json description() const {
    const plan::PlanOptions& options = plan().options;
    return {{"tessera_trace", 1},           {"ranks", plan().job_ranks()},
            {"stages", plan().roles()},     {"strategy", to_string(options.strategy, options.sharding)},
            {"prefetch", options.prefetch}, {"micro_batches", micro_batches_of_step(plan(), traced_->program())},
            {"units", plan().units.size()}, {"first_step", steps_.first},
            {"last_step", steps_.last},     {"compute_stream", content_.compute_is_immediate ? "immediate" : "queued"},
            {"clocks", content_.clocks},    {"plan_hash", fmt::format("{:016x}", hash(plan()))}};
  }

  void add(const ordered_json& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += text_of(event);
  }

  void add_names(std::size_t rank) {
    const auto name = [&](std::string_view what, std::size_t thread, const std::string& text) {
      add({{"ph", "M"}, {"pid", rank}, {"tid", thread}, {"name", what}, {"args", {{"name", text}}}});
    };
    name("process_name", host_thread, fmt::format("rank {}", rank));
    name("thread_name", host_thread, "host");
    for (std::size_t id = 0; id < plan::stream_count; ++id) {
      const auto stream = static_cast<plan::StreamId>(id);
      if (!plan().uses(stream)) continue;
      name("thread_name", thread_of(stream), std::string(to_string(stream)));
    }
  }

  double microseconds(std::int64_t time) const { return static_cast<double>(time - origin_) / 1000.0; }

  // A slice of a thread, from stamp to stamp.
  ordered_json slice(std::size_t thread, std::int64_t begin, std::int64_t end, const std::string& name) const {
    return {{"ph", "X"},
            {"pid", rank_->rank},
            {"tid", thread},
            {"ts", microseconds(begin)},
            {"dur", static_cast<double>(end - begin) / 1000.0},
            {"name", name}};
  }

  void add_step(std::size_t step) {
    const TraceLayout& layout = traced_->layout(step);
    stamps_ = host_stamps_end_;
    host_stamps_ = stamps_ + layout.stamps;
    host_stamps_end_ = host_stamps_ + layout.host_stamps;
    step_ = step;
    inside_.assign(layout.sections.size(), 0);
    for (const TracedOperation& traced : layout.operations) add_operation(traced);
    for (std::size_t section = 0; section < layout.sections.size(); ++section) {
      add_section(layout.sections[section], inside_[section]);
    }
  }

  void add_operation(const TracedOperation& traced) {
    const Operation& operation = plan().at(traced.point);
    const std::int64_t start = stamps_[traced.start()];
    const std::int64_t end = stamps_[traced.end];
    add_waits(traced, operation);
    ordered_json event = slice(thread_of(operation.stream), start, end, describe(plan(), operation));
    event["cat"] = category_of(operation);
    event["args"] = arguments(traced, operation);
    add(event);
    last_end_[{traced.point.segment, traced.point.operation}] = {std::max(start, end - 1), operation.stream};
    count_as_inside(traced, operation);
  }

  ordered_json arguments(const TracedOperation& traced, const Operation& operation) const {
    ordered_json arguments = {{"step", step_},
                              {"micro_batch", traced.micro_batch},
                              {"segment", to_string(plan().segments[traced.point.segment].kind)},
                              {"operation", traced.point.operation},
                              {"kind", to_string(operation.kind)},
                              {"unit", unit_name(plan(), operation.unit)},
                              {"bytes", operation_bytes(operation).count()}};
    if (operation.kind == plan::OperationKind::window) arguments["pass"] = to_string(operation.window);
    return arguments;
  }

  // One slice for each data wait, and an arrow from the end of what it waited for, when that is in the trace.
  void add_waits(const TracedOperation& traced, const Operation& operation) {
    std::size_t stamp = traced.arrival;
    const std::int64_t* host = host_stamps_ + traced.throttle;
    for (const plan::Wait& wait : operation.waits) {
      const EventPoint point = plan().events[wait.event];
      if (wait.type == plan::WaitType::data) {
        add_wait(thread_of(operation.stream), {stamps_[stamp], stamps_[stamp + 1]}, operation, point);
        add_arrow(thread_of(operation.stream), point, stamps_[traced.start()]);
        ++stamp;
      } else if (wait.type == plan::WaitType::throttle) {
        add_wait(host_thread, {host[0], host[1]}, operation, point);
        host += 2;
      }
    }
  }

  void add_wait(std::size_t thread, std::pair<std::int64_t, std::int64_t> ends, const Operation& waiting,
                EventPoint point) {
    const Operation& cause = plan().at(point);
    ordered_json event = slice(thread, ends.first, ends.second, fmt::format("wait for {}", describe(plan(), cause)));
    event["cat"] = "wait";
    event["args"] = {{"step", step_},
                     {"operation", describe(plan(), waiting)},
                     {"unit", unit_name(plan(), waiting.unit)},
                     {"for", describe(plan(), cause)},
                     {"for_kind", to_string(cause.kind)},
                     {"for_unit", unit_name(plan(), cause.unit)},
                     {"for_stream", to_string(cause.stream)}};
    add(event);
  }

  void add_arrow(std::size_t thread, EventPoint point, std::int64_t to) {
    const auto from = last_end_.find({point.segment, point.operation});
    if (from == last_end_.end()) return;  // before the trace
    const auto end = [&](const char* phase, std::size_t on, std::int64_t time) {
      return ordered_json{{"ph", phase},       {"pid", rank_->rank}, {"tid", on},    {"ts", microseconds(time)},
                          {"id", next_arrow_}, {"name", "wait"},     {"cat", "wait"}};
    };
    add(end("s", thread_of(from->second.stream), from->second.time));
    ordered_json head = end("f", thread, to);
    head["bp"] = "e";
    add(head);
    ++next_arrow_;
  }

  // The host does not do this itself in a call: work of an immediate compute stream, with its waits, and its own waits.
  void count_as_inside(const TracedOperation& traced, const Operation& operation) {
    std::int64_t& inside = inside_[traced.section];
    if (content_.compute_is_immediate && operation.stream == plan::StreamId::compute) {
      const bool window = operation.kind == plan::OperationKind::window;
      inside += stamps_[window ? traced.start() : traced.end] - stamps_[traced.arrival];
    } else if (traced.throttle_waits > 0) {
      inside += host_stamps_[traced.throttle + 2 * traced.throttle_waits - 1] - host_stamps_[traced.throttle];
    }
  }

  void add_section(const HostSection& section, std::int64_t inside) {
    using enum HostSection::Call;
    const std::string call(call_name(section.call));
    const bool of_window = section.call != update && section.call != outer;
    const std::string unit = of_window ? unit_name(plan(), section.use.unit) : std::string();
    const std::string pass = of_window ? std::string(to_string(section.use.kind)) : call;
    const std::int64_t begin = host_stamps_[section.begin];
    const std::int64_t end = host_stamps_[section.end];
    ordered_json event = slice(host_thread, begin, end, of_window ? fmt::format("{} {} {}", call, pass, unit) : call);
    event["cat"] = "host";
    event["args"] = {{"step", step_}, {"micro_batch", section.micro_batch},
                     {"call", call},  {"unit", unit},
                     {"pass", pass},  {"host_us", static_cast<double>(end - begin - inside) / 1000.0}};
    add(event);
  }

  struct Ended {
    std::int64_t time;
    plan::StreamId stream;
  };

  const TraceContent& content_;
  const TracedPlan* traced_;  // of the rank that is being written; at first this one
  const TraceSteps& steps_;
  std::int64_t origin_ = std::numeric_limits<std::int64_t>::max();
  std::string events_;
  std::size_t next_arrow_ = 1;
  // These are the rank and the step that are being written.
  const RankTimes* rank_ = nullptr;
  std::size_t step_ = 0;
  const std::int64_t* stamps_ = nullptr;
  const std::int64_t* host_stamps_ = nullptr;
  const std::int64_t* host_stamps_end_ = nullptr;
  std::vector<std::int64_t> inside_;                               // by section
  std::map<std::pair<std::size_t, std::size_t>, Ended> last_end_;  // of an operation, so far
};

}  // namespace

std::vector<std::int64_t> clock_offsets(const Departures& departures, const std::vector<std::size_t>& hosts) {
  std::vector<std::int64_t> offsets(hosts.size(), 0);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == hosts[0]) continue;
    std::vector<std::int64_t> later;
    for (const std::vector<std::int64_t>& left : departures) {
      for (std::size_t other = 0; other < hosts.size(); ++other) {
        if (hosts[other] == hosts[rank]) later.push_back(left[other] - left[0]);
      }
    }
    offsets[rank] = median(std::move(later));
  }
  return offsets;
}

std::string align_clocks(World& world, std::vector<RankTimes>& ranks) {
  const std::vector<std::size_t> hosts = hosts_of(gather_values(world, boot_id(), "trace clocks"));
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) == static_cast<std::ptrdiff_t>(hosts.size())) {
    return "one host, one clock";
  }
  Departures departures;
  for (int i = 0; i < barriers; ++i) {
    world.barrier("trace clocks");
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    departures.push_back(gather_values(world, std::int64_t{std::chrono::nanoseconds(now).count()}, "trace clocks"));
  }
  const std::vector<std::int64_t> offsets = clock_offsets(departures, hosts);
  for (RankTimes& rank : ranks) {
    for (std::int64_t& time : rank.nanoseconds) time -= offsets[rank.rank];
  }
  return "several hosts, aligned by the ends of barriers";
}

Bytes operation_bytes(const Operation& operation) {
  Bytes bytes;
  if (!is_collective(operation.kind) || operation.kind == plan::OperationKind::broadcast ||
      operation.kind == plan::OperationKind::sum_tied || operation.kind == plan::OperationKind::redistribute) {
    for (const plan::Access& access : operation.accesses) {
      if (access.mode != plan::AccessMode::discard) bytes += access.range.size;
    }
    return bytes;
  }
  // Pairs of source and target: one is a shard, the other the whole.
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    bytes += std::max(operation.source(move).range.size, operation.target(move).range.size);
  }
  return bytes;
}

std::string trace_json(const TraceContent& content) { return Writer(content).text(); }

}  // namespace tessera
