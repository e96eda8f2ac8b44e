// A trace holds what the plan says, once per step, and changes nothing.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>

#include "checkpoint/temporary_folder.hpp"
#include "memory/trainee.hpp"
#include "shard/trace_file.hpp"
#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace {

using namespace tessera;
using nlohmann::json;
using toy::Run;

struct Traced {
  json file;
  plan::Plan plan;
  toy::Weights weights;
};

Run run_on(int ranks) { return {.ranks = ranks}; }

// Five steps, of which the given ones are traced.
Traced train(const Run& run, std::optional<TraceSteps> steps) {
  const TemporaryFolder folder;
  Traced result;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run);
    FullyShard& model = trainee.model();
    std::optional<Trace> trace;
    if (steps) trace.emplace(model.trace(*steps));
    for (int step = 0; step < 5; ++step) {
      trainee.step();
      if (step == 2) trainee.evaluate();
    }
    if (trace) trace->write(folder / "trace.json");
    toy::collect_weights(model, result.weights);
    if (world.rank() == 0) result.plan = model.plan();
  });
  if (steps) result.file = json::parse(std::ifstream(folder / "trace.json"));
  return result;
}

const std::map<std::size_t, std::string> threads = {{0, "host"}, {1, "compute"}, {2, "gather"}, {3, "reduce"}};

// The trace says this of one operation: stream, unit, bytes.
using Facts = std::tuple<std::string, std::string, std::uint64_t>;
// Rank, step, micro-batch, segment, operation.
using Place = std::tuple<std::size_t, std::size_t, std::size_t, std::string, std::size_t>;
using Operations = std::multimap<Place, Facts>;

Operations operations_in(const json& file) {
  Operations found;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] == "wait" || event["cat"] == "host") continue;
    const json& about = event["args"];
    found.insert({{event["pid"], about["step"], about["micro_batch"], about["segment"], about["operation"]},
                  {threads.at(event["tid"]), about["unit"], about["bytes"]}});
  }
  return found;
}

// A gather and a reduction count as a whole; the rest counts what it reads and writes.
std::uint64_t expected_bytes(const plan::Operation& operation) {
  std::uint64_t whole = 0;
  std::uint64_t all = 0;
  for (const plan::Access& access : operation.accesses) {
    if (access.mode == plan::AccessMode::discard) continue;
    all += access.range.size.count();
  }
  for (std::size_t a = 0; a + 1 < operation.accesses.size(); a += 2) {
    whole += std::max(operation.accesses[a].range.size, operation.accesses[a + 1].range.size).count();
  }
  return is_collective(operation.kind) ? whole : all;
}

// A step runs these: segments, each with its micro-batch.
std::vector<std::pair<const plan::Segment*, std::size_t>> segments_of(const plan::Plan& plan, std::size_t step) {
  using enum plan::SegmentKind;
  std::vector<std::pair<const plan::Segment*, std::size_t>> result;
  const std::size_t last_micro = plan.options.micro_batches - 1;
  const auto add = [&](std::size_t segment, std::size_t micro) { result.emplace_back(&plan.segments[segment], micro); };
  for (std::size_t micro = 0; micro <= last_micro; ++micro) {
    const plan::SegmentKind kind = last_micro == 0 ? only : micro == 0 ? first : micro == last_micro ? last : middle;
    add(plan.find(kind).value(), micro);
  }
  add(plan.find(update).value(), last_micro);
  if (const auto outer_step = plan.outer_after(step)) add(*outer_step, last_micro);
  return result;
}

Operations operations_of(const plan::Plan& plan, TraceSteps steps) {
  Operations expected;
  for (std::size_t rank = 0; rank < plan.options.ranks; ++rank) {
    for (std::size_t step = steps.first; step <= steps.last; ++step) {
      for (const auto& [segment, micro] : segments_of(plan, step)) {
        for (std::size_t index = 0; index < segment->operations.size(); ++index) {
          const plan::Operation& operation = segment->operations[index];
          const std::string unit = operation.unit == plan::no_unit ? "" : plan.units[operation.unit].name;
          expected.insert({{rank, step, micro, std::string(to_string(segment->kind)), index},
                           {std::string(to_string(operation.stream)), unit, expected_bytes(operation)}});
        }
      }
    }
  }
  return expected;
}

