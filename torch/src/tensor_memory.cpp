// An allocator around torch's own, with a block's size in front of it.
#include "src/tensor_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace tessera::torch {

namespace {

using Counts = std::vector<std::shared_ptr<TensorMemory::Count>>;

// Tensors may end when their thread has ended everything that has a destructor.
struct TensorTally {
  std::int64_t now = 0;
  Counts* counts = nullptr;  // null before the first, and when the thread has ended them
};

thread_local TensorTally tally;

Counts& counts_here() {
  struct Kept {
    Kept() { tally.counts = &counts; }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() { tally.counts = nullptr; }
    Counts counts;
  };
  thread_local Kept kept;
  return kept.counts;
}

c10::DeleterFnPtr end_uncounted = nullptr;

// Torch aligns blocks as far as this.
constexpr std::size_t front = std::max<std::size_t>(64, c10::gAlignment);

void count_bytes(std::int64_t change) {
  tally.now += change;
  if (tally.counts == nullptr) return;
  for (const auto& count : *tally.counts) count->most = std::max(count->most, tally.now);
}

void end_counted(void* block) {
  if (block == nullptr) return;
  std::byte* whole = static_cast<std::byte*>(block) - front;
  count_bytes(-*std::launder(reinterpret_cast<std::int64_t*>(whole)));
  end_uncounted(whole);
}

// Which of these are virtual, and which constant, is not the same in libtorch 1.13 and later ones.
// NOLINTBEGIN(modernize-use-override)
class CountedAllocator final : public c10::Allocator {
 public:
  explicit CountedAllocator(c10::Allocator* counted) : counted_(counted) {}

  c10::DataPtr allocate(std::size_t bytes) const {
    // With the front the largest sizes would wrap around to small ones; torch's own allocator refuses them.
    if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() - front) return counted_->allocate(bytes);
    auto* whole = static_cast<std::byte*>(counted_->raw_allocate(front + bytes));
    ::new (whole) std::int64_t(static_cast<std::int64_t>(bytes));
    count_bytes(static_cast<std::int64_t>(bytes));
    return {whole + front, whole + front, &end_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DataPtr allocate(std::size_t bytes) { return std::as_const(*this).allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return &end_counted; }
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }

 private:
  c10::Allocator* counted_;
};
// NOLINTEND(modernize-use-override)

// An allocator whose blocks end in more than one way stays alone. The one around it never ends, as tensors may.
[[maybe_unused]] const bool is_counted = [] {
  c10::Allocator* torchs = c10::GetCPUAllocator();
  end_uncounted = torchs->raw_deleter();
  if (end_uncounted == nullptr) return false;
  c10::SetCPUAllocator(std::make_unique<CountedAllocator>(torchs).release());
  return true;
}();

}  // namespace

TensorMemory::TensorMemory() : count_(std::make_shared<Count>()) {
  Counts& counts = counts_here();
  std::erase_if(counts, [](const auto& count) { return count.use_count() == 1; });
  counts.push_back(count_);
}

void TensorMemory::begin() { *count_ = {.begun = tally.now, .most = tally.now}; }

Bytes TensorMemory::most() const { return Bytes(static_cast<std::uint64_t>(count_->most - count_->begun)); }

}  // namespace tessera::torch
