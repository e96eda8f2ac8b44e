// Events of the CPU.
#include "device/cpu_event.hpp"

#include <utility>

namespace tessera::device {

CpuEvent::CpuEvent(std::string name) { record_.event_name = std::make_shared<const std::string>(std::move(name)); }

bool CpuEvent::complete() const { return recorded() && record_.progress->completed() >= record_.position; }

void CpuEvent::record(const std::shared_ptr<Progress>& progress, std::uint64_t position) {
  record_.progress = progress;
  record_.position = position;
}

std::unique_ptr<Event::Implementation> make_cpu_event(std::string name) {
  return std::make_unique<CpuEvent>(std::move(name));
}

}  // namespace tessera::device
