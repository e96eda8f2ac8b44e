// Names of options.
#include "tessera/plan/strategy.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

std::string to_string(const Sharding& sharding) {
  return fmt::format("parameters {}, gradients {}, optimizer {}", to_string(sharding.parameters),
                     to_string(sharding.gradients), to_string(sharding.optimizer));
}

std::string to_string(const Strategy& strategy, const std::optional<Sharding>& sharding) {
  return sharding ? to_string(*sharding) : std::string(strategy.name);
}

std::string to_string(const Resharding& resharding) {
  if (resharding == Resharding(true)) return "true";
  return resharding == Resharding(false) ? "false" : to_string(resharding.held);
}

std::string_view to_string(MemorySpace space) {
  switch (space) {
    case MemorySpace::device: return "device";
    case MemorySpace::host: return "host";
    case MemorySpace::disk: return "disk";
  }
  throw InternalError("a memory space without a name");
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

}  // namespace tessera
