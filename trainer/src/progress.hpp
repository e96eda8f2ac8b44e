// A person follows a run by this: on a terminal one line is rewritten in place, elsewhere a line appears every tenth of
// the run, and other lines (an evaluation, say) stay above it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::trainer {

class Progress {
 public:
  struct Step {
    std::size_t step;  // from 1
    double loss;
    double units_per_second;
  };

  enum class Output { none, lines, live };
  static Output output_for(bool quiet);  // live when stdout is a terminal

  Progress(Output output, std::size_t steps, std::string_view unit);  // unit: of the speed; a literal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // leaves the cursor at the beginning of a line, also when an error ends the run

  void start(std::size_t done);  // the clock of "time left", with so many steps done before
  void show(const Step& now);
  void evaluating(std::size_t done,
                  std::size_t passes);  // between steps; elsewhere than on a terminal every ten seconds
  void line(const std::string& text);   // stays
  void end();                           // no more steps; lines may follow

  double seconds() const;  // since start()

 private:
  using Clock = std::chrono::steady_clock;

  std::string text_of(const Step& now) const;
  std::string bar(double done, std::size_t room) const;
  void show_live(const Step& now);
  void clear_live();

  Output output_;
  std::size_t steps_;
  std::string_view unit_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
  Clock::time_point evaluation_shown_{};
  bool line_is_live_ = false;
  std::size_t done_before_ = 0;
};

}  // namespace tessera::trainer
