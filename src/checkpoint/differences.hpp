// Collects a file's faults for one message: the first differences in words, and how many more there are.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace tessera::checkpoint {

class Differences {
 public:
  static constexpr std::size_t most_shown = 20;  // a model of another shape differs in thousands

  void add(const std::string& what) {
    if (++count_ > most_shown) return;
    shown_ += (count_ == 1 ? "" : "; ") + what;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    return count_ <= most_shown ? shown_ : fmt::format("{}; and {} more", shown_, count_ - most_shown);
  }

 private:
  std::string shown_;
  std::size_t count_ = 0;
};

}  // namespace tessera::checkpoint
