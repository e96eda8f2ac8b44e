// Tests that need the probe say so where a build has none.
#pragma once

#include <doctest/doctest.h>

#include "probe/memory_probe.hpp"

// Leaves the test case: under sanitizers, which interpose mmap themselves, there is nothing to measure with.
#define REQUIRE_PROBE()                                                  \
  if (!tessera::probe::available()) {                                    \
    MESSAGE("skipped: this build cannot interpose mmap (a sanitizer?)"); \
    return;                                                              \
  }
