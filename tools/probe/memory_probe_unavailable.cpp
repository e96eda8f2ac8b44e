// The probe where the allocators cannot be interposed: it says so, and every figure is 0.
#include "probe/memory_probe.hpp"

namespace tessera::probe {

bool available() { return false; }
Bytes measured(std::span<const std::byte>) { return Bytes(0); }
Bytes mapping_of(const void*) { return Bytes(0); }
Mappings mappings() { return {}; }
Heap heap() { return {}; }
Heap heap_of_this_thread() { return {}; }

AllocationWatch::AllocationWatch() = default;
AllocationWatch::~AllocationWatch() { stop(); }
void AllocationWatch::stop() { running_ = false; }
std::uint64_t AllocationWatch::count() const { return final_count_; }
std::string AllocationWatch::describe() { return "allocations cannot be watched in this build"; }

}  // namespace tessera::probe
