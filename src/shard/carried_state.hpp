// This outlives a plan: masters, buffers, states of the optimizers and the step's scalars, taken from one executor and
// put into the next, whose shards lie elsewhere.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard/executor.hpp"

namespace tessera {

class CarriedState {
 public:
  // Copies this rank's share to host memory. Synchronises.
  CarriedState(World& world, const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units, Executor& from);

  // Collective: parameters are put together one at a time.
  void restore(const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units, Executor& to) const;
  // In its place on ranks of other roles than that of the units.
  static void look_on(World& world, const plan::Plan& old, const plan::Plan& next,
                      std::span<const std::unique_ptr<Unit>> units);

 private:
  struct Share {
    std::size_t first;  // value
    std::vector<std::byte> bytes;
  };
  // A parameter's entry is the state's share of this rank; parameters without that state are missing.
  using Shares = std::map<const Parameter*, Share>;

  std::vector<std::int64_t> begun(const plan::Plan& next, std::size_t unit) const;

  World& world_;
  plan::Plan plan_;             // the old one: it knows where shares were
  std::vector<Shares> states_;  // masters, then the optimizer's, then those of outer steps
  std::map<const Buffer*, std::vector<float>> buffers_;
  std::vector<kernels::StepScalars> scalars_;     // by program
  std::vector<std::vector<std::int64_t>> begun_;  // by unit and parameter
};

}  // namespace tessera
