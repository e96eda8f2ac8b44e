// Modules that have shapes before they have bytes. What a constructor computes is written down in place of being
// computed; FullyShard::finalize() does it on rank 0, for one parameter at a time, and the values leave for the shards
// at once. So no rank ever holds the module, or more of it than one parameter beside its shards.
//
//   auto net = tessera::torch::make_deferred<Net>(1, config);  // 1 is a seed
//   tessera::torch::FullyShard model(world, net, …);
//
// Values are what the module's own code makes of torch's random numbers, and those are a function of the seed and of
// the name of the parameter or buffer: the same for any ranks, strategy and units, and also where other parts of the
// module change; not those of make_module.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#pragma GCC visibility push(default)

namespace tessera::torch {

// While it lives, tensors that this thread asks torch for are shapes (of torch's device "meta"). One that names its
// device is made at once, and must be where the constructor itself reads values (torch::linspace(0, 1, n,
// torch::kCPU)); what needs values of a shape, and generators of the caller's own, are UsageErrors that name the
// operator. Whoever asks a shape for its memory gets a c10::Error from libtorch 2.x; of 1.13 data_ptr() is null.
// Parameters and buffers get their values by finalize(), other tensors that the module keeps do not. Whatever changes a
// parameter afterwards would be lost, so that FullyShard's constructor throws UsageError. Not inside each other.
class Deferred {
 public:
  explicit Deferred(std::uint64_t seed);
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  ~Deferred();

 private:
  class [[gnu::visibility("hidden")]] Scope;
  std::unique_ptr<Scope> scope_;
};

template <typename Net, typename... Args>
std::shared_ptr<Net> make_deferred(std::uint64_t seed, Args&&... args) {
  const Deferred shapes_only(seed);
  return std::make_shared<Net>(std::forward<Args>(args)...);
}

}  // namespace tessera::torch

#pragma GCC visibility pop
