// The runtime of one model: it flattens and shards the units' parameters, gradients and optimizer state over the ranks
// of a world, and runs the verified plan of a training step around the user's windows. Strategy ddp is a plan like any
// other.
//
// Life: construct → add units → finalize (model.hpp) → windows and updates (steps.hpp), and between them a look at what
// it holds (inspection.hpp). A call out of place is a UsageError. Its end waits for its own streams; it never
// communicates.
// Thread safety: none; one FullyShard belongs to its rank's thread. Allocates nothing once every segment has run.
#pragma once

#include <utility>

#include "tessera/comm/world.hpp"
#include "tessera/shard/inspection.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class FullyShard : public ModelInspection {
 public:
  // The World ends last: a model that is used after it is a UsageError.
  explicit FullyShard(World& world, FullyShardOptions options = {}) : ModelInspection(world, std::move(options)) {}
};

// A forward pass calls its modules by this, so that training, evaluation and recomputation share one function:
//   const auto net = [&](const Pass& pass, const Values& x) -> const Values& { return pass(head, pass(body, x)); };
//   net({model, WindowKind::forward}, x);
//   net({model, WindowKind::evaluate}, x);
class Pass {
 public:
  // `kind`: as for FullyShard::pass. The model outlives it.
  Pass(FullyShard& model, plan::WindowKind kind) : model_(&model), kind_(kind) {}

  template <typename M, typename... Args>
  decltype(auto) operator()(M& module, Args&&... args) const {
    return model_->pass(kind_, module, std::forward<Args>(args)...);
  }
  plan::WindowKind kind() const { return kind_; }
  FullyShard& model() const { return *model_; }

 private:
  FullyShard* model_;
  plan::WindowKind kind_;
};

}  // namespace tessera

#pragma GCC visibility pop
