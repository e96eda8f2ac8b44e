// The handler does what a handler may: it stores a number, and leaves the next signal to the system.
#include "trainer/src/stop.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>

#include "tessera/trainer/gather_values.hpp"

namespace tessera::trainer {

namespace {

std::atomic<int> noted = 0;
std::atomic<int> ended_by = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void note_signal(int number) {
  noted = number;
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
}

}  // namespace

void note_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT}) sigaction(number, &action, nullptr);
}

int agreed_stop_signal(tessera::World& world) {
  for (const int number : gather_value<int>(world, noted, "signal to stop")) {
    if (number != 0) return number;
  }
  return 0;
}

int stopped_by() { return ended_by; }
void set_stopped_by(int signal) { ended_by = signal; }

std::string signal_name(int signal) {
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : fmt::format("signal {}", signal);
}

}  // namespace tessera::trainer
