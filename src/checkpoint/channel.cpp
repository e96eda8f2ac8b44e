// Collectives that the calling thread waits for, and the meeting at which ranks hear of each other's failures.
#include "checkpoint/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <string>

#include "comm/collective_errors.hpp"
#include "comm/introduction.hpp"
#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

constexpr std::chrono::milliseconds between_meetings{250};

// A rank tells the others this when they meet.
struct Report {
  enum class Kind : char { works, is_done, failed };
  Kind kind = Kind::is_done;
  std::array<char, 1023> text = {};  // of a failure; ends with a zero byte
};
static_assert(sizeof(Report) == 1024);

Report report_of(std::exception_ptr failure) {
  Report report{.kind = Report::Kind::failed};
  std::string text = "failed";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    if (*error.what() != '\0') text = error.what();
  } catch (...) {
    text = "failed with something that is not an exception";
  }
  std::memcpy(report.text.data(), text.data(), std::min(text.size(), report.text.size() - 1));
  return report;
}

// True when all ranks are done.
bool meet(const Gather& gather, const Report& mine) {
  const std::vector<std::byte> all = gather(std::as_bytes(std::span(&mine, 1)));
  if (mine.kind == Report::Kind::failed) return true;
  bool done = true;
  for (std::size_t rank = 0; rank * sizeof(Report) < all.size(); ++rank) {
    Report report;
    std::memcpy(&report, all.data() + rank * sizeof(Report), sizeof(Report));
    if (report.kind == Report::Kind::failed) {
      throw DataError(fmt::format("{} (on rank {})", report.text.data(), rank));
    }
    done = done && report.kind == Report::Kind::is_done;
  }
  return done;
}

}  // namespace

void run_apart(const Pause& pause, const std::function<void()>& work) {
  std::future<void> done = std::async(std::launch::async, work);
  while (done.wait_for(between_meetings / 5) != std::future_status::ready) pause();
  done.get();
}

void run_together(const Gather& gather, const std::function<void(const Pause&)>& work) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point met = Clock::now();
  bool heard = false;  // of a failure elsewhere: nobody meets any more
  const Pause pause = [&] {
    if (heard || Clock::now() - met < between_meetings) return;
    try {
      meet(gather, {.kind = Report::Kind::works});
    } catch (...) {
      heard = true;
      throw;
    }
    met = Clock::now();
  };
  std::exception_ptr failure;
  try {
    work(pause);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure && !heard) meet(gather, report_of(failure));
  if (failure) std::rethrow_exception(failure);
  while (!meet(gather, {.kind = Report::Kind::is_done})) {
  }
}

void run_together(World& world, std::string_view label, const std::function<void(const Pause&)>& work) {
  run_together([&](std::span<const std::byte> mine) { return world.gather(mine, label); }, work);
}

Channel::Channel(World& world)
    : communicator_(world.make_communicator("checkpoint", {.host_memory = true})),
      stream_(Device::cpu(), {.name = "checkpoint", .queue_capacity = 1}) {}

void Channel::all_gather(std::span<std::byte> all, Bytes part, std::string_view label) {
  communicator_->all_gather(stream_, {.data = all.data(), .shard = part, .label = label});
  stream_.synchronize();
}

std::vector<std::byte> Channel::gather(std::span<const std::byte> mine, std::string_view label) {
  std::vector<std::byte> all(mine.size() * size());
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(mine.size() * rank()));
  all_gather(all, Bytes(mine.size()), label);
  return all;
}

void Channel::require_equal(std::uint64_t mine, std::string_view what) {
  comm::require_equal(comm::values_of<std::uint64_t>(gather(std::as_bytes(std::span(&mine, 1)), what)), what);
}

void Channel::together(std::string_view label, const std::function<void(const Pause&)>& work) {
  run_together([&](std::span<const std::byte> mine) { return gather(mine, label); }, work);
}

}  // namespace tessera::checkpoint
