// Counts every allocation of the test program that it is linked into, on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

std::size_t allocations_so_far();

std::int64_t live_blocks();  // of all threads
std::int64_t
live_bytes_of_this_thread();  // what it allocated less what it freed, as malloc rounded it: may be negative
