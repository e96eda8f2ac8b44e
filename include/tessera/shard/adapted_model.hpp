// A FullyShard beneath an adapter, which sees only as a pass runs in which order another library's modules use units.
#pragma once

#include <functional>
#include <utility>

#include "tessera/plan/program.hpp"
#include "tessera/shard/fully_shard.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class AdaptedModel : public FullyShard {
 public:
  explicit AdaptedModel(World& world, FullyShardOptions options = {}) : FullyShard(world, std::move(options)) {}

  using FullyShard::recompile;
  // The same with another program in place of FullyShardOptions::program or its default: windows come in another order,
  // or more often. Throws UsageError where programs were declared by add_program(). What recompile() refuses leaves the
  // program as it was, too.
  void recompile(plan::Program program);

  // Whether a step or whatever else comes between steps may begin.
  bool is_between_steps() const;

  // Calls `body`, inside which no hook on reduced gradients is called: it ends a step that will begin again.
  void without_gradient_hook(const std::function<void()>& body);
};

}  // namespace tessera

#pragma GCC visibility pop