constexpr TraceSteps traced_steps{.first = 2, .last = 5};

// Each setting is trained once, for whoever asks first.
const Traced& traced(const Run& run) {
  static std::map<std::string, Traced> all;
  const auto place = all.find(toy::describe(run));
  return place != all.end() ? place->second : all.emplace(toy::describe(run), train(run, traced_steps)).first->second;
}

template <typename Check>
void for_each_run(Check check) {
  for (const int ranks : {1, 2, 3}) {
    for (const Strategy strategy : flat_strategies) {
      for (const std::size_t micro_batches : {1u, 3u}) {
        Run run{.options = {.strategy = strategy,
                            .micro_batches = micro_batches,
                            .diagnostics = {.queue_compute = micro_batches == 3}},
                .ranks = ranks};
        CAPTURE(toy::describe(run));
        check(run, traced(run));
      }
    }
  }
  for (const std::size_t fragments : {1u, 2u}) {  // an outer step in every other step, and in every one
    Run outer{.options = {.replicas = 2, .outer = {.every = 2, .fragments = fragments}}, .ranks = 4};
    CAPTURE(toy::describe(outer));
    check(outer, traced(outer));
  }
}

TEST_CASE("a_trace_holds_every_operation_of_the_plan_once_per_step_with_stream_unit_and_bytes") {
  for_each_run([](const Run&, const Traced& traced) {
    CHECK(operations_in(traced.file) == operations_of(traced.plan, traced_steps));
  });
}

TEST_CASE("tracing_leaves_the_bits_alone") {
  for_each_run([](const Run& run, const Traced& traced) { CHECK(traced.weights == train(run, std::nullopt).weights); });
}

struct Slices {
  // The ends of operations and waits stand by rank and thread, in the file's order.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::pair<double, double>>> streams;
  std::size_t waits = 0;
};

Slices slices_in(const json& file) {
  Slices slices;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] == "host") continue;
    if (event["cat"] == "wait") ++slices.waits;
    if (event["tid"] == 0) continue;
    const double begin = event["ts"];
    slices.streams[{event["pid"], event["tid"]}].emplace_back(begin, begin + event["dur"].get<double>());
  }
  return slices;
}

std::size_t waits_of(const plan::Plan& plan, TraceSteps steps) {
  std::size_t waits = 0;
  for (std::size_t step = steps.first; step <= steps.last; ++step) {
    for (const auto& [segment, micro] : segments_of(plan, step)) {
      for (const plan::Operation& operation : segment->operations) {
        for (const plan::Wait& wait : operation.waits) waits += wait.type == plan::WaitType::order ? 0 : 1;
      }
    }
  }
  return waits * plan.options.ranks;
}

TEST_CASE("a_stream_does_one_thing_at_a_time_and_every_wait_of_the_plan_is_there") {
  for_each_run([](const Run&, const Traced& traced) {
    const Slices slices = slices_in(traced.file);
    CHECK(slices.waits == waits_of(traced.plan, traced_steps));
    for (const auto& [thread, ends] : slices.streams) {
      for (std::size_t i = 0; i < ends.size(); ++i) {
        CHECK(ends[i].first >= 0);
        CHECK(ends[i].second >= ends[i].first);
        if (i > 0) CHECK(ends[i].first >= ends[i - 1].second - 0.001);  // microseconds are rounded
      }
    }
  });
}

// The plan promised what an arrow says: the one had ended before the other began.
TEST_CASE("arrows_lead_from_the_end_of_what_was_awaited_to_a_later_beginning") {
  for_each_run([](const Run&, const Traced& traced) {
    std::map<std::size_t, json> tails;
    std::size_t heads = 0;
    for (const json& event : traced.file["traceEvents"]) {
      if (event["ph"] == "s") CHECK(tails.emplace(event["id"], event).second);
      if (event["ph"] != "f") continue;
      ++heads;
      REQUIRE(tails.contains(event["id"]));
      const json& tail = tails.at(event["id"]);
      CHECK(tail["pid"] == event["pid"]);
      CHECK(tail["ts"].get<double>() <= event["ts"].get<double>());
    }
    CHECK(heads == tails.size());
    CHECK(heads > 0);
  });
}

