// How one operation on the CPU is shared among threads of the host. Operations run one after the other on their
// stream's thread; with set_threads(n) that thread has n - 1 helpers of its own, so ranks that are threads do not wait
// for each other's. Helpers are started at the first operation that is large enough, look for work for 30 µs after
// each, then sleep, and end with their thread.
#pragma once

#include <algorithm>
#include <cstddef>

#pragma GCC visibility push(default)

namespace tessera::parallel {

// For the whole process: programs call it once at start, with world.threads(), the same on every rank. 1 unless it is
// called. Not while streams run. Throws UsageError below 1.
void set_threads(int threads);
int threads() noexcept;

// A Call runs a part: its number, and who runs it, 0 (the calling thread) to threads() - 1; nobody runs two at once.
struct Call {
  void (*function)(const void* context, std::size_t part, std::size_t worker);
  const void* context;
};
void run_parts(std::size_t parts, const Call& call);

// function(part, worker) for each of the parts 0 … parts - 1, of which none may need another: when it returns, all have
// run. Throws what the lowest part threw that threw, and UnavailableError, before any has run, where the system gives
// fewer threads than set_threads() has asked for. Called in a part, it runs all of its own there, as worker 0.
template <typename Function>
void in_parts(std::size_t parts, const Function& function) {
  if (threads() == 1 || parts <= 1) {
    for (std::size_t part = 0; part < parts; ++part) function(part, std::size_t{0});
    return;
  }
  run_parts(parts, {.function = [](const void* context, std::size_t part,
                                   std::size_t worker) { (*static_cast<const Function*>(context))(part, worker); },
                    .context = &function});
}

// A count that can be cut.
struct Shares {
  std::size_t count;
  std::size_t least = 1;  // is worth a thread
  std::size_t unit = 1;   // each share begins at a multiple of it
  std::size_t turns = 1;  // most shares of a thread: with several, those that other work holds up take fewer
};

// How many shares there are: at most `turns` for each thread, and one in a part of another operation.
std::size_t shares_of(const Shares& of) noexcept;

// function(begin, end, worker) for shares of [0, count) of equal size, within a unit; for none where count is 0.
template <typename Function>
void in_shares(const Shares& of, const Function& function) {
  const std::size_t shares = shares_of(of);
  const std::size_t units = (of.count + of.unit - 1) / of.unit;
  in_parts(shares, [&](std::size_t share, std::size_t worker) {
    const auto border = [&](std::size_t at) { return std::min(of.count, units * at / shares * of.unit); };
    function(border(share), border(share + 1), worker);
  });
}

}  // namespace tessera::parallel

#pragma GCC visibility pop
