// Running one property of the conformance suite on ranks that are threads.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/run.hpp"

namespace tessera::conformance {

// What went wrong on any rank, one line each. A world that the property itself made fail leaves none.
inline std::vector<std::string> violations(const LaunchOptions& options, void (*property)(World&)) {
  std::mutex mutex;
  std::vector<std::string> lines;
  try {
    launch(options, [&](World& world) {
      try {
        property(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        lines.push_back("rank " + std::to_string(world.rank()) + ": " + error.what());
        throw;
      }
    });
  } catch (const std::exception&) {
    // Its text is among the lines, unless the property meant the world to fail.
  }
  return lines;
}

}  // namespace tessera::conformance
