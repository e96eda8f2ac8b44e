// Tensors of the CPU take this on this thread, as torch itself reports it to profilers.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace tensor_bytes {

class Reports : public c10::MemoryReportingInfoBase {
 public:
  // The type of totals is std::int64_t in libtorch 1.13, std::size_t in later ones.
  template <typename Total>
  static Total type_of_totals(void (c10::MemoryReportingInfoBase::*)(void*, std::int64_t, Total, Total, c10::Device));
  using Total = decltype(type_of_totals(&c10::MemoryReportingInfoBase::reportMemoryUsage));

  void reportMemoryUsage(void*, std::int64_t change, Total, Total, c10::Device) override {
    now_ += change;
    most_ = std::max(most_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t most_ = 0;
};

// The most at once while it lives, of tensors made meanwhile.
class Peak {
 public:
  std::int64_t most() const { return reports_->most(); }

 private:
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, reports_};
};

}  // namespace tensor_bytes
