// Modules whose initial values depend on a seed alone. Ranks that are threads share torch's random generator: without
// this, what rank 0's module begins with would depend on who draws first.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#pragma GCC visibility push(default)

namespace tessera::torch {

// While it lives, torch's generator is this thread's among all that have one of these; it begins at the seed.
class SeededGenerator {
 public:
  explicit SeededGenerator(std::uint64_t seed);

 private:
  std::unique_lock<std::mutex> alone_;
};

template <typename Net, typename... Args>
std::shared_ptr<Net> make_module(std::uint64_t seed, Args&&... args) {
  const SeededGenerator generator(seed);
  return std::make_shared<Net>(std::forward<Args>(args)...);
}

}  // namespace tessera::torch

#pragma GCC visibility pop
