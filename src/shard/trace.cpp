// From every rank's stamps to one file.
#include "tessera/shard/trace.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shard/gathered.hpp"
#include "shard/trace_file.hpp"
#include "shard/trace_recorder.hpp"
#include "tessera/base/error.hpp"
#include "tessera/shard/steps.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path) {
  throw DataError(fmt::format("{}: the trace cannot be written: {}", path.string(), std::strerror(errno)));
}

// Under another name first, so that the file is there whole or not at all. What has that name already (an ended
// program's, or a link that somebody laid there) is taken away, and never written to.
void write_file(const std::filesystem::path& path, std::string_view text) {
  const std::string growing = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  ::unlink(growing.c_str());
  const int file = ::open(growing.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) refuse(path);
  bool good = true;
  while (good && !text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    good = written >= 0 || errno == EINTR;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  good = good && ::fsync(file) == 0;
  good = ::close(file) == 0 && good && ::rename(growing.c_str(), path.c_str()) == 0;
  if (good) return;
  const int error = errno;
  ::unlink(growing.c_str());
  errno = error;
  refuse(path);
}

// Before anybody goes on: where a rank cannot write, all throw what it would have thrown alone.
void write_on_first(World& world, const std::filesystem::path& path, const TraceContent& content) {
  std::string failure;
  try {
    if (world.rank() == 0) write_file(path, trace_json(content));
  } catch (const std::exception& error) {
    failure = error.what();
  }
  for (const std::string& text : gather_texts(world, failure, "trace written")) {
    if (!text.empty()) throw DataError(text);
  }
}

// Every rank sends as many as the role with most has.
std::vector<RankTimes> gather_times(World& world, TraceRecorder& recorder) {
  std::size_t most = 0;
  for (const TracedPlan& role : recorder.plans()) most = std::max(most, role.stamps());
  std::vector<std::int64_t> mine = recorder.times();
  mine.resize(most);
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(mine)), "trace");
  std::vector<RankTimes> ranks;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world.size()); ++rank) {
    std::vector<std::int64_t> times(recorder.of_rank(rank).stamps());
    std::memcpy(times.data(), all.data() + rank * most * sizeof(std::int64_t), times.size() * sizeof(std::int64_t));
    ranks.push_back({rank, std::move(times)});
  }
  return ranks;
}

}  // namespace

Trace::Trace(ModelSteps& model, std::shared_ptr<TraceRecorder> recorder)
    : model_(&model), recorder_(std::move(recorder)) {}

bool Trace::complete() const { return recorder_->recorded_steps() == recorder_->step_count(); }
Bytes Trace::size() const { return recorder_->size(); }

void Trace::write(const std::filesystem::path& path) {
  if (!complete()) {
    throw UsageError(
        fmt::format("a trace of steps {} to {} has {} of them: train on before it is written, without "
                    "recompile(), load() and another trace",
                    recorder_->steps().first, recorder_->steps().last, recorder_->recorded_steps()));
  }
  model_->synchronize();
  World& world = model_->world();
  const bool simulated = world.backend_name() == "modelled";
  TraceContent content{.recorder = *recorder_,
                       .compute_is_immediate = model_->stream().mode() == StreamMode::immediate,
                       .clocks = "one host, one clock"};
  if (simulated) {
    content.ranks.push_back({static_cast<std::size_t>(world.rank()), recorder_->times()});
    return write_file(path, trace_json(content));
  }
  content.ranks = gather_times(world, *recorder_);
  content.clocks = align_clocks(world, content.ranks);
  write_on_first(world, path, content);
}

}  // namespace tessera
