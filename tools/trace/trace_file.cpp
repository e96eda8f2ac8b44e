// Reads strictly: a slice without what the summary needs is an error, what it does not know is passed over.
#include "trace/trace_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tessera/base/error.hpp"

namespace tools {
namespace {

using nlohmann::json;

constexpr std::size_t most_steps = 1'000'000;

json parse(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    throw tessera::DataError(fmt::format("{}: is a directory, and no trace", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  json object = json::parse(file, nullptr, false);
  if (object.is_discarded()) throw tessera::DataError(fmt::format("{}: is no trace: not JSON", path.string()));
  return object;
}

std::string description(const json& about) {
  const auto count = [&](const char* key, const char* one, const char* many) {
    const auto number = about.at(key).get<std::size_t>();
    return fmt::format("{} {}", number, number == 1 ? one : many);
  };
  return fmt::format("{}, prefetch {}, {}, {}", about.at("strategy").get<std::string>(),
                     about.at("prefetch").get<std::size_t>(), count("micro_batches", "micro-batch", "micro-batches"),
                     count("units", "unit", "units"));
}

std::optional<SliceKind> kind_of(const std::string& category) {
  static const std::map<std::string, SliceKind> kinds = {{"computation", SliceKind::computation},
                                                         {"communication", SliceKind::communication},
                                                         {"window", SliceKind::window},
                                                         {"wait", SliceKind::wait},
                                                         {"host", SliceKind::host}};
  const auto found = kinds.find(category);
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

using Threads = std::map<std::pair<std::size_t, std::size_t>, std::string>;

Threads thread_names(const json& events) {
  Threads threads;
  for (const json& event : events) {
    if (event.at("ph") != "M" || event.at("name") != "thread_name") continue;
    threads[{event.at("pid").get<std::size_t>(), event.at("tid").get<std::size_t>()}] =
        event.at("args").at("name").get<std::string>();
  }
  return threads;
}

double time_of(const json& event, const char* name) {
  const double value = event.at(name).get<double>();
  if (!std::isfinite(value)) throw std::range_error("a time is not finite");
  return value;
}

Slice slice_of(const json& event, SliceKind kind, const Threads& threads) {
  const json& about = event.at("args");
  const auto rank = event.at("pid").get<std::size_t>();
  const double begin = time_of(event, "ts");
  Slice slice{.kind = kind,
              .rank = rank,
              .stream = threads.at({rank, event.at("tid").get<std::size_t>()}),
              .begin = begin,
              .end = begin + time_of(event, "dur"),
              .step = about.at("step").get<std::size_t>(),
              .name = event.at("name").get<std::string>(),
              .unit = about.at("unit").get<std::string>(),
              .pass = about.value("pass", std::string()),
              .operation = about.value(kind == SliceKind::wait ? "operation" : "kind", std::string()),
              .cause = {},
              .cause_stream = {}};
  if (kind == SliceKind::wait) {
    slice.cause = about.at("for").get<std::string>();
    slice.cause_stream = about.at("for_stream").get<std::string>();
  } else if (kind == SliceKind::host) {
    slice.host = time_of(about, "host_us");
  } else {
    slice.bytes = about.at("bytes").get<std::uint64_t>();
  }
  if (slice.end < slice.begin) throw std::range_error("a slice ends before it begins");
  return slice;
}

TraceFile trace_of(const json& object) {
  const json& about = object.at("otherData");
  TraceFile trace{.first_step = about.at("first_step").get<std::size_t>(),
                  .last_step = about.at("last_step").get<std::size_t>(),
                  .description = description(about),
                  .slices = {}};
  if (trace.last_step < trace.first_step || trace.last_step - trace.first_step >= most_steps) {
    throw std::range_error("its steps are no range");
  }
  const json& events = object.at("traceEvents");
  const Threads threads = thread_names(events);
  for (const json& event : events) {
    if (event.at("ph") != "X") continue;
    const auto kind = kind_of(event.at("cat").get<std::string>());
    if (kind) trace.slices.push_back(slice_of(event, *kind, threads));
  }
  if (trace.slices.empty()) throw std::range_error("it has no operation");
  return trace;
}

bool is_ours(const json& object) {
  if (!object.is_object() || !object.contains("otherData") || !object.contains("traceEvents")) return false;
  const json& about = object["otherData"];
  return about.is_object() && about.contains("tessera_trace");
}

}  // namespace

TraceFile read_trace(const std::filesystem::path& path) {
  const json object = parse(path);
  if (!is_ours(object)) {
    throw tessera::DataError(
        fmt::format("{}: is no trace of Tessera: --trace of train_mlp and train_gpt writes them", path.string()));
  }
  if (object["otherData"]["tessera_trace"] != 1) {
    throw tessera::DataError(
        fmt::format("{}: is a trace of a version of Tessera that this one does not know", path.string()));
  }
  try {
    return trace_of(object);
  } catch (const json::exception& error) {
    throw tessera::DataError(fmt::format("{}: is a damaged trace: {}", path.string(), error.what()));
  } catch (const std::out_of_range&) {
    throw tessera::DataError(
        fmt::format("{}: is a damaged trace: a slice is on a thread without a name", path.string()));
  } catch (const std::range_error& error) {
    throw tessera::DataError(fmt::format("{}: is a damaged trace: {}", path.string(), error.what()));
  }
}

}  // namespace tools
