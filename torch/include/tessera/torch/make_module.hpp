// Modules whose initial values depend on a seed alone. Ranks that are threads share torch's random generator: without
// this, what rank 0's module begins with would depend on who draws first.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#pragma GCC visibility push(default)

namespace tessera::torch {

// While it lives, what this thread's operators draw on the CPU comes from a generator of its own, which begins at the
// seed: the numbers of torch::manual_seed(seed), whatever other threads draw meanwhile. Torch's generators begin at the
// seed, too, and at its end the CPU's goes on from where this one has come to. Not inside each other, nor inside of a
// Deferred (deferred.hpp), whose numbers have a seed already.
class SeededGenerator {
 public:
  explicit SeededGenerator(std::uint64_t seed);
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;
  ~SeededGenerator();

 private:
  class [[gnu::visibility("hidden")]] Scope;
  std::unique_ptr<Scope> scope_;
};

template <typename Net, typename... Args>
std::shared_ptr<Net> make_module(std::uint64_t seed, Args&&... args) {
  const SeededGenerator generator(seed);
  return std::make_shared<Net>(std::forward<Args>(args)...);
}

}  // namespace tessera::torch

#pragma GCC visibility pop
