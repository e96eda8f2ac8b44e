// What strategies shard, and names of options.
#include "tessera/plan/strategy.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

std::string_view to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::ddp: return "ddp";
    case Strategy::zero1: return "zero1";
    case Strategy::zero2: return "zero2";
    case Strategy::fsdp: return "fsdp";
    case Strategy::hsdp: return "hsdp";
    case Strategy::hfsdp: return "hfsdp";
  }
  throw InternalError("a strategy without a name");
}

namespace {

std::string_view to_string(Extent extent) {
  switch (extent) {
    case Extent::whole: return "whole";
    case Extent::group: return "group";
    case Extent::mine: return "mine";
  }
  throw InternalError("an extent without a name");
}

}  // namespace

std::string to_string(const Sharding& sharding) {
  return fmt::format("parameters {}, gradients {}, optimizer {}", to_string(sharding.parameters),
                     to_string(sharding.gradients), to_string(sharding.optimizer));
}

std::string to_string(Strategy strategy, const std::optional<Sharding>& sharding) {
  return sharding ? to_string(*sharding) : std::string(to_string(strategy));
}

std::string_view to_string(const Resharding& resharding) {
  switch (resharding.held) {
    case Extent::whole: return "false";
    case Extent::group: return "group";
    case Extent::mine: return "true";
  }
  throw InternalError("an extent without a name");
}

Sharding sharding_of(Strategy strategy, std::size_t replicas) {
  using enum Extent;
  if (replicas == 1 && (strategy == Strategy::hsdp || strategy == Strategy::hfsdp)) strategy = Strategy::fsdp;
  switch (strategy) {
    case Strategy::ddp: return {.parameters = whole, .gradients = whole, .optimizer = whole};
    case Strategy::zero1:
    case Strategy::zero2: return {.parameters = whole, .gradients = mine, .optimizer = mine};
    case Strategy::fsdp: return {.parameters = mine, .gradients = mine, .optimizer = mine};
    case Strategy::hsdp: return {.parameters = group, .gradients = group, .optimizer = group};
    case Strategy::hfsdp: return {.parameters = group, .gradients = group, .optimizer = mine};
  }
  throw InternalError("a strategy that shards nothing known");
}

std::string_view to_string(AccumulationMode mode) {
  switch (mode) {
    case AccumulationMode::automatic: return "automatic";
    case AccumulationMode::reduced: return "reduced";
    case AccumulationMode::local: return "local";
  }
  throw InternalError("an accumulation mode without a name");
}

std::string_view to_string(Checkpointing checkpointing) {
  switch (checkpointing) {
    case Checkpointing::none: return "none";
    case Checkpointing::blocking: return "blocking";
    case Checkpointing::background: return "background";
  }
  throw InternalError("a kind of checkpointing without a name");
}

std::string_view to_string(CollectiveStaging staging) {
  switch (staging) {
    case CollectiveStaging::none: return "none";
    case CollectiveStaging::parts: return "parts";
    case CollectiveStaging::results: return "results";
  }
  throw InternalError("a kind of staging without a name");
}

Strategy strategy_from_string(std::string_view name) {
  for (const Strategy strategy : all_strategies) {
    if (name == to_string(strategy)) return strategy;
  }
  throw UsageError(fmt::format("unknown strategy \"{}\": choose ddp, zero1, zero2, fsdp, hsdp or hfsdp", name));
}

AccumulationMode accumulation_mode_from_string(std::string_view name) {
  for (const AccumulationMode mode :
       {AccumulationMode::automatic, AccumulationMode::reduced, AccumulationMode::local}) {
    if (name == to_string(mode)) return mode;
  }
  throw UsageError(fmt::format("unknown accumulation mode \"{}\": choose automatic, local or reduced", name));
}

}  // namespace tessera
