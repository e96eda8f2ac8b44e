// The live line is written at most twenty times a second, so that it costs a training step nothing.
#include "trainer/src/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tessera/trainer/number_text.hpp"
#include "tessera/trainer/start.hpp"

namespace tessera::trainer {

namespace {

constexpr std::chrono::milliseconds refresh_interval{50};
constexpr std::chrono::seconds line_interval{10};
constexpr std::size_t longest_bar = 30;

std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Output Progress::output_for(bool quiet) {
  if (quiet) return Output::none;
  return isatty(STDOUT_FILENO) == 1 ? Output::live : Output::lines;
}

Progress::Progress(Output output, std::size_t steps, std::string_view unit)
    : output_(output), steps_(steps), unit_(unit) {}

Progress::~Progress() { clear_live(); }

void Progress::start(std::size_t done) {
  start_ = Clock::now();
  done_before_ = done;
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Progress::show(const Step& now) {
  if (output_ == Output::none) return;
  if (output_ == Output::live) return show_live(now);
  const auto tenth = [&](std::size_t step) { return step * 10 / steps_; };
  if (now.step != done_before_ + 1 && tenth(now.step) == tenth(now.step - 1)) return;
  print(text_of(now) + "\n");
}

void Progress::evaluating(std::size_t done, std::size_t passes) {
  if (output_ == Output::none) return;
  const Clock::time_point time = Clock::now();
  if (done == 1) evaluation_shown_ = time;
  const bool live = output_ == Output::live;
  if (time - evaluation_shown_ < (live ? Clock::duration(refresh_interval) : Clock::duration(line_interval))) return;
  evaluation_shown_ = time;
  const std::string text = fmt::format("evaluating: {} of {} batches", grouped(done), grouped(passes));
  if (!live) return print(text + "\n");
  print("\r\x1b[K" + text);
  line_is_live_ = true;
}

void Progress::line(const std::string& text) {
  if (output_ == Output::none) return;
  clear_live();
  print(text + "\n");
}

void Progress::end() { clear_live(); }

std::string Progress::text_of(const Step& now) const {
  const double left = seconds() / static_cast<double>(now.step - done_before_) * static_cast<double>(steps_ - now.step);
  return fmt::format("step {:>{}}/{}   loss {:.4f}   {:>7} {}/s   {} left", now.step, fmt::formatted_size("{}", steps_),
                     steps_, now.loss, grouped(static_cast<std::uint64_t>(std::llround(now.units_per_second))), unit_,
                     duration(left));
}

std::string Progress::bar(double done, std::size_t room) const {
  std::string text;
  const auto full = static_cast<std::size_t>(done * static_cast<double>(room));
  for (std::size_t i = 0; i < room; ++i) text += i < full ? "━" : "╌";
  return text;
}

void Progress::show_live(const Step& now) {
  const Clock::time_point time = Clock::now();
  if (now.step != steps_ && time - shown_ < refresh_interval) return;
  shown_ = time;
  std::string text = text_of(now);
  const std::size_t columns = terminal_columns();
  const std::size_t room = std::min(longest_bar, columns > text.size() + 4 ? columns - text.size() - 4 : 0);
  if (room >= 8) text += "   " + bar(static_cast<double>(now.step) / static_cast<double>(steps_), room);
  if (room < 8) text.resize(std::min(text.size(), columns - 1));
  print("\r\x1b[K" + text);
  line_is_live_ = true;
}

void Progress::clear_live() {
  if (!line_is_live_) return;
  print("\r\x1b[K");
  line_is_live_ = false;
}

}  // namespace tessera::trainer
