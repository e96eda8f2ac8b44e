// Every combination of the options that shape a plan, and of the programs in models.hpp. The mode `automatic` is one of
// the others.
#pragma once

#include <functional>

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
  if (options.strategy != Strategy::fsdp) return body(options);
  for (const std::size_t prefetch : {0u, 1u, 2u, 5u}) {
    for (const bool reshard : {true, false}) {
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

inline void for_each_options(const std::function<void(const PlanOptions&)>& body) {
  for (const Strategy strategy : all_strategies) {
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      for (const std::size_t ranks : {1u, 2u, 3u, 4u, 7u, 64u}) {
        for (const bool overlap : {true, false}) {
          PlanOptions options;
          options.strategy = strategy;
          options.precision = precision;
          options.ranks = ranks;
          options.overlap_reduction = overlap;
          for_each_gathering(options, [&](const PlanOptions& gathering) {
            for_each_accumulation(gathering,
                                  [&](const PlanOptions& accumulating) { for_each_bucket_cap(accumulating, body); });
          });
        }
      }
    }
  }
}

using PlanBody = std::function<void(const Model&, const PlanOptions&, const Plan&)>;

// Every `stride`th plan: with a prime, all values of all options and most of their pairs appear.
inline void for_each_nth_plan(std::size_t stride, const PlanBody& body) {
  std::size_t index = 0;
  for (const Model& model : all_models()) {
    for_each_options([&](const PlanOptions& options) {
      if (index++ % stride == 0) body(model, options, compile(input_of(model, options)));
    });
  }
}

// Enough for a property that does not depend on the finer points of a schedule.
inline void for_sampled_plans(const PlanBody& body) { for_each_nth_plan(53, body); }

}  // namespace tessera::plan
