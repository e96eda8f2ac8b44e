// This outlives plans: masters, buffers, states of the optimizers and the step's scalars, taken from one executor and
// put into the next, whose shards lie elsewhere. States of what a plan trains no more wait here for one that does.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shard/executor.hpp"

namespace tessera {

class CarriedState {
 public:
  // Copies this rank's share of all that the plan keeps to host memory. `from` is null on ranks of another role than
  // that of the units. Synchronises.
  void take(const plan::Plan& plan, std::span<const std::unique_ptr<Unit>> units, Executor* from);
  // All that was taken goes to where the next plan has it. Collective: parameters are put together one at a time. `to`
  // is null where `from` was.
  void restore(World& world, const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units, Executor* to);

  // Calls visit(parameter) for each whose states wait.
  template <typename Visit>
  void for_each_waiting(const Visit& visit) const {
    for (const Taken& taken : taken_) {
      for (const auto& [parameter, age] : taken.ages) visit(*parameter);
    }
  }

 private:
  // A parameter's entry is this rank's share of the state, where it has one; parameters without that state are missing.
  using Shares = std::map<const Parameter*, std::optional<std::vector<std::byte>>>;
  struct Taken {
    plan::Plan plan;                                // knows where shares were
    std::vector<Shares> states;                     // masters, then the optimizer's, then those of outer steps
    std::map<const Parameter*, std::int64_t> ages;  // updates that the states of what was trained have seen
  };

  void copy(std::span<const std::unique_ptr<Unit>> units, Executor& from);
  const Taken* source_of(const plan::Plan& next, std::size_t unit, const Parameter& parameter, std::size_t state) const;
  std::vector<std::int64_t> begun(const plan::Plan& next, const Unit& unit) const;
  void restore(World& world, const plan::Plan& next, const Parameter& parameter, std::size_t state, Executor* to);
  void restore_buffers_and_scalars(const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units,
                                   Executor& to) const;
  static void drop_what_goes_on(Taken& taken, const plan::Plan& next, std::span<const std::unique_ptr<Unit>> units);

  std::vector<Taken> taken_;  // the last of the plan of now; of earlier ones what waits
  std::map<const Buffer*, std::vector<float>> buffers_;
  std::vector<kernels::StepScalars> scalars_;  // by program
};

}  // namespace tessera
