// Reads strictly: a slice without what the summary needs is an error, what it does not know is passed over.
#include "trace/trace_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "json/json.hpp"
#include "tessera/base/error.hpp"

namespace tools {
namespace {

constexpr std::size_t most_steps = 1'000'000;

Json parse(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    throw tessera::DataError(fmt::format("{}: is a directory, and no trace", path.string()));
  }
  // Opening a pipe would wait for somebody to write to it.
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw tessera::DataError(fmt::format("{}: is not a regular file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw tessera::DataError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  try {
    return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  } catch (const JsonError&) {
    throw tessera::DataError(fmt::format("{}: is no trace: not JSON", path.string()));
  }
}

std::string description(const Json& about) {
  const auto count = [&](const char* key, const char* one, const char* many) {
    const auto number = about.at(key).whole();
    return fmt::format("{} {}", number, number == 1 ? one : many);
  };
  return fmt::format("{}, prefetch {}, {}, {}", about.at("strategy").text(), about.at("prefetch").whole(),
                     count("micro_batches", "micro-batch", "micro-batches"), count("units", "unit", "units"));
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

Threads thread_names(const Json& events) {
  Threads threads;
  for (const Json& event : events.entries()) {
    if (event.at("ph").text() != "M" || event.at("name").text() != "thread_name") continue;
    threads[{event.at("pid").whole(), event.at("tid").whole()}] = event.at("args").at("name").text();
  }
  return threads;
}

double time_of(const Json& event, const char* name) {
  const double value = event.at(name).number();
  if (!std::isfinite(value)) throw std::range_error("a time is not finite");
  return value;
}

std::string text_or_none(const Json& about, const char* key) {
  return about.contains(key) ? about.at(key).text() : std::string();
}

Slice slice_of(const Json& event, SliceKind kind, const Threads& threads) {
  const Json& about = event.at("args");
  const auto rank = event.at("pid").whole();
  const double begin = time_of(event, "ts");
  Slice slice{.kind = kind,
              .rank = rank,
              .stream = threads.at({rank, event.at("tid").whole()}),
              .begin = begin,
              .end = begin + time_of(event, "dur"),
              .step = about.at("step").whole(),
              .name = event.at("name").text(),
              .unit = about.at("unit").text(),
              .pass = text_or_none(about, "pass"),
              .operation = text_or_none(about, kind == SliceKind::wait ? "operation" : "kind")};
  if (kind == SliceKind::wait) {
    slice.cause = about.at("for").text();
    slice.cause_stream = about.at("for_stream").text();
  } else if (kind == SliceKind::host) {
    slice.host = time_of(about, "host_us");
  } else {
    slice.bytes = about.at("bytes").whole();
  }
  if (slice.end < slice.begin) throw std::range_error("a slice ends before it begins");
  return slice;
}

TraceFile trace_of(const Json& object) {
  const Json& about = object.at("otherData");
  TraceFile trace{.first_step = about.at("first_step").whole(),
                  .last_step = about.at("last_step").whole(),
                  .ranks = about.at("ranks").whole(),
                  .stages = about.contains("stages") ? about.at("stages").whole() : 1,
                  .description = description(about),
                  .slices = {}};
  if (trace.last_step < trace.first_step || trace.last_step - trace.first_step >= most_steps) {
    throw std::range_error("its steps are no range");
  }
  if (trace.ranks == 0) throw std::range_error("it is of no ranks");
  const Json& events = object.at("traceEvents");
  const Threads threads = thread_names(events);
  for (const Json& event : events.entries()) {
    if (event.at("ph").text() != "X") continue;
    const auto kind = kind_of(event.at("cat").text());
    if (kind) trace.slices.push_back(slice_of(event, *kind, threads));
  }
  if (trace.slices.empty()) throw std::range_error("it has no operation");
  return trace;
}

bool is_ours(const Json& object) {
  return object.contains("traceEvents") && object.contains("otherData") &&
         object.at("otherData").contains("tessera_trace");
}

}  // namespace

TraceFile read_trace(const std::filesystem::path& path) {
  const Json object = parse(path);
  if (!is_ours(object)) {
    throw tessera::DataError(fmt::format(
        "{}: is no trace of Tessera: --trace of the trainers and of tessera plan writes them", path.string()));
  }
  if (object.at("otherData").at("tessera_trace") != Json(1)) {
    throw tessera::DataError(
        fmt::format("{}: is a trace of a version of Tessera that this one does not know", path.string()));
  }
  try {
    return trace_of(object);
  } catch (const JsonError& error) {
    throw tessera::DataError(fmt::format("{}: is a damaged trace: {}", path.string(), error.what()));
  } catch (const std::out_of_range&) {
    throw tessera::DataError(
        fmt::format("{}: is a damaged trace: a slice is on a thread without a name", path.string()));
  } catch (const std::range_error& error) {
    throw tessera::DataError(fmt::format("{}: is a damaged trace: {}", path.string(), error.what()));
  }
}

}  // namespace tools
