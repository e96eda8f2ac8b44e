// An allocator around torch's own, with a block's size in front of it.
#include "src/tensor_memory.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

namespace tessera::torch {

namespace {

struct TensorTally {
  std::int64_t now = 0;
  std::int64_t begun = 0;
  std::int64_t most = 0;
};

thread_local TensorTally tally;
c10::DeleterFnPtr end_uncounted = nullptr;

// As far as torch aligns blocks.
constexpr std::size_t front = std::max<std::size_t>(64, c10::gAlignment);

void count_bytes(std::int64_t change) {
  tally.now += change;
  tally.most = std::max(tally.most, tally.now);
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
    if (bytes == 0) return counted_->allocate(0);
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

void TensorMemory::begin() {
  tally.begun = tally.now;
  tally.most = tally.now;
}

Bytes TensorMemory::most() { return Bytes(static_cast<std::uint64_t>(tally.most - tally.begun)); }

}  // namespace tessera::torch