// Its second unit takes long on rank 1: rank 0 stands in the collective, and its compute stream in a wait for it.
constexpr auto nap = std::chrono::milliseconds(200);
thread_local bool slow_rank = false;

class Sleepy : public toy::Layer<float> {
 public:
  Sleepy(std::size_t in, std::size_t out, std::size_t rows) : Layer(in, out, rows), sleeps_(slow_rank && in == 13) {}
  const toy::Values& forward(Window& window, const toy::Values& x) {
    if (sleeps_) window.stream().submit([] { std::this_thread::sleep_for(nap); });
    return Layer::forward(window, x);
  }

 private:
  bool sleeps_;
};

bool stands_in(const json& file, std::size_t rank, std::string_view category, std::string_view name) {
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != rank || event["cat"] != category) continue;
    if (event["name"].get<std::string>().find(name) == std::string::npos) continue;
    if (event["dur"].get<double>() > 1000.0 * nap.count() / 2) return true;
  }
  return false;
}

TEST_CASE("a_slow_window_of_one_rank_is_a_long_collective_and_a_wait_of_the_other") {
  for (const bool queue_compute : {false, true}) {
    const TemporaryFolder folder;
    Run run = run_on(2);
    run.options.diagnostics.queue_compute = queue_compute;
    launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      slow_rank = world.rank() == 1;
      toy::Trainee<float, Sleepy> trainee(world, run);
      slow_rank = false;
      Trace trace = trainee.model().trace({.first = 2, .last = 2});
      for (int step = 0; step < 2; ++step) trainee.step();
      trace.write(folder / "trace.json");
    });
    const json file = json::parse(std::ifstream(folder / "trace.json"));
    CHECK(stands_in(file, 1, "window", "forward window units.1"));
    CHECK(stands_in(file, 0, "communication", queue_compute ? "" : "all-gather"));
    CHECK(stands_in(file, 0, "wait", "wait for "));
  }
}

TEST_CASE("the_hosts_own_time_is_not_longer_than_its_calls_nor_negative") {
  for_each_run([](const Run& run, const Traced& traced) {
    std::size_t calls = 0;
    for (const json& event : traced.file["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] != "host") continue;
      ++calls;
      CHECK(event["args"]["host_us"].get<double>() >= 0);
      CHECK(event["args"]["host_us"].get<double>() <= event["dur"].get<double>());
    }
    const std::size_t windows = 2 * (run.widths.size() - 1) * run.options.micro_batches;
    const std::size_t outer_steps = run.options.outer.every == 0 ? 0 : 2 * run.options.outer.fragments;
    CHECK(calls == std::size_t(run.ranks) * (4 * (2 * windows + 1) + outer_steps));
  });
}

TEST_CASE("a_trace_that_cannot_be_is_refused_and_an_unfinished_one_is_not_written") {
  const TemporaryFolder folder;
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run_on(2));
    FullyShard& model = trainee.model();
    CHECK_THROWS_AS(model.trace({.first = 3, .last = 2}), UsageError);
    CHECK_THROWS_AS(model.trace({.first = 3, .last = 4, .next = 4}), UsageError);
    CHECK_THROWS_AS(model.trace({.first = 0, .last = 4}), UsageError);
    CHECK_THROWS_WITH_AS(model.trace({.last = std::numeric_limits<std::size_t>::max()}),
                         doctest::Contains("a trace is of at most 65536 steps"), UsageError);
    Trace trace = model.trace({.first = 1, .last = 2});
    trainee.step();
    CHECK_FALSE(trace.complete());
    CHECK_THROWS_AS(trace.write(folder / "trace.json"), UsageError);
    trainee.step();
    CHECK(trace.complete());
    model.recompile();  // what was measured stays
    trace.write(folder / "trace.json");
    CHECK(std::filesystem::exists(folder / "trace.json"));
    Trace next = model.trace({.first = 3, .last = 4, .next = 3});
    model.recompile();
    trainee.step();
    trainee.step();
    CHECK_FALSE(next.complete());
    CHECK(trace.size() > Bytes(0));
  });
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

