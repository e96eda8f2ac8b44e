// Counts every allocation of the test program that it is linked into, on any thread.
#pragma once

#include <cstddef>

std::size_t allocations_so_far();
