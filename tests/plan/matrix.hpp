// Every combination of the options that shape a plan, and of the programs in models.hpp. The mode `automatic` is one of
// the others.
#pragma once

#include <functional>

#include "../extent.hpp"
#include "models.hpp"

namespace tessera::plan {

inline void for_each_accumulation(const PlanOptions& options, const std::function<void(const PlanOptions&)>& body) {
  using enum AccumulationMode;
  for (const std::size_t micro_batches : {1u, 2u, 3u, 4u}) {
    for (const AccumulationMode accumulation : {reduced, local}) {
      PlanOptions chosen = options;
      chosen.micro_batches = micro_batches;
      chosen.accumulation = accumulation;
      body(chosen);
      if (micro_batches == 1) break;  // both modes are one
    }
  }
}

// Where parameters stay whole nothing is gathered ahead: prefetch and reshard stay as they are.
inline void for_each_gathering(const PlanOptions& options, const std::function<void(const PlanOptions&)>& body) {
  if (options.strategy.sharding.parameters.empty()) return body(options);
  for (const std::size_t prefetch : {0u, 1u, 2u, 5u}) {
    for (const Resharding reshard : {Resharding(true), Resharding(false), Resharding(Axis::shard)}) {
      // Elsewhere it is one of the others (resharding_test.cpp).
      const bool by_all =
          options.strategy == Strategy::fsdp && options.replicas > 1 && options.ranks > options.replicas;
      if (reshard == Resharding(Axis::shard) && !by_all) continue;
      PlanOptions chosen = options;
      chosen.prefetch = prefetch;
      chosen.reshard_after_forward = reshard;
      body(chosen);
    }
  }
}

// No merging, some units together, all of them.
inline constexpr std::size_t bucket_caps[] = {0, 2048, std::size_t{1} << 40};

inline void for_each_bucket_cap(const PlanOptions& options, const std::function<void(const PlanOptions&)>& body) {
  for (const std::size_t cap : bucket_caps) {
    PlanOptions chosen = options;
    chosen.bucket_cap = Bytes(cap);
    body(chosen);
  }
}

struct MeshOfRanks {
  std::size_t replicas;
  std::size_t ranks_of_replica;
};
inline constexpr MeshOfRanks all_meshes[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 7}, {1, 64},
                                             {2, 2}, {3, 2}, {2, 3}, {4, 1}, {7, 5}, {8, 64}};

inline void for_each_mesh(const std::function<void(const PlanOptions&)>& body) {
  for (const MeshOfRanks& mesh : all_meshes) {
    for (const Strategy strategy : all_strategies) {
      if (mesh.replicas == 1 && is_hybrid(strategy)) continue;  // is fsdp
      PlanOptions options;
      options.strategy = strategy;
      options.ranks = mesh.replicas * mesh.ranks_of_replica;
      options.replicas = mesh.replicas;
      body(options);
    }
  }
}

inline void for_each_options(const std::function<void(const PlanOptions&)>& body) {
  for_each_mesh([&](PlanOptions options) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      for (const bool overlap : {true, false}) {
        options.precision = precision;
        options.overlap_reduction = overlap;
        for_each_gathering(options, [&](const PlanOptions& gathering) {
          for_each_accumulation(gathering,
                                [&](const PlanOptions& accumulating) { for_each_bucket_cap(accumulating, body); });
        });
      }
    }
  });
}

using PlanBody = std::function<void(const Model&, const PlanOptions&, const Plan&)>;

// Every `stride`th plan: with a prime, all values of all options and most of their pairs appear.
inline void for_each_nth_plan(std::size_t stride, const PlanBody& body) {
  std::size_t index = 0;
  for (const Model& model : all_models()) {
    for_each_options([&](const PlanOptions& options) {
      if (index++ % stride == 0) body(model, options, compile(model, options));
    });
  }
}

// Enough for a property that does not depend on the finer points of a schedule. Sanitizers look for other faults than
// such a property's, and slow compiling down tenfold.
inline void for_sampled_plans(const PlanBody& body) {
  for_each_nth_plan(tests::sanitized ? 431 : tests::reduced() ? 211 : 53, body);
}

}  // namespace tessera::plan