// The count by which outer steps are due is then another than the trace was laid out for.
TEST_CASE("with_outer_steps_a_trace_ends_where_the_count_of_updates_is_set") {
  Run run = run_on(4);
  run.options.replicas = 2;
  run.options.outer = {.every = 2};
  launch({.ranks = 4, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run);
    FullyShard& model = trainee.model();
    const Trace before = model.trace({.first = 1, .last = 1});
    model.set_step_scalars(model.step_scalars());
    trainee.step();
    CHECK_FALSE(before.complete());
    const Trace after = model.trace({.first = 2, .last = 3, .next = 2});
    for (int step = 0; step < 2; ++step) trainee.step();
    CHECK(after.complete());
  });
}

// Two ranks trace a step and write it there.
void write_trace(const std::filesystem::path& path) {
  launch({.ranks = 2, .timeout = std::chrono::seconds(20)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run_on(2));
    Trace trace = trainee.model().trace({.first = 1, .last = 1});
    trainee.step();
    trace.write(path);
  });
}

TEST_CASE("a_trace_that_cannot_be_written_is_an_error_with_its_path") {
  CHECK_THROWS_WITH_AS(write_trace("/nowhere/trace.json"),
                       doctest::Contains("/nowhere/trace.json: the trace cannot be written"), Error);
}

// Only rank 0 writes: the others would wait for it where it has thrown.
TEST_CASE("a_trace_that_cannot_be_written_is_every_ranks_error_and_the_job_goes_on") {
  const TemporaryFolder folder;
  launch({.ranks = 3, .timeout = std::chrono::seconds(5)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run_on(3));
    Trace trace = trainee.model().trace({.first = 1, .last = 1});
    trainee.step();
    CHECK_THROWS_WITH_AS(trace.write(folder / "nowhere/trace.json"), doctest::Contains("nowhere/trace.json: the trace"),
                         DataError);
    trace.write(folder / "trace.json");
    trainee.step();
    trainee.model().synchronize();
  });
  CHECK(json::parse(std::ifstream(folder / "trace.json")).contains("traceEvents"));
}

TEST_CASE("names_of_units_are_whatever_they_like_in_a_trace") {
  const TemporaryFolder folder;
  const std::string odd = "a \"quoted\" \\ name\n\x01";
  launch({.ranks = 2, .timeout = std::chrono::seconds(5)}, [&](World& world) {
    toy::Layer<float> first(5, 7, 2), second(7, 3, 2);
    const toy::Values x(10, 0.5f), dy(6, 0.5f);
    FullyShard model(world, {});
    model.add(first, odd);
    model.add(second, "\xc3\xbc");
    model.finalize(AdamW{});
    Trace trace = model.trace({.first = 1, .last = 1});
    model.backward(first, model.backward(second, (model.forward(second, model.forward(first, x)), dy)));
    model.update();
    trace.write(folder / "trace.json");
  });
  const json file = json::parse(std::ifstream(folder / "trace.json"));
  std::set<std::string> units;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X" && event["args"].contains("unit")) units.insert(event["args"]["unit"]);
  }
  CHECK(units == std::set<std::string>{"", odd, "\xc3\xbc"});
}

TEST_CASE("a_trace_is_not_written_through_a_link_that_stands_at_its_growing_name") {
  const TemporaryFolder folder;
  std::ofstream(folder / "precious") << "kept";
  const std::string growing = fmt::format("trace.json.{}.tmp", ::getpid());
  std::filesystem::create_symlink(folder / "precious", folder / growing);
  write_trace(folder / "trace.json");
  std::ifstream file(folder / "precious");
  std::string text;
  CHECK((file >> text && text == "kept"));
  CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "trace.json")));
}

// Two hosts: ranks 0 and 2 share a clock, the other host's is 1,000,000 ahead and left 5 to 50 later.
TEST_CASE("clocks_of_other_hosts_are_shifted_by_the_median_and_ranks_of_one_host_alike") {
  const Departures departures = {
      {100, 1'000'105, 900, 1'000'120}, {200, 1'000'210, 300, 1'000'250}, {300, 1'000'330, 400, 1'000'310}};
  CHECK(clock_offsets(departures, {0, 1, 0, 1}) == std::vector<std::int64_t>{0, 1'000'020, 0, 1'000'020});
  CHECK(clock_offsets(departures, {0, 0, 0, 0}) == std::vector<std::int64_t>(4, 0));
}

}  // namespace
