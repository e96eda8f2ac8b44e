// Torch's random generators: one for the CPU and one for each CUDA device, of the whole process.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tessera::torch {

// A seed that is a function of these, the same on every machine.
std::uint64_t mixed_seed(const std::vector<std::uint32_t>& words);

// Held by whoever gives a generator a state of its own for a while: ranks that are threads share them.
std::unique_lock<std::mutex> generators_alone();

// Where the generators stand that this thread's operators on a device draw from: its own, and the CPU's, which may be
// one of the thread's (GeneratorMode).
class GeneratorStates {
 public:
  explicit GeneratorStates(at::Device device);

  void restore() const;
  bool operator==(const GeneratorStates& other) const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// How many operators that draw random numbers this thread has called since it was made: generators' states alone do not
// say which thread drew.
class DrawCount {
 public:
  DrawCount();
  DrawCount(const DrawCount&) = delete;
  DrawCount& operator=(const DrawCount&) = delete;
  ~DrawCount();

  std::size_t draws() const;

 private:
  std::size_t before_;
};

}  // namespace tessera::torch
